"""Messages between nodes, as the runtime sees them: labels, events, streams and routers."""
