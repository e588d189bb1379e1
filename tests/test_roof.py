"""Re-exporting packages: their names, and when they import the modules that define them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ding_lite

ROOT = Path(__file__).resolve().parent.parent


def test_a_star_import_imports_all() -> None:
    names: dict[str, object] = {}
    exec("from ding_lite import *", names)
    assert set(names) - {"__builtins__"} == set(ding_lite.__all__)
    assert dir(ding_lite) == sorted(ding_lite.__all__)


@pytest.mark.parametrize(("name", "meant"), [("Taks", "Task"), ("stepwraper", "StepWrapper")])
def test_an_unknown_name_is_an_attribute_error_that_suggests_the_right_one(name, meant) -> None:
    message = f"module 'ding_lite' has no attribute '{name}'. Did you mean \"{meant}\"?"
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(ding_lite, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from ding_lite import {name}")
    assert not hasattr(ding_lite, "__wrapped__")


def test_importing_the_package_imports_only_its_version_and_running_a_task_no_torch() -> None:
    program = (
        "import sys, ding_lite; print([m for m in sys.modules if m.startswith('ding_lite.')]); "
        "from ding_lite import Parallel, Task; import ding_lite.framework.wrapper; "
        "Task().use(lambda ctx: None).run(max_step=1); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "['ding_lite.version']\nFalse\n"
