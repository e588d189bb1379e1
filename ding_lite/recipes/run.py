"""One run of a training program: the directory it leaves, its verdict, and its last line."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError
from ding_lite.recipes.options import Options
from ding_lite.rl.envs import make_envs
from ding_lite.rl.evaluation import mean_return
from ding_lite.rl.protocols import Policy

JUDGED_EPISODES = 20
_JUDGE_SEED = 1_000_003
_INTERRUPTED = 130


class Run:
    """The directory of a run, its running time, and its last line.

    Within its `with` block Ctrl-C ends the program with exit code 130 and one line that says
    where the checkpoint is.

    Args:
        example: The program's name.
        options: What somebody chose on the command line.
        config: Settings worth remembering, such as `policy.config`.
        clock: What seconds are counted on.

    Raises:
        ConfigError: On entering: the directory holds another run already.
    """

    def __init__(
        self, example: str, options: Options, *, config: object = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.example = example
        self.options = options
        self.directory = _next_directory(example) if options.out is None else options.out
        self.checkpoint = self.directory / "checkpoint"
        self.metrics = self.directory / "metrics.jsonl"
        self.curve = self.directory / "curve.png"
        self._config = config
        self._clock = clock
        self._started = clock.now()

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            with (self.directory / "config.json").open("x", encoding="utf-8") as file:
                json.dump(self._describe(), file, indent=2, default=str)
        except FileExistsError as error:
            raise ConfigError(
                f"{self.directory} holds another run already. Choose another directory with "
                f"`--out`, leave the option away, or delete that run."
            ) from error
        self._started = self._clock.now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, KeyboardInterrupt):
            return
        saved = self.checkpoint.exists() and any(self.checkpoint.iterdir())
        where = f"the checkpoint is in {self.checkpoint}" if saved else "nothing was saved yet"
        sys.stderr.write(f"\nInterrupted; {where}.\n")
        raise SystemExit(_INTERRUPTED) from None

    def conclude(self, policy: Policy, *, try_next: str = "") -> dict[str, Any]:
        """Judge the policy by 20 fresh greedy episodes, and print the run's last line.

        The line is one JSON object on standard output; what a person may want to know goes to
        standard error before it.

        Args:
            policy: The trained one.
            try_next: A hint at what to do now.

        Returns:
            What the line says.
        """
        wall_s = self._clock.now() - self._started
        with make_envs(
            self.options.env, JUDGED_EPISODES, seed=self.options.seed + _JUDGE_SEED
        ) as envs:
            value = mean_return(policy, envs, episodes=JUDGED_EPISODES)

        last = self._last_metrics()
        result = {
            "example": self.example,
            "env": self.options.env,
            "seed": self.options.seed,
            "solved": value >= self.options.target,
            "env_steps": last.get("env_step"),
            "episodes": None if "episodes" not in last else int(last["episodes"]),
            "train_iter": last.get("train_iter"),
            "wall_s": round(wall_s, 3),
            "eval_return": value,
            "nodes": self.options.nodes,
        }
        sys.stderr.write(self._explain(result, try_next))
        sys.stderr.flush()
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        return result

    def _describe(self) -> dict[str, Any]:
        config = self._config
        if dataclasses.is_dataclass(config) and not isinstance(config, type):
            config = dataclasses.asdict(config)
        return {
            "example": self.example,
            "options": dataclasses.asdict(self.options),
            "config": config,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }

    def _last_metrics(self) -> dict[str, Any]:
        """Read the last row that `middleware.log` wrote; empty where there is none."""
        if not self.metrics.exists():
            return {}
        rows = self.metrics.read_text(encoding="utf-8").splitlines()
        last: dict[str, Any] = json.loads(rows[-1]) if rows else {}
        return last

    def _explain(self, result: dict[str, Any], try_next: str) -> str:
        verdict = "Solved" if result["solved"] else "Did not solve"
        lines = [
            f"\n{verdict} {self.options.env}: a mean return of {result['eval_return']:.1f} in "
            f"{JUDGED_EPISODES} greedy episodes (target {self.options.target:g}) after "
            f"{result['env_steps'] or 0:,} env steps, {result['wall_s']:.1f} s."
        ]
        kinds = {"curve": self.curve, "metrics": self.metrics, "checkpoint": self.checkpoint}
        lines += [f"  {kind:<13}{path}" for kind, path in kinds.items() if path.exists()]
        if any(self.directory.glob("events.out.tfevents.*")):
            lines.append(f"  TensorBoard  tensorboard --logdir {self.directory}")
        if try_next:
            lines.append(try_next)
        return "\n".join(lines) + "\n"


def _next_directory(example: str) -> Path:
    """Name the first directory under `runs/<example>` that no run has taken."""
    parent = Path("runs") / example
    return next(path for n in itertools.count(1) if not (path := parent / str(n)).exists())
