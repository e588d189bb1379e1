"""Train an Ape-X DDPG: collectors own the replay in shards, a learner samples across all of them.

Each collector has its own scale of action noise, so that some explore more than others, and adds
to its own shard without a message. With `--nodes 1` the same file does all of it in one process.
Actor and critic are plain `nn.Module`s: change them, and all of this works with them.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.recipes import Criterion, Options, Run, launch_nodes, parse_options, run_program
from ding_lite.rl import DDPG, DDPGConfig, EnvSpec, linear, make_envs

NUM_ENVS, WARM_UP = 8, 500
MARGIN = 30.0
"""By how much evaluations must be above the target: 20 episodes may be luckier than the next 20."""
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), more collectors (--nodes 5), another seed
(--seed 1), or change this program: examples/apex_ddpg_pendulum.py is the whole of it."""


class Actor(nn.Module):
    """An action for each observation, from -1 to 1 times a range."""

    def __init__(self, state_dim: int, action_dim: int, action_range: float = 1.0) -> None:
        """Make the layers."""
        super().__init__()
        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_dim)
        self.action_range = action_range

    def forward(self, state: Tensor) -> Tensor:
        """Compute the actions, [B, A]."""
        a = torch.relu(self.fc1(state))
        a = torch.relu(self.fc2(a))
        return torch.tanh(self.fc3(a)) * self.action_range


class Critic(nn.Module):
    """The value of an action."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        """Make the layers."""
        super().__init__()
        self.fc1 = nn.Linear(state_dim + action_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Compute the values, [B, 1]."""
        q = torch.relu(self.fc1(torch.cat([state, action], dim=1)))
        q = torch.relu(self.fc2(q))
        value: Tensor = self.fc3(q)
        return value


def make_actor(spec: EnvSpec) -> Actor:
    """Make an actor of the environments' sizes."""
    return Actor(spec.obs_shape[0], spec.action_shape[0])


def make_critic(spec: EnvSpec) -> Critic:
    """Make a critic of the environments' sizes."""
    return Critic(spec.obs_shape[0], spec.action_shape[0])


def make_policy(spec: EnvSpec, config: DDPGConfig) -> DDPG:
    """Make a DDPG with these networks. The policy itself scales actions to their bounds."""
    return DDPG(spec, config, actor=make_actor, critic=make_critic)


def main(options: Options, config: DDPGConfig, run: Run) -> dict[str, Tensor]:
    """Do this node's part of the training; return its weights."""
    world = World.current()
    collectors = world.group("collector")
    seed = options.seed + world.node_seed  # so that each collector explores in its own way
    envs = make_envs(options.env, num_envs=NUM_ENVS, seed=seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=seed + 500)
    noise = config.noise * 2.0**collectors.rank if collectors.is_member else config.noise
    policy = make_policy(envs.spec, replace(config, noise=noise, seed=seed))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=50_000, alpha=0.4, seed=seed)
    criterion = Criterion(options)

    with Task() as task:
        parts = {"policy": policy, "task": task}
        collector, learner = task.at("collector"), task.at("learner")

        collector.use(mw.fetch_weights(policy))
        pace = 1.0 / len(collectors)
        at_first = WARM_UP + NUM_ENVS * config.n_step  # the newest ones wait for their rewards
        collector.use(mw.rate_limit(env_steps_per_update=pace, ahead=100, at_first=at_first))
        collector.use(mw.collect(policy, envs, steps=NUM_ENVS))
        collector.use(mw.add_to(replay))
        collector.use(criterion.observe)

        learner.use(mw.wait_for(replay, size=WARM_UP))
        beta = linear(0.4, 1.0, steps=20_000)
        learner.use(mw.train(policy, replay, updates=NUM_ENVS, beta=beta))
        learner.use(mw.update_priorities(replay))
        learner.use(mw.publish_weights(policy))
        learner.use(mw.count_collected("collector"))
        goal = None if criterion.eval_target is None else criterion.eval_target + MARGIN
        learner.use(mw.evaluate(policy, eval_envs, every=50, stop_at=goal, confirm=100))
        learner.use(criterion.decide)
        learner.use(mw.stop_at(env_step=options.max_env_steps))
        learner.use(mw.checkpoint(parts, run.checkpoint, every=250))
        learner.use(run.time(task, every=50))
        learner.use(mw.report(run, every=50, title=f"Ape-X on {options.env}"))
        if task.match_labels("learner"):
            run.resume(parts, stop_at=goal)
        task.run()
    return policy.weights()


def launch() -> None:
    """Start the nodes with the options of the command line, and judge what they have learned."""
    options = parse_options(
        __doc__,
        env="Pendulum-v1",
        max_env_steps=100_000,
        target=-200,
        nodes=3,
        seed_goal=("Pendulum-v1", -200.0),
    )
    launch_nodes(
        "apex_ddpg_pendulum",
        main,
        options,
        policy=make_policy,
        config=DDPGConfig(critic_lr=3e-3, gamma=0.95, target_tau=0.02, n_step=3, seed=options.seed),
        roles=["learner", "collector"],
        try_next=TRY_NEXT,
    )


if __name__ == "__main__":
    run_program(launch)
