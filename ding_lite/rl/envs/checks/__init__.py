"""Checks of the values that environments return."""
