"""Formulas of the field: returns, losses, distributions, exploration and schedules."""
