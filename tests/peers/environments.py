"""An environment of its own for each peer, with what the package registry has of it today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.peers.workloads import LOCAL

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".peers"
INSTALLS: dict[str, list[list[str]]] = {
    "stable_baselines3": [["stable-baselines3"]],
    "tianshou": [["tianshou"]],
    "torchrl": [["torchrl"]],
    "cpprb": [["cpprb", "gymnasium"]],
    # Its gym builds with an old setuptools only.
    "di_engine": [
        ["setuptools==65.5.1", "wheel==0.38.4"],
        ["--no-build-isolation", "gym==0.25.1"],
        ["DI-engine"],
    ],
    "results_stable_baselines3": [
        ["stable-baselines3", "gymnasium[box2d,mujoco]", "minatar", "ale-py"]
    ],
    "sample_factory": [["sample-factory"]],
    "rllib": [["ray[rllib]"]],
    "agilerl": [["agilerl", "peft"]],
}
"""What pip is given, one call after the other; each package takes the torch that it allows."""
SHARED = {"ray": "rllib"}
"""Sides that run in the environment of another one."""


def python_of(side: str) -> str:
    """Return the interpreter of a side; its environment is made where there is none yet.

    Raises:
        CalledProcessError: What it needs cannot be installed.
    """
    if side in LOCAL:
        return sys.executable
    side = SHARED.get(side, side)
    folder = FOLDER / side
    python = str(folder / "bin" / "python")
    if not (folder / ".ready").exists():
        print(f"  installing {side} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
        # The project's own torch first: no side gains by another version unless it must have one.
        torch = ["-c", "constraints.txt", "torch", "setuptools"]
        for arguments in [torch, *INSTALLS[side]]:
            subprocess.run([*pip, *arguments], cwd=ROOT, check=True)
        (folder / ".ready").touch()
    return python
