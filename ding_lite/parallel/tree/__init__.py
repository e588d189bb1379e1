"""Relay messages over the hubs of a tree topology."""
