"""Training through kill -9 of every role: A3C, Ape-X and IMPALA go on and solve.

The target is a low one, so that a test stays short (`test_examples_survive` has the real ones);
what is learned after the kill decides, as no node may end before the killed one is back and has
taken part again.
"""

from __future__ import annotations

import os
import signal
from ast import literal_eval

import numpy as np
import pytest

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "victim"),
    [
        ("impala", 0),
        ("a3c", 1),
        ("apex", 0),
        pytest.param("impala", 1, marks=SLOW),
        pytest.param("a3c", 0, marks=SLOW),
    ],
)
def test_training_goes_on_and_solves_when_a_node_is_killed(fork_learner, method, victim) -> None:
    given = {"method": method, "victim": victim, "target": 60.0}
    with fork_learner("training", **given) as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[victim], signal.SIGKILL)
        pids |= {victim + 10: program.pids(1)[victim]}
        program.line("solved")
        code, output = program.end()
        assert (code, output.splitlines()[-1]) == (0, "ended"), output
        program.leaves_nothing(*pids.values())


# -- the gradient server's books -----------------------------------------------------------


@pytest.mark.parametrize("num_servers", [pytest.param(1, marks=SLOW), 2])
def test_every_gradient_is_applied_or_refused_also_when_senders_are_killed(
    fork_learner, folder, num_servers
):
    num_agents, num_kills = 3, 2
    num_nodes = num_servers + num_agents
    roles = num_servers * ["server"] + num_agents * ["agent"]
    books = np.memmap(folder / "books", np.int64, "w+", shape=(num_nodes, 2))
    with fork_learner("pushes", roles=roles) as program:
        pids = program.pids(num_nodes)
        for k in range(num_kills):
            victim = num_servers + k % num_agents
            seen = books[victim, 1]
            while books[victim, 1] < seen + 10:  # it is pushing
                os.sched_yield()
            os.kill(pids[victim], signal.SIGKILL)
            pids |= program.pids(1)
        (folder / "enough").touch()
        output = program.result()
    applied, refused, version = literal_eval(output.splitlines()[-1])
    begun, answered = books.sum(axis=0).tolist()
    # The last item that a killed agent had begun may be lost or not; all others are known.
    assert answered <= applied + refused <= begun <= answered + num_kills
    assert refused > 0
    assert version <= applied
