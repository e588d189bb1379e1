"""The topics by which nodes share the progress of a job."""

COLLECTED = "ding_lite/collected"
"""The env steps and episodes of a collector."""
ENV_STEP = "ctx/env_step"
"""The env steps of a node that collects by middleware of its own."""
TRAIN_ITER = "ctx/train_iter"
"""The updates of a learner."""
