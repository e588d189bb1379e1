"""The types of numbers that files and messages may name; no other dtype is read from outside.

numpy makes a dtype from almost any text. With a dtype of Python objects (`|O`) it would read the
bytes of a file as pointers, so text from outside is looked up here and never given to `np.dtype`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

NumericDType: TypeAlias = np.dtype[Any]

DTYPES: dict[str, NumericDType] = {
    code: np.dtype(f"<{code}")
    for code in (
        *("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
        *("f2", "f4", "f8", "c8", "c16"),
    )
}
"""Numpy's dtypes by their code: kind and bytes, always little-endian."""
CODES: dict[NumericDType, str] = {dtype: code for code, dtype in DTYPES.items()}
SAVED_DTYPES: dict[str, NumericDType] = {
    dtype.str: dtype
    for little in CODES
    if little.kind in "biuf"
    for dtype in (little, little.newbyteorder(">"))
}
"""Numpy's dtypes of the large arrays of a checkpoint, by `dtype.str`, in both byte orders."""


def has_only_flags(array: npt.NDArray[Any]) -> bool:
    """Return whether each byte of a bool array is 0 or 1; other bytes mislead numpy.

    Example:
        >>> has_only_flags(np.array([0, 1], np.uint8).view(np.bool_))
        True
        >>> has_only_flags(np.array([0, 2], np.uint8).view(np.bool_))
        False
    """
    return not array.size or int(array.reshape(-1).view(np.uint8).max()) <= 1
