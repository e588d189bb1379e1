"""Launch a job: its plan, external launchers, rendezvous and elastic membership."""
