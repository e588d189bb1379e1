"""Run the `main` of a training program, on one node or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ding_lite.errors import ConfigError
from ding_lite.exit_codes import INTERRUPTED, SLIPS, exit_code_of
from ding_lite.log import write_to_stderr
from ding_lite.parallel.launch.launch import Parallel
from ding_lite.parallel.network.topology import Topology
from ding_lite.recipes.options import Options
from ding_lite.recipes.runs.run import Run
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec

ConfigT = TypeVar("ConfigT")


def run_program(main: Callable[[], object]) -> None:
    """Run `main`; an error that the user can fix becomes one sentence and an exit code.

    The exit code is 2 for a wrong option, a missing package and a checkpoint that cannot be read, 1
    for a checkpoint that cannot be written, and 130 for Ctrl-C. Other errors keep their traceback.
    """
    try:
        main()
    except SLIPS as error:
        write_to_stderr(f"error: {error}\n")
        raise SystemExit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


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
    """Run a program on `options.nodes` nodes, and evaluate the policy of node 0.

    A single node has all roles, so the same `main` trains in one process. With several nodes, a
    node that dies is restarted; its `main` continues from the newest checkpoint if it calls
    `run.resume`.

    Args:
        name: The name of the program; its runs are saved in `runs/<name>`.
        main: Does a node's part of the training, and returns the weights of its policy.
        options: The options of the run.
        policy: Makes the policy that is evaluated, such as `DQN`.
        config: The settings of the policy.
        roles: The role of each node in order; further nodes have the last role.
        topology: The connections; `star` if all nodes send to node 0 only.
        try_next: A hint that is printed at the end.

    Raises:
        ConfigError: There are too few nodes for the roles, or the run's directory is in use.
        NodeFailed: A node has failed more often than it may be restarted, or node 0 was killed
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
