"""Checks of what environments return."""
