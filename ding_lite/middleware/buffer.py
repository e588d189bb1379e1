"""Put transitions into a replay, and hold training back until it holds enough."""

from __future__ import annotations

from ding_lite.errors import ConfigError
from ding_lite.middleware.checks import check_has
from ding_lite.rl.protocols import Replay
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all


def add_to(replay: Replay) -> Middleware:
    """Put the newest transitions into a replay.

    Context:
        reads: transitions
        writes: metrics (replay_size)

    Args:
        replay: Any object with `add(transitions)` and `len()`.

    Raises:
        ConfigError: `replay` is no replay.
    """
    check_has(replay, "add", "replay")

    def _add_to(ctx: Context) -> None:
        replay.add(ctx.transitions)
        ctx.metrics["replay_size"] = len(replay)

    return _add_to


def wait_for(replay: Replay, *, size: int) -> Middleware:
    """Hold training back until a replay holds enough transitions.

    The step goes on, so that the collector of the same pipeline can fill the replay, but every
    `train` further down does nothing. A `train` of your own reads the same key:
    `if ctx.get("warming_up"): return`. Place it after `add_to` and before `train`.

    Context:
        writes: warming_up

    Args:
        replay: The replay that is being filled.
        size: Transitions it must hold. More makes the first updates less lopsided and start
            later; 1,000 to 10,000 is usual.

    Raises:
        ConfigError: The replay can never hold that many.
    """
    check_has(replay, "sample", "replay")
    check_all(at_least(1, size=size))

    if size > replay.capacity:
        raise ConfigError(
            f"`size` is {size:,}, the capacity of the replay {replay.capacity:,}: training would "
            f"never begin. Wait for less, or give the replay more room."
        )

    def _wait_for(ctx: Context) -> None:
        if len(replay) < size:
            ctx.warming_up = True

    return _wait_for
