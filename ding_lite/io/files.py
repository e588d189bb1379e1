"""Check paths from users, and format errors of the operating system."""

from __future__ import annotations

import errno
import os
import re
import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_OF_A_PATH, MOST_OF_A_NAME = 4000, 240
"""Limits in bytes. Linux allows 4,095 and 255, and temporary files may have longer names."""
_MOST_OF_A_STEM = 40
"""The characters of a file's name that its temporary file has in its own."""


_NUMBER = re.compile("[0-9]+")


def path_fault(text: str) -> str:
    """Describe the fault of a path that cannot name a file; return "" if it has none.

    Example:
        >>> path_fault("runs/1"), path_fault("")
        ('', 'a path was expected.')
    """
    if not text:
        return "a path was expected."
    if "\0" in text:
        return "a path without a NUL was expected."
    try:
        length, names = len(text.encode()), text.split("/")
    except UnicodeEncodeError:
        return "a path that is text in UTF-8 was expected."
    if length > MOST_OF_A_PATH or max(len(name.encode()) for name in names) > MOST_OF_A_NAME:
        return (
            f"a path of at most {MOST_OF_A_PATH} bytes was expected, each name in it of at most "
            f"{MOST_OF_A_NAME}."
        )
    return ""


def by_number(text: str | os.PathLike[str]) -> tuple[object, ...]:
    """Return a sort key for paths and names, in which numbers are compared as numbers.

    Example:
        >>> sorted(["runs/10", "runs/2", "runs/b"], key=by_number)
        ['runs/2', 'runs/10', 'runs/b']
    """
    names = os.fspath(text).split(os.sep)
    return tuple(_parts_of(name) for name in names), os.fspath(text)


def _parts_of(name: str) -> tuple[object, ...]:
    """Split a name into texts and numbers, in turn; a number is its length and its digits."""
    texts, numbers = _NUMBER.split(name), (digits.lstrip("0") for digits in _NUMBER.findall(name))
    sizes = [(len(digits), digits) for digits in numbers]
    return tuple(zip(texts, [*sizes, (0, "")], strict=True))


def why(error: OSError) -> str:
    """Return the system's reason for an error, with the name of the file if it is known."""
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"


def limit_of(error: BaseException) -> str:
    """Name the limit of open files if an error says that it was reached; otherwise return ""."""
    return named_limit() if getattr(error, "errno", None) == errno.EMFILE else ""


def named_limit() -> str:
    return f"A process may open {max_files():,} files here; `ulimit -n 4096` raises the limit."


def max_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def named(path: str | os.PathLike[str]) -> str:
    """Name a path in a message; one that ends in dots is made absolute, since dots name nothing.

    Example:
        >>> named("runs/1"), named("/tmp/.")
        ('runs/1', '/tmp')
    """
    return str(Path(path) if Path(path).name.strip(".") else Path(path).resolve())


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the name of the file to an OSError, since errors of writes lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, and rename it to `path` when the block ends well.

    A pipe or a device such as /dev/null is yielded itself: renaming would remove it.
    """
    if path.exists() and not path.is_file():
        with naming(path):
            yield path
        return
    with naming(path):
        unfinished, handle = new_beside(path)
        os.close(handle)
    try:
        with naming(path):
            yield unfinished
            unfinished.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(unfinished):
            error.filename = str(path)
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def new_beside(path: Path, *, mode: int = 0o666) -> tuple[Path, int]:
    """Create an empty file of a new name beside `path`; return its path, and a descriptor.

    A folder from elsewhere may contain symbolic links: no name of theirs is opened for writing.
    """
    stem = path.stem[:_MOST_OF_A_STEM]
    new = path.with_name(f".{stem}.unfinished-{secrets.token_hex(8)}{path.suffix}")
    try:
        return new, os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        error.filename = str(path)
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, atomically; FileExistsError if there is one.

    Of several processes that do so at once, one writes the file.
    """
    draft, handle = new_beside(path, mode=0o600)
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, 0o600)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.link(draft, path)  # unlike a rename, never replaces a file that is in use
    finally:
        draft.unlink()
