"""Train a policy on a gradient server: push gradients, pull weights (A3C)."""

from __future__ import annotations

from ding_lite.distributed.gradient_server import GradientServer
from ding_lite.errors import ConfigError, kind_of
from ding_lite.middleware.checks import check_has
from ding_lite.rl.host_or_device import unread
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all


def pull_weights(policy: Policy, server: GradientServer, *, every: int = 1) -> Middleware:
    """Let a policy act, and learn, by the newest weights of a gradient server.

    Context:
        reads: total_step
        writes: weights_version
        keeps: weights_version

    Args:
        policy: The one that acts here.
        server: Holds the weights.
        every: Steps of the pipeline from one look to the next. More asks less often, and lets
            gradients be of older weights.

    Raises:
        ConfigError: `policy` is no policy, or a setting is out of range.
        DeadlineExceeded: In a step: the server is gone for too long.
    """
    check_has(policy, "load_weights", "policy")
    check_has(server, "pull", "server")
    check_all(at_least(1, every=every))

    def _pull_weights(ctx: Context) -> None:
        if ctx.total_step % every == 0:
            server.pull(policy, until=lambda: ctx.finish)
        ctx.weights_version = server.pulled_version
        ctx.keep("weights_version")

    return _pull_weights


def push_gradients(policy: Policy, server: GradientServer) -> Middleware:
    """Compute the gradient of this step's trajectories, and let a server step along it.

    The policy here stays as it is: `pull_weights` brings what became of it. It waits for the
    server's receipt, and for nothing else. The metrics say too what the policy reports.

    Context:
        reads: train_iter, trajectories
        writes: train_data, train_iter, train_output, metrics (gradients_refused, staleness)
        keeps: train_iter

    Args:
        policy: Computes gradients with `gradients(trajectories)`: A2C, PPO or IMPALA.
        server: Gets them.

    Raises:
        ConfigError: The policy has no `gradients`.
        DeadlineExceeded: In a step: the server is gone for too long.
    """
    gradients = getattr(policy, "gradients", None)
    check_has(server, "push", "server")
    if not callable(gradients):
        raise ConfigError(
            f"`policy` is {kind_of(policy)}, which cannot compute a gradient without "
            f"stepping along it: it has no `gradients`. Give an A2C."
        )
    refused = 0

    def _push_gradients(ctx: Context) -> None:
        nonlocal refused
        train_iter = ctx.setdefault("train_iter", 0)
        ctx.keep("train_iter")
        trajectories = ctx.get("trajectories")
        if not trajectories:
            return
        grad_P, output = gradients(trajectories)
        receipt = server.push(grad_P, until=lambda: ctx.finish)
        if receipt is None:
            return
        refused += not receipt.is_applied
        ctx.train_iter = train_iter + receipt.is_applied
        ctx.train_data, ctx.train_output = trajectories, output
        ctx.metrics.update(unread(output))
        ctx.metrics["staleness"] = receipt.staleness
        ctx.metrics["gradients_refused"] = refused

    return _push_gradients


def serve_gradients(policy: Policy, server: GradientServer, *, updates: int = 25) -> Middleware:
    """Wait on the server's owner until others have improved the weights, and load them here.

    So the rest of the pipeline may evaluate, report and save the policy. In a job of one node
    it does not wait, as no other node pushes.

    Context:
        writes: train_iter, weights_version, metrics (gradients_applied, gradients_refused, \
staleness)
        keeps: train_iter, weights_version

    Args:
        policy: The one of this pipeline; the server's own is another one.
        server: Its owner is this node.
        updates: Updates in a step.

    Raises:
        ConfigError: A setting is out of range; or, in a step, this node is not the owner.
        DeadlineExceeded: In a step: no node pushes.
    """
    check_has(policy, "load_weights", "policy")
    check_has(server, "wait_for_updates", "server")
    check_all(at_least(1, updates=updates))
    router = current_router()

    def _serve_gradients(ctx: Context) -> None:
        server.wait_for_updates(updates, until=lambda: not router.has_audience or ctx.finish)
        server.copy_to(policy)
        ctx.train_iter = ctx.weights_version = server.version
        ctx.keep("train_iter", "weights_version")
        ctx.metrics["gradients_applied"] = server.num_applied
        ctx.metrics["gradients_refused"] = server.num_refused
        stalenesses = server.take_stalenesses()
        if stalenesses:
            ctx.metrics["staleness"] = sum(stalenesses) / len(stalenesses)

    return _serve_gradients
