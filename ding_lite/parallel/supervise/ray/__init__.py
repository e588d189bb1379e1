"""The Ray engine: run each node of a job as a Ray actor."""
