"""Who gets what: events, ctx values, calls, items of streams, and groups of nodes."""
