"""Nodes that are started by hand, each in a shell of its own, by the lines that users type."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from ding_lite.parallel.network.address import LOOPBACK, free_ports
from ding_lite.parallel.network.security import make_key
from tests.cli.calls import ROOT
from tests.docpages import blocks
from tests.procs.shells import Type

NODE_0 = (
    "DING_LITE_NUM_NODES=2 DING_LITE_NODE_ID=0 DING_LITE_LABELS=learner DING_LITE_PORTS=50515 "
    "python train.py"
)
NODE_1 = (
    "DING_LITE_NUM_NODES=2 DING_LITE_NODE_ID=1 DING_LITE_LABELS=collector "
    "DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515 python train.py"
)
"""The lines of the design, to the letter; a test puts a port that is free in their place."""

LEARNED = "[(['distributed', 'learner', 'node.0'], True, ['from 0', 'from 1'])]\n"
COLLECTED = "[(['collector', 'distributed', 'node.1'], True, ['from 0', 'from 1'])]\n"


def place(node_id: int, num_nodes: int = 3) -> str:
    line = NODE_1 if node_id else NODE_0
    line = line.replace("NODE_ID=1", f"NODE_ID={node_id}")
    return line.replace("NODES=2", f"NODES={num_nodes}")


def test_a_job_with_a_key_of_its_own_does_not_mix_with_another_job(fork_line, folder) -> None:
    make_key(folder / "key")
    own, other = free_ports(LOOPBACK, 2)
    keyed = f"DING_LITE_KEY_FILE={folder / 'key'} "
    lines = [
        (f"{NODE_0} 1000", own),
        (f"{keyed}{NODE_0} 2000", other),
        (f"{keyed}{NODE_1} 2000", other),
        (f"{NODE_1} 1000", own),
    ]
    shells = [fork_line(line, port, program="typed") for line, port in lines]
    output = [LEARNED, LEARNED, COLLECTED, COLLECTED]
    assert [shell.end() for shell in shells] == [(0, text) for text in output]


def test_the_tutorial_does_what_it_says(type_line: Type) -> None:
    page = list(blocks((ROOT / "docs" / "tutorial" / "6-two-shells.md").read_text()))
    [program] = [block.code for block in page if block.language == "python" and block.run]
    shells = [block.code for block in page if block.language == "sh"]
    [first, second, _] = [re.sub(r"\\\n +", "", code) for code in shells]
    [output] = [block.code for block in page if block.language == "text"]
    assert (first, second) == (f"{NODE_0}\n", f"{NODE_1}\n")

    nodes = [type_line(line, source=program) for line in (first, second)]
    assert "".join(node.end()[1] for node in nodes) == output


@pytest.mark.parametrize("name", ["both", "six"])
def test_nodes_meet_at_a_name_with_an_address_of_ipv6(name, type_line, folder) -> None:
    """On many machines `localhost` is a name of both, with IPv6 first."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost both\n::1 localhost both six\n")
    mounted = f"unshare --map-root-user --mount sh -c 'mount --bind {hosts} /etc/hosts && {{}}'"
    if subprocess.run(mounted.format("getent hosts six"), shell=True).returncode:
        pytest.skip("No hosts of its own can be given to a process here, or there is no IPv6.")
    lines = [f"DING_LITE_ADDRESS={name} {NODE_0}", NODE_1.replace(LOOPBACK, name)]
    shells = [type_line(mounted.format(f"{line} 15"), program="met") for line in lines]
    assert [shell.end() for shell in shells] == [(0, "[0]\n"), (0, "[1]\n")]


def test_a_node_0_that_ends_at_once_leaves_no_node_without_addresses(fork_line: Type) -> None:
    lines = [place(node) for node in range(3)]
    shells = [fork_line(f"{line} 15", program="met") for line in lines]
    assert [shell.end() for shell in shells] == [(0, f"[{node}]\n") for node in range(3)]


# -- what keeps a job from starting --------------------------------------------------------


def test_an_address_of_another_machine_is_named(fork_line: Type, folder: Path) -> None:
    make_key(folder / "key")
    elsewhere = f"DING_LITE_KEY_FILE={folder / 'key'} DING_LITE_ADDRESS=192.0.2.1 {NODE_0} 15"
    output = fork_line(elsewhere, 50515, program="met").refusal()
    assert "TransportError: This node cannot listen on tcp://192.0.2.1:50515: Cannot" in output
    assert "No interface of this machine has it: is it that of another one?" in output


def test_a_node_that_dials_the_wrong_node_is_refused(fork_line: Type, port: int) -> None:
    node_1 = f"DING_LITE_PORTS={port} {NODE_1}".replace("NUM_NODES=2", "NUM_NODES=3")
    output = fork_line(f"{node_1} 15", program="met").refusal()  # itself, for node 0
    assert "it has another key, or what listens at tcp://127.0.0.1:" in output
    assert "is another node or none." in output


# -- nodes that come and go ----------------------------------------------------------------


def test_the_line_of_a_node_that_was_killed_brings_it_back(fork_line: Type) -> None:
    shells = [fork_line(place(node), program="paused") for node in (0, 1, 2)]
    shells[0].line("waits")
    shells[2].line("plays")
    shells[2].kill()
    shells[0].line("lost 2")
    again = fork_line(f"{place(2)} joins", program="paused")
    assert again.end()[1].startswith("attached 49\n")
    shells[0].line("joined 2")
    assert shells[0].end()[0] == shells[1].end()[0] == again.end()[0] == 0


def test_attach_to_joins_a_running_job_and_starts_from_its_newest_ctx(
    fork_line: Type, port: int
) -> None:
    shells = [fork_line(place(node), program="paused") for node in (0, 1, 2)]
    shells[0].line("waits")
    address = f"tcp://127.0.0.1:{port}"
    output = fork_line(f"python train.py joins {address}", program="paused").refusal()
    assert "there is a node 2 already." in output

    shells[2].line("plays")
    shells[2].kill()
    shells[0].line("lost 2")
    output = fork_line(f"python train.py joins {address}", program="paused").result()
    assert output.splitlines()[0] == "attached 49"
    assert output.splitlines()[-1] == "[(2, ['distributed', 'late', 'node.2'])]"
    assert shells[0].end()[0] == shells[1].end()[0] == 0


def test_ctrl_c_in_one_shell_ends_the_job_in_all(fork_line: Type) -> None:
    shells = [fork_line(place(node, 2), program="paused") for node in (0, 1)]
    pid = int(shells[1].line("plays")[1])
    shells[0].line("waits")
    os.kill(pid, signal.SIGINT)
    assert "\nKeyboardInterrupt\n" in shells[1].end()[1]
    output = shells[0].result()
    assert "lost" not in output
