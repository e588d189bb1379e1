"""Nodes in shells of their own that know the address of node 0 and no other."""

from __future__ import annotations

from tests.procs.programs import Program
from tests.procs.shells import Type


def enter(
    fork_line: Type,
    node: int,
    *,
    num_nodes: int = 3,
    program: str = "meeting",
    more: str = "",
    **environ: str,
) -> Program:
    """Start a node that is told where node 0 listens, and where to listen itself if it is that."""
    where = "PORTS=50515" if node == 0 else "ATTACH_TO=tcp://127.0.0.1:50515"
    line = f"DING_LITE_NUM_NODES={num_nodes} DING_LITE_NODE_ID={node} DING_LITE_{where} "
    return fork_line(f"{line} python train.py {more}", program=program, **environ)


def hears(shell: Program, *nodes: int) -> None:
    """Wait until a node has heard of others."""
    assert {int(shell.line("received")[1]) for _ in nodes} == {*nodes}


def test_a_mesh_of_shells_that_know_node_0_follows_a_node_to_another_port(fork_line: Type) -> None:
    zero, one, two = (enter(fork_line, node) for node in range(3))
    hears(zero, 1, 2)
    hears(one, 0, 2)
    hears(two, 0, 1)
    first = one.seen.split()[2]

    one.kill()
    zero.line("lost 1")
    two.line("lost 1")
    again = enter(fork_line, 1, more="ends")
    second = again.line("at")[2]
    assert second != first
    hears(zero, 1)
    hears(two, 1)
    assert [shell.end()[1].splitlines()[-1] for shell in (zero, again, two)] == [
        "[0]",
        "[1]",
        "[2]",
    ]


def test_a_node_0_that_ends_at_once_leaves_no_node_without_addresses(fork_line: Type) -> None:
    shells = [enter(fork_line, node, program="met", more="15") for node in range(3)]
    assert [shell.end() for shell in shells] == [(0, f"[{node}]\n") for node in range(3)]
