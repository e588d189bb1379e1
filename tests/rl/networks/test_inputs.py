import numpy as np
import pytest
import torch

from ding_lite.rl import host_or_device
from ding_lite.rl.networks.inputs import RunningNorm
from ding_lite.rl.packing import as_floats


def test_bytes_are_scaled_and_floats_are_not():
    raw = np.arange(256, dtype=np.uint8)
    np.testing.assert_allclose(as_floats(raw), np.arange(256) / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(as_floats(torch.from_numpy(raw)).numpy(), as_floats(raw))
    floats = np.array([0.0, 300.0], dtype=np.float32)
    assert as_floats(floats) is floats


@pytest.mark.parametrize("sizes", [[1] * 60, [60], [7, 1, 40, 12], [32, 28]])
def test_mean_and_deviation_are_those_of_all_observations(sizes):
    rng = np.random.default_rng(0)
    obs = (rng.normal(size=(60, 3)) * [0.1, 1.0, 100.0] + [1.0, 0.0, -5_000.0]).astype(np.float32)
    norm, begin = RunningNorm(3), 0
    for size in sizes:
        norm.update(obs[begin : begin + size])
        begin += size
    wide = obs.astype(np.float64)
    expected = (wide - wide.mean(axis=0)) / wide.std(axis=0)
    np.testing.assert_allclose(norm(obs), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("only_I", [None, np.array([True, False, True])])
def test_statistics_on_a_device_are_those_on_the_host(only_I, monkeypatch):
    """The tensors of a CPU stand for those of a device."""
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(16, 3)) * [0.1, 1.0, 0.0]).astype(np.float32) for _ in range(3)]
    on_host = RunningNorm(3, only_I=only_I)
    monkeypatch.setattr(host_or_device, "is_host", lambda _: False)
    there, other = RunningNorm(3, only_I=only_I), RunningNorm(3, only_I=only_I)
    for one in batches:
        there.update(torch.from_numpy(one))
        monkeypatch.undo()
        on_host.update(one)
        monkeypatch.setattr(host_or_device, "is_host", lambda _: False)
    assert isinstance(there.shift_I, torch.Tensor)
    other.load_state_dict(on_host.state_dict())
    torch.testing.assert_close(there.state_dict(), on_host.state_dict())
    for norm in (there, other):
        np.testing.assert_allclose(norm(batches[0]), on_host(batches[0]), rtol=1e-5, atol=1e-6)
        found = norm(torch.from_numpy(batches[0]))
        assert isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found.numpy(), on_host(batches[0]), rtol=1e-5, atol=1e-6)


def test_nothing_changes_before_the_first_update():
    obs = np.array([[3.0, -4.0]], dtype=np.float32)
    np.testing.assert_array_equal(RunningNorm(2)(obs), obs)


def test_a_constant_number_becomes_zero_and_outliers_are_clipped():
    norm = RunningNorm(2)
    norm.update(np.array([[5.0, 0.0], [5.0, 1.0]], dtype=np.float32))
    seen = norm(np.array([[5.0, 1e6], [5.5, -1e6]], dtype=np.float32))
    assert seen.tolist() == [[0.0, 10.0], [0.5, -10.0]]
