"""Async mode on nodes that are processes: an error beside a middleware that waits ends the job."""

from __future__ import annotations


def test_the_job_ends_with_the_error_also_where_the_other_node_waits(fork) -> None:
    with fork("failing_step", recover=False) as program:
        code, said = program.end()
        assert code == 1
        assert program.left_over() == []
    assert "NodeFailed: Node 0 failed while running `main`: ZeroDivisionError: beside a wa" in said
    assert "in middleware `bad`, step 0, node 0" in said


def test_with_auto_recover_the_node_is_restarted_and_the_job_ends_in_order(run_forked) -> None:
    code, said = run_forked("failing_step", recover=True)
    assert (code, said.splitlines()[-1]) == (0, "[True, True]"), said
