import numpy as np
import pytest
import torch

from ding_lite.rl.replay.outputs import LARGE_BYTES, MOST_KEPT, Outputs

SOURCE = np.arange(50 * 10_000, dtype=np.float32).reshape(50, 10_000)
INDEX = np.arange(20)
assert len(INDEX) * SOURCE[0].nbytes > LARGE_BYTES


def numbers_in(held):
    return np.asarray(held.numpy() if isinstance(held, torch.Tensor) else held).copy()


def address(array):
    return torch.as_tensor(array).data_ptr()


def test_memory_without_references_is_reused():
    outputs = Outputs()
    first = torch.from_numpy(outputs.take(SOURCE, INDEX))
    used = address(first)
    del first
    assert address(outputs.take(SOURCE, INDEX + 1)) == used


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[3:5],
        lambda tensor: tensor.T[0].numpy(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: tensor.reshape(-1).split(100)[7],
    ],
)
def test_memory_in_use_is_not_overwritten(keep):
    outputs = Outputs()
    held = keep(torch.from_numpy(outputs.take(SOURCE, INDEX)))
    before = numbers_in(held)
    for shift in range(5):
        outputs.take(SOURCE, INDEX + shift)
    np.testing.assert_array_equal(numbers_in(held), before)


def test_memory_is_allocated_while_many_batches_are_in_use():
    outputs = Outputs()
    held = [outputs.take(SOURCE, INDEX + shift) for shift in range(MOST_KEPT + 4)]
    assert len({address(array) for array in held}) == MOST_KEPT + 4
    for shift, array in enumerate(held):
        np.testing.assert_array_equal(array, SOURCE[INDEX + shift])


def test_memory_of_another_size_is_released():
    outputs = Outputs()
    for size in range(20, 50):
        np.testing.assert_array_equal(outputs.take(SOURCE, np.arange(size)), SOURCE[:size])
    assert len(outputs._arrays) == 1


def test_few_rows_are_memory_of_their_own():
    outputs = Outputs()
    first, second = (outputs.take(SOURCE, np.array([row])) for row in (1, 2))
    assert first.tolist() != second.tolist()
    assert not outputs._arrays
