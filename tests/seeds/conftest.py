"""The config of the programs, which is one for all of them, as in the document."""

import copy

import pytest

from tests.seeds.diengine import cfg


@pytest.fixture(autouse=True)
def _own_cfg_and_folder(tmp_path, monkeypatch):
    """Let each test change the config."""
    monkeypatch.chdir(tmp_path)
    before = copy.deepcopy(cfg)
    yield
    cfg.update(before)
