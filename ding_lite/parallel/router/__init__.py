"""Route events, ctx values, calls and stream items between nodes; groups of nodes."""
