"""Re-exporting packages: their names, and when they import the modules that define them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ding_lite

ROOT = Path(__file__).resolve().parent.parent


def run_fresh(program: str) -> str:
    """Run a program in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.strip()


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("Context", "ding_lite.runtime.context"),
        ("Middleware", "ding_lite.runtime.middleware"),
        ("Parallel", "ding_lite.parallel.launch.launch"),
        ("StepWrapper", "ding_lite.runtime.middleware"),
        ("Task", "ding_lite.runtime.task"),
        ("train", "ding_lite.recipes.training"),
    ],
)
def test_a_name_of_ding_lite_is_that_of_the_module_that_defines_it(name: str, home: str) -> None:
    assert getattr(ding_lite, name) is getattr(importlib.import_module(home), name)


def test_every_name_in_all_exists() -> None:
    for name in ding_lite.__all__:
        assert getattr(ding_lite, name) is not None
    assert dir(ding_lite) == sorted(ding_lite.__all__)


def test_a_star_import_imports_all() -> None:
    names: dict[str, object] = {}
    exec("from ding_lite import *", names)
    assert set(names) - {"__builtins__"} == set(ding_lite.__all__)


@pytest.mark.parametrize("name", ["Taks", "task", "__wrapped__", "_HOME"])
def test_an_unknown_name_is_an_ordinary_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(ding_lite, name)
    assert "'ding_lite'" in str(caught.value)
    assert f"{name!r}" in str(caught.value)
    assert not hasattr(ding_lite, name)


@pytest.mark.parametrize(("name", "meant"), [("Taks", "Task"), ("stepwraper", "StepWrapper")])
def test_the_error_for_a_mistyped_name_suggests_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f'Did you mean "{meant}"'):
        getattr(ding_lite, name)


def test_an_unknown_name_cannot_be_imported() -> None:
    with pytest.raises(ImportError, match="Taks"):
        exec("from ding_lite import Taks")


def test_the_version_is_a_version() -> None:
    numbers = ding_lite.__version__.split(".")
    assert len(numbers) == 3
    assert all(number.isdecimal() for number in numbers)


def test_importing_the_package_imports_no_module_of_it_but_its_version() -> None:
    program = "import sys, ding_lite; print([m for m in sys.modules if m.startswith('ding_lite.')])"
    assert run_fresh(program) == "['ding_lite.version']"


def test_the_runtime_and_the_runner_need_no_torch() -> None:
    program = (
        "import sys; from ding_lite import Parallel, Task; import ding_lite.framework.wrapper; "
        "Task().use(lambda ctx: None).run(max_step=1); print('torch' in sys.modules)"
    )
    assert run_fresh(program) == "False"


def test_the_import_of_the_readme_finds_the_middleware() -> None:
    from ding_lite import middleware as mw

    assert mw.__name__ == "ding_lite.middleware"


# -- packages that only re-export -----------------------------------------------------------


@pytest.mark.parametrize(
    ("doorway", "name", "home"),
    [
        ("ding_lite.framework", "Context", "ding_lite.runtime.context"),
        ("ding_lite.framework", "Parallel", "ding_lite.parallel.launch.launch"),
        ("ding_lite.framework", "Task", "ding_lite.runtime.task"),
        ("ding_lite.framework.wrapper", "StepTimer", "ding_lite.runtime.wrappers"),
        ("ding_lite.framework.wrapper", "Trace", "ding_lite.runtime.wrappers"),
        ("ding_lite.rl_utils", "get_epsilon_greedy_fn", "ding_lite.rl.formulas.schedules"),
    ],
)
def test_a_re_exported_name_is_the_defined_object(doorway: str, name: str, home: str) -> None:
    module = importlib.import_module(doorway)
    assert name in module.__all__
    assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("doorway", ["ding_lite.framework", "ding_lite.parallel"])
def test_every_name_in_all_of_a_re_exporting_package_exists(doorway: str) -> None:
    module = importlib.import_module(doorway)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
