"""Networks: a torso reads the observation, a head answers what the policy asks."""
