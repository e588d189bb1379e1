"""Train an IMPALA: collectors send rollouts to a learner, without waiting for its updates.

The learner is the hub of a star. Each collector acts with weights that may be a few updates old,
and V-trace corrects for that, so that collecting and learning overlap. With `--nodes 1` the same
file does both in one process, in order. Actor and critic are plain `nn.Module`s: change them, and
all of this works with them.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.distributed import World
from ding_lite.recipes import Criterion, Options, Run, launch_nodes, parse_options, run_program
from ding_lite.rl import IMPALA, EnvSpec, IMPALAConfig, make_envs

NUM_ENVS, UNROLL = 4, 32
RECALLED, EPOCHS, BATCH_SIZE = 2, 8, 64
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), more collectors (--nodes 5), another seed
(--seed 1), a harder task (--env Acrobot-v1 --target -100), or change this program:
examples/impala_cartpole.py is the whole of it."""


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


def make_policy(spec: EnvSpec, config: IMPALAConfig) -> IMPALA:
    """Make an IMPALA with these networks."""
    return IMPALA(spec, config, actor=make_actor, critic=make_critic)


def main(options: Options, config: IMPALAConfig, run: Run) -> dict[str, Tensor]:
    """Do this node's part of the training; return its weights."""
    seed = options.seed + World.current().node_seed  # so that each collector explores differently
    envs = make_envs(options.env, num_envs=NUM_ENVS, seed=seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=seed + 500)
    policy = make_policy(envs.spec, replace(config, seed=seed))
    criterion = Criterion(options, margin=15.0)

    with Task() as task:
        parts = {"policy": policy, "task": task}
        collector, learner = task.at("collector"), task.at("learner")

        if options.criterion == "seed":
            # The criterion counts episodes, so collectors wait while the learner improves weights.
            collectors = len(World.current().group("collector").members)
            pace = BATCH_SIZE / EPOCHS / (1 + RECALLED / 2) / collectors
            collector.use(mw.rate_limit(env_steps_per_update=pace, ahead=0, at_first=1))
        collector.use(mw.fetch_weights(policy, max_staleness=1))
        collector.use(mw.collect(policy, envs, unroll=UNROLL))
        collector.use(criterion.observe)
        collector.use(mw.send("trajectories", to="learner", in_flight=1))

        learner.use(mw.receive("trajectories", at_least=2))
        learner.use(mw.replay_trajectories(RECALLED))
        learner.use(mw.train(policy))
        learner.use(mw.publish_weights(policy))
        learner.use(mw.count_collected("collector"))
        goal = criterion.eval_target
        learner.use(mw.evaluate(policy, eval_envs, every=4, stop_at=goal, confirm=100))
        learner.use(criterion.decide)
        learner.use(mw.stop_at(env_step=options.max_env_steps))
        learner.use(mw.checkpoint(parts, run.checkpoint, every=100))
        learner.use(run.time(task, every=4))
        learner.use(mw.report(run, every=4, title=f"IMPALA on {options.env}"))
        if task.match_labels("learner"):
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
        nodes=3,
        seed_goal=("CartPole-v0", 190),
    )
    # Each env step is used in sixteen updates: the clip keeps that stable, and the falling step
    # size makes it converge.
    config = IMPALAConfig(
        lr=2e-3,
        lr_end=2e-4,
        lr_updates=4_000,
        gamma=0.98,
        c_clip=0.95,
        value_coef=1.0,
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        clip=0.2,
        normalize_advantage=True,
        seed=options.seed,
    )
    launch_nodes(
        "impala_cartpole",
        main,
        options,
        policy=make_policy,
        config=config,
        roles=["learner", "collector"],
        topology="star",
        try_next=TRY_NEXT,
    )


if __name__ == "__main__":
    run_program(launch)
