"""Tests of the layout of several members' batches in one."""

import numpy as np
import pytest
import torch

from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.host_or_device import as_tensor

META = torch.device("meta")


def test_members_with_smaller_batches_ignore_the_rows_beyond_them() -> None:
    rows = Rows([3, 1], [0.9, 0.5])
    values_GB = np.array([[1, 2, 6], [4, 100, 100]], dtype=np.float32)
    assert rows.num_rows == 6
    assert rows.mean(values_GB).tolist() == [3.0, 4.0]
    assert rows.per_size(np.ones((2, 3), np.float32)).tolist() == [
        [pytest.approx(1 / 3)] * 3,
        [1.0, 0.0, 0.0],
    ]
    assert rows.gamma_G1.tolist() == [[pytest.approx(0.9)], [0.5]]


def test_one_member_needs_no_mask() -> None:
    rows = Rows.of_one(4, 0.9, torch.device("cpu"))
    assert rows is Rows.of_one(4, 0.9, torch.device("cpu"))
    assert rows.mean(rows.fold(torch.arange(4.0))).tolist() == [1.5]


def test_a_value_is_picked_and_spread_by_its_action() -> None:
    rows, rng = Rows([4, 4], [1.0, 1.0]), np.random.default_rng(0)
    values_GBA, action_GB = rng.normal(size=(2, 4, 3)), rng.integers(0, 3, size=(2, 4))
    picked_GB = rows.pick(values_GBA, action_GB)
    spread_GBA = rows.spread(picked_GB, action_GB, values_GBA)
    for member in range(2):
        for row in range(4):
            action = action_GB[member, row]
            assert picked_GB[member, row] == values_GBA[member, row, action]
            expected_A = np.zeros(3)
            expected_A[action] = picked_GB[member, row]
            np.testing.assert_array_equal(spread_GBA[member, row], expected_A)
    tensors = (as_tensor(each) for each in (picked_GB, action_GB, values_GBA))
    np.testing.assert_array_equal(rows_of_tensors().spread(*tensors).numpy(), spread_GBA)


def rows_of_tensors() -> Rows:
    """Return rows that compute on tensors of the CPU, as on another device."""
    rows = Rows([4, 4], [1.0, 1.0])
    rows._all = as_tensor(rows._all)
    return rows


def test_on_a_device_nothing_is_read_by_the_host() -> None:
    rows = Rows([3, 2], [0.9, 0.9], META)
    values_GB = rows.fold(np.ones(6, np.float32))
    action_GB = rows.fold(np.zeros(6, np.int64))
    values_GBA = torch.ones(2, 3, 4, device="meta")
    assert rows.mean(values_GB).device == META
    assert rows.per_size(rows.pick(values_GBA, action_GB)).shape == (2, 3)
    assert rows.spread(values_GB, action_GB, values_GBA).shape == (2, 3, 4)
