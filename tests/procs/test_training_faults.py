"""Training through kill -9: Ape-X goes on and solves, and no gradient is lost in the books."""

from __future__ import annotations

import os
import signal
from ast import literal_eval

import numpy as np
import pytest

SLOW = pytest.mark.slow


def test_training_goes_on_and_solves_when_the_learner_is_killed(fork_learner) -> None:
    """The target is a low one, so that this stays short; in `test_examples_survive` it is not.

    What is learned after the kill decides: no node may end before the killed one has come back.
    """
    with fork_learner("training", victim=0, target=60.0) as program:
        pids = program.pids(3)
        program.line("trained")
        os.kill(pids[0], signal.SIGKILL)
        pids |= {10: program.pids(1)[0]}
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
