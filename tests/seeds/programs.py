"""The programs of the document about tasks, from a plain loop to processes of their own.

Each is the one before it taken further, as the document does it. `main` is what it says once for
all of them: the number of iterations is 1e8 as printed, and what was made is returned for a test
to look into. What was mended says so.
"""

import time

from ding_lite.framework import Task
from ding_lite.framework.wrapper import StepTimer
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

FOREVER = int(1e8)


def make_parts():
    policy, collector_env, evaluator_env = quick_start()
    learner = BaseLearner(policy.learn_mode, exp_name=cfg.exp_name)
    collector = SampleCollector(cfg.policy.collect.collector, collector_env, policy.collect_mode)
    evaluator = BaseSerialEvaluator(cfg.policy.eval.evaluator, evaluator_env, policy.eval_mode)
    replay_buffer = AdvancedReplayBuffer(cfg.policy.other.replay_buffer)
    eps_cfg = cfg.policy.other.eps
    epsilon_greedy = get_epsilon_greedy_fn(eps_cfg.start, eps_cfg.end, eps_cfg.decay, eps_cfg.type)
    return learner, collector, evaluator, replay_buffer, epsilon_greedy


def updates(learner, replay_buffer, envstep):
    """Make the updates that follow a collection; yield behind each."""
    for _i in range(cfg.policy.learn.update_per_collect):
        train_data = replay_buffer.sample(learner.policy.get_attribute("batch_size"))
        if train_data is not None:
            learner.train(train_data, envstep)
            yield


def serial(max_iterations=FOREVER):
    """The loop before there is a task: what the next programs are taken apart from."""
    learner, collector, evaluator, replay_buffer, epsilon_greedy = make_parts()
    for _ in range(max_iterations):
        if evaluator.should_eval(learner.train_iter):
            stop, _reward = evaluator.eval(learner.train_iter, collector.envstep)
            if stop:
                break
        new_data = collector.collect(policy_kwargs={"eps": epsilon_greedy(collector.envstep)})
        replay_buffer.push(new_data)
        for _ in updates(learner, replay_buffer, collector.envstep):
            pass
    return learner, collector, evaluator


# -- decoupled: what they tell each other stands on ctx -------------------------------------


def evaluate(evaluator):
    def _evaluate(ctx):
        ctx.setdefault("envstep", -1)
        ctx.setdefault("train_iter", -1)
        if evaluator.should_eval(ctx.train_iter):
            stop, _reward = evaluator.eval(ctx.train_iter, ctx.envstep)
            if stop:
                ctx.finish = True

    return _evaluate


def collect(epsilon_greedy, collector, replay_buffer):
    def _collect(ctx):
        new_data = collector.collect(policy_kwargs={"eps": epsilon_greedy(collector.envstep)})
        replay_buffer.push(new_data)
        ctx.envstep = collector.envstep
        # Mended: without this the next step's evaluate, which comes first, would find -1 ...
        ctx.keep("envstep")

    return _collect


def train(learner, replay_buffer, publish=lambda ctx: None):
    def _train(ctx):
        ctx.setdefault("envstep", -1)
        for _ in updates(learner, replay_buffer, ctx.envstep):
            ctx.train_iter = learner.train_iter
            publish(ctx)
        # ... and here likewise, so that it would never be time to evaluate.
        ctx.keep("train_iter")

    return _train


def decoupled(max_iterations=FOREVER):
    """Three middleware, of which each knows its own objects only.

    Once `evaluate` has set `finish` the step still goes on to its end: where the loop stopped,
    `collect` and `train` take one more turn here.
    """
    learner, collector, evaluator, replay_buffer, epsilon_greedy = make_parts()
    learn = train(learner, replay_buffer)

    def train_and_save(ctx):
        learn(ctx)
        if ctx.finish:
            learner.save_checkpoint()

    with Task() as task:
        task.use(evaluate(evaluator))
        task.use(collect(epsilon_greedy, collector, replay_buffer))
        task.use(train_and_save)
        # Mended: the number was called max_iterations above and max_iteration here.
        task.run(max_step=max_iterations)
    return learner, collector, evaluator


def magic(max_iterations=FOREVER, async_mode=False):
    """One line shows what each middleware takes, one argument runs all of a step at once."""
    learner, collector, evaluator, replay_buffer, epsilon_greedy = make_parts()
    learn = train(learner, replay_buffer)

    def _train(ctx):
        learn(ctx)
        # Mended: in async mode evaluate may set finish after train has looked, and then
        # nothing would be saved. On the way out, behind the barrier, all are done.
        yield
        if ctx.finish:
            learner.save_checkpoint()

    with Task(async_mode=async_mode) as task:
        task.use_step_wrapper(StepTimer(print_per_step=1))  # the one line
        task.use(evaluate(evaluator))
        task.use(collect(epsilon_greedy, collector, replay_buffer))
        task.use(_train)
        task.run(max_step=max_iterations)
    return learner, collector, evaluator


# -- on several processes ------------------------------------------------------------------


def results_of(learner, collector, evaluator):
    return {
        "train_iter": learner.train_iter,
        "envstep": collector.envstep,
        "history": evaluator.history,
        "judged": evaluator.judged,
        "weights": digest(learner.policy),
    }


# Mended: it uses the task, which the document gives it in `main` and forgets here.
def evaluate_elsewhere(task, evaluator, model):
    """Evaluate the weights that the other one's ctx says.

    The loop is the document's, with a sleep and two reads that may see two versions: it may take
    weights for a little newer than they are, never for older. `Task.wait_parallel_ctx` needs
    neither.
    """
    last_train_iter = -1
    judge = evaluate(evaluator)

    def _evaluate(ctx):
        # Mended: Python wants this before the first use of the name.
        nonlocal last_train_iter
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
        judge(ctx)

    return _evaluate


def elsewhere(max_iterations=FOREVER):
    """Evaluation split out to a process of its own, by labels."""
    learner, collector, evaluator, replay_buffer, epsilon_greedy = make_parts()
    model = learner.policy.module

    def publish(ctx):
        if task.router.is_active:
            ctx.state_dict = model.state_dict()

    with Task() as task:
        alone_or_0 = ["standalone", "node.0"]
        judge = evaluate_elsewhere(task, evaluator, model)
        task.use(judge, filter_labels=["standalone", "node.1"])
        task.use(collect(epsilon_greedy, collector, replay_buffer), filter_labels=alone_or_0)
        task.use(train(learner, replay_buffer, publish), filter_labels=alone_or_0)
        task.run(max_step=max_iterations)

    # Mended: the document lets train do it, which may have looked for finish when it comes.
    if task.match_labels(alone_or_0):
        learner.save_checkpoint()
    return results_of(learner, collector, evaluator)
