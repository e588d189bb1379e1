"""Train an A3C: agents collect rollouts and push gradients to a server, which applies them.

An agent pulls the newest weights, collects a rollout, and pushes its gradient. Agents do not wait
for each other, so a gradient may be of weights a few versions old. With `--nodes 1` the same file
does all of it in one process. Actor and critic are plain `nn.Module`s: change them, and all of
this works with them.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.distributed import GradientServer, World
from ding_lite.recipes import Criterion, Options, Run, launch_nodes, parse_options, run_program
from ding_lite.rl import A2C, A2CConfig, EnvSpec, make_envs

NUM_ENVS, UNROLL = 4, 16
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), more agents (--nodes 6), another seed (--seed 1),
or change this program: examples/a3c_cartpole.py is the whole of it."""


class Actor(nn.Module):
    """Machin's actor; it returns the logits, because the policy makes the distribution of them."""

    def __init__(self, state_dim: int, action_num: int) -> None:
        """Make the layers."""
        super().__init__()
        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, state: Tensor) -> Tensor:
        """Compute the logits, [B, A]."""
        a = torch.relu(self.fc1(state))
        a = torch.relu(self.fc2(a))
        logits: Tensor = self.fc3(a)
        return logits


class Critic(nn.Module):
    """Machin's critic: the value of a state."""

    def __init__(self, state_dim: int) -> None:
        """Make the layers."""
        super().__init__()
        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Compute the values, [B, 1]."""
        v = torch.relu(self.fc1(state))
        v = torch.relu(self.fc2(v))
        value: Tensor = self.fc3(v)
        return value


def make_actor(spec: EnvSpec) -> Actor:
    """Make an actor of the environments' sizes."""
    return Actor(spec.obs_shape[0], spec.num_actions or 0)


def make_critic(spec: EnvSpec) -> Critic:
    """Make a critic of the environments' sizes."""
    return Critic(spec.obs_shape[0])


def make_policy(spec: EnvSpec, config: A2CConfig) -> A2C:
    """Make an A2C with these networks."""
    return A2C(spec, config, actor=make_actor, critic=make_critic)


def main(options: Options, config: A2CConfig, run: Run) -> dict[str, Tensor]:
    """Do this node's part of the training; return its weights."""
    world = World.current()
    seed = options.seed + world.node_seed  # so that each agent explores in its own way
    envs = make_envs(options.env, num_envs=NUM_ENVS, seed=seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=seed + 500)
    policy = make_policy(envs.spec, replace(config, seed=seed))
    server = GradientServer(world.group("server"), policy, max_staleness=16)
    criterion = Criterion(options, margin=15.0)

    with Task() as task:
        parts = {"policy": policy, "server": server, "task": task}
        agent, owner = task.at("agent"), task.at("server")

        agent.use(mw.pull_weights(policy, server))
        agent.use(mw.collect(policy, envs, unroll=UNROLL))
        agent.use(mw.push_gradients(policy, server))
        agent.use(criterion.observe)

        owner.use(mw.serve_gradients(policy, server, updates=5))
        owner.use(mw.count_collected("agent"))
        goal = criterion.eval_target
        owner.use(mw.evaluate(policy, eval_envs, every=5, stop_at=goal, confirm=100))
        owner.use(criterion.decide)
        owner.use(mw.stop_at(env_step=options.max_env_steps))
        owner.use(mw.checkpoint(parts, run.checkpoint, every=200))
        owner.use(run.time(task, every=5))
        owner.use(mw.report(run, every=5, title=f"A3C on {options.env}"))
        if task.match_labels("server"):
            run.resume(parts, stop_at=goal)
        task.run()
    return policy.weights()


def launch() -> None:
    """Start the nodes with the options of the command line, and judge what they have learned."""
    options = parse_options(
        __doc__,
        env="CartPole-v1",
        max_env_steps=300_000,
        target=475,
        nodes=4,
        seed_goal=("CartPole-v0", 190),
    )
    config = A2CConfig(
        lr=3e-3, gamma=0.98, entropy_coef=0.01, normalize_advantage=True, seed=options.seed
    )
    launch_nodes(
        "a3c_cartpole",
        main,
        options,
        policy=make_policy,
        config=config,
        roles=["server", "agent"],
        topology="star",
        try_next=TRY_NEXT,
    )


if __name__ == "__main__":
    run_program(launch)
