"""Policies: one algorithm a file, from the settings to the loss."""
