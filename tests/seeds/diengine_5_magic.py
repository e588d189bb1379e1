"""One line shows what each middleware takes, one argument runs all of a step at the same time."""

import os

from torch.utils.tensorboard import SummaryWriter

from ding_lite.framework import Task
from ding_lite.framework.wrapper import StepTimer
from ding_lite.rl_utils import get_epsilon_greedy_fn
from tests.seeds.diengine import (
    AdvancedReplayBuffer,
    BaseLearner,
    BaseSerialEvaluator,
    SampleCollector,
    cfg,
    quick_start,
)
from tests.seeds.diengine_4_ctx import collect, evaluate


def train(learner, replay_buffer):
    def _train(ctx):
        ctx.setdefault("envstep", -1)
        for _i in range(cfg.policy.learn.update_per_collect):
            train_data = replay_buffer.sample(
                learner.policy.get_attribute("batch_size"), learner.train_iter
            )
            if train_data is not None:
                learner.train(train_data, ctx.envstep)
                ctx.train_iter = learner.train_iter
        ctx.keep("train_iter")
        # Mended: in async mode evaluate may set finish after train has looked, and then nothing
        # would be saved. On the way out, behind the barrier, all are done.
        yield
        if ctx.finish:
            learner.save_checkpoint()

    return _train


def main(max_iterations=int(1e8), async_mode=False):
    policy, collector_env, evaluator_env = quick_start()

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

    with Task(async_mode=async_mode) as task:
        task.use_step_wrapper(StepTimer(print_per_step=1))  # the one line
        task.use(evaluate(evaluator))
        task.use(collect(epsilon_greedy, collector, replay_buffer))
        task.use(train(learner, replay_buffer))
        task.run(max_step=max_iterations)

    # Mended: the writer was left open.
    tb_logger.close()
    return learner, collector, evaluator
