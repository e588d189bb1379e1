"""A long run under strikes, and how what came of it is read.

An IMPALA of a learner and three collectors trains by `Parallel.runner` while its nodes are
killed, stopped and terminated, and strangers connect to its ports. Beside what they learn from,
collectors send numbered items and the learner emits numbered events; both are written down when
they arrive. In the end these ledgers are compared with the promises: no item twice, no event
twice, out of order or missing while both nodes lived.
"""

from __future__ import annotations

import os
import random
import signal
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from tests.procs.programs import Job, Program, wait_until_gone

ROLES = ["learner", "collector", "collector", "collector"]
ITEMS_IN_FLIGHT = 4
KINDS = {
    "kill collector": 8,
    "stop collector": 6,
    "terminate collector": 3,
    "kill learner": 3,
    "stop learner": 3,
    "strangers": 3,
}
"""Kinds of strikes, and their weights."""


@dataclass
class Soak:
    """A run under strikes, and what is known of its processes."""

    program: Program
    rng: random.Random
    pids: dict[int, int] = field(default_factory=dict)
    """The process of each node that runs now."""
    all_pids: set[int] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)
    struck: Counter[str] = field(default_factory=Counter)

    def follow(self) -> None:
        """Read what the program says until it ends."""
        for line in self.program.lines():
            self.program.seen = self.program.seen[-100_000:]
            words = line.split()
            if words[:1] == ["at"]:
                node, pid, parent, port = map(int, words[1:])
                self.pids[node] = pid
                self.all_pids |= {pid, parent}
                self.ports |= {port} - {0}

    def strike(self, wait: Event) -> None:
        """Do something to a node, of which the others must not take harm."""
        kind = self.rng.choices([*KINDS], weights=[*KINDS.values()])[0]
        node = 0 if "learner" in kind else self.rng.randrange(1, len(ROLES))
        pid = self.pids.get(node, 0)
        self.struck[kind] += 1
        with suppress(ProcessLookupError):
            if kind == "strangers":
                self._connect()
            elif kind.startswith("kill"):
                os.kill(pid, signal.SIGKILL)
            elif kind.startswith("terminate"):
                os.kill(pid, signal.SIGTERM)
            else:
                os.kill(pid, signal.SIGSTOP)
                wait.wait(self.rng.uniform(0.3, 6.0))
                os.kill(pid, signal.SIGCONT)

    def _connect(self) -> None:
        """Speak rubbish to every port of the job, as a program without its key does."""
        for port in self.ports:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as stranger:
                stranger.sendall(self.rng.randbytes(self.rng.randrange(1, 100_000)))


def soak(folder: Path, *, seconds: float, strikes: int) -> dict[str, object]:
    """Run the program for a while under strikes, and say how it went."""
    job = {"roles": ROLES, "in_flight": ITEMS_IN_FLIGHT}
    wait = Event()
    with Job(folder, "soak", **job) as program:
        run = Soak(program, random.Random(0))
        reader = Thread(target=run.follow, name="reads what the soak says")
        reader.start()
        begun = monotonic()
        for number in range(1, strikes + 1):
            # Anywhere within its share of the time.
            at = begun + seconds * (number - run.rng.random()) / strikes
            wait.wait(max(0.0, at - monotonic()))
            if program.process.poll() is not None:
                break
            if len(run.pids) == len(ROLES):
                run.strike(wait)
        wait.wait(max(0.0, begun + seconds - monotonic()))
        (folder / "go").touch()
        reader.join()
        code = program.process.wait()
        wait_until_gone(*run.all_pids)
    return {
        "seconds": round(monotonic() - begun, 1),
        "exit_code": code,
        "strikes": sum(run.struck.values()),
        "struck": dict(run.struck),
        "left_over": program.left_over(),
        **read_ledgers(folder, learner_deaths=run.struck["kill learner"]),
        "last_words": "" if code == 0 else program.seen[-4_000:],
    }


def read_ledgers(folder: Path, *, learner_deaths: int) -> dict[str, object]:
    """Compare what has arrived with what was promised."""
    takers: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for line in _lines(folder / "items"):
        *item, taker = line.split()
        takers[tuple(item)].append(taker)
    numbers: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for node, of_sender, count in takers:
        numbers[node, of_sender].add(int(count))
    missing = sum(max(seen) + 1 - len(seen) for seen in numbers.values())

    events = wrong = 0
    for receiving in range(1, len(ROLES)):
        last: dict[tuple[str, str], int] = {}
        for line in _lines(folder / f"events-{receiving}"):
            sender, number, receiver = line.split()
            events += 1
            before = last.get((sender, receiver))
            wrong += before is not None and int(number) != before + 1
            last[sender, receiver] = int(number)
    return {
        "items": len(takers),
        "items_twice": sum(len(of_item) - len({*of_item}) for of_item in takers.values()),
        # Taken in the moment before a learner was killed: its answer was not sent any more.
        "items_taken_again_by_the_next_learner": sum(len({*of}) - 1 for of in takers.values()),
        "items_missing": missing,
        # What a learner has taken and not written down when it is killed.
        "items_a_killed_learner_may_take_along": learner_deaths * ITEMS_IN_FLIGHT * 3,
        "events": events,
        "events_twice_missing_or_out_of_order": wrong,
    }


def read_curve(folder: Path) -> list[tuple[int, float]]:
    """Return (env steps, mean return) of each evaluation."""
    return [(int(a), float(b)) for a, b in (line.split() for line in _lines(folder / "curve"))]


def _lines(path: Path) -> Iterator[str]:
    """Yield whole lines; a node that is killed may leave a part of one."""
    if path.exists():
        yield from (line for line in path.read_text().split("\n")[:-1] if line)
