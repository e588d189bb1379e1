"""The loop before there is a task: what the next programs are taken apart from.

As in all of them `main` takes the number of iterations, 1e8 as printed, and returns what it
made, for a test to look into.
"""

import os

from torch.utils.tensorboard import SummaryWriter

from ding_lite.rl_utils import get_epsilon_greedy_fn
from tests.seeds.diengine import (
    AdvancedReplayBuffer,
    BaseLearner,
    BaseSerialEvaluator,
    SampleCollector,
    cfg,
    quick_start,
)


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
    for _ in range(max_iterations):
        if evaluator.should_eval(learner.train_iter):
            stop, _reward = evaluator.eval(
                learner.save_checkpoint, learner.train_iter, collector.envstep
            )
            if stop:
                break
        eps = epsilon_greedy(collector.envstep)
        new_data = collector.collect(train_iter=learner.train_iter, policy_kwargs={"eps": eps})
        replay_buffer.push(new_data, cur_collector_envstep=collector.envstep)
        for _i in range(cfg.policy.learn.update_per_collect):
            train_data = replay_buffer.sample(
                learner.policy.get_attribute("batch_size"), learner.train_iter
            )
            if train_data is not None:
                learner.train(train_data, collector.envstep)

    # Mended: the writer was left open.
    tb_logger.close()
    return learner, collector, evaluator
