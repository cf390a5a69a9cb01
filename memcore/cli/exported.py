"""What ``memcore export`` wrote, loaded by ``memcore import``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import typer

import memcore
from memcore.cli.exits import ExitCode
from memcore.cli.options import key_options
from memcore.cli.output import Progress, emit_json, print_pairs, progress, warn
from memcore.database.exchange import Title, is_title, parse_line

__all__ = ["Renaming", "is_export", "load_export", "summarize_export"]


@dataclass(frozen=True, slots=True)
class Renaming:
    """Where the sessions of an export go, if not where they came from."""

    user: str | None
    app: str | None
    prefix: str

    def __call__(self, title: Title) -> Title:
        """The title with its new names."""
        return replace(
            title,
            user=title.user if self.user is None else self.user,
            app=title.app if self.app is None else self.app,
            session=self.prefix + title.session,
        )


def is_export(line: bytes) -> bool:
    """Whether a file that begins with this line was written by ``memcore export``."""
    try:
        return is_title(parse_line(line))
    except memcore.InvalidItemError:
        return False  # whoever loads it says what is wrong


def load_export(
    lines: Iterable[bytes], total: int, store: str, *, renaming: Renaming, counter: str | None
) -> dict[str, Any]:
    """Store the sessions of an export of ``total`` bytes; what was done, by name."""
    started = time.perf_counter()
    with (
        memcore.open(store, counter=counter, **key_options()) as db,
        progress("importing") as report,
    ):
        read = _Counted(lines, total, report)
        done = asdict(db.import_(read, rename=renaming, counter=counter))
    return done | {
        "bytes": read.bytes,
        "file_bytes": os.path.getsize(store),
        "seconds": time.perf_counter() - started,
    }


def summarize_export(done: dict[str, Any], file: str, *, as_json: bool) -> None:
    """Say what ``load_export`` did, and end with what could not be loaded."""
    failures = done.pop("failures")
    for failure in failures:
        warn(f"{file}: {failure}")
    done["failed"] = len(failures)
    if as_json:
        emit_json("import", done)
    else:
        shown = done | {"seconds": f"{done['seconds']:.2f}"}
        print_pairs((name.replace("_", " "), value) for name, value in shown.items())
    if failures:
        raise typer.Exit(ExitCode.FINDINGS)


class _Counted:
    """Lines whose bytes are counted and reported while they are read."""

    def __init__(self, lines: Iterable[bytes], total: int, report: Progress | None) -> None:
        self.bytes = 0
        self._lines = lines
        self._total = total
        self._report = report

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.bytes += len(line)
            if self._report is not None:
                self._report(self.bytes, max(self._total, self.bytes))
            yield line
