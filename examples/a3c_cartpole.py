"""Train an A3C: agents collect rollouts and push gradients to a server, which applies them.

An agent pulls the newest weights, collects a rollout, and pushes its gradient. Agents do not wait
for each other, so a gradient may be of weights a few versions old. With `--nodes 1` the same file
does all of it in one process.
"""

from dataclasses import replace

from torch import Tensor

from ding_lite import Task, middleware as mw
from ding_lite.distributed import GradientServer, World
from ding_lite.recipes import Criterion, Options, Run, launch_nodes, parse_options, run_program
from ding_lite.rl import A2C, A2CConfig, make_envs

NUM_ENVS, UNROLL = 4, 16
TRY_NEXT = """\
Try next: all of it in one process (--nodes 1), more agents (--nodes 6), another seed (--seed 1),
or change this program: examples/a3c_cartpole.py is the whole of it."""


def main(options: Options, config: A2CConfig, run: Run) -> dict[str, Tensor]:
    """Do this node's part of the training; return its weights."""
    world = World.current()
    seed = options.seed + world.node_seed  # so that each agent explores in its own way
    envs = make_envs(options.env, num_envs=NUM_ENVS, seed=seed)
    eval_envs = make_envs(options.env, num_envs=20, seed=seed + 500)
    policy = A2C(envs.spec, replace(config, seed=seed))
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
        owner.use(mw.log(every=5, path=run.metrics, quiet=True))
        owner.use(mw.tensorboard(run.directory))
        owner.use(mw.curve(run.curve, target=options.target, title=f"A3C on {options.env}"))
        owner.use(mw.progress(max_env_steps=options.max_env_steps, target=options.target))
        if task.match_labels("server"):
            run.resume(parts)
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
    # Smaller steps than one A2C takes: gradients of older weights point elsewhere.
    config = A2CConfig(lr=1e-3, entropy_coef=0.01, seed=options.seed)
    launch_nodes(
        "a3c_cartpole",
        main,
        options,
        policy=A2C,
        config=config,
        roles=["server", "agent"],
        topology="star",
        try_next=TRY_NEXT,
    )


if __name__ == "__main__":
    run_program(launch)
