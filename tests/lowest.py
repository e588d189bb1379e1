"""Run tests with the lowest versions of the packages that setup.cfg allows.

`python -m tests.lowest FOLDER tests/rl ...` makes a virtual environment in FOLDER, if there is
none, and passes the other arguments to pytest. CI does so; here it takes some 20 minutes, after the
installation of an old PyTorch.
"""

from __future__ import annotations

import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "accelerate", "onnx", "onnxruntime", "onnxscript")
COMPILES = "test_torch_compile_learns_the_same"
UNITS = ("distributed", "evolution", "ground", "middleware", "parallel", "recipes", "rl", "runtime")


def lowest_versions() -> list[str]:
    """Return a requirement of the lowest version of each package that this one needs."""
    config = RawConfigParser()
    config.read(ROOT / "setup.cfg")
    return [
        f"{needed.name}=={spec.version}"
        for needed in map(Requirement, config["options"]["install_requires"].split())
        for spec in needed.specifier
        if spec.operator == ">="
    ]


def main() -> int:
    folder, *chosen = sys.argv[1:]
    python = Path(folder, "bin", "python").absolute()
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    subprocess.run([*pip, *lowest_versions(), *TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", "-e", ROOT], check=True)
    # Old packages use what newer ones below them have deprecated since. With PyTorch 2.6 `compile`
    # imports onnxruntime, which leaves files open.
    options = ["-W", "ignore::DeprecationWarning", "-W", "ignore::UserWarning"]
    options += [f"--deselect=tests/rl/weights/test_compiled.py::{COMPILES}"]
    wanted = chosen or [str(ROOT / "tests" / unit) for unit in UNITS]
    return subprocess.run([python, "-m", "pytest", *options, *wanted], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
