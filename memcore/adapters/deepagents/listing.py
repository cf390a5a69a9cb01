"""The file rows of a namespace in memory, in the order of their paths."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from deepagents.backends.protocol import FileInfo

from memcore.adapters.deepagents.rows import FileRow, Head

__all__ = ["Listing", "rooted"]

_BEHIND_SLASH = chr(ord("/") + 1)


def rooted(path: str | None) -> str | None:
    """A search root as DeepAgents normalises it; None if it is blank, where nothing is found."""
    path = path or "/"
    if not path.strip():
        return None
    found = path if path.startswith("/") else "/" + path
    return found.rstrip("/") if found != "/" else found


class _Told(dict[str, FileInfo]):
    """What is told of each file, made when it is first asked for."""

    def __init__(self, rows: dict[str, FileRow]) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, path: str) -> FileInfo:
        row = self._rows[path]
        found = self[path] = {
            "path": path,
            "is_dir": False,
            "size": row.told_size,
            "modified_at": row.modified_at or "",
        }
        return found


class Listing:
    """The files as they were at ``head``; None: there were none yet.

    It is not thread-safe: its owner holds a lock.
    """

    def __init__(self, head: Head | None, rows: Iterable[tuple[str, FileRow]] = ()) -> None:
        self.head = head
        self._rows = dict(rows)
        self._told = _Told(self._rows)
        self._paths = sorted(self._rows)

    def row(self, path: str) -> FileRow | None:
        """The row of a file."""
        return self._rows.get(path)

    def rows(self, paths: Iterable[str]) -> list[tuple[str, FileRow]]:
        """The paths of files with their rows."""
        rows = self._rows
        return [(path, rows[path]) for path in paths]

    def take(self, path: str, row: FileRow | None) -> None:
        """Make a change: a file's new row, or a path is gone with all below it."""
        if row is not None:
            if path not in self._rows:
                insort(self._paths, path)
            self._rows[path] = row
            self._told.pop(path, None)
            return
        for start, stop in ((path, path + "\0"), self._below(path + "/")):
            lo, hi = self._span(start, stop)
            for gone in self._paths[lo:hi]:
                del self._rows[gone]
                self._told.pop(gone, None)
            del self._paths[lo:hi]

    def drop(self, paths: Iterable[str], head: Head) -> None:
        """These files are gone at ``head``; what lies below their paths is not."""
        for path in paths:
            del self._rows[path]
            self._told.pop(path, None)
            del self._paths[bisect_left(self._paths, path)]
        self.head = head

    def _below(self, prefix: str) -> tuple[str, str]:
        """Bounds of the paths that begin with a prefix, which ends with a slash."""
        return prefix, prefix[:-1] + _BEHIND_SLASH

    def _span(self, start: str, stop: str) -> tuple[int, int]:
        lo = bisect_left(self._paths, start)
        return lo, bisect_left(self._paths, stop, lo)

    def at_or_below(self, base: str) -> list[str]:
        """A path if it is a file, and all files below it."""
        lo, hi = self._span(*self._below(base + "/"))
        return ([base] if base in self._rows else []) + self._paths[lo:hi]

    def found_under(self, root: str) -> list[str]:
        """The files that a search looks at: the root itself if it is a file, else those below."""
        if root in self._rows:
            return [root]
        lo, hi = self._span(*self._below(root if root == "/" else root + "/"))
        return self._paths[lo:hi]

    def told(self, paths: Iterable[str]) -> list[FileInfo]:
        """What DeepAgents is told of these files."""
        told = self._told
        return [told[path].copy() for path in paths]

    def entries(self, directory: str) -> list[FileInfo]:
        """What DeepAgents is told of a directory: its files, and its directories (``"/a/"``).

        Of a directory's subtree one path is looked at, so it costs what there is to tell.
        """
        prefix = directory if directory.endswith("/") else directory + "/"
        at, hi = self._span(*self._below(prefix))
        paths, told, start = self._paths, self._told, len(prefix)
        found: list[FileInfo] = []
        while at < hi:
            path = paths[at]
            slash = path.find("/", start)
            if slash < 0:
                found.append(told[path].copy())
                at += 1
                continue
            subtree = path[: slash + 1]
            found.append({"path": subtree, "is_dir": True, "size": 0, "modified_at": ""})
            at = bisect_left(paths, self._below(subtree)[1], at, hi)
        return found
