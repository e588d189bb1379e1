"""A dataclass travels by the name under which both ends have registered it."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, make_dataclass
from typing import ClassVar

import pytest

from ding_lite.errors import CodecError, ConfigError
from ding_lite.parallel.wire.codec import decode, encode
from ding_lite.records import Records, register


def test_a_registered_class_is_itself_and_travels_by_its_qualified_name() -> None:
    @register
    @dataclass
    class Local:
        x: int
        shared: ClassVar[int] = 3

    encoded = encode(Local(5))
    assert b"test_a_registered_class_is_itself" in encoded.meta
    assert decode(encoded.meta, []) == Local(5)


def test_a_name_is_for_one_class_and_may_be_taken_again_by_the_same() -> None:
    def make(name: str) -> type:
        cls = make_dataclass(name, ["x"])
        cls.__module__ = "program"  # Python 3.12 and newer take no such name from a namespace
        return cls

    records = Records()
    records.add(make("Step"), "step")
    again = make("Step")
    records.add(again, "step")
    assert type(records.build("step", {"x": 1})) is again
    with pytest.raises(ConfigError, match=r"as 'step': program\.Step and program\.Other\. Give"):
        records.add(make("Other"), "step")


def test_what_its_fields_do_not_make_is_refused() -> None:
    class Plain:
        pass

    with_init_var = make_dataclass("WithInitVar", [("x", int), ("seed", InitVar[int])])
    counted = make_dataclass("Counted", [("x", int), ("length", int, field(init=False, default=0))])
    with pytest.raises(ConfigError, match="Plain` is no dataclass"):
        register(Plain)
    for cls in (with_init_var, counted):
        with pytest.raises(ConfigError, match="cannot be built from its fields"):
            register(cls)


def test_a_class_that_refuses_its_values_is_no_crash() -> None:
    @register(name="test_records.Positive")
    @dataclass
    class Positive:
        x: float

        def __post_init__(self) -> None:
            if self.x <= 0:
                raise ArithmeticError("x is not positive")

    value = Positive(1.0)
    value.x = -1.0
    with pytest.raises(CodecError, match=r"`test_records\.Positive` cannot .*x is not positive"):
        decode(encode(value).meta, [])
