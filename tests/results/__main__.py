"""Train presets beside Stable-Baselines3 and write docs/results/: `python -m tests.results`.

Every run goes on where it was broken off: by the end of its slice, by Ctrl-C, or by kill -9.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ding_lite.recipes.choices import Choices
from ding_lite.recipes.plan import make_plan
from tests.bench.harness import ROOT
from tests.bench.history import commit_here, describe_here
from tests.peers.environments import python_of
from tests.results import page
from tests.results.tasks import SEEDS, TASKS, ZOO, policies_of

FOLDER = ROOT / "runs" / "results"
OURS, SB3 = "ding_lite", "stable_baselines3"
_TO_BE_CONTINUED = 75


@dataclass(frozen=True)
class Job:
    """One run: of a policy of one of the two packages, on an environment, with a seed."""

    side: str
    policy: str
    env: str
    seed: int

    @property
    def folder(self) -> Path:
        return FOLDER / self.env.replace("/", "-") / f"{self.side}-{self.policy}-{self.seed}"

    @property
    def key(self) -> dict[str, Any]:
        """What tells it from all others."""
        return {"side": self.side, "policy": self.policy, "env": self.env, "seed": self.seed}

    def __str__(self) -> str:
        return f"{self.policy} of {self.side} on {self.env}, seed {self.seed}"


def main() -> int:
    # A shell's background job ignores SIGINT, and so would the runs, which it ends after a slice.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    known = [env for envs in TASKS.values() for env in envs]
    parser = argparse.ArgumentParser(prog="python -m tests.results", description=__doc__)
    parser.add_argument("envs", nargs="*", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--policies", default="", metavar="NAME,NAME", help="leave out others")
    parser.add_argument("--side", choices=(OURS, SB3), help="of one package alone")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long, in all")
    parser.add_argument("--slice", type=float, default=10.0, help="minutes of a run at a time")
    parser.add_argument("--page", action="store_true", help="write the page of what there is")
    options = parser.parse_args()
    if unknown := sorted(set(options.envs) - set(known)):
        parser.error(f"no such task: {', '.join(unknown)}; there are: {', '.join(known)}")
    ends_at = time.monotonic() + 60.0 * options.minutes
    policies = sorted({policy for env in known for policy in policies_of(env)})
    wanted = options.policies.lower().split(",") if options.policies else policies
    if unknown := sorted(set(wanted) - set(policies)):
        parser.error(f"no such policy: {', '.join(unknown)}; there are: {', '.join(policies)}")
    jobs = [
        Job(side, policy, env, seed)
        for env in options.envs or known
        for policy in policies_of(env)
        if policy in wanted
        for seed in range(options.seeds)
        for side in (OURS, SB3)
        if options.side in (None, side) and (side == OURS or (policy, env) in ZOO)
    ]
    while not options.page and (left := [job for job in jobs if not is_complete(job)]):
        for job in left:  # a slice of each in turn, so that a long one does not hold up the others
            seconds = min(60.0 * options.slice, ends_at - time.monotonic())
            if seconds < 1.0:
                count = sum(not is_complete(each) for each in jobs)
                print(f"{count} of {len(jobs)} runs are not complete; the next call goes on.")
                page.write()
                return 0
            print(f"{job} ...", flush=True)
            if (result := advance(job, seconds)) is not None:
                keep(job, result)
                print(f"  {result['return']:.1f} after {result['env_steps']:,} env steps")
    page.write()
    return 0


def is_complete(job: Job) -> bool:
    """Tell whether a run has a result, or has failed."""
    return any(all(row[k] == v for k, v in job.key.items()) for row in page.rows_of(job.env))


def keep(job: Job, result: dict[str, Any]) -> None:
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit_here(),
        "cpu": describe_here(os.getloadavg())["cpu"],
    }
    page.save_rows(job.env, [*page.rows_of(job.env), {**job.key, **result, **about}])


def advance(job: Job, seconds: float) -> dict[str, Any] | None:
    """Go on with a run for so long; return its result once it is complete."""
    job.folder.mkdir(parents=True, exist_ok=True)
    return ours(job, seconds) if job.side == OURS else theirs(job, seconds)


def ours(job: Job, seconds: float) -> dict[str, Any] | None:
    """Train by `ding-lite train` with a preset, and nothing else."""
    out, used, before = job.folder / "run", job.folder / "cpu_s", _children_s()
    command = [sys.executable, "-m", "ding_lite", "train", job.policy, job.env, "--quiet"]
    command += ["--seed", str(job.seed), "--out", str(out), "--resume"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        process.send_signal(signal.SIGINT)  # it saves, and exits
        output, _ = process.communicate()
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        earlier = float(used.read_text()) if used.exists() else 0.0
        used.write_text(str(earlier + _children_s() - before))
    last = output.splitlines()[-1] if output.strip() else ""
    if not last.startswith("{") or process.returncode not in (0, 1):
        if process.returncode not in (0, 1, 130, -signal.SIGINT):
            sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}.")
        return None
    reported = json.loads(last)
    curve: dict[int, float] = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "eval_return" in row:
            curve.setdefault(int(row.get("eval_env_step", row["env_step"])), row["eval_return"])
    return {
        "solved": reported["solved"],
        "env_steps": reported["env_steps"],
        "cpu_s": float(used.read_text()),
        "return": reported["eval_return"],
        "target": target_of(job),
        "curve": sorted(curve.items()),
    }


def _children_s() -> float:
    used = os.times()
    return used.children_user + used.children_system


def theirs(job: Job, seconds: float) -> dict[str, Any] | None:
    """Train by Stable-Baselines3 with the values of its zoo."""
    about = {
        **{"policy": job.policy, "env": job.env, "seed": job.seed, "seconds": seconds},
        **{"zoo": ZOO[job.policy, job.env], "target": target_of(job)},
    }
    (job.folder / "job.json").write_text(json.dumps(about))
    program = Path(__file__).parent / "programs" / "stable_baselines3.py"
    command = [python_of("results_stable_baselines3"), "-P", str(program), str(job.folder)]
    done = subprocess.run(command, cwd=job.folder, capture_output=True, text=True)
    if done.returncode == _TO_BE_CONTINUED:
        return None
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    result = json.loads((job.folder / "result.json").read_text())
    curve = job.folder / "curve.jsonl"
    lines = curve.read_text().splitlines() if curve.exists() else []
    result["curve"] = [json.loads(line)[:2] for line in lines]
    return {**result, "target": target_of(job)}


def target_of(job: Job) -> float:
    return make_plan(job.policy, job.env, {}, Choices()).options.target


if __name__ == "__main__":
    sys.exit(main())
