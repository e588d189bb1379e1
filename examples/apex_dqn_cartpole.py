"""Train an Ape-X DQN: collectors own the replay in shards, learners sample across all of them.

Each collector has its own epsilon and adds to its own shard without a message. Each learner
samples from all shards as if they were one replay, and two learners apply the mean of their
gradients. With `--nodes 1` the same file does all of it in one process. The network is a plain
`nn.Module`: change `QNet`, and all of this works with it.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ding_lite import Task, middleware as mw
from ding_lite.distributed import ShardedReplay, World
from ding_lite.recipes import Criterion, Options, Run, launch_nodes, parse_options, run_program
from ding_lite.rl import DQN, DQNConfig, EnvSpec, epsilon_ladder, linear, make_envs

NUM_ENVS, WARM_UP = 8, 300
REWARD_SCALE = 0.05
"""Values are up to 5 instead of 100, which a network of 16 units learns faster."""
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), one learner and one collector (--nodes 2), more
collectors (--nodes 6), another seed (--seed 1), or change this program:
examples/apex_dqn_cartpole.py is the whole of it."""


class QNet(nn.Module):
    """Machin's Q network: the value of each action."""

    def __init__(self, state_dim: int, action_num: int) -> None:
        """Make the layers."""
        super().__init__()
        self.fc1 = nn.Linear(state_dim, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, action_num)

    def forward(self, some_state: Tensor) -> Tensor:
        """Compute the values, [B, A]."""
        a = torch.relu(self.fc1(some_state))
        a = torch.relu(self.fc2(a))
        values: Tensor = self.fc3(a)
        return values


def make_network(spec: EnvSpec) -> QNet:
    """Make a network of the environments' sizes."""
    return QNet(spec.obs_shape[0], spec.num_actions or 0)


def make_policy(spec: EnvSpec, config: DQNConfig) -> DQN:
    """Make a DQN with this network."""
    return DQN(spec, config, network=make_network)


def main(options: Options, config: DQNConfig, run: Run) -> dict[str, Tensor]:
    """Do this node's part of the training; return its weights."""
    world = World.current()
    collectors, learners = world.group("collector"), world.group("learner")
    seed = options.seed + world.node_seed  # so that each collector explores in its own way
    envs = make_envs(options.env, num_envs=NUM_ENVS, seed=seed, reward_scale=REWARD_SCALE)
    eval_envs = make_envs(options.env, num_envs=20, seed=seed + 500)
    policy = make_policy(envs.spec, replace(config, seed=seed))
    replay = ShardedReplay(collectors, envs.spec, shard_capacity=50_000, alpha=0.6, seed=seed)
    criterion = Criterion(options, margin=15.0)

    with Task() as task:
        parts = {"policy": policy, "task": task}
        collector, learner, lead = task.at("collector"), task.at("learner"), task.at("learner.0")

        # All collectors begin with random actions, because an untrained policy does not explore.
        epsilon = epsilon_ladder(collectors, power=1.0, base=0.2, steps=8_000 / len(collectors))
        collector.use(mw.fetch_weights(policy))
        pace = 4.0 / len(collectors)
        at_first = WARM_UP + NUM_ENVS * config.n_step  # the newest ones wait for their rewards
        collector.use(mw.rate_limit(env_steps_per_update=pace, ahead=50, at_first=at_first))
        collector.use(mw.collect(policy, envs, steps=NUM_ENVS, epsilon=epsilon))
        collector.use(mw.add_to(replay))
        collector.use(criterion.observe)

        beta = linear(0.4, 1.0, steps=10_000)
        learner.use(mw.wait_for(replay, size=WARM_UP))
        learner.use(mw.train(policy, replay, updates=NUM_ENVS, beta=beta))
        learner.use(mw.update_priorities(replay))

        lead.use(mw.publish_weights(policy, every=2))
        lead.use(mw.count_collected("collector"))
        lead.use(
            mw.evaluate(policy, eval_envs, every=25, stop_at=criterion.eval_target, confirm=100)
        )
        lead.use(criterion.decide)
        lead.use(mw.stop_at(env_step=options.max_env_steps))
        lead.use(mw.checkpoint(parts, run.checkpoint, every=250))
        lead.use(run.time(task, every=100))
        lead.use(mw.report(run, every=100, title=f"Ape-X on {options.env}"))
        if task.match_labels("learner.0"):
            run.resume(parts, stop_at=criterion.eval_target)
        if learners.is_member:
            policy.data_parallel(learners)  # all learners continue with the weights of the first
        task.run()
    return policy.weights()


def launch() -> None:
    """Start the nodes with the options of the command line, and judge what they have learned."""
    options = parse_options(
        __doc__,
        env="CartPole-v1",
        max_env_steps=500_000,
        target=475,
        nodes=4,
        seed_goal=("CartPole-v0", 190.0),
    )
    # Two learners share a batch and average their gradients. The learning rate falls, so that the
    # policy does not become worse again.
    num_learners = 2 if options.nodes > 3 else 1
    config = DQNConfig(
        lr=3e-3,
        lr_end=1e-4,
        lr_updates=5_000,
        batch_size=256 // num_learners,
        seed=options.seed,
    )
    launch_nodes(
        "apex_dqn_cartpole",
        main,
        options,
        policy=make_policy,
        config=config,
        roles=[*num_learners * ["learner"], "collector"],
        try_next=TRY_NEXT,
    )


if __name__ == "__main__":
    run_program(launch)
