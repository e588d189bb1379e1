"""Observations of several parts and action masks through `Envs`, in each mode."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, Text, Tuple
from gymnasium.vector import AutoresetMode

from ding_lite.errors import ConfigError, EnvError, NonFiniteError
from ding_lite.rl import make_envs
from ding_lite.rl.seeding import spawn_seeds
from tests.rl.partly import LENGTH, Partly, legal


def make(num_envs=3, mode="sync", seed=0, wrappers=(), **settings):
    return make_envs(
        "partly/Partly-v0", num_envs, mode=mode, seed=seed, env_args=settings, wrappers=wrappers
    )


def test_each_mode_plays_the_same_packed_episodes():
    seen = []
    for mode in ("sync", "async"):
        with make(mode=mode, masked=True, image=True) as envs:
            steps = [envs.step(envs.random_actions()) for _ in range(12)]
            seen.append([(step.obs, step.next_obs, step.reward) for step in steps])
    np.testing.assert_equal(seen[0], seen[1])


def test_the_parts_are_those_that_the_environment_shows():
    with make(image=True, masked=True) as envs:
        tree, mask = envs.spec.unpack(envs.obs), legal(envs.spec, envs.obs)
        assert {key: (part.shape, part.dtype.name) for key, part in tree.items()} == {
            "camera": ((3, 3, 8, 8), "uint8"),
            "key": ((3, 3), "float32"),
            "noise": ((3, 2), "float32"),
        }
        assert mask.tolist() == [[True, True, True, False]] * 3
        plain = Partly(image=True, masked=True)  # the same, from one environment by itself
        plain.reset(seed=envs.state_dict()["source"]["histories"][0]["seed"])
        for _ in range(2):
            step = envs.step(np.zeros(3, dtype=np.int64))
            raw, *_ = plain.step(0)
        shown = envs.spec.unpack(step.next_obs)
        np.testing.assert_array_equal(shown["camera"][0], raw["camera"].transpose(2, 0, 1))
        np.testing.assert_array_equal(shown["noise"][0], raw["noise"])
        assert shown["key"][0].argmax() == raw["key"] - 2


@pytest.mark.parametrize(
    ("kind", "masked"),
    [("choice", False), ("choice", True), ("choices", False), ("choices", True), ("flags", False)],
)
def test_random_actions_are_legal(kind, masked):
    with make(16, action=kind, masked=masked) as envs:
        drawn = []
        for _ in range(40):
            action = envs.random_actions()
            assert action.dtype == np.int64
            if masked and kind == "choice":
                assert legal(envs.spec, envs.obs)[np.arange(16), action].all()
            envs.step(action)  # the environment refuses illegal ones
            drawn.append(action)
        found = {tuple(np.atleast_1d(one)) for one in np.concatenate(drawn)}
        count = {"choice": 4 - masked, "choices": 3 * (4 - masked), "flags": 8}[kind]
        assert len(found) == count


def test_drawing_actions_begins_no_episode_without_a_mask():
    with make() as envs, make() as other:
        envs.random_actions()
        assert envs.state_dict()["obs"] is None
        np.testing.assert_array_equal(envs.obs, other.obs)


def breaking(change=lambda answer: None, **info):
    """Make a wrapper that changes what `step` returns: the list of it, or the info."""

    class Breaking(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action):
            answer = [*self.env.step(action)]
            change(answer)
            return (*answer[:4], answer[4] if info == {} else info)

    return Breaking


NAN = np.array([0.0, np.nan], dtype=np.float32)


@pytest.mark.parametrize(
    ("wrapper", "error", "told"),
    [
        (breaking(lambda a: a[0].pop("noise")), EnvError, r"part `obs\[\"noise\"\]` is missing in"),
        (breaking(lambda a: a[0].update(key=9)), EnvError, r"` is 9, .*expected was one of Discre"),
        (breaking(lambda a: a[0].update(noise=np.zeros(3))), EnvError, r"` is shape \(3,\) and dt"),
        (
            breaking(lambda a: a[0].update(noise=NAN)),
            *(NonFiniteError, r"observation part `obs\[\"noise\"\]` \[0.0, nan\]"),
        ),
        (
            breaking(none=0),
            *(EnvError, r"gave None as `info\[\"action_mask\"\]` from `step`; 4 flags were expect"),
        ),
        (breaking(action_mask=np.ones(3)), EnvError, r"4 flags were expected"),
        (breaking(action_mask=np.zeros(4)), EnvError, "mask without a legal action from `step`"),
    ],
)
@pytest.mark.parametrize("image", [False, True])
def test_a_broken_part_or_mask_is_named(wrapper, error, told, image):
    envs = make(2, wrappers=[wrapper], masked=True, image=image)
    with envs, pytest.raises(error, match=f"Environment 0 of partly/Partly-v0 .*{told}"):
        envs.step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("mode", ["sync", "native"])
def test_a_mask_that_reset_has_not_is_refused(mode):
    def one():
        return breaking(action_mask=np.ones(4))(Partly())

    def vector(num_envs):
        return gymnasium.vector.SyncVectorEnv([one] * num_envs)

    env = vector if mode == "native" else one
    with pytest.raises(EnvError, match=r"from `reset` too"), make_envs(env, 2, mode=mode) as envs:
        envs.step(np.zeros(2, dtype=np.int64))


def test_behind_the_end_of_an_episode_no_action_has_to_be_legal():
    def change(answer):
        answer[2], answer[4] = True, {"action_mask": np.zeros(4)}

    with make(2, wrappers=[breaking(change)], masked=True) as envs:
        step = envs.step(np.zeros(2, dtype=np.int64))
    assert legal(envs.spec, step.next_obs).all()
    assert step.terminated.all()


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (Dict(a=Discrete(2), b=Dict(c=Text(5))), r"`obs\[\"b\"\]\[\"c\"\]` is Text.*Transform"),
        (Tuple((Graph(Box(-1, 1, (2,)), None),)), r"`obs\[0\]` is Graph.*Transform"),
        (Dict(a=Box(0, 1, (2, 2, 2, 2))), r"`obs\[\"a\"\]` is Box.*ReshapeObservation"),
        (Dict(), "which has no numbers.*at least one number"),
        (Box(-1.0, 1.0, (0,)), "which has no numbers.*at least one number"),
    ],
)
def test_an_unsupported_part_is_named(space, told):
    shown = partial(
        gymnasium.wrappers.TransformObservation, func=lambda obs: obs, observation_space=space
    )
    with pytest.raises(ConfigError, match=told):
        make(1, wrappers=[shown])


@pytest.mark.parametrize(
    ("settings", "how", "told"),
    [
        ({}, {"frame_stack": 2}, r"`frame_stack` is 2, but .* several parts.*`Flatten.*\(env, 2"),
        ({"masked": True}, {"frame_stack": 2}, "`frame_stack` is 2, but .* have an action mask"),
        ({"action": "flags", "masked": True}, {}, r"info\[\"action_mask\"\].* MultiBinary.*Drop"),
    ],
)
def test_stacks_of_parts_and_masks_of_flags_are_refused(settings, how, told):
    with pytest.raises(ConfigError, match=told):
        make_envs("partly/Partly-v0", 1, env_args=settings, **how)


@pytest.mark.parametrize(("kind", "action"), [("choices", [0, 4]), ("flags", [0, 1, 2])])
def test_actions_out_of_range_are_refused(kind, action):
    with make(action=kind) as envs, pytest.raises(ConfigError, match="has the actions 0 to"):
        envs.step(np.array([action] * 3))


@pytest.mark.parametrize(("action", "mask"), [("choice", [1, 1, 1, 0]), ("choices", [1] * 6 + [0])])
def test_a_vector_form_that_resets_at_once_gives_masks_where_episodes_end(action, mask):
    def cut_at(num_steps):
        return gymnasium.wrappers.TimeLimit(Partly(action=action, masked=True), num_steps)

    def vector():
        makers = [lambda: cut_at(2), lambda: cut_at(9)]  # these end in different steps
        return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    with make_envs(vector) as envs:
        for _ in range(LENGTH + 1):
            step = envs.step(envs.random_actions())
            assert legal(envs.spec, envs.obs).tolist() == [mask] * 2
            assert legal(envs.spec, step.next_obs).tolist() == [mask] * 2


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("image", [False, True])
def test_a_vector_form_is_packed_as_single_environments_are(image, mode):
    make_plain = partial(Partly, masked=True, image=image)
    vector = gymnasium.vector.SyncVectorEnv([make_plain] * 3, autoreset_mode=mode)
    seed = spawn_seeds(0, "environments", count=3)[0]
    plain = [make_plain() for _ in range(3)]
    raws = [env.reset(seed=seed + i)[0] for i, env in enumerate(plain)]
    with make_envs(vector) as envs:
        for _ in range(9):
            shown = envs.spec.unpack(envs.obs)
            np.testing.assert_array_equal(shown["noise"], [raw["noise"] for raw in raws])
            action = envs.random_actions()
            answers = [env.step(a) for env, a in zip(plain, action.tolist(), strict=True)]
            step = envs.step(action)
            last = envs.spec.unpack(step.next_obs)
            np.testing.assert_array_equal(last["noise"], [one[0]["noise"] for one in answers])
            for obs in (step.obs, step.next_obs):
                assert legal(envs.spec, obs).tolist() == [[True, True, True, False]] * 3
            raws = [
                env.reset()[0] if one[2] or one[3] else one[0]
                for env, one in zip(plain, answers, strict=True)
            ]
