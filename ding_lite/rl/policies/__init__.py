"""Policies: one file each, from the settings to the loss."""
