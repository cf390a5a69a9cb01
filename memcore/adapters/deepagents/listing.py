"""The file rows of a namespace in memory, in the order of their paths."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

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


class Listing:
    """The files as they were at ``head``; None: there were none yet.

    It is not thread-safe: its owner holds a lock.
    """

    def __init__(self, head: Head | None, rows: Iterable[tuple[str, FileRow]] = ()) -> None:
        self.head = head
        self._rows = dict(rows)
        self._paths = sorted(self._rows)

    def row(self, path: str) -> FileRow | None:
        """The row of a file."""
        return self._rows.get(path)

    def take(self, path: str, row: FileRow | None) -> None:
        """Make a change: a file's new row, or a path is gone with all below it."""
        if row is not None:
            if path not in self._rows:
                insort(self._paths, path)
            self._rows[path] = row
            return
        for start, stop in ((path, path + "\0"), self._below(path + "/")):
            lo, hi = self._span(start, stop)
            for gone in self._paths[lo:hi]:
                del self._rows[gone]
            del self._paths[lo:hi]

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

    def found_under(self, root: str) -> list[tuple[str, FileRow]]:
        """The files that a search looks at: the root itself if it is a file, else those below."""
        if root in self._rows:
            return [(root, self._rows[root])]
        lo, hi = self._span(*self._below(root if root == "/" else root + "/"))
        rows = self._rows
        return [(path, rows[path]) for path in self._paths[lo:hi]]

    def entries(self, directory: str) -> Iterator[tuple[str, FileRow | None]]:
        """What lies in a directory: files with their rows, directories (``"/a/"``) without.

        Of a directory's subtree one path is looked at, so it costs what there is to tell.
        """
        prefix = directory if directory.endswith("/") else directory + "/"
        at, hi = self._span(*self._below(prefix))
        paths, rows, start = self._paths, self._rows, len(prefix)
        while at < hi:
            path = paths[at]
            slash = path.find("/", start)
            if slash < 0:
                yield path, rows[path]
                at += 1
                continue
            subtree = path[: slash + 1]
            yield subtree, None
            at = bisect_left(paths, self._below(subtree)[1], at, hi)
