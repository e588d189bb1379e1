"""Observe a job: metrics of nodes, message traces, and discovery of running jobs."""
