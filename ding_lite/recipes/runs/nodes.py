"""Start and end a training program of several nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.launch import Parallel
from ding_lite.parallel.network.topology import Topology
from ding_lite.recipes.options import Options
from ding_lite.recipes.runs.run import Run
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec

ConfigT = TypeVar("ConfigT")


def launch_nodes(
    name: str,
    main: Callable[[Options, ConfigT, Run], Mapping[str, Any]],
    options: Options,
    *,
    policy: Callable[[EnvSpec, ConfigT], Policy],
    config: ConfigT,
    roles: Sequence[str],
    topology: Topology = "mesh",
    try_next: str = "",
) -> None:
    """Run a program on as many nodes as were asked for, and judge what node 0 has learned.

    A single node has all roles: so the same `main` trains in one process. A node of several that
    dies is started again, and `main` goes on from the newest checkpoint where it calls
    `run.resume` on that node.

    Args:
        name: What the program is called: `runs/<name>` is where its runs lie.
        main: Does a node's part of the training, and returns the weights of its policy.
        options: The options of the run.
        policy: Makes what is judged, such as `DQN`.
        config: Its settings.
        roles: One for each node in order; the last one is that of all further nodes too.
        topology: The connections: `star` where all nodes send to node 0 alone.
        try_next: A hint at what to do afterwards.

    Raises:
        ConfigError: There are too few nodes for the roles, or the run's directory is taken.
        NodeFailed: A node has failed more often than it may be started again, or node 0 was killed
            while the run ended.
    """
    num_nodes = options.nodes
    if 1 < num_nodes < len(roles):
        raise ConfigError(
            f"`nodes` is {num_nodes}, but there are the roles {[*roles]}. Take {len(roles)} or "
            f"more, or 1, which does all in one process."
        )
    rest = (num_nodes - len(roles)) * [roles[-1]]
    of_nodes = [*roles, *rest] if num_nodes > 1 else [{*roles}]

    judged = policy(EnvMaker.of(options.env).spec(), config)
    with Run(name, options, config=config) as run:
        runner = Parallel.runner(
            n_parallel_workers=num_nodes, topology=topology, roles=of_nodes, auto_recover=True
        )
        judged.load_weights(run.of_node_0(runner(main, options, config, run)))
        run.conclude(judged, try_next=try_next)
