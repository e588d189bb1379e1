"""The places of the user's modules: a run that names modules is signed with their folders.

A name alone leads to whatever module Python finds first, such as a file that came with the run.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ding_lite.io.importing import is_file


def folders_of(places: Iterable[str]) -> dict[str, list[str]]:
    """Return the folders from which modules are imported, by the first part of their names.

    Files are left out, since their names say where they are, and so are installed modules.
    """
    found = {}
    for name in dict.fromkeys(_first(place) for place in places if not is_file(place)):
        folders = [folder for folder in _folders(name) or () if not _is_installed(folder)]
        if folders:
            found[name] = folders
    return found


def look_in(folders: Mapping[str, Sequence[str]], places: Iterable[str]) -> str:
    """Let imports find modules in their folders; describe the first place that is another now.

    Nothing is imported. A module that Python does not find otherwise is looked for in its folder,
    which becomes the last entry of `sys.path`. Modules may also be imported or installed already.
    """
    for place in places:
        if is_file(place):
            if not (os.path.isabs(place) and os.path.isfile(place)):
                return f"the file {place}, which is not there any more"
        elif place not in sys.modules and not _is_imported(_first(place)):
            name = _first(place)
            if fault := _look_for(name, folders.get(name, ())):
                return f"the module `{name}`, {fault}"
    return ""


def _look_for(name: str, before: Sequence[str]) -> str:
    found = _folders(name)
    if found is None:
        sys.path.extend(before)
        found = _folders(name)
        if found is None:
            del sys.path[len(sys.path) - len(before) :]
    was = f"which was in {', '.join(before) or 'no folder that is known'} when it was saved"
    if found is None:
        return f"{was} and is not found any more"
    others = [one for one in found if one not in before and not _is_installed(one)]
    return f"{was}, and is now found in {', '.join(others)}" if others else ""


def _first(place: str) -> str:
    return place.partition(".")[0]


def _is_imported(name: str) -> bool:
    """Return whether a package is imported, and no namespace, which may get further folders."""
    return getattr(sys.modules.get(name), "__file__", None) is not None


def _folders(name: str) -> list[str] | None:
    """Return the folders of a module or package; None if it is not found, [] if it is built in."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # as for an empty name
        return None
    if spec is None:
        return None
    inner = list(spec.submodule_search_locations or ())
    if not inner:
        inner = [spec.origin] if spec.has_location and spec.origin else []
    return list(dict.fromkeys(os.path.dirname(os.path.realpath(one)) for one in inner))


def _is_installed(folder: str) -> bool:
    return any(os.path.commonpath([folder, one]) == one for one in _installed())


def _installed() -> Iterator[str]:
    """Yield the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    chosen = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    chosen += [*site.getsitepackages(), site.getusersitepackages()]
    yield from map(os.path.realpath, chosen)
