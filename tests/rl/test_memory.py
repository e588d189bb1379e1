import numpy as np
import pytest

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl.memory import Memory


def test_only_the_states_of_ended_episodes_are_reset():
    memory = Memory(num_envs=3, size=2)
    assert len(memory) == 3
    assert memory.state.tolist() == [[0.0, 0.0]] * 3
    memory.state[:] = [[1, 2], [3, 4], [5, 6]]
    memory.reset(np.array([False, True, False]))
    assert memory.state.tolist() == [[1, 2], [0, 0], [5, 6]]
    memory.reset()
    assert not memory.state.any()


def test_a_saved_state_is_a_copy_that_is_loaded():
    memory = Memory(2, 3)
    saved = memory.state_dict()
    memory.state += 1.0
    memory.load_state_dict(saved)
    assert not memory.state.any()
    with pytest.raises(CheckpointError, match=r"state of \(2, 3\); \(1, 3\) was expected"):
        Memory(1, 3).load_state_dict(saved)


def test_sizes_below_one_are_refused():
    with pytest.raises(ConfigError, match=r"`num_envs` is 0.*`size` is 0"):
        Memory(0, 0)
