"""Compiled networks and captured updates, the setting `compile=` of policies.

`"torch"` passes the functions that autograd records to `torch.compile`. `"graph"` captures an
update on a GPU as a CUDA graph, so that later updates of the same shapes are one launch. The
capture follows PyTorch's notes "CUDA semantics, CUDA Graphs": warm-up runs on a side stream, inputs
in static memory, and replays for which the host only copies inputs into that memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ding_lite.errors import ConfigError
from ding_lite.rl.host_or_device import placed

Compiler: TypeAlias = Callable[[Any], Any]
"""Returns a function or module that computes the same as its argument, like `torch.compile`."""
Compile: TypeAlias = Literal["torch", "graph"] | bool | Compiler | None
"""None or False for neither; `"torch"` or True for `torch.compile`; `"graph"` for a CUDA graph; or
your own compiler, such as `functools.partial(torch.compile, mode="max-autotune")`."""
Inputs: TypeAlias = Mapping[str, Any]
"""Tensors or arrays by name; None for an input that a batch does not have."""
Outputs: TypeAlias = dict[str, Any]

_NUM_FIRST_RUNS = 3
"""The number of updates of each shape before its capture, as in PyTorch's examples."""


def compiler_of(setting: Compile) -> Compiler | None:
    """Return the compiler that a setting names; None for no compiler, or a graph."""
    if setting in (None, False, "graph"):
        return None
    if setting in (True, "torch"):
        return torch.compile
    if callable(setting):
        return setting
    raise ConfigError(
        f'`compile` is {setting!r}; "torch", "graph", None or a function such as '
        f'`partial(torch.compile, mode="max-autotune")` was expected.'
    )


class CapturedUpdate:
    """Runs an update as a graph that is recorded once for each shape of its inputs.

    The first runs of a shape are ordinary updates, so that nothing has to be undone.
    """

    def __init__(
        self, update: Callable[..., Outputs], recorder: CudaRecorder, *, device: torch.device
    ) -> None:
        self._update, self._recorder, self._device = update, recorder, device
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, inputs: Inputs, **form: Hashable) -> Outputs:
        """Run the update; return its outputs in newly allocated memory."""
        tensors = {name: placed(v, self._device) for name, v in inputs.items() if v is not None}
        shapes = tuple((name, each.shape, each.dtype) for name, each in tensors.items())
        key = (shapes, tuple(form.items()))  # keeps alive the objects of `form` the graph reads
        graph = self._graphs.get(key)
        if graph is None:
            held = {name: each.clone() for name, each in tensors.items()}
            graph = self._graphs[key] = _Graph(held, self._update, self._recorder, inputs, form)
        for name, each in tensors.items():
            graph.held[name].copy_(each, non_blocking=True)
        return {name: _copied(value) for name, value in graph.run().items()}


class _Graph:
    def __init__(
        self,
        held: dict[str, Tensor],
        update: Callable[..., Outputs],
        recorder: CudaRecorder,
        inputs: Inputs,
        form: Mapping[str, Hashable],
    ) -> None:
        self.held = held
        self._recorder = recorder
        names = tuple(inputs)  # not the inputs themselves: they would keep their memory
        self._compute = lambda: update({name: held.get(name) for name in names}, **form)
        self._num_runs = 0
        self._recorded: tuple[Callable[[], object], Outputs] | None = None

    def run(self) -> Outputs:
        if self._num_runs < _NUM_FIRST_RUNS:
            self._num_runs += 1
            return self._recorder.warm_up(self._compute)
        if self._recorded is None:
            self._recorded = self._recorder.record(self._compute)
        replay, outputs = self._recorded
        replay()
        return outputs


class CudaRecorder:
    """Records the operations of a function as a CUDA graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        stream: Any = torch.cuda.Stream
        self._stream = stream(device)

    def warm_up(self, run: Callable[[], Outputs]) -> Outputs:
        """Run a function on a side stream, with the current stream waiting for it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            found = run()
        current.wait_stream(self._stream)
        return found

    def record(self, run: Callable[[], Outputs]) -> tuple[Callable[[], object], Outputs]:
        """Return a function that repeats the operations of `run`, and the outputs.

        `run` is called once, and its operations are only recorded by that call, not done.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                found = run()
        except RuntimeError as error:
            raise ConfigError(
                f"The update cannot be captured as a CUDA graph: {str(error).splitlines()[0]} "
                f"Networks must not wait for the device, as `.item()` and branches on values do. "
                f'Leave `compile="graph"` out, or make the network without them.'
            ) from error
        return graph.replay, found


def has_graphs(device: torch.device) -> bool:
    return device.type == "cuda"


def check_captures(device: torch.device, *, optimizer: object = None) -> None:
    if not has_graphs(device):
        raise ConfigError(
            f'`compile="graph"` captures updates as CUDA graphs, and the device is '
            f'{str(device)!r}; a GPU was expected. Give `device="cuda"`, or take '
            f'`compile="torch"`, which compiles networks on any device.'
        )
    if optimizer is not None:
        raise ConfigError(
            '`compile="graph"` captures updates with the Adam of this package alone, and an '
            '`optimizer` was given. Leave one of the two out, or take `compile="torch"`.'
        )


def _copied(value: Any) -> Any:  # noqa: ANN401 - a tensor or a plain number
    return value.clone() if isinstance(value, Tensor) else value
