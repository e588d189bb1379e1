"""Ape-X over nodes, by algorithms of a user's own and by the built-in DQN."""

from __future__ import annotations

import os
import signal
from ast import literal_eval

from tests.procs.conftest import Fork, RunForked


def test_two_learners_improve_one_policy_from_the_shards_of_two_collectors(
    run_learner: RunForked,
) -> None:
    output = run_learner("apex", policy="QRDQN", batch_size=64, ends_at=60, runner={})
    first, second, *collectors = literal_eval(output.splitlines()[-1])
    # The other learner may have begun an update more, which it gives up as the first one has left.
    assert first[0] == 60 <= second[0] + 1
    assert first[1] == second[1]
    assert first[2] == 60 * 64
    assert first[3] == second[3] == ()
    assert all(trained is None and fetched > 0 for trained, _, _, _, fetched in collectors)


def test_two_learners_go_on_while_a_killed_collector_is_restarted(fork_learner: Fork) -> None:
    given = {"policy": "DQN", "batch_size": 256, "ends_at": None}
    with fork_learner("apex", runner={"auto_recover": True}, **given) as program:
        pids = program.pids(4)
        program.line("trained")
        os.kill(pids[3], signal.SIGKILL)
        assert program.line("lost 3") == ["lost", "3"]
        output = program.result()
    first, second, *_ = literal_eval(output.splitlines()[-1])
    assert first[1] == second[1]
    assert first[3] == ()
