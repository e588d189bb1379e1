"""Three processes, each of which does the same, connected in a star with the first as its hub."""

from ding_lite.framework import Parallel
from tests.seeds import diengine_4_ctx
from tests.seeds.diengine import cfg, digest


def main(max_iterations=int(1e8)):
    # Mended: the three would write into one log and over each other's checkpoint.
    cfg.exp_name = f"{cfg.exp_name}_{Parallel().node_id}"
    learner, collector, evaluator = diengine_4_ctx.main(max_iterations)
    return {
        "train_iter": learner.train_iter,
        "envstep": collector.envstep,
        "history": evaluator.history,
        "weights": digest(learner.policy),
    }


if __name__ == "__main__":
    Parallel.runner(n_parallel_workers=3, topology="star")(main)
