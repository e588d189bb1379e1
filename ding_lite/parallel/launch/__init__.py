"""From one call to N nodes: the plan, launchers of others, rendezvous and elastic jobs."""
