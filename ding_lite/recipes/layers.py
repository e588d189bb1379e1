"""Values by name, each from the first of several sources that has it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any


class Layers(ChainMap[str, Any]):
    """Values in layers, of which earlier ones take precedence.

    Args:
        **layers: The values of each source by name, by the name of the source.

    Example:
        >>> values = Layers(given={"lr": 0.1}, preset={"lr": 0.2, "gamma": 0.9})
        >>> values["lr"], values.source("lr"), values.source("gamma"), values.source("loss")
        (0.1, 'given', 'preset', 'default')
    """

    def __init__(self, **layers: Mapping[str, Any]) -> None:
        super().__init__(*map(dict, layers.values()))
        self._layers = layers

    def source(self, name: str) -> str:
        """Return the source of a value; `default` if no layer has it."""
        return next((of for of, values in self._layers.items() if name in values), "default")

    def names_from(self, *sources: str) -> list[str]:
        return [name for name in self if self.source(name) in sources]

    def has(self, source: str) -> bool:
        return bool(self._layers.get(source))

    def but(self, source: str, **values: Any) -> Layers:  # noqa: ANN401 - of any kind
        """Return a copy in which a source has these values, too."""
        return Layers(**{**self._layers, source: {**self._layers.get(source, {}), **values}})
