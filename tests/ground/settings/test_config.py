"""Typed configs from dicts."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import pytest
from easydict import EasyDict
from hypothesis import given, strategies as st

from ding_lite.errors import ConfigError, kind_of
from ding_lite.settings.config import as_config, suggests
from ding_lite.settings.rules import at_least, check_all, positive


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def several(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


class Schedule:
    """A value of a class that is not built in."""


SCHEDULE = Schedule()


@dataclass(frozen=True)
class Config:
    lr: float = 1e-3
    batch_size: int = 64
    name: str = "dqn"
    hidden: tuple[int, ...] = (64, 64)
    dueling: bool = False
    epsilon: float | None = None
    loss: Literal["huber", "mse"] = "huber"
    cell: Literal["lstm", "gru"] | None = None
    pair: tuple[int, ...] | None = None
    extra: dict[str, int] = field(default_factory=dict)
    schedule: Schedule | None = None
    derived: int = field(default=7, init=False)

    def __post_init__(self) -> None:
        check_all(positive(lr=self.lr), at_least(1, batch_size=self.batch_size))


CONFIGS = st.builds(
    Config,
    lr=st.floats(1e-9, 1e9),
    batch_size=st.integers(1),
    name=st.text(),
    hidden=several(st.integers()),
    dueling=st.booleans(),
    epsilon=maybe(st.floats(allow_nan=False)),
    loss=st.sampled_from(["huber", "mse"]),
    pair=maybe(several(st.integers())),
    extra=st.dictionaries(st.text("abc", min_size=1), st.integers()),
)


@given(CONFIGS)
def test_a_config_as_a_dict_or_an_easydict_becomes_the_same_config(config: Config) -> None:
    values = dataclasses.asdict(config)
    del values["derived"]
    assert as_config(Config, values) == config
    assert as_config(Config, EasyDict(values)) == config
    as_of_a_file = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
    assert as_config(Config, as_of_a_file) == config


def test_what_is_left_out_keeps_its_default_and_the_dict_is_left_alone() -> None:
    assert as_config(Config, {}) == Config()
    values = {"hidden": [1, 2], "lr": 1}
    assert as_config(Config, values) == Config(hidden=(1, 2), lr=1.0)
    assert values == {"hidden": [1, 2], "lr": 1}
    assert as_config(Config, {"hidden": 8}) == Config(hidden=(8,))


@dataclass
class Layers:
    """A config with the field types that networks have."""

    sizes: list[dict[str, int]] = field(default_factory=list)
    convs: tuple[tuple[int, ...], ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    named: tuple[int, str] = (1, "a")
    none: tuple[()] = ()
    bare: tuple = ()  # type: ignore[type-arg]
    widths: tuple[int, ...] | int = 64
    number: int | float = 0
    epsilon: float | None = None
    rates: tuple[float, ...] = ()
    anything: Any = None


def test_an_easydict_in_a_list_becomes_a_plain_dict_too() -> None:
    config = as_config(Layers, EasyDict(sizes=[{"size": 1}], anything=[({"deep": {}},)]))
    assert config.sizes == [{"size": 1}]
    assert type(config.sizes[0]) is dict
    assert type(config.anything[0][0]) is type(config.anything[0][0]["deep"]) is dict


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("convs", [[1, 2], [3], []], ((1, 2), (3,), ())),
        ("betas", [0, 0.5], (0.0, 0.5)),
        ("named", [2, "b"], (2, "b")),
        ("none", [], ()),
        ("bare", [1, "b"], (1, "b")),
        ("widths", [1, 2], (1, 2)),
        ("widths", 8, 8),
        ("rates", [1, np.float32(0.5)], (1.0, 0.5)),
        ("epsilon", 1, 1.0),
        ("epsilon", None, None),
        ("number", 1, 1),
        ("number", 1.0, 1.0),
        ("number", np.int64(3), 3),
        ("anything", SCHEDULE, SCHEDULE),
    ],
)
def test_values_are_converted_to_the_types_of_their_fields(key, value, expected) -> None:
    found = getattr(as_config(Layers, {key: value}), key)
    assert repr(found) == repr(expected)  # 1 is not 1.0, and a list no tuple


def test_fields_of_any_type_and_of_protocols_take_every_value() -> None:
    class Speaks(Protocol):
        def speak(self) -> None: ...

    made = dataclasses.make_dataclass("Made", [("anything", Any, None), ("voice", Speaks, None)])
    config: Any = as_config(made, {"anything": 3, "voice": "loud"})
    assert (config.anything, config.voice) == (3, "loud")


def test_a_field_that_is_missing_is_named_beside_the_other_faults() -> None:
    @dataclass
    class Needy:
        need: int
        name: str
        depth: int = 2

    with pytest.raises(ConfigError) as caught:
        as_config(Needy, {"nede": 3, "depth": "x"})
    for fault in (
        *('Unknown key "nede". Did you mean "need"?', "`need` is missing; `int` was expected."),
        *("`name` is missing; `str` was expected.", "`depth` is 'x'"),
    ):
        assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("lr", "0.1", "`float`"),
        ("lr", None, "`float`"),
        ("lr", True, "`float`"),
        ("lr", [0.1], "`float`"),
        ("batch_size", 64.0, "`int`"),
        ("batch_size", False, "`int`"),
        ("batch_size", "64", "`int`"),
        ("name", 3, "`str`"),
        ("name", True, "`str`"),
        ("name", None, "`str`"),
        ("dueling", 1, "`bool` (true or false)"),
        ("dueling", "yes", "`bool` (true or false)"),
        ("epsilon", "none", "`float | None`"),
        ("epsilon", True, "`float | None`"),
        ("loss", "l2", "one of 'huber', 'mse'"),
        ("loss", None, "one of 'huber', 'mse'"),
        ("loss", ["huber"], "one of 'huber', 'mse'"),
        *(("hidden", value, "such as `64,` or `64,64`,") for value in (True, "64")),
        ("cell", "rnn", "one of 'lstm', 'gru' or None"),
        ("pair", {1, 2}, "`tuple[int, ...] | None`"),
        ("schedule", Config(), "Schedule | None`"),
        ("sizes", {"size": 1}, "`"),
        *(
            ("convs", value, "`tuple[tuple[int, ...], ...]`")
            for value in ([1, [2]], [[True]], [None])
        ),
        *(("betas", value, "`tuple[float, float]`") for value in ([0.9], [0.9, 0.99, 0.999])),
        ("named", ["a", 1], "`tuple[int, str]`"),
        ("none", [1], "`tuple[()]`"),
        ("bare", 1, "`tuple`"),
        *(("widths", value, "`tuple[int, ...] | int`") for value in ([0.5], 0.5)),
        ("rates", ["fast"], "`tuple[float, ...]`"),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_config(Config if hasattr(Config(), key) else Layers, {key: value})
    message = str(caught.value)
    assert message.startswith(f"`{key}` is {value!r}; ")
    assert message.endswith(f"{expected} was expected.")


def test_an_unknown_key_is_refused_with_the_one_that_was_meant() -> None:
    meant = r'^Unknown key "batchsize"\. Did you mean "batch_size"\? Unknown key "zzz"\. '
    with pytest.raises(ConfigError, match=f"{meant}The keys of .*: lr, batch_size, .*, schedule.$"):
        as_config(Config, EasyDict(batchsize=8, zzz=1))
    keys: list[Any] = ["derived", 3, None, "", ("a",)]
    for key in keys:
        with pytest.raises(ConfigError, match="Unknown key"):
            as_config(Config, {key: 1})


def test_the_configs_own_checks_follow() -> None:
    faults = "^`lr` is -1.0; it must be above 0. `batch_size` is 0; it must be at least 1.$"
    with pytest.raises(ConfigError, match=faults):
        as_config(Config, {"lr": -1, "batch_size": 0})


def test_only_a_dataclass_is_a_config_and_only_a_mapping_becomes_one() -> None:
    not_classes: list[Any] = [Schedule, Config()]
    for config_type in not_classes:
        with pytest.raises(ConfigError, match=r"`config_type` is .*; a dataclass itself was exp"):
            as_config(config_type, {})
    wrong: list[Any] = [None, 3, "lr", [("lr", 1)], Config()]
    for values in wrong:
        found = re.escape(f"not from {kind_of(values)}: {values!r}")
        with pytest.raises(ConfigError, match=f"made from a dict or an EasyDict.*{found}"):
            as_config(Config, values)


@suggests
@dataclass(frozen=True, kw_only=True)
class Suggesting:
    lr: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    derived: int = field(default=7, init=False)

    def __post_init__(self) -> None:
        check_all(positive(lr=self.lr))


@pytest.mark.parametrize("make", [Suggesting, lambda **values: as_config(Suggesting, values)])
@pytest.mark.parametrize(
    ("key", "meant"), [("hiden", "hidden"), ("learning_rate", "lr"), ("net_arch", "hidden")]
)
def test_a_config_answers_an_unknown_keyword_with_the_field_that_was_meant(
    make: Any, key: str, meant: str
) -> None:
    """Also if it has another name in other libraries."""
    with pytest.raises(ConfigError) as caught:
        make(**{key: 1})
    assert str(caught.value) == (
        f'Unknown key "{key}". Did you mean "{meant}"? The keys of Suggesting are: lr, hidden.'
    )


def test_a_config_that_suggests_is_the_same_dataclass_in_all_else() -> None:
    config = Suggesting(lr=1.0)
    assert (config.lr, config.hidden, config.derived) == (1.0, (64, 64), 7)
    assert dataclasses.replace(config, lr=2.0) == Suggesting(lr=2.0)
    assert pickle.loads(pickle.dumps(config)) == config
    assert list(inspect.signature(Suggesting).parameters) == ["lr", "hidden"]
    with pytest.raises(ConfigError, match="`lr` is 0; it must be above 0"):
        Suggesting(lr=0)
    with pytest.raises(TypeError):
        Suggesting(1.0)  # type: ignore[call-arg]
