"""The package follows the rules of `tests/architecture.py`, and violations are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import (
    MAX_MODULES,
    NUMBER_OF_TYPE_IGNORES,
    RULES,
    House,
    Rule,
    bans,
    doorways,
    floors,
    ground_stands_alone,
    no_import_circles,
    no_mutable_globals,
    no_shortcut_through_init,
    no_torch_at_import,
    no_unpickling_of_arrays,
    order_of_sub_packages,
    single_owners,
    small_folders,
    type_ignores_have_codes,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_follows_the_rules(rule: Rule) -> None:
    assert len(House.real().modules) > 20
    faults = [str(fault) for fault in rule(House.real())]
    assert not faults, "\n".join(faults)


def test_every_module_is_in_a_layer() -> None:
    known = (
        "ground runtime parallel rl evolution distributed middleware options recipes cli testing"
    )
    known += " framework rl_utils __main__"
    assert {module.floor for module in House.real()} <= {*known.split(), ""}


FAULTY: list[tuple[Rule, str, str]] = [
    (no_import_circles, "log.py", "def f():\n    import ding_lite.errors"),
    (no_import_circles, "log.py", "import ding_lite.log"),
    (order_of_sub_packages, "rl/replay/uniform.py", "import ding_lite.rl.policies.dqn"),
    (order_of_sub_packages, "rl/elsewhere/x.py", "import ding_lite.rl.replay.uniform"),
    (floors, "helpers/x.py", "import ding_lite.log"),
    (floors, "log.py", "import ding_lite.rl"),
    (floors, "runtime/x.py", "def f():\n    from ding_lite.parallel import thing"),
    (floors, "parallel/x.py", "if TYPE_CHECKING:\n    import ding_lite.rl"),
    (floors, "rl/x.py", "x = import_module('ding_lite.runtime')"),
    (floors, "evolution/x.py", "import ding_lite.distributed"),
    (floors, "distributed/x.py", "import ding_lite.runtime"),
    (floors, "middleware/x.py", "import ding_lite.recipes"),
    (floors, "options/x.py", "import ding_lite.recipes"),
    (floors, "recipes/x.py", "from ding_lite.cli.parsing import arguments"),
    (floors, "testing/x.py", "import ding_lite.recipes"),
    (floors, "runtime/x.py", "from ..rl import replay"),
    (ground_stands_alone, "nest.py", "def f():\n    import torch"),
    (ground_stands_alone, "log.py", "from scipy import stats"),
    (doorways, "runtime/x.py", "from ding_lite import Task"),
    (doorways, "middleware/x.py", "from ding_lite.framework import Task"),
    (doorways, "cli/x.py", "from ding_lite.rl_utils import get_epsilon_greedy_fn"),
    (doorways, "rl_utils.py", "def get_epsilon_greedy_fn(): ..."),
    (doorways, "framework/wrapper.py", "STEP = 3"),
    (no_shortcut_through_init, "rl/replay/x.py", "from ding_lite.rl import DQN"),
    (no_shortcut_through_init, "rl/replay/x.py", "def f():\n    import ding_lite.rl"),
    (no_shortcut_through_init, "rl/policies/x.py", "from ding_lite.rl import DQN"),
    (single_owners, "parallel/router/node_router.py", "import zmq"),
    (single_owners, "parallel/router/node_router.py", "from zmq.utils import monitor"),
    (single_owners, "rl/replay/uniform.py", "from multiprocessing import shared_memory"),
    (single_owners, "rl/x.py", "from multiprocessing.shared_memory import SharedMemory"),
    (single_owners, "rl/checkpoint/save_load.py", "import pickle"),
    (single_owners, "rl/checkpoint/save_load.py", "def f():\n    from cloudpickle import loads"),
    (single_owners, "rl/checkpoint/save_load.py", "import dill as d"),
    (single_owners, "rl/checkpoint/save_load.py", "import marshal"),
    (single_owners, "rl/checkpoint/save_load.py", "import torch\nx = torch.load('x')"),
    (single_owners, "rl/checkpoint/save_load.py", "import torch as t\nx = t.load('x')"),
    (single_owners, "rl/checkpoint/save_load.py", "from torch import load"),
    (single_owners, "rl/x.py", "import torch\nx = torch.serialization.load('x')"),
    (single_owners, "runtime/task.py", "import os\nx = os.environ['X']"),
    (single_owners, "runtime/task.py", "import os\nx = os.getenv('X')"),
    (single_owners, "runtime/task.py", "from os import environ"),
    (single_owners, "runtime/task.py", "import time\ntime.sleep(1)"),
    (single_owners, "runtime/task.py", "import time as t\ndef f():\n    t.sleep(1)"),
    (single_owners, "runtime/task.py", "from time import sleep"),
    (single_owners, "rl/dqn.py", "from torch.utils.tensorboard import SummaryWriter"),
    (single_owners, "rl/dqn.py", "import matplotlib.pyplot as plt"),
    (single_owners, "middleware/train.py", "def f():\n    from rich.table import Table"),
    (single_owners, "middleware/train.py", "import accelerate"),
    (single_owners, "parallel/launch/launch.py", "import ray"),
    (single_owners, "rl/dqn.py", "from easydict import EasyDict"),
    (single_owners, "distributed/x.py", "import sys\nsys.setswitchinterval(1.0)"),
    (no_unpickling_of_arrays, "rl/replay/x.py", "np.load(f, allow_pickle=True)"),
    (no_unpickling_of_arrays, "rl/replay/x.py", "np.load(f, allow_pickle=trusted)"),
    (no_torch_at_import, "runtime/task.py", "import torch"),
    (no_torch_at_import, "parallel/wire/codec.py", "from torch import nn"),
    (no_torch_at_import, "runtime/task.py", "try:\n    import torch\nexcept ImportError: ..."),
    (no_torch_at_import, "runtime/task.py", "class A:\n    import torch"),
    (bans, "rl/replay/x.py", "print('hello')"),
    (bans, "testing/x.py", "def f():\n    print('hello')"),
    (bans, "rl/replay/x.py", "assert x"),
    (bans, "rl/replay/x.py", "eval('1')"),
    (bans, "rl/replay/x.py", "def f():\n    global x\n    x = 1"),
    (no_mutable_globals, "rl/replay/x.py", "registry = {}"),
    (no_mutable_globals, "rl/replay/x.py", "_seen: set[str] = set()"),
    (no_mutable_globals, "rl/replay/x.py", "seen = collections.defaultdict(int)"),
    (no_mutable_globals, "rl/replay/x.py", "SEEN = []\ndef f(x):\n    SEEN.append(x)"),
    (no_mutable_globals, "rl/replay/x.py", "SEEN = {}\ndef f(x):\n    SEEN[x] = 1"),
    (no_mutable_globals, "rl/replay/x.py", "SEEN = {}\ndef f(x):\n    del SEEN[x]"),
    (type_ignores_have_codes, "rl/replay/x.py", "x = 1  # type: ignore"),
]


@pytest.mark.parametrize("rule", {rule: None for rule, *_ in FAULTY}, ids=lambda x: x.__name__)
def test_a_violation_is_found(tmp_path: Path, rule: Rule) -> None:
    for number, (_, path, source) in enumerate(case for case in FAULTY if case[0] is rule):
        assert caught(rule, tmp_path / str(number), {path: source}), (path, source)


def test_one_more_ignore_than_allowed_is_found(tmp_path: Path) -> None:
    lines = "x = 1  # type: ignore[assignment]\n" * (NUMBER_OF_TYPE_IGNORES + 1)
    (fault,) = caught(type_ignores_have_codes, tmp_path, {"rl/replay/x.py": lines})
    assert f"number {NUMBER_OF_TYPE_IGNORES + 1}" in fault


def test_a_folder_with_too_many_modules_is_found_unless_it_has_a_reason(tmp_path: Path) -> None:
    many = {f"rl/replay/x{k}.py": "" for k in range(MAX_MODULES)}
    (fault,) = caught(small_folders, tmp_path, many)
    assert "13 modules; at most 12" in fault
    reason = {"rl/replay/__init__.py": '"""Buffers. 13 modules, since each is one kind."""'}
    assert caught(small_folders, tmp_path, many | reason) == []


INNOCENT: list[tuple[str, str]] = [
    ("rl/replay/x.py", "from ding_lite.rl.replay import uniform\nuniform.x()"),
    ("rl/__init__.py", "from ding_lite.rl.replay.uniform import ReplayBuffer"),
    ("middleware/x.py", "from ding_lite.runtime import Context\nfrom ding_lite.rl import DQN"),
    ("__init__.py", "from ding_lite.framework import Task\nfrom ding_lite.runtime import Context"),
    ("framework/__init__.py", '"""Door."""\nfrom ding_lite.runtime.task import Task\n__all__ = []'),
    ("runtime/x.py", "from ding_lite import log\nfrom ding_lite.log import once"),
    ("nest.py", "import ast\nimport numpy as np\nfrom ding_lite.errors import ConfigError"),
    ("settings/environment.py", "import os\nx = os.environ"),
    ("settings/config.py", "from easydict import EasyDict"),
    ("clock.py", "import time\ntime.sleep(1)"),
    ("parallel/transport/zeromq/transport.py", "import zmq"),
    ("parallel/memory/segments.py", "from multiprocessing import shared_memory"),
    ("middleware/report/log.py", "def f():\n    import matplotlib\n    from rich import table"),
    ("middleware/report/files.py", "from torch.utils.tensorboard import SummaryWriter"),
    ("cli/top.py", "from rich.live import Live\nprint('hello')"),
    ("runtime/x.py", "import os, time\nx = os.path, time.monotonic()"),
    ("runtime/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    ("runtime/x.py", "def f():\n    import torch"),
    ("rl/replay/x.py", "import torch\nclass A:\n    def load(self): ...\nA().load()\nself.sleep()"),
    ("rl/replay/x.py", "np.load(f, allow_pickle=False)"),
    ("rl/replay/x.py", "T = {'a': 1}\n__all__ = ['f']\ndef f(seen):\n    seen.append(T['a'])"),
    ("rl/replay/x.py", "'''print('x'); assert x; # type: ignore'''"),
]


def test_allowed_code_has_no_violations(tmp_path: Path) -> None:
    for number, (path, source) in enumerate(INNOCENT):
        house = house_of(tmp_path / str(number), {path: source})
        for rule in RULES:
            assert [str(fault) for fault in rule(house)] == [], (path, source)


def caught(rule: Rule, folder: Path, files: dict[str, str]) -> list[str]:
    """Return the violations of a rule in a package of these files."""
    return [str(fault) for fault in rule(house_of(folder, files))]


def house_of(folder: Path, files: dict[str, str]) -> House:
    """Make a package of these files, and of a few that others import."""
    common = {"log.py": "", "errors.py": "import ding_lite.log"}
    common |= {"rl/__init__.py": "", "rl/replay/uniform.py": ""}
    for path, source in (common | files).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return House.read(folder)
