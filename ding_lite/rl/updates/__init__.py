"""Updates from rollouts, as generators that yield what they ask for."""
