"""Build the wheel and use it from clean virtual environments, as a user would.

`python -m tests.wheel python3.11 python3.12` makes a virtual environment of each interpreter,
and installs the wheel and its extra `export`. In a folder without files of the clone it trains on a
user's environment from the command line with a user's logger, exports the policy, and serves it in
a process that imports neither this package nor PyTorch. It takes some minutes for each interpreter,
most of them for the installation of PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env):
    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at, self.t = max(0, self.at + (1 if action else -1)), self.t + 1
        obs = np.array([self.at / 4], np.float32)
        return obs, float(self.at == 4), self.at == 4, self.t >= 40, {}


def to_my_dashboard(metrics, env_step):
    with open("dashboard.txt", "a") as file:
        print(env_step, metrics.get("loss"), file=file)
"""
SERVE = """
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx")
[values] = session.run(None, {"obs": np.array([[0.0], [0.5]], np.float32)})
if any(name.split(".")[0] in ("ding_lite", "torch") for name in sys.modules):
    sys.exit("It imported ding_lite or torch.")
print(values.argmax(1).tolist())
"""


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command and return its output; if it fails, exit with its output."""
    # With the clone on PYTHONPATH pip finds the package installed already, and installs nothing.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
    return done.stdout


def build(folder: Path) -> Path:
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT),
        cwd=folder,
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def check(interpreter: str, wheel: Path, folder: Path) -> str:
    """Use the wheel with an interpreter; return the actions of the policy and of the server."""
    run(interpreter, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
    run(*pip, f"ding-lite[export] @ {wheel.as_uri()}", cwd=folder)
    place = folder / "mine"
    place.mkdir()
    (place / "mine.py").write_text(MINE)
    (place / "serve.py").write_text(SERVE)
    command = folder / "venv" / "bin" / "ding-lite"
    printed = run(
        *(command, "train", "dqn", "mine.py:Corridor", "--target", "0.95", "--out", "run"),
        *("--max-env-steps", "20000", "--report", "mine.py:to_my_dashboard"),
        cwd=place,
    )
    numbers = json.loads(printed.splitlines()[-1])
    rows = len((place / "dashboard.txt").read_text().splitlines())
    run(command, "export", "run", "--out", "policy.onnx", cwd=place)
    served = run(python, "serve.py", cwd=place).strip()
    if not (numbers["solved"] and rows and served == "[1, 1]"):
        sys.exit(f"{interpreter}: {numbers}, {rows} rows of the logger, served {served}")
    version = run(python, "--version", cwd=place).strip()
    return (
        f"{version}: solved after {numbers['env_steps']:,} env steps, {rows} rows of the logger, "
        f"best actions without this package {served}"
    )


def main() -> None:
    interpreters = sys.argv[1:] or [sys.executable]
    with tempfile.TemporaryDirectory() as built:
        wheel = build(Path(built))
        for interpreter in interpreters:
            with tempfile.TemporaryDirectory() as folder:
                sys.stdout.write(check(interpreter, wheel, Path(folder)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
