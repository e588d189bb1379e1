"""Detect the launcher of this process from its environment; one module a launcher."""
