"""Save a run, and resume it."""
