"""Evaluation split out to a process of its own, by labels and by what the other one's ctx says.

The evaluator's loop is the document's, with a sleep and two reads that may see two versions: it
may take weights for a little newer than they are, never for older. `Task.wait_parallel_ctx` needs
neither.
"""

import os
import time

from torch.utils.tensorboard import SummaryWriter

from ding_lite.framework import Parallel, Task
from ding_lite.rl_utils import get_epsilon_greedy_fn
from tests.seeds.diengine import (
    AdvancedReplayBuffer,
    BaseLearner,
    BaseSerialEvaluator,
    SampleCollector,
    cfg,
    digest,
    quick_start,
)
from tests.seeds.diengine_4_ctx import collect


# Mended: it uses the task, which the document gives it in `main` and forgets here.
def evaluate(task, evaluator, model):
    last_train_iter = -1

    def _evaluate(ctx):
        # Mended: Python wants this before the first use of the name.
        nonlocal last_train_iter
        ctx.setdefault("envstep", -1)
        ctx.setdefault("train_iter", -1)

        if task.router.is_active:
            while True:
                if ctx.finish:
                    return
                if (
                    task.parallel_ctx.get("state_dict")
                    and task.parallel_ctx.get("train_iter") > last_train_iter
                ):
                    model.load_state_dict(task.parallel_ctx.state_dict)
                    # Mended: it was spelled `train_ter`.
                    ctx.train_iter = task.parallel_ctx.train_iter
                    ctx.envstep = task.parallel_ctx.envstep
                    last_train_iter = task.parallel_ctx.get("train_iter")
                    break
                time.sleep(0.01)

        if evaluator.should_eval(ctx.train_iter):
            stop, _reward = evaluator.eval(None, ctx.train_iter, ctx.envstep)
            if stop:
                ctx.finish = True
                return

    return _evaluate


def train(task, learner, model, replay_buffer):
    def _train(ctx):
        ctx.setdefault("envstep", -1)
        for _i in range(cfg.policy.learn.update_per_collect):
            train_data = replay_buffer.sample(
                learner.policy.get_attribute("batch_size"), learner.train_iter
            )
            if train_data is not None:
                learner.train(train_data, ctx.envstep)
                ctx.train_iter = learner.train_iter

                if task.router.is_active:
                    ctx.state_dict = model.state_dict()

        # Mended, as in the program with ctx: or it would never be time to evaluate in one process.
        ctx.keep("train_iter")

    return _train


def main(max_iterations=int(1e8)):
    policy, collector_env, evaluator_env = quick_start()
    model = policy.module

    tb_logger = SummaryWriter(os.path.join(f"./{cfg.exp_name}/log/", "serial"))
    learner = BaseLearner(
        cfg.policy.learn.learner, policy.learn_mode, tb_logger, exp_name=cfg.exp_name
    )
    collector = SampleCollector(
        cfg.policy.collect.collector,
        collector_env,
        policy.collect_mode,
        tb_logger,
        exp_name=cfg.exp_name,
    )
    evaluator = BaseSerialEvaluator(
        cfg.policy.eval.evaluator, evaluator_env, policy.eval_mode, tb_logger, exp_name=cfg.exp_name
    )
    replay_buffer = AdvancedReplayBuffer(
        cfg.policy.other.replay_buffer, tb_logger, exp_name=cfg.exp_name
    )
    eps_cfg = cfg.policy.other.eps
    epsilon_greedy = get_epsilon_greedy_fn(eps_cfg.start, eps_cfg.end, eps_cfg.decay, eps_cfg.type)

    with Task() as task:
        task.use(evaluate(task, evaluator, model), filter_labels=["standalone", "node.1"])
        task.use(
            collect(epsilon_greedy, collector, replay_buffer),
            filter_labels=["standalone", "node.0"],
        )
        task.use(train(task, learner, model, replay_buffer), filter_labels=["standalone", "node.0"])
        task.run(max_step=max_iterations)

    # Mended: the document lets train do it, which may have looked for finish when it comes.
    if task.match_labels(["standalone", "node.0"]):
        learner.save_checkpoint()
    # Mended: the writer was left open.
    tb_logger.close()
    return {
        "train_iter": learner.train_iter,
        "envstep": collector.envstep,
        "history": evaluator.history,
        "judged": evaluator.judged,
        "weights": digest(policy),
    }


if __name__ == "__main__":
    Parallel.runner(n_parallel_workers=2, topology="star")(main)
