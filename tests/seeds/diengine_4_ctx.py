"""The same three middleware, decoupled: what they tell each other stands on ctx."""

import os

from torch.utils.tensorboard import SummaryWriter

from ding_lite.framework import Task
from ding_lite.rl_utils import get_epsilon_greedy_fn
from tests.seeds.diengine import (
    AdvancedReplayBuffer,
    BaseLearner,
    BaseSerialEvaluator,
    SampleCollector,
    cfg,
    quick_start,
)


def evaluate(evaluator):
    def _evaluate(ctx):
        ctx.setdefault("envstep", -1)
        ctx.setdefault("train_iter", -1)
        if evaluator.should_eval(ctx.train_iter):
            stop, _reward = evaluator.eval(None, ctx.train_iter, ctx.envstep)
            if stop:
                ctx.finish = True
                return

    return _evaluate


def collect(epsilon_greedy, collector, replay_buffer):
    def _collect(ctx):
        ctx.setdefault("train_iter", -1)
        eps = epsilon_greedy(collector.envstep)
        new_data = collector.collect(train_iter=ctx.train_iter, policy_kwargs={"eps": eps})
        replay_buffer.push(new_data, cur_collector_envstep=collector.envstep)
        ctx.envstep = collector.envstep
        # Mended: without this the next step's evaluate, which comes first, would find -1 ...
        ctx.keep("envstep")

    return _collect


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
        # ... and here likewise, so that it would never be time to evaluate.
        ctx.keep("train_iter")
        if ctx.finish:
            learner.save_checkpoint()

    return _train


def main(max_iterations=int(1e8)):
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

    with Task() as task:
        task.use(evaluate(evaluator))
        task.use(collect(epsilon_greedy, collector, replay_buffer))
        task.use(train(learner, replay_buffer))
        # Mended: the number was called max_iterations above and max_iteration here.
        task.run(max_step=max_iterations)

    # Mended: the writer was left open.
    tb_logger.close()
    return learner, collector, evaluator
