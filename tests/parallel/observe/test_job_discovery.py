"""Running jobs of this user, and their nodes as seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.observe.job_discovery import RunningJob, choose, running_jobs
from ding_lite.parallel.observe.metrics import NodeMetrics, PeerMetrics
from ding_lite.testing.clock import ManualClock
from tests.parallel.observe.test_metrics import RECORD, written

NOW = 100.0


class Jobs:
    """Private directories with records in them."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder = folder
        self.clock = clock
        self.directories: list[PrivateDirectory] = []
        clock.advance(NOW)

    def add(self, *records: NodeMetrics) -> str:
        """Make a job of nodes with these records; return its name."""
        directory = PrivateDirectory(self.folder)
        self.directories.append(directory)
        for record in records:
            written(directory.path, record)
        return directory.path.name.removeprefix("ding_lite-")

    def seen(self) -> list[RunningJob]:
        return running_jobs([self.folder], clock=self.clock)


@pytest.fixture
def jobs(tmp_path: Path, clock: ManualClock) -> Iterator[Jobs]:
    found = Jobs(tmp_path, clock)
    yield found
    for directory in found.directories:
        directory.remove()


def record(node_id: int, **more: Any) -> NodeMetrics:
    usual = {"num_nodes": 2, "addresses": (), "at": NOW - 0.5, "began": NOW - 60, "peers": ()}
    return replace(RECORD, node_id=node_id, **{**usual, **more})


def states(job: RunningJob) -> list[tuple[int, str]]:
    return [(node.node_id, node.state) for node in job.nodes]


def test_a_job_has_the_nodes_of_its_directory(jobs: Jobs) -> None:
    name = jobs.add(record(1, state="running"), record(0))
    [job] = jobs.seen()
    assert (job.name, job.program, job.num_nodes) == (name, "train.py", 2)
    assert (job.age_s, job.is_over) == (60.0, False)
    assert states(job) == [(0, "waiting"), (1, "running")]
    assert job.nodes[0].beat_s == 0.5
    assert job.nodes[0].rss_bytes is not None
    assert 2**20 < job.nodes[0].rss_bytes < 2**40


def test_jobs_stand_in_the_order_of_their_age(jobs: Jobs) -> None:
    names = [jobs.add(record(0, began=began)) for began in (70.0, 10.0, 40.0)]
    assert [job.name for job in jobs.seen()] == [names[1], names[2], names[0]]


def test_a_node_without_a_fresh_record_is_silent_and_without_a_process_gone(jobs: Jobs) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    ended = record(2, pid=child.pid, state="ended")
    gone = record(1, pid=child.pid, state="running")
    jobs.add(record(0, at=NOW - 2.5), gone, ended, record(3, at=NOW - 3.5))
    [job] = jobs.seen()
    assert states(job) == [(0, "waiting"), (1, "gone"), (2, "ended"), (3, "silent")]
    assert [node.rss_bytes is None for node in job.nodes] == [False, True, True, False]


def test_a_stopped_process_is_not_reported_as_silent(jobs: Jobs) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        jobs.add(record(0, pid=child.pid))
        assert states(jobs.seen()[0]) == [(0, "stopped")]
        child.send_signal(signal.SIGCONT)
        child.communicate()


def test_a_job_without_records_or_without_a_local_process_is_not_listed(jobs: Jobs) -> None:
    jobs.add()
    jobs.add(record(0, state="ended"), record(1, state="failed"))
    assert jobs.seen() == []


def test_a_directory_with_a_free_lock_is_ignored(jobs: Jobs) -> None:
    jobs.add(record(0))
    [directory] = jobs.directories
    os.close(directory.lock_fd)  # as when all its processes have been killed
    directory.lock_fd = -1
    assert jobs.seen() == []
    assert directory.path.exists()  # a reader removes nothing


def test_only_private_directories_of_this_user_are_read(jobs: Jobs, tmp_path: Path) -> None:
    jobs.add(record(0))
    [directory] = jobs.directories
    (tmp_path / "ding_lite-file").touch()
    (tmp_path / "ding_lite-link").symlink_to(directory.path)
    (tmp_path / "ding_lite-empty").mkdir(0o700)
    assert len(jobs.seen()) == 1
    directory.path.chmod(0o755)
    assert jobs.seen() == []


def test_nodes_that_share_an_address_are_one_job(jobs: Jobs) -> None:
    """Each node without a launcher has a directory of its own."""
    hub = "tcp://127.0.0.1:50515"
    first = jobs.add(record(0, addresses=(hub,), began=NOW - 70))
    jobs.add(record(1, addresses=("tcp://127.0.0.1:50516", hub)))
    jobs.add(record(0, addresses=("tcp://127.0.0.1:7000",), began=NOW - 1))
    jobs.add(record(2, addresses=("tcp://127.0.0.1:50516",)))
    job, other = jobs.seen()
    assert states(job) == [(0, "waiting"), (1, "waiting"), (2, "waiting")]
    assert (job.name, job.num_nodes) == (first, 3)
    assert states(other) == [(0, "waiting")]
    jobs.add(record(3, addresses=("tcp://127.0.0.1:7000", hub)))  # which joins the two
    assert len(jobs.seen()) == 1


def test_the_latest_incarnation_of_a_restarted_node_counts(jobs: Jobs) -> None:
    hub = "tcp://127.0.0.1:50515"
    jobs.add(record(0, addresses=(hub,), state="running"))
    jobs.add(record(0, addresses=(hub,), state="failed", at=NOW - 5))
    assert states(jobs.seen()[0]) == [(0, "running")]


def test_nodes_elsewhere_are_known_from_those_that_are_here(jobs: Jobs) -> None:
    def peer(node_id: int, **more: Any) -> PeerMetrics:
        return PeerMetrics(node_id=node_id, labels=("far",), heard_s=1.0, **more)

    unknown = PeerMetrics(node_id=9)  # has never greeted
    jobs.add(
        record(0, num_nodes=5, peers=(peer(2, is_connected=True), peer(3), unknown)),
        record(1, num_nodes=5, peers=(replace(peer(3), heard_s=0.1), peer(4, has_left=True))),
    )
    [job] = jobs.seen()
    assert states(job)[2:] == [(2, "elsewhere"), (3, "lost"), (4, "ended")]
    assert job.nodes[2].labels == ("far",)
    assert job.nodes[3].beat_s == pytest.approx(0.6)  # the newest of what two have heard
    assert job.nodes[3].metrics is None
    assert job.num_nodes == 5


def test_a_job_is_chosen_by_its_name_or_a_process_of_it(jobs: Jobs) -> None:
    name = jobs.add(record(0))
    jobs.add(record(0, pid=os.getppid()))
    seen = jobs.seen()
    assert choose(seen, name).name == name
    assert choose(seen, f"{os.getpid()}").name == name


def test_a_name_that_no_job_has_is_answered_with_those_that_run(jobs: Jobs) -> None:
    with pytest.raises(ConfigError, match=r"There is no job 'x'\. No job of yours runs here"):
        choose([], "x")
    name = jobs.add(record(0))
    with pytest.raises(ConfigError, match=f"'{name}y'. Did you mean \"{name}\".*are: {name}"):
        choose(jobs.seen(), f"{name}y")
    with pytest.raises(ConfigError, match="There is no job ''"):
        choose(jobs.seen(), "")


def test_a_beginning_is_enough_unless_several_jobs_share_it() -> None:
    one = RunningJob(name="abc1", program="", num_nodes=1, age_s=0.0, nodes=())
    other, third = replace(one, name="abc"), replace(one, name="xyz")
    with pytest.raises(ConfigError, match=r"'ab' may be any of the jobs abc1, abc\. Name one"):
        choose([one, other, third], "ab")
    assert choose([one, other, third], "abc") is other
    assert choose([one, other, third], "x") is third
