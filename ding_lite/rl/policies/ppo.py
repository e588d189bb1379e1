"""PPO: several updates from each rollout, each bounded by a clipped probability ratio.

Schulman et al. 2017 (arXiv:1707.06347), with the advantages of Schulman et al. 2016
(arXiv:1506.02438).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from ding_lite.errors import ConfigError
from ding_lite.rl.batch import Rollout
from ding_lite.rl.formulas.advantages import normalized
from ding_lite.rl.host_or_device import Metrics, Number, namespace, number
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy, Forward, Updates
from ding_lite.rl.policies.actor_critic_config import ActorCriticConfig
from ding_lite.rl.recorded.actor_critic import Unroll
from ding_lite.rl.replay.rollouts import Minibatch, merged
from ding_lite.rl.weights.compiled import CapturedUpdate, Inputs, Outputs
from ding_lite.settings import check_all, inside, positive, suggests, whole

_COLUMNS = ("obs", "action", "log_prob_B", "advantage_B", "target_B")
"""The columns of a minibatch that an update reads beside its sequences."""


@suggests
@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Settings of PPO. The defaults suit small tasks such as CartPole."""

    lr: float = 2e-3
    """Adam's step size. Higher learns faster, too high forgets; 1e-4 to 2e-3 are usual, and the
    larger the network, the lower."""
    gae_lambda: float = 0.95
    """Lambda of GAE: 0 relies on the values, 1 on the rewards; 0.9 to 0.97 are usual."""
    clip: float = 0.2
    """The bound on the relative change of an action's probability in all updates of a rollout;
    beyond it the gradient is 0. 0.1 to 0.3 are usual."""
    epochs: int = 4
    """Passes over each rollout. More learns more from each env step and takes longer; 3 to 20 are
    usual."""
    batch_size: int = 64
    """The env steps of one update. Fewer are more updates an epoch; 64 to 4,096 are
    usual. With `memory` they are whole sequences, of one environment at least."""
    normalize_advantage: bool = True
    """Normalise the advantages of an update to mean 0 and standard deviation 1, so that the scale
    of rewards does not matter."""
    target_kl: float | None = None
    """Skip the rest of a rollout's updates once the policy's divergence from the one that collected
    it is above this, in nats; 0.01 to 0.05 are usual. None does all updates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all(
            inside(0.0, 1.0, gae_lambda=self.gae_lambda),
            positive(clip=self.clip),
            whole(1, epochs=self.epochs, batch_size=self.batch_size),
            [] if self.target_kl is None else positive(target_kl=self.target_kl),
        )


class PPO(ActorCriticPolicy[PPOConfig]):
    """On-policy actor-critic for discrete or continuous actions; several updates per rollout.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> envs = make_envs("Pendulum-v1", 2)
        >>> action, log_prob = PPO(envs.spec).explore(envs.obs)
        >>> action.shape, log_prob.shape
        ((2, 1), (2,))
    """

    _config_type = PPOConfig

    def _captured(self) -> CapturedUpdate | None:
        if self._is_captured and self.config.target_kl is not None:
            raise ConfigError(
                '`compile="graph"` captures updates, and with `target_kl` the host looks at each '
                "of them before its step. Leave one of the two out."
            )
        return super()._captured()

    def learn(self, rollouts: Sequence[Rollout], /) -> Metrics:
        """Go `epochs` times through all env steps, in minibatches, with a step of Adam for each.

        With the ratio r of an action's probability to what it was, the loss is
        -mean(min(r A, clip(r, 1 - clip, 1 + clip) A)) + value_coef mean((V(x) - target)^2)
        - entropy_coef H. Advantages and targets are computed once, before the first step.

        Args:
            rollouts: All of the same length.

        Returns:
            Of the last minibatch `loss`, its parts `policy_loss`, `value_loss` and `entropy`,
            `approx_kl` (the divergence from the policy that collected, in nats), `clip_fraction`
            (the share of actions beyond the clip) and `grad_norm`.

        Raises:
            ShapeError: If they are not of the environment it was made for.
            NonFiniteError: If a loss is NaN or infinite. That step is not taken then.
        """
        return self._answered(self._updates(rollouts))

    def _updates(self, rollouts: Sequence[Rollout]) -> Updates[Metrics]:
        rollout = self._joined(rollouts)
        rows = yield from self._rows(self._ready(rollout))
        values: dict[str, Number] = {}
        limit = self.config.target_kl
        for part in self._minibatches(rows):
            if self._graph is not None:
                values = self._replay(part)
                continue
            values = yield from self._compute(part)
            if limit is not None and float(values["approx_kl"]) > limit:
                break
            values["grad_norm"] = self._improve(values["loss"])
        self._has_seen(rollout)
        return self._metrics(values)

    def _replay(self, part: Minibatch) -> dict[str, Number]:
        inputs = {name: getattr(part, name) for name in _COLUMNS}
        if part.unroll is not None:
            inputs |= {"state_NS": part.unroll.state_NS, "ended_TN": part.unroll.ended_TN}
        self._optimizer.lr = self._lr_at(self.train_iter)
        values = self._run_update(inputs)
        self._note_skip(values.pop("skip"))
        self.train_iter += 1
        return values

    def _update(self, inputs: Inputs) -> Outputs:
        """Do an update of a minibatch, but for what the host counts."""
        columns = {name: inputs[name] for name in _COLUMNS}
        unroll = Unroll(inputs["state_NS"], inputs["ended_TN"]) if "state_NS" in inputs else None
        values = self._answered(self._compute(Minibatch(**columns, unroll=unroll)))
        values["grad_norm"], values["skip"] = self._clipped(values["loss"])
        self._optimizer.step(self._grad_P, skip=values["skip"])
        return values

    def gradients(self, unrolls: Sequence[Rollout]) -> tuple[Tensor, Metrics]:
        """Compute the gradient of all env steps at once, [P], and its metrics; change nothing."""
        with self._keeping_buffers():
            rows = self._answered(self._rows(self._ready(self._joined(unrolls))))
            values = self._answered(self._compute(rows))
        return self._net.grads.flat.clone(), self._metrics(values)

    def _rows(self, rollout: Rollout) -> Updates[Minibatch]:
        values = yield from self._values_of(rollout)
        advantage_B, target_B = self._gae(rollout, *values, gae_lambda=self.config.gae_lambda)
        return Minibatch(
            merged(rollout.obs),
            merged(rollout.action),
            merged(rollout.log_prob),
            advantage_B,
            target_B,
            self._unroll_of(rollout),
        )

    def _minibatches(self, rows: Minibatch) -> Iterator[Minibatch]:
        for _ in range(self.config.epochs):
            yield from rows.split(self.config.batch_size, self._rng)

    def _compute(self, rows: Minibatch) -> Updates[dict[str, Number]]:
        config, size = self.config, len(rows)
        outputs_BD, value_B, saved = yield Forward(rows.obs, rows.unroll)
        advantage_B = rows.advantage_B
        if config.normalize_advantage:
            advantage_B = normalized(advantage_B)

        xp = namespace(advantage_B)
        likely = self._distribution.judge(outputs_BD, rows.action)
        log_ratio_B = likely.log_prob_B - rows.log_prob_B
        ratio_B = xp.exp(log_ratio_B)
        gain_B = ratio_B * advantage_B
        clipped_B = ratio_B.clip(1.0 - config.clip, 1.0 + config.clip)
        clipped_gain_B = clipped_B * advantage_B
        is_pulled_B = gain_B <= clipped_gain_B
        loss = -number(xp.minimum(gain_B, clipped_gain_B).sum()) / size
        grad_B = gain_B * is_pulled_B * (-1.0 / size)
        error_B = value_B - rows.target_B
        values = yield from self._write_gradient(saved, likely, loss, grad_B, error_B)
        values["approx_kl"] = number((ratio_B - 1.0 - log_ratio_B).sum()) / size
        values["clip_fraction"] = 1.0 - number(xp.count_nonzero(clipped_B == ratio_B)) / size
        return values
