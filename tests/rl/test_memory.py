import numpy as np
import pytest

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl import DQN, load_checkpoint, make_envs, save_checkpoint
from ding_lite.rl.memory import Memory, memory_of


def test_only_the_states_of_ended_episodes_are_reset():
    memory = Memory(num_envs=3, size=2)
    assert len(memory) == 3
    assert memory.state.tolist() == [[0.0, 0.0]] * 3
    memory.state[:] = [[1, 2], [3, 4], [5, 6]]
    memory.reset(np.array([False, True, False]))
    assert memory.state.tolist() == [[1, 2], [0, 0], [5, 6]]
    memory.reset()
    assert not memory.state.any()


def test_a_resumed_memory_goes_on_from_its_states(tmp_path):
    memory, other = Memory(2, 3), Memory(2, 3)
    memory.state[:] = np.random.default_rng(0).normal(size=(2, 3))
    save_checkpoint(tmp_path, memory.state_dict())
    kept = other.state
    other.load_state_dict(load_checkpoint(tmp_path).state)
    np.testing.assert_array_equal(kept, memory.state)  # in place


def test_a_saved_state_is_a_copy():
    memory = Memory(2, 3)
    saved = memory.state_dict()
    memory.state += 1.0
    assert not saved["state"].any()


@pytest.mark.parametrize("wrong", [{}, {"state": np.zeros((3, 3))}, {"state": 1}])
def test_the_state_of_another_memory_is_refused(wrong):
    with pytest.raises(CheckpointError, match=r"The saved memory has a state of .*\(2, 3\) was"):
        Memory(2, 3).load_state_dict(wrong)


def test_sizes_below_one_are_refused():
    with pytest.raises(ConfigError, match=r"`num_envs` is 0.*`size` is 0"):
        Memory(0, 0)


class Counts(DQN):
    """Counts the env steps of each episode in its memory."""

    def make_memory(self, num_envs):
        return Memory(num_envs, 1)


def test_a_policy_says_whether_it_has_memory():
    spec = make_envs("CartPole-v1", 1).spec
    assert memory_of(DQN(spec), 4) is None
    made = memory_of(Counts(spec), 4)
    assert made is not None
    assert made.state.shape == (4, 1)
