"""The errors that this package raises on purpose.

Each class is also a subclass of the builtin error that callers would catch, so `except ValueError`
works for a wrong setting. A message says what was found, what was expected and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "AuthenticationError",
    "CheckpointError",
    "CodecError",
    "ConfigError",
    "ContextError",
    "DeadlineExceeded",
    "DingLiteError",
    "EnvError",
    "LabelError",
    "MiddlewareError",
    "MissingExtraError",
    "NodeFailed",
    "NodeReplaced",
    "NonFiniteError",
    "NotRegistered",
    "PeerLost",
    "RemoteError",
    "SaveError",
    "ShapeError",
    "StepCancelled",
    "TransportError",
]


_CONTROL = re.compile(r"[^\n\t -~\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]")


class DingLiteError(Exception):
    """The base of all errors that this package raises on purpose."""


class ConfigError(DingLiteError, ValueError):
    """A setting is wrong, or does not fit another setting."""


class LabelError(ConfigError):
    """A label is malformed, or matches nothing: no middleware of a node, no receiver of an item."""


class NotRegistered(ConfigError):
    """The called node has no handler that is registered under the name of the call."""


class ContextError(DingLiteError, AttributeError, KeyError):
    """A ctx key is missing, reserved, or was never kept."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # a KeyError would print the repr of its message


class MiddlewareError(DingLiteError, RuntimeError):
    """A middleware broke the rules of the pipeline."""


class StepCancelled(DingLiteError, RuntimeError):
    """A blocked call was cancelled, because another middleware of the same step has raised."""


class ShapeError(DingLiteError, ValueError):
    """Arrays do not agree on a size."""


class NonFiniteError(DingLiteError, ArithmeticError):
    """A number that must be finite is NaN or infinite."""


class CheckpointError(DingLiteError, OSError):
    """A checkpoint is missing, damaged, or of another version or policy."""


class SaveError(CheckpointError):
    """A checkpoint could not be written; the previous checkpoint is intact."""


class MissingExtraError(DingLiteError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


class EnvError(DingLiteError, RuntimeError):
    """An environment raises, returns values outside of its spaces, or its process has died."""


class DeadlineExceeded(DingLiteError, TimeoutError):
    """A wait has timed out; the message says for what it waited and how long."""


class TransportError(DingLiteError, OSError):
    """A message could not be sent or received."""


class AuthenticationError(TransportError):
    """A message was unsigned, forged, replayed or from another run."""


class CodecError(DingLiteError, ValueError):
    """A value cannot be encoded, or bytes are not a valid message."""


class PeerLost(TransportError):
    """A node stopped answering."""


class NodeReplaced(TransportError):
    """Another process has replaced this node in the job while this node was disconnected."""


class NodeFailed(DingLiteError, RuntimeError):
    """A node raised or died; holds the node's traceback, its error as the cause, and its id."""

    def __init__(self, message: str = "", *, node_id: int | None = None) -> None:
        super().__init__(message)
        self.node_id = node_id
        """The node that failed first."""


class RemoteError(DingLiteError, RuntimeError):
    """The handler of a call has raised on the called node; holds that node's traceback."""

    def __init__(
        self,
        message: str = "",
        *,
        node_id: int | None = None,
        kind: str = "",
        remote_traceback: str = "",
    ) -> None:
        super().__init__(printable(message))
        self.node_id = node_id
        """The called node."""
        self.kind = kind
        """The name of the exception's class on that node."""
        self.remote_traceback = printable(remote_traceback)
        """The traceback of that exception, as text; also a note of this error."""
        if remote_traceback:
            self.add_note(self.remote_traceback)

    @property
    def is_not_registered(self) -> bool:
        """Whether the called node has no handler of that name, or not yet."""
        return self.kind == NotRegistered.__name__


def printable(text: str) -> str:
    r"""Escape control characters but line breaks and tabs, and halves of surrogate pairs.

    A terminal would obey the former, and the latter cannot be encoded or drawn.

    Example:
        >>> print(printable("two\nlines \x1b[2J"))
        two
        lines \x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name closest to a mistyped one."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f' Did you mean "{by_lower[close[0]]}"?' if close else ""


def kind_of(value: object) -> str:
    """Return the name of a value's class with an article, such as `an int`; `None` for None."""
    return "None" if value is None else with_article(type(value).__name__)


def with_article(name: str) -> str:
    """Return a name with its article, such as `an int`."""
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def pip_line(extra: str) -> str:
    """Return the command that installs an extra, from the clone if this package runs from one."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "setup.cfg").exists():
        return f'pip install "ding-lite[{extra}]"'
    place = "." if Path.cwd() == root else root
    return f"pip install -e '{place}[{extra}]'"
