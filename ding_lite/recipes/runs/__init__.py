"""A run of a training program: its directory, metrics, verdict and policy."""
