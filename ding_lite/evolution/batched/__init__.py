"""Policies of one architecture that act and learn as one computation."""
