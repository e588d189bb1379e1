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
from ding_lite.settings.rules import check_all, whole


def pull_weights(policy: Policy, server: GradientServer, *, every: int = 1) -> Middleware:
    """Load the newest weights of a gradient server into a policy.

    Context:
        reads: total_step
        writes: weights_version
        keeps: weights_version

    Args:
        policy: The policy that acts and computes gradients on this node.
        server: The gradient server.
        every: Steps of the pipeline from one pull to the next. More sends fewer messages, and
            computes gradients with older weights.

    Raises:
        ConfigError: `policy` is no policy, or a setting is out of range.
        DeadlineExceeded: In a step: the server was not reachable for too long.
    """
    check_has(policy, "load_weights", "policy")
    check_has(server, "pull", "server")
    check_all(whole(1, every=every))

    def _pull_weights(ctx: Context) -> None:
        if ctx.total_step % every == 0:
            server.pull(policy, until=lambda: ctx.finish)
        ctx.weights_version = server.pulled_version
        ctx.keep("weights_version")

    return _pull_weights


def push_gradients(policy: Policy, server: GradientServer) -> Middleware:
    """Compute the gradient of this step's trajectories, and push it to a gradient server.

    The server applies the gradient; the policy on this node is not changed until `pull_weights`
    loads the new weights. The call waits for the server's receipt. The metrics include those of
    the policy.

    Context:
        reads: train_iter, trajectories
        writes: train_data, train_iter, train_output, metrics (gradients_refused, staleness)
        keeps: train_iter

    Args:
        policy: Computes gradients with `gradients(trajectories)`: A2C, PPO or IMPALA.
        server: The gradient server.

    Raises:
        ConfigError: The policy has no `gradients`.
        DeadlineExceeded: In a step: the server was not reachable for too long.
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
    """Wait for updates on the node that owns the gradient server, and load the new weights.

    The rest of the pipeline can then evaluate, report and save the policy. It does not wait in a
    job of one node, or on a node that also pushes gradients, as it does so in a later step. On
    further nodes of the server, which only reduce gradients, it waits for the end of the job.

    Context:
        writes: train_iter, weights_version, metrics (gradients_applied, gradients_refused, \
staleness)
        keeps: train_iter, weights_version

    Args:
        policy: The policy of this pipeline; the server has a policy of its own.
        server: The gradient server; this node is one of its nodes.
        updates: Updates in a step.

    Raises:
        ConfigError: A setting is out of range; or, in a step, this node is none of the server's.
        DeadlineExceeded: In a step: no node pushes.
    """
    check_has(policy, "load_weights", "policy")
    check_has(server, "wait_for_updates", "server")
    check_all(whole(1, updates=updates))
    router = current_router()

    def _serve_gradients(ctx: Context) -> None:
        server.wait_for_updates(
            updates, until=lambda: server.is_agent or not router.has_audience or ctx.finish
        )
        if not server.is_owner:
            return
        server.copy_to(policy)
        ctx.train_iter = ctx.weights_version = server.version
        ctx.keep("train_iter", "weights_version")
        ctx.metrics["gradients_applied"] = server.num_applied
        ctx.metrics["gradients_refused"] = server.num_refused
        stalenesses = server.take_stalenesses()
        if stalenesses:
            ctx.metrics["staleness"] = sum(stalenesses) / len(stalenesses)

    return _serve_gradients
