"""Breaking JSON and bytes, by a seed."""

from __future__ import annotations

import json
import random
from typing import Any

# Written as themselves and not as texts, since no value of Python stands for them in JSON.
RAW = {
    "@deep": b"[" * 3_000,
    "@closed": b"[" * 3_000 + b"]" * 3_000,
    "@nested": b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
    "@deep enough": b"[" * 900 + b"1" + b"]" * 900,
    "@digits": b"9" * 6_000,
    "@large": b"9" * 4_000,
    "@huge": b"1e999",
    "@nan": b"NaN",
    "@infinity": b"-Infinity",
    "@latin": b'"\xff\xfe"',
    "@surrogate": b'"\\ud800"',
    "@nothing": b"",
}
NASTY: list[Any] = [
    *RAW,
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**62, 2**63, 2**64, -(2**63), 2**200),
    *(0.5, -0.0, 1e308, -1.7e308, 5e-324, "", "a", "0", "NaN", "x" * 300, "a\0b", "\x1b[2J", "é"),
    *("|O8", "|O", "<M8[s]", "|V16", "<f4,<f4", "<U9", ">f8", "|b1", "<c8", "<f16"),
    *("..", "/etc/passwd", "../rows.bin", "/dev/zero", "manifest.json", "state.a", "DQN"),
    *([], [[]], [0], [-1], [2**40], [2**63, 2], [1] * 70, [None], ["a"], {}, {"a": 1}),
    *({"$tensor": 5}, {"$array": "state.no"}, {"$tuple": 5}, {"$rows": {}}, {"$rows": None}),
]
_KEYS = ["$rows", "$tensor", "$array", "$tuple", "kind", "a", "", "\0"]


def broken_json(rng: random.Random, tree: Any) -> bytes:
    """Write a tree as JSON after changes of it, or of its text."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        tree = changed(rng, tree)
    text = as_json(tree)
    return broken_bytes(rng, text) if rng.random() < 0.15 else text


def as_json(tree: Any) -> bytes:
    """Write a tree, with what stands for raw JSON as that."""
    text = json.dumps(tree, separators=(",", ":")).encode()
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"'.encode(), raw)
    return text


def changed(
    rng: random.Random, value: Any, nasty: list[Any] = NASTY, keys: list[Any] = _KEYS
) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.08:
        return near(rng, value, nasty) if rng.random() < 0.3 else rng.choice(nasty)
    copy = value.copy()
    key = rng.choice([*copy]) if isinstance(copy, dict) else rng.randrange(len(copy))
    match rng.randrange(12):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[rng.choice([*keys, *copy])] = rng.choice([*nasty, copy[key]])
        case 1 if isinstance(copy, list):
            copy.insert(key, rng.choice([*nasty, copy[key]]))
        case _:
            copy[key] = changed(rng, copy[key], nasty, keys)
    return copy


def near(rng: random.Random, value: Any, nasty: list[Any]) -> Any:
    """Return another value of the same kind, which gets past more checks."""
    match value:
        case bool():
            return not value
        case int():
            return value + rng.choice([-7, -1, 1, 7, value])
        case float():
            return rng.choice([-value, value * 1e9, value + 1])
        case str() if value:
            at = rng.randrange(len(value))
            return value[:at] + rng.choice(["", "0", "z", "/", value[at:]]) + value[at + 1 :]
        case [*items] if items:
            return [*items, rng.choice(items)]
    return rng.choice(nasty)


def broken_bytes(rng: random.Random, content: bytes) -> bytes:
    mutant = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at, size = rng.randrange(len(mutant) + 1), rng.choice([1, 2, 4, 8, 64])
        match rng.randrange(7):
            case 0 | 1 if at < len(mutant):
                mutant[at] ^= 1 << rng.randrange(8)
            case 2:
                mutant[at : at + size] = rng.randbytes(size)
            case 3:
                mutant[at : at + size] = rng.choice([b"\xff", b"\0", b"\x7f", b"\x80"]) * size
            case 4:
                del mutant[at : at + size]
            case 5:
                mutant[at:at] = mutant[at : at + size]
            case _ if rng.random() < 0.1:
                del mutant[at:]
    return bytes(mutant)
