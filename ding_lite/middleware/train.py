"""Improve a policy from what it has experienced."""

from __future__ import annotations

from ding_lite.errors import ConfigError
from ding_lite.middleware.checks import check_has
from ding_lite.rl.protocols import Policy, Replay
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all


def train(
    policy: Policy,
    replay: Replay | None = None,
    *,
    batch_size: int | None = None,
    updates: int = 1,
) -> Middleware:
    """Improve a policy from replay, or, without one, from this step's transitions.

    Nothing happens in a step in which the replay holds fewer transitions than a batch, or in
    which `wait_for` holds training back. What the newest update reports goes into the metrics
    as it is: a value that still lives on a device is fetched only when somebody reports it.

    Context:
        reads: train_iter, transitions (without a replay), warming_up
        writes: train_data, train_iter, train_output, metrics (what the policy reports)
        keeps: train_iter

    Args:
        policy: Learns with `learn(batch)`.
        replay: Sampled once an update.
        batch_size: Transitions in an update; the policy's own setting by default. Larger is
            steadier and costs more; 32 to 256 is usual.
        updates: Updates in a step. More learns more from each env step, and at some point
            learns the replay by heart; one for every 1 to 16 env steps is usual.

    Raises:
        ConfigError: A setting is out of range, or the batch is larger than the replay can get.
        NonFiniteError: In a step: the loss is no longer finite.
    """
    check_has(policy, "learn", "policy")
    check_all(at_least(1, updates=updates))
    size = _batch_size(policy, replay, batch_size)

    def _train(ctx: Context) -> None:
        train_iter = ctx.setdefault("train_iter", 0)
        ctx.keep("train_iter")
        available = ctx.transitions if replay is None else replay
        if len(available) < size or ctx.get("warming_up"):
            return

        for _ in range(updates):
            ctx.train_data = ctx.transitions if replay is None else replay.sample(size)
            ctx.train_output = policy.learn(ctx.train_data)
        ctx.train_iter = train_iter + updates
        ctx.metrics.update(ctx.train_output)

    return _train


def _batch_size(policy: Policy, replay: Replay | None, batch_size: int | None) -> int:
    """Return how many transitions an update needs, once that is known to be possible."""
    if replay is None:
        if batch_size is not None:
            raise ConfigError(
                f"`batch_size` is {batch_size}, but there is no replay to sample that many from: "
                f"an update takes all transitions of the step. Give `train` a replay too."
            )
        return 1

    check_has(replay, "sample", "replay")
    size: int = policy.config.batch_size if batch_size is None else batch_size
    check_all(at_least(1, batch_size=size))
    if size > replay.capacity:
        raise ConfigError(
            f"`batch_size` is {size:,}, the capacity of the replay {replay.capacity:,}: a batch "
            f"would never be full. Make the batch smaller or the replay larger."
        )
    return size
