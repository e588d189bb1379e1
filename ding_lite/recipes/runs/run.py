"""One run of a training program: its directory, its verdict, and its last line of output."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any, Self, TypeVar

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import CheckpointError, ConfigError, NodeFailed, SaveError
from ding_lite.io.files import replacing
from ding_lite.io.importing import refuse_while_importing
from ding_lite.log import passing_warnings, write_to_stderr
from ding_lite.middleware.checkpoints.resume import resume
from ding_lite.middleware.env_step_budget import spent
from ding_lite.parallel.launch.environment import node_of_process
from ding_lite.recipes.options import Options
from ding_lite.recipes.runs import directory as files
from ding_lite.recipes.runs.criterion import EPISODES_PER_COLLECTOR
from ding_lite.recipes.runs.description import changed_versions, check_same, describe_run, plain
from ding_lite.recipes.runs.results import last_row
from ding_lite.recipes.runs.stages import Recorder, StageSeconds, seconds_by_stage
from ding_lite.recipes.runs.verdict import (
    JUDGED_EPISODES,
    Verdict,
    explain_verdict,
    is_solved,
    play_verdict,
)
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from ding_lite.rl.evaluation import Played
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.task import Task
from ding_lite.settings.config import default_values
from ding_lite.settings.environment import Settings, process_environ

ResultT = TypeVar("ResultT")
_GOALS = ("max_env_steps", "target", "smoke")
"""The options by which a run ends."""


class Run:
    """The directory of a run, its running time, and its last line of output.

    Its `with` block locks the directory against other processes. Ctrl-C (or SIGTERM) in the block
    prints one line with the path of the checkpoint and the options that resume the run.

    If a launcher such as torchrun, or a user, has started a process for each node, the run is that
    of node 0: the processes of other nodes write nothing, and end at `of_node_0`.

    Args:
        example: The program's name.
        options: The options of the run.
        config: Settings that are saved in the description, such as `policy.config`.
        defaults: Defaults of settings that a run of an earlier version has not saved.
        quiet: Print nothing on standard error.
        clock: The clock of the running time.

    Raises:
        ConfigError: Each node has its own process, and no directory was chosen. On entering: the
            directory already contains another run, or the run is resumed with other settings than
            at its start.
    """

    def __init__(
        self,
        example: str,
        options: Options,
        *,
        config: object = None,
        defaults: Mapping[str, Any] = MappingProxyType({}),
        quiet: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.example = example
        refuse_while_importing()
        self.options = options
        self.quiet = quiet or options.quiet
        node = None
        if options.nodes > 1:
            node = node_of_process(Settings.from_environ(), process_environ())
        if node is not None and options.out is None:
            raise ConfigError(
                f"This process is node {node} of a job that it has not started, and each process "
                f"would choose another directory. Choose one for all of them: `--out DIR`."
            )
        self._is_of_another_node = bool(node)
        parent = Path("runs") / example
        self.shown = files.make_next(parent) if options.out is None else options.out
        """The directory as it was chosen, for messages."""
        self.directory = self.shown.absolute()  # an environment may change the current folder
        self.checkpoint = self.directory / files.CHECKPOINT
        self.best = self.directory / files.BEST
        self.metrics = self.directory / files.METRICS
        self.curve = self.directory / files.CURVE
        self.stages: StageSeconds | None = None
        self._config = config
        own = default_values(type(config)) if dataclasses.is_dataclass(config) else {}
        self._defaults = plain({**own, **defaults})
        self._clock = clock
        self._started = clock.now()
        self._lock: files.Lock | None = None
        self._locked: os.stat_result | None = None
        """The directory that is locked, which `_check_directory` compares."""
        self._has_new_goal = False
        """Whether a resumed run ends at other env steps, or another target, than before."""

    def __enter__(self) -> Self:
        if self._is_of_another_node:
            return self
        files.make_directory(self.shown)
        self._lock = files.Lock(self.shown)
        self._locked = self.directory.stat()
        try:
            self._take_directory()
        except BaseException:
            self._release()
            raise
        self._started = self._clock.now()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._release()
        if self._is_of_another_node:
            return
        if isinstance(error, OSError):  # a report may miss the directory before the next check
            self._check_directory(error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            where = "nothing was saved yet."
            if files.has_checkpoint(self.directory):
                where = f"the checkpoint is in {self.shown / files.CHECKPOINT}. To go on with it, "
                where += f"add the options --resume --out {quote(str(self.shown))}"
            self.tell(f"\nInterrupted; {where}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other nodes, without the lock, which belongs to this process."""
        return {**vars(self), "_lock": None}

    @property
    def title(self) -> str:
        """The default title of the curve."""
        return f"{self.example} on {self.options.env}"

    @property
    def goal(self) -> float | None:
        """The target return; None without a target."""
        return self.options.goal

    @property
    def max_env_steps(self) -> int:
        """The maximum of env steps."""
        return self.options.max_env_steps

    def _check_directory(self, error: OSError | None = None) -> None:
        """Raise SaveError if the directory was moved or removed: another run may be there now."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._locked is None or os.path.samestat(self._locked, self.directory.stat()):
                return
        raise SaveError(
            f"The directory {self.shown} was moved or removed while the run worked in it. The run "
            f"ends, as another one may be there now. Go on with it where its files are: "
            f"--resume --out DIR."
        ) from error

    def resume(self, parts: Mapping[str, object], *, stop_at: float | None = None) -> None:
        """Restore all parts from the run's checkpoint, if there is one.

        A restarted node also calls it, to continue from the checkpoint of its earlier incarnation.
        If the run had already reached its end, a task among the parts is set to finish.

        Args:
            parts: The parts that `middleware.checkpoint` saves in `checkpoint`, by the same names.
            stop_at: The mean return that ends the run, as in `middleware.evaluate`; the target by
                default.

        Raises:
            CheckpointError: The checkpoint does not fit.
        """
        if not files.has_checkpoint(self.directory):
            return
        files.put_back_best(self.directory)
        if files.has_best(self.directory):
            self._check_best()
        with passing_warnings(self.tell):
            counters = resume(parts, self.checkpoint)
        (self.directory / files.RESULT).unlink(missing_ok=True)
        has_ended = self.options.has_ended(counters, stop_at=stop_at)
        if self.options.criterion == "greedy" and not self._has_new_goal:
            has_ended |= counters.get("finish", False)  # also by a stage of the user's
        where = "had reached its end" if has_ended else "goes on"
        tasks = [part for part in parts.values() if isinstance(part, Task)]
        env_steps = max([counters["env_step"], *(spent(task.ctx) for task in tasks)])
        self.tell(f"The run in {self.shown} {where} at {env_steps:,} env steps.")
        for task in tasks:
            if has_ended:
                task.finish = True

    def time(self, task: Task, *, every: int = 25) -> StageSeconds:
        """Measure the time of each stage of a task, for the run's last line and its curve.

        Args:
            task: The task; all its middleware are measured.
            every: Steps of the pipeline from one report of the seconds to the next.

        Returns:
            A middleware that reports the seconds, to be placed before `jsonl` and `curve`.
        """
        recorder = Recorder(self.directory, task.draw, self._clock)
        check = self._check_directory
        self.stages = StageSeconds(every=every, clock=self._clock, recorder=recorder, check=check)
        task.use_step_wrapper(self.stages.wrap)
        return self.stages

    def of_node_0(self, results: Sequence[ResultT | None]) -> ResultT:
        """Return the result of node 0, by which the run is judged.

        A process of another node ends here, by SystemExit.

        Args:
            results: The results of `Parallel.runner(...)(main)`.

        Raises:
            NodeFailed: Node 0 has no result: it was killed while the run ended on the others.
        """
        if self._is_of_another_node:
            raise SystemExit(0)
        if results[0] is None:
            where = "nothing was saved yet."
            if files.has_checkpoint(self.directory):
                where = f"go on from its newest checkpoint: --resume --out {quote(str(self.shown))}"
            raise NodeFailed(
                f"Node 0 was killed while the run ended, and has no result, by which the run is "
                f"judged; {where}",
                node_id=0,
            )
        return results[0]

    def judge(
        self,
        policy: Policy,
        *,
        eval_share: float | None = None,
        confirmed: Played | None = None,
        best: Mapping[str, Any] | None = None,
        deliver: Callable[[float], object] | None = None,
    ) -> dict[str, Any]:
        """Play 20 fresh greedy episodes with the trained policy.

        Args:
            policy: The trained policy.
            eval_share: The maximum ratio of evaluation env steps to training env steps. All 20
                episodes are played if they reach the target, or if the time limit of episodes is
                500 env steps or less. Otherwise their number is limited by the rest of the share;
                one episode is always played, which is cut if it exceeds both that rest and 1,000
                env steps.
            confirmed: The evaluation that ended the run. If it has 20 episodes or more, it is the
                verdict, and no further episodes are played.
            best: The state of the policy of the best evaluation, if `policy` is another, later
                one. Both play the same episodes, and `policy` gets the state of the better one.
                With an `eval_share`, both are within the limit of one verdict, except for the 20
                episodes of a policy that reaches the target.
            deliver: Called with the mean return before `result.json` is written, if there is a
                `best` and `policy` is the better one.

        Returns:
            The values of the run's last line. With `best` they contain which policy was the better
            one (`delivered`), and the mean return of the other (`other_return`), or None if it was
            not played. With `--criterion seed` there are two more, and the collectors have decided
            whether the run is solved.
        """
        began = self._clock.now()
        last, wall_s = self._last_row(began)
        if confirmed is not None and confirmed.episodes >= JUDGED_EPISODES:
            judged = Verdict(confirmed, confirmed.env_steps, None if best is None else "last")
        else:
            judged = play_verdict(policy, self.options, last, eval_share, best)
        verdict, env_steps = judged.played, judged.env_steps

        result = {
            "example": self.example,
            "env": str(self.options.env),
            "seed": self.options.seed,
            "solved": is_solved(verdict, self.options, last),
            "env_steps": None if last.get("env_step") is None else spent(last),
            "episodes": None if "episodes" not in last else int(last["episodes"]),
            "train_iter": last.get("train_iter"),
            "wall_s": round(wall_s, 3),
            "eval_return": verdict.mean_return,
            "nodes": self.options.nodes,
            "eval_episodes": verdict.episodes,
        }
        if stages := seconds_by_stage(last, wall_s=wall_s):
            seconds = round(self._clock.now() - began, 3)
            # Those of a policy, or those of a population; a stage of the user's may evaluate, too.
            evaluated = int(last.get("eval_env_steps") or last.get("eval_steps") or 0)
            is_counted = evaluated > 0 or last.get("eval_return") is None
            evaluated -= env_steps if verdict is confirmed else 0
            result["seconds"] = {**stages, "verdict": seconds}
            result["eval_env_steps"] = evaluated if is_counted else None
            result["verdict_env_steps"] = env_steps
        if judged.delivered is not None:
            result["delivered"] = judged.delivered
            result["other_return"] = None if judged.other is None else judged.other.mean_return
        if self.options.criterion == "seed":
            played = last.get(EPISODES_PER_COLLECTOR)
            result["criterion"] = "seed"
            result[EPISODES_PER_COLLECTOR] = None if played is None else int(played)
        self._check_directory()
        if judged.delivered == "last" and deliver is not None:
            deliver(verdict.mean_return)
        with replacing(self.directory / files.RESULT) as unfinished:
            unfinished.write_text(json.dumps(result) + "\n", encoding="utf-8")
        return result

    def conclude(self, policy: Policy, *, try_next: str = "") -> dict[str, Any]:
        """Judge the policy by 20 fresh greedy episodes, and print the run's last line.

        The line is one JSON object on standard output. Before it, a description of the result is
        printed on standard error.

        Args:
            policy: The trained policy.
            try_next: A hint that is printed at the end of the description.

        Returns:
            The values of the line.
        """
        result = self.judge(policy)
        self.explain(result, try_next=try_next)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        return result

    def explain(self, result: Mapping[str, Any], *, try_next: str = "") -> None:
        """Describe the result and the files of the run, on standard error."""
        lines = explain_verdict(result, self.goal)
        kinds = {
            "curve": self.curve,
            "metrics": self.metrics,
            "checkpoint": self.checkpoint,
            "best": self.best,
        }
        lines += [
            f"  {kind:<13}{self.shown / path.name}" for kind, path in kinds.items() if path.exists()
        ]
        if any(self.directory.glob(files.EVENTS)):
            lines.append(f"  TensorBoard  tensorboard --logdir {quote(str(self.shown))}")
        if try_next:
            lines.append(try_next)
        self.tell("\n".join(lines))

    def _last_row(self, now: float) -> tuple[dict[str, Any], float]:
        """Return the last row of metrics with the seconds of all stages, and the running time."""
        last, wall_s = last_row(self.metrics), now - self._started
        if self.stages is not None:  # no row contains the time of the last reports
            wall_s += self.stages.seconds_before
            own = self.stages.metrics
            last |= {name: max(s, last.get(name, 0.0)) for name, s in own.items()}
        return last, max(wall_s, last.get("wall_s", 0.0))

    def _take_directory(self) -> None:
        saved = files.saved_description(self.shown)
        if saved is not None and not self.options.resume:
            raise ConfigError(
                f"{self.shown} holds another run already. Go on with it (`--resume`, in "
                f"Python `resume=True`), choose another directory (`--out`, `out=`) or give none, "
                f"or delete that run."
            )
        described = describe_run(self.example, self.options, self._config)
        if saved is not None:
            last = last_row(self.metrics)  # the verdict needs it: raise now if it is damaged
            check_same(self.shown, saved, described, self._defaults)
            then, now = (about.get("options") or {} for about in (saved, described))
            made = 0 if last.get("env_step") is None else spent(last)
            most = self.max_env_steps
            if most < min(made, then.get("max_env_steps") or most):
                raise ConfigError(
                    f"The run in {self.shown} has made {made:,} env steps, and `max_env_steps` is "
                    f"{most:,}. Leave it out, or give more."
                )
            self._has_new_goal = any(then.get(name) != now.get(name) for name in _GOALS)
            if changed := changed_versions(saved, described):
                self.tell(
                    f"The run in {self.shown} goes on with {changed}: what it learns may not be "
                    f"the same to the last bit."
                )
            described["command"] = saved.get("command")
            files.remove_unfinished(self.directory)
        if self.options.resume and not files.has_checkpoint(self.directory):
            if saved is not None:  # else the directory may be one of the user's
                if (self.directory / files.RESULT).exists():
                    raise ConfigError(
                        f"The run in {self.shown} has ended, and its {files.CHECKPOINT}/ is gone, "
                        f"so that it cannot go on. Choose another directory (`--out`, in Python "
                        f"`out=`), or delete that run."
                    )
                files.begin_anew(self.directory)
            self.tell(f"There is no checkpoint in {self.shown} yet; the run begins.")
        files.describe(self.shown, described)

    def _check_best(self) -> None:
        try:
            load_checkpoint(self.best)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} The end of the run needs it. To go on without it, delete {self.best}."
            ) from error

    def tell(self, text: str) -> None:
        """Write a line to standard error, unless the run is quiet."""
        if not self.quiet:
            write_to_stderr(text + "\n")

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
