"""Updates from rollouts, as generators that yield requests."""
