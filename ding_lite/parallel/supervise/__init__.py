"""Keep the nodes of a job alive: supervisor, fork server, node processes, and Ray."""
