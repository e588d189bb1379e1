"""Tests of formulas on arrays and tensors, of metrics on a device, and of skipped updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ding_lite.errors import NonFiniteError
from ding_lite.rl.host_or_device import DeviceMetrics, as_tensor, metrics_of, unread


def check(loss: float) -> None:
    if not np.isfinite(loss):
        raise NonFiniteError(f"{loss}")


def test_a_read_only_array_is_copied() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    as_tensor(array)[0] = 2.0
    assert array.tolist() == [1.0, 1.0]


def test_metrics_of_a_device_are_fetched_when_they_are_read_and_those_of_a_cpu_at_once() -> None:
    of_cpu = metrics_of({"loss": np.float32(2.0), "td_error": np.ones(2)}, check)
    assert (type(of_cpu), type(of_cpu["loss"])) == (dict, float)
    metrics = metrics_of({"loss": torch.tensor(2.0), "q": torch.ones(3), "lr": 0.5}, check)
    assert isinstance(metrics, DeviceMetrics)
    assert list(metrics) == ["loss", "q", "lr"]
    assert {**metrics}["loss"] == 2.0
    assert isinstance(metrics["q"], np.ndarray)
    assert metrics["lr"] == 0.5
    assert "none" not in metrics


def test_unread_metrics_are_fetched_by_float() -> None:
    metrics = metrics_of({"loss": torch.ones((), device="meta"), "lr": 0.5}, check)
    waiting = unread(metrics)
    assert list(waiting) == ["loss", "lr"]
    with pytest.raises(NotImplementedError, match="meta"):
        float(waiting["lr"])
    assert float(unread(metrics_of({"loss": torch.tensor(2.0)}, check))["loss"]) == 2.0
    plain = metrics_of({"loss": 1.0}, check)
    assert unread(plain) is plain
