"""Environments in worker processes, for environments with slow env steps.

Each process steps a part of the environments with the `EnvLoop` that is the source of `sync` mode,
so that the episodes are the same, bit for bit. Observations, rewards and flags are passed
in shared memory. The pipes carry single bytes, commands and replies, and saved states.

A process may die at any moment. That closes its end of the pipe, which ends every wait for it at
once. No process holds an end that is not its own, so the workers also end when this process dies.
They start from a fork server, because a fork of this process would inherit locks that its threads
hold.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from gymnasium.vector.utils import CloudpickleWrapper

from ding_lite.cancellation import cancelled, is_cancelled
from ding_lite.clock import LOOK_UP_S, SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import ConfigError, DingLiteError, EnvError
from ding_lite.interruption import handle_as_new_program, is_interrupted
from ding_lite.io.importing import only_programs_in_files
from ding_lite.rl.batch import BoolArray, FloatArray, NumpyArray
from ding_lite.rl.envs.checks.faults import fault_of
from ding_lite.rl.envs.sources import Env, EnvLoop, History, RawStep, Restored
from ding_lite.rl.spec import EnvSpec

_STEP, _RESET, _RESET_WHERE, _SAVE, _RESTORE, _CLOSE = b"s", b"r", b"w", b"v", b"l", b"c"
_DONE, _FAILED = b"k", b"e"
_CLOSING_S = 5.0
"""Seconds that environments may take to close before their process is killed."""
_HASTY_S = 1.0
"""The same after an interruption of the run."""
HANGING_S = 5.0
"""Seconds that environments may take to answer after an interruption of the run."""

_NAME = "envs "
"""The prefix of the names of worker processes."""
_UNGUARDED = 64
"""The exit code of a process that would start processes while it imports the program."""
_GUARD = (
    "Each process imports the program again: put what the program does under "
    '`if __name__ == "__main__":`, or use make_envs(..., mode="sync"), which starts no processes.'
)
_SHORTER = (
    "The directory of temporary files has a long name: set TMPDIR to a shorter one, such as /tmp, "
    'or use make_envs(..., mode="sync"), which needs no socket files.'
)


class _Arrays(NamedTuple):
    action: NumpyArray
    frames: NumpyArray
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    done: BoolArray
    success: NumpyArray


@dataclass(frozen=True)
class _Assignment:
    make_env: CloudpickleWrapper
    spec: EnvSpec
    num_envs: int
    first: int
    seeds: tuple[int, ...]

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.seeds))

    def __str__(self) -> str:
        last = self.first + len(self.seeds) - 1
        numbers = f"{self.first} to {last}" if last > self.first else str(self.first)
        return f"The process of the environments {numbers} of {self.spec.env_id}"


class WorkerSource:
    """Steps N environments in worker processes."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        *,
        spec: EnvSpec,
        seeds: Sequence[int],
        num_workers: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        process = multiprocessing.current_process()
        if getattr(process, "_inheriting", False) and process.name.startswith(_NAME):
            # multiprocessing would raise a long error here, in each worker process. The process
            # that started it raises a short one.
            sys.stdout.flush()
            os._exit(_UNGUARDED)
        if process.daemon:
            raise ConfigError(
                'This process is a daemon, which may not start others, as mode="async" does. Use '
                'mode="sync" here.'
            )
        num_envs = len(seeds)
        spec = replace(spec, maker=None)  # the maker may be a lambda; `make_env` is sent instead
        self._spec = spec
        self._clock = clock
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        memory = _allocate(spec, num_envs)
        self._arrays = _view(memory, spec, num_envs)
        self.success_N = self._arrays.success
        self._is_lost = False
        """Whether a failure ended the environments in the middle of their episodes."""
        self._workers: list[_Worker] = []
        # At its exit, multiprocessing would end these processes by SIGTERM, which they ignore.
        Finalize(self, _end_all, (self._workers, _CLOSING_S, clock), exitpriority=1)
        try:
            for indices in np.array_split(np.arange(num_envs), num_workers):
                own_seeds = tuple(seeds[index] for index in indices)
                share = _Assignment(
                    CloudpickleWrapper(make_env), spec, num_envs, int(indices[0]), own_seeds
                )
                self._workers.append(_Worker(context, share, memory, clock))
            for worker in self._workers:
                worker.wait()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def reset(self) -> NumpyArray:
        self._order(self._workers, _RESET)
        return self._arrays.frames.copy()

    def step(self, action: NumpyArray) -> RawStep:
        self._arrays.action[...] = action
        self._order(self._workers, _STEP)
        _, frames, reward, terminated, truncated, *_ = self._arrays
        return frames.copy(), reward.copy(), terminated.copy(), truncated.copy()

    def reset_where(self, done_N: BoolArray) -> NumpyArray:
        self._arrays.done[:] = done_N
        concerned = [worker for worker in self._workers if done_N[worker.share.rows].any()]
        self._order(concerned, _RESET_WHERE)
        return self._arrays.frames[done_N]

    def save(self) -> dict[str, Any]:
        if self._is_lost:
            return {"histories": [{} for _ in range(len(self._arrays.done))]}
        answers = self._order(self._workers, _SAVE)
        return {"histories": [one for part in answers for one in _unpack(part, self._spec)]}

    def restore(self, state: dict[str, Any]) -> Restored:
        histories = state["histories"]
        orders = [(one, _RESTORE + _pack(histories[one.share.rows])) for one in self._workers]
        returns = np.frombuffer(b"".join(self._exchange(orders)))
        return self._arrays.frames.copy(), returns, np.array(list(map(bool, histories)))

    def close(self) -> None:
        _end_all(self._workers, _CLOSING_S, self._clock)

    def _order(self, workers: Iterable[_Worker], what: bytes) -> list[bytes]:
        if not self._workers:
            raise EnvError(
                f"The environments of {self._spec.env_id} are closed, because `close` was called "
                f"or one of their processes failed. Make new ones."
            )
        return self._exchange([(worker, what) for worker in workers])

    def _exchange(self, messages: Sequence[tuple[_Worker, bytes]]) -> list[bytes]:
        """Send each process a message and wait for the answers; a failure ends all processes."""
        try:
            for worker, message in messages:
                worker.send(message)
            return [worker.wait() for worker, _ in messages]
        except BaseException as error:  # a late answer would be taken for that of another message
            self._is_lost = True
            _end_all(self._workers, _HASTY_S if is_interrupted() else _CLOSING_S, self._clock)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                name = f"The environments of {self._spec.env_id}"
                if (fault := fault_of(name, "step", error)) is not None:
                    raise fault from error
            raise


class _Worker:
    def __init__(
        self,
        context: Any,  # noqa: ANN401 - multiprocessing has no public type of it
        share: _Assignment,
        memory: Sequence[Any],
        clock: Clock,
    ) -> None:
        self.share = share
        self._clock = clock
        self._pipe, theirs = context.Pipe()
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._process = context.Process(
            target=_work, args=(theirs, memory, share), name=f"{_NAME}{share.first}", daemon=True
        )
        try:
            with only_programs_in_files():
                self._process.start()
        except (TypeError, AttributeError, ValueError) as error:  # raised by pickling
            self._pipe.close()
            raise ConfigError(
                f"{share.spec.env_id} cannot be sent to another process: {error}. Define its "
                f"wrappers and what they use at the top of a module, or use "
                f'make_envs(..., mode="sync").'
            ) from error
        except (OSError, EOFError) as error:
            self._pipe.close()
            advice = _SHORTER if str(error) == "AF_UNIX path too long" else _GUARD
            raise EnvError(f"{share} ended before it began ({error}). {advice}") from error
        finally:
            theirs.close()
        self.pid: int = self._process.pid

    def send(self, message: bytes) -> None:
        try:
            self._pipe.send_bytes(message)
        except OSError:
            raise self._error_of_exit() from None

    def wait(self) -> bytes:
        """Wait for the answer.

        Stop waiting if the process dies, or if it hangs while the run is being interrupted.
        """
        limit: Deadline | None = None
        while not self._poll.poll(LOOK_UP_S * 1_000.0):
            if limit is None and (is_interrupted() or is_cancelled()):
                limit = Deadline.after(HANGING_S, self._clock)
            if limit is not None and limit.expired:
                self._process.kill()
                if not is_interrupted():
                    raise cancelled()
                raise EnvError(
                    f"{self.share} has not answered within {HANGING_S:g} s after the end of the "
                    f"run was asked for, and was killed. Does one of them hang?"
                )
        try:
            answer: bytes = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._error_of_exit() from None
        if answer[:1] == _FAILED:
            what, _, shown = answer[1:].decode().partition("\n")
            raised = EnvError(what)
            raised.add_note(shown)
            raise raised
        return answer[1:]

    def request_end(self) -> None:
        with suppress(OSError):  # it has ended already
            self._pipe.send_bytes(_CLOSE)

    def end(self, deadline: Deadline) -> None:
        self._process.join(deadline.remaining)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._pipe.close()
        self._process.close()

    def _error_of_exit(self) -> DingLiteError:
        self._process.join(_CLOSING_S)
        code = self._process.exitcode
        if code == _UNGUARDED:
            return ConfigError(
                f"Environments of {self.share.spec.env_id} step in processes of their own. {_GUARD}"
            )
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            advice = "If that was not you, the machine may have run out of memory."
        else:
            how = f"has ended with exit code {code}"
            advice = 'What it wrote stands above. make_envs(..., mode="sync") needs no processes.'
        return EnvError(f"{self.share} {how}, so the others have been ended too. {advice}")


def _end_all(workers: list[_Worker], within: float, clock: Clock) -> None:
    deadline = Deadline.after(within, clock)
    for worker in workers:
        worker.request_end()
    for worker in workers:
        worker.end(deadline)
    workers.clear()


def _ignore_in(process: int, signum: int, _frame: object) -> None:
    if os.getpid() != process:  # a process that an environment has forked
        handle_as_new_program(signum)


def _work(pipe: Connection, memory: Sequence[Any], share: _Assignment) -> None:
    """Run commands from the pipe until it is closed; the main function of a worker process."""
    # Terminals, `timeout`, systemd and SLURM send them to all processes; the parent handles them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN: a program that an environment starts would inherit it, and never terminate.
        signal.signal(signum, partial(_ignore_in, os.getpid()))
    multiprocessing.current_process().daemon = False  # daemons may start no processes
    view = _view(memory, share.spec, share.num_envs)
    rows = _Arrays._make(array[share.rows] for array in view)
    try:
        _seed_global_generators(share.seeds[0])
        envs = [share.make_env() for _ in share.seeds]
        loop = EnvLoop(envs, seeds=share.seeds, spec=share.spec, first_index=share.first)
        loop.success_N = rows.success
        pipe.send_bytes(_DONE)
        while (message := pipe.recv_bytes()) != _CLOSE:
            pipe.send_bytes(_DONE + _obey(message, loop, rows, share.spec))
        loop.close()
    except (EOFError, ConnectionError):
        pass  # the parent process has ended
    except Exception as error:
        known = isinstance(error, DingLiteError)
        what = str(error) if known else f"{share} raised {type(error).__name__}: {error}"
        with suppress(ConnectionError):
            shown = what.replace("\n", " ") + "\n" + traceback.format_exc()
            pipe.send_bytes(_FAILED + shown.encode(errors="backslashreplace"))
            sys.exit(1)  # the parent process raises it, with this traceback
        raise
    finally:
        pipe.close()


def _seed_global_generators(seed: int) -> None:
    """Seed the generators that environments share, as the fork server's state is that of all."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would look for devices


def _obey(message: bytes, loop: EnvLoop, rows: _Arrays, spec: EnvSpec) -> bytes:
    match message[:1]:
        case b"s":
            frames, reward, terminated, truncated = loop.step(rows.action)
            rows.frames[...], rows.reward[...] = frames, reward
            rows.terminated[...], rows.truncated[...] = terminated, truncated
        case b"r":
            rows.frames[...] = loop.reset()
        case b"w":
            rows.frames[rows.done] = loop.reset_where(rows.done)
        case b"v":
            return _pack(loop.save()["histories"])
        case b"l":
            rows.frames[...], returns, _ = loop.restore({"histories": _unpack(message[1:], spec)})
            return b"" if returns is None else returns.tobytes()
    return b""


def _pack(histories: Sequence[History]) -> bytes:
    """Serialise histories, with arrays as the bytes of their memory."""
    return msgspec.msgpack.encode(histories, enc_hook=np.ndarray.tobytes)


def _unpack(packed: bytes, spec: EnvSpec) -> list[History]:
    histories = msgspec.msgpack.decode(packed, type=list[dict[str, Any]])
    for history in histories:
        if "rng" in history:
            history["rng"] = np.frombuffer(history["rng"], dtype=np.uint64)
        if "actions" in history:
            flat = np.frombuffer(history["actions"], dtype=spec.action_dtype)
            history["actions"] = flat.reshape(-1, *spec.action_shape)
    return histories


def _layout(spec: EnvSpec) -> list[tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Return the shape and dtype of one environment's row of each array."""
    return [
        (spec.action_shape, np.dtype(spec.action_dtype)),
        (spec.frame_shape, np.dtype(spec.obs_dtype)),
        ((), np.dtype(np.float32)),
        *[((), np.dtype(np.bool_))] * 3,
        ((), np.dtype(np.int8)),
    ]


def _allocate(spec: EnvSpec, num_envs: int) -> list[Any]:
    sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in _layout(spec))
    return [RawArray("B", max(1, num_envs * size)) for size in sizes]


def _view(memory: Sequence[Any], spec: EnvSpec, num_envs: int) -> _Arrays:
    rows = zip(_layout(spec), memory, strict=True)
    arrays: list[Any] = [np.ndarray((num_envs, *shape), d, part) for (shape, d), part in rows]
    return _Arrays(*arrays)


def num_cores() -> int:
    return len(os.sched_getaffinity(0))
