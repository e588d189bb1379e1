"""Supervise the nodes of a job: supervisor, fork server, node processes, and Ray."""
