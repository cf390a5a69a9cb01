"""Which paths a glob finds, and which lines a search finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from deepagents.backends.protocol import GrepMatch
from deepagents.backends.utils import compile_grep_include_glob
from wcmatch import glob as wcglob

__all__ = ["lines_with", "matched", "relative"]

_PATTERNS: Final = 32
"""Globs of which it is remembered what they include."""
_PATHS_KEPT: Final = 10_000


def relative(path: str, root: str) -> str:
    """A path as seen from a search root, which may be the file itself."""
    if root == "/":
        return path[1:]
    if path == root:
        return path.rpartition("/")[2]
    return path[len(root) + 1 :]


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], object]:
    # The shared matcher judges the pattern, and raises in its own words. What it then does for each
    # path (an object, a PurePosixPath) takes longer than all else in a search of many paths.
    compile_grep_include_glob(pattern)
    flags = wcglob.BRACE | wcglob.GLOBSTAR
    alternatives = [
        re.compile(text) for text in wcglob.translate(pattern.lstrip("/"), flags=flags)[0]
    ]
    if len(alternatives) == 1:
        matches: Callable[[str], object] = alternatives[0].fullmatch
    else:

        def matches(name: str) -> bool:
            return any(found.fullmatch(name) for found in alternatives)

    if "/" in pattern:
        return matches

    def matches_name(path: str) -> object:
        name = path[path.rfind("/") + 1 :]
        if name in {"", "."}:
            name = PurePosixPath(path).name
        return matches(name)

    return matches_name


class _Verdicts(dict[str, bool]):
    """Which paths a glob includes; it is asked once of each path."""

    def __init__(self, pattern: str, root: str) -> None:
        super().__init__()
        self._matches = _matcher(pattern)
        self._root = root

    def __missing__(self, path: str) -> bool:
        found = self[path] = bool(self._matches(relative(path, self._root)))
        return found


_verdicts = lru_cache(maxsize=_PATTERNS)(_Verdicts)


def matched(pattern: str, paths: list[str], root: str) -> list[str]:
    """The paths under ``root`` that a glob includes, as DeepAgents' shared matcher says.

    Raises:
        InvalidGlobPatternError: the matcher refuses the pattern.
    """
    verdicts = _verdicts(pattern, root)
    if len(verdicts) > 2 * len(paths) + _PATHS_KEPT:
        verdicts.clear()  # most of them are of files that are gone, or of other namespaces
    return [path for path in paths if verdicts[path]]


def lines_with(pattern: str, path: str, text: str) -> list[GrepMatch]:
    """The lines of a text that hold ``pattern``."""
    return [
        {"path": path, "line": number, "text": line}
        for number, line in enumerate(text.split("\n"), 1)
        if pattern in line
    ]
