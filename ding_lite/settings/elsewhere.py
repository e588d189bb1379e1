"""Names of settings in other libraries, with their names here."""

from __future__ import annotations

from collections.abc import Collection

from ding_lite.errors import did_you_mean

SETTINGS = {
    "learning_rate": "lr",
    "discount": "gamma",
    "discount_factor": "gamma",
    "buffer_size": "capacity",
    "memory_size": "capacity",
    "replay_size": "capacity",
    "learning_starts": "warmup",
    "start_steps": "warmup",
    "gradient_steps": "update_ratio",
    "train_freq": "update_ratio",
    "train_frequency": "update_ratio",
    "n_steps": "unroll",
    "num_steps": "unroll",
    "rollout_fragment_length": "unroll",
    "clip_range": "clip",
    "clip_coef": "clip",
    "clip_param": "clip",
    "num_sgd_iter": "epochs",
    "num_minibatches": "batch_size",
    "norm_adv": "normalize_advantage",
    "exploration_fraction": "epsilon_steps",
    "exploration_final_eps": "epsilon_end",
    "end_e": "epsilon_end",
    "start_e": "epsilon_start",
    "target_update_interval": "target_every",
    "net_arch": "hidden",
    "hidden_size": "hidden",
    "hidden_sizes": "hidden",
    "lr": "actor_lr",
    "tau": "target_tau",
    "action_noise": "noise",
    "exploration_noise": "noise",
    "policy_noise": "target_noise",
    "noise_clip": "target_noise_clip",
    "policy_freq": "policy_delay",
    "ent_coef": "alpha",
}


def meant_setting(name: str, known: Collection[str]) -> str:
    """Suggest the known setting that has this name elsewhere, or else the closest one."""
    meant = SETTINGS.get(name.lower(), "")
    if meant not in known:
        meant = SETTINGS.get(meant, "")  # such as lr, which may be actor_lr
    return f' Did you mean "{meant}"?' if meant in known else did_you_mean(name, known)
