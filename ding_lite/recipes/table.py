"""Recipes of policies, and the one of a policy that is given by its name, class or function."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ding_lite.errors import ConfigError, did_you_mean, kind_of
from ding_lite.io.importing import find_member
from ding_lite.options.run_options import MAX_ENV_STEPS, MAX_ENV_STEPS_OF_EVOLUTION
from ding_lite.recipes.evolve_config import (
    EvolutionConfig,
    ReplayEvolutionConfig,
    RolloutEvolutionConfig,
    SequenceEvolutionConfig,
)
from ding_lite.recipes.presets.actor_critic import A2C_PRESETS, IMPALA_PRESETS, PPO_PRESETS
from ding_lite.recipes.presets.box import DDPG_PRESETS, SAC_PRESETS, TD3_PRESETS
from ding_lite.recipes.presets.dqn import DQN_EVOLUTION_PRESETS, DQN_PRESETS, R2D2_PRESETS
from ding_lite.recipes.presets.sizes import sizes_for_boxes, sizes_for_images
from ding_lite.recipes.train_config import (
    OffPolicyConfig,
    OnPolicyConfig,
    SequenceConfig,
    ShortRolloutConfig,
    SingleConfig,
    TrainConfig,
)
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.policies.a2c import A2C, A2CConfig
from ding_lite.rl.policies.base.open_policy import OpenPolicy
from ding_lite.rl.policies.ddpg import DDPG, DDPGConfig
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.policies.impala import IMPALA, IMPALAConfig
from ding_lite.rl.policies.ppo import PPO, PPOConfig
from ding_lite.rl.policies.sac import SAC, SACConfig
from ding_lite.rl.policies.td3 import TD3, TD3Config
from ding_lite.rl.protocols import ActorCritic, LearnsFromSequences, Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.config import config_type
from ding_lite.rl.torch_policies.r2d2 import R2D2, R2D2Config
from ding_lite.rl.torch_policies.rollout_policy import TorchRolloutPolicy
from ding_lite.rl.torch_policies.torch_policy import TorchPolicy
from ding_lite.rl.torch_random import TorchRandom
from ding_lite.rl.wrong_calls import takes

_OF_A_LONE_RUN = ("max_env_steps", "num_envs", "eval_every", "eval_episodes", "update_ratio")
"""Options and settings in presets of a single policy that do not suit a population."""


@dataclass(frozen=True)
class Recipe:
    """The classes and presets that train one kind of policy."""

    policy: Callable[..., Policy]
    """The policy's class, or a function that makes it from the spec and its settings."""
    policy_config: type[Any]
    """The class of the policy's settings; it has a field `seed`."""
    config: type[TrainConfig]
    """The class of the settings of training."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings and options for an environment, by its id."""
    sizes: Callable[[EnvSpec], Mapping[str, Any]] | None = None
    """Returns settings for the spaces of an environment without a preset."""
    max_env_steps: int = MAX_ENV_STEPS
    """The default maximum of env steps."""


RECIPES: dict[str, Recipe] = {
    "dqn": Recipe(DQN, DQNConfig, OffPolicyConfig, DQN_PRESETS, sizes_for_images),
    "ddpg": Recipe(DDPG, DDPGConfig, OffPolicyConfig, DDPG_PRESETS, sizes_for_boxes),
    "td3": Recipe(TD3, TD3Config, OffPolicyConfig, TD3_PRESETS, sizes_for_boxes),
    "sac": Recipe(SAC, SACConfig, OffPolicyConfig, SAC_PRESETS, sizes_for_boxes),
    "a2c": Recipe(A2C, A2CConfig, ShortRolloutConfig, A2C_PRESETS, sizes_for_images),
    "ppo": Recipe(PPO, PPOConfig, OnPolicyConfig, PPO_PRESETS, sizes_for_images),
    "impala": Recipe(IMPALA, IMPALAConfig, OnPolicyConfig, IMPALA_PRESETS, sizes_for_images),
    "r2d2": Recipe(R2D2, R2D2Config, SequenceConfig, R2D2_PRESETS, sizes_for_images),
}


def find_recipe(policy: object, spec: Callable[[], EnvSpec]) -> Recipe:
    """Find or make the recipe of a policy.

    The policy is one of these: a name, such as `dqn`; `path/to/file.py:MyPolicy` or
    `module:MyPolicy`; a class of this package; a subclass of it, which has the same settings; a
    `TorchPolicy`; or a function of the spec. The policy that the function makes decides whether
    training uses replay, sequences or rollouts.
    """
    if isinstance(policy, str):
        recipe = RECIPES.get(policy.lower())
        if recipe is not None:
            return recipe
        place, _, name = policy.rpartition(":")
        if not place:
            raise ConfigError(
                f"There is no policy {policy!r} to train.{did_you_mean(policy, RECIPES)} "
                f"Known are: {', '.join(RECIPES)}. One of your own is named with its file: "
                f"path/to/file.py:MyPolicy."
            )
        policy = find_member(place, name)
    own: Any = policy
    for base in own.__mro__ if isinstance(own, type) else ():
        for recipe in RECIPES.values():
            if recipe.policy is base and (base is own or takes(own, "spec", "config")):
                return dataclasses.replace(recipe, policy=own)
    if isinstance(policy, type) and issubclass(policy, TorchPolicy):
        config: type[SingleConfig] = OffPolicyConfig
        if issubclass(policy, TorchRolloutPolicy):
            config = OnPolicyConfig
        elif hasattr(policy, "sequence_length"):
            config = SequenceConfig
        return Recipe(policy, config_type(policy), config)
    if not callable(policy):
        raise ConfigError(
            f"`policy` is {kind_of(policy)}; a name was expected, such as "
            f"{next(iter(RECIPES))!r}, a class, or a function of the spec that makes one."
        )
    return _recipe_of_function(policy, spec)


def name_of_policy(policy: object) -> str:
    """Return the name of a policy in directories and messages.

    Example:
        >>> name_of_policy("DQN"), name_of_policy(SAC), name_of_policy("own/qr.py:QRDQN")
        ('dqn', 'sac', 'qrdqn')
    """
    if isinstance(policy, str):
        return policy.rpartition(":")[2].lower()
    return str(getattr(policy, "__name__", type(policy).__name__)).strip("<>_").lower()


@dataclass(frozen=True, kw_only=True)
class FunctionConfig:
    """The settings of a policy that a function makes: only the seed, as it has its own."""

    seed: int = 0
    """The seed of the run."""


def _recipe_of_function(make: Callable[..., Any], spec: Callable[[], EnvSpec]) -> Recipe:
    made = made_by(make, spec())

    def build(spec: EnvSpec, config: object = None, **parts: object) -> Policy:
        return made_by(make, spec, getattr(config, "seed", 0), **parts)

    build.__name__ = getattr(make, "__name__", "policy")
    config: type[SingleConfig] = OffPolicyConfig
    if isinstance(made, ActorCritic):
        config = OnPolicyConfig
    elif isinstance(made, LearnsFromSequences):
        config = SequenceConfig
    return Recipe(build, FunctionConfig, config)


def made_by(make: Callable[..., Any], spec: EnvSpec, seed: int = 0, **parts: object) -> Policy:
    """Call the user's function that makes a policy.

    If the function takes no `seed`, the modules that it makes are initialised with the seed, and
    the policy's random numbers use it too, unless its settings have a seed of their own.
    """
    if parts:
        raise ConfigError(
            f"`{'` and `'.join(parts)}` was given beside a function that makes the policy. "
            f"Give it within that function."
        )
    more = {"seed": seed} if takes(make, spec, seed=seed) else {}
    try:
        inspect.signature(make).bind(spec, **more)
    except TypeError as error:
        raise ConfigError(
            f"`{name_of_policy(make)}` is neither a name, nor a class of this package, nor a "
            f"TorchPolicy, nor a function of the spec that makes a policy ({error})."
        ) from error
    with TorchRandom(seed, "function"):
        made: object = make(spec, **more)
    if not isinstance(made, Policy):
        raise ConfigError(
            f"`{name_of_policy(make)}` returned {kind_of(made)} for a spec; a policy was "
            f"expected, with `act`, `learn`, `state_dict` and the other methods of "
            f"`ding_lite.rl.Policy`."
        )
    if seed and not more and isinstance(made, OpenPolicy) and not getattr(made.config, "seed", 0):
        made.reseed(seed)
    return made


def find_recipe_of_population(policy: object, env: EnvMaker) -> Recipe:
    """Find or make the recipe of a population of policies, each as `find_recipe` takes it."""
    recipe = find_recipe(policy, env.spec)
    if recipe.policy_config is FunctionConfig:
        return _recipe_of_made(recipe, env)
    return _recipe_of_several(recipe)


def _recipe_of_several(recipe: Recipe) -> Recipe:
    config: type[EvolutionConfig] = RolloutEvolutionConfig
    if issubclass(recipe.config, SequenceConfig):
        config = SequenceEvolutionConfig
    elif issubclass(recipe.config, OffPolicyConfig):
        config = ReplayEvolutionConfig
    known = {
        field.name for cls in (recipe.policy_config, config) for field in dataclasses.fields(cls)
    }
    options, most = {"target"}, MAX_ENV_STEPS_OF_EVOLUTION
    presets = {
        env: {
            "max_env_steps": max(most, preset.get("max_env_steps", 0)),
            **{
                name: value
                for name, value in preset.items()
                if name in known | options and name not in _OF_A_LONE_RUN
            },
        }
        for env, preset in recipe.presets.items()
    }
    if recipe.policy_config is DQNConfig:
        presets |= DQN_EVOLUTION_PRESETS
    return dataclasses.replace(recipe, config=config, presets=presets, max_env_steps=most)


def _recipe_of_made(recipe: Recipe, env: EnvMaker) -> Recipe:
    """Make the recipe of a population from a function that makes a policy.

    Each agent has a policy like the one that the function makes, with settings of its own.
    """
    make = recipe.policy
    made = make(env.spec(), None)
    config: Any = made.config
    fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
    own = {field.name: getattr(config, field.name) for field in fields}
    if "seed" not in own:
        raise ConfigError(
            f"`{make.__name__}` makes {kind_of(made)} with the "
            f"`config` {config!r:.80}. A population draws settings for each agent, so a dataclass "
            f"with a field `seed` was expected. With any policy, use `mw.for_each`, "
            f"`mw.evaluate` and `mw.evolve`."
        )

    def build(spec: EnvSpec, **parts: object) -> Policy:
        like: Policy = make(spec, None, **parts)  # the population applies its settings
        return like

    build.__name__ = make.__name__
    of_one = dataclasses.replace(recipe, policy=build, policy_config=type(config))
    several = _recipe_of_several(of_one)
    del own["seed"]
    presets = {env.name: own}
    return dataclasses.replace(several, presets=presets)
