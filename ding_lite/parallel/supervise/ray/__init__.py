"""Ray as the engine that places the nodes of a job."""
