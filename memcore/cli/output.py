"""Terminal output: results on stdout, everything else on stderr.

Names and contents come from users and models, so characters that could move the cursor, change
colors or reorder text are shown as escapes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

__all__ = [
    "SCHEMA",
    "clip",
    "complain",
    "emit_json",
    "escape",
    "muted_if_full",
    "print_pairs",
    "print_table",
    "progress",
    "said_here",
    "stages",
    "timestamp",
    "warn",
    "warn_all",
]


_VARIES: Final = re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|\d+")
"""Names and numbers, in which warnings of one kind differ."""
_ALIKE_SHOWN: Final = 3
SCHEMA: Final = 1
"""Version of the JSON objects: fields may be added without raising it, but not changed."""

COLUMN_GAP: Final = 3
"""Maximum gap, in characters, that rich puts between two columns of a table."""
FLEXIBLE_WIDTH_MIN: Final = 20

Progress = Callable[[int, int], None]


def escape(text: str) -> str:
    """The text on one line, with control, formatting and unassigned characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def clip(text: str, width: int) -> str:
    """The beginning of a text on one line, with runs of whitespace collapsed to one space."""
    line = escape(" ".join(text.split()))
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def emit_json(command: str, fields: dict[str, Any]) -> None:
    """Print one JSON object on stdout, in ASCII, so that every terminal and pipe can carry it."""
    print(json.dumps({"schema": SCHEMA, "command": command, **fields}))


_SAID_HERE: Final = (
    ("open it with audit=Audit(key=...) once", "a program begins one with audit=Audit(key=...)"),
    (
        "open it with audit=Audit(key=...) to write to it, or with read_only=True",
        "to write to it, set MEMCORE_AUDIT_KEY_FILE or MEMCORE_AUDIT_KEY",
    ),
    ("open it with key=", "set MEMCORE_KEY, for example to file:PATH or env:NAME"),
    ("salvage it with key=", "set MEMCORE_KEY, for example to file:PATH or env:NAME"),
    ("say where it lies with key_file=", "say where it lies with MEMCORE_KEY_FILE"),
    ("give key_file= another name", "give MEMCORE_KEY_FILE another name"),
    ("pass allow_unsafe=True if the file is a cache or a test's, else leave durability out",
     "add --allow-unsafe if the file is a cache or a test's, else leave --durability out"),
    ("or open the session with orphans='keep' to store it as it is",
     "or import it with --orphans keep to store it as it is"),
    ("session.release() or 'memcore hold", "'memcore hold"),
    ("scope.release() or 'memcore hold", "'memcore hold"),
    ("call finish_erasures()", "run 'memcore erase --finish'"),
    ("; without create=False or read_only=True it is made", ""),
    ("take it with session.lease() after that", "run it again after that"),
    (", or give another one", ""),
    (", as os.urandom(32) makes", " in a file:PATH, as 'head -c 32 /dev/urandom' makes"),
    (", a callable that gives 32 bytes, or an object with wrap() and unwrap()", ""),
    ("; os.urandom(32) makes one", "; 'head -c 32 /dev/urandom' makes one"),
    ("serve needs the inspector", "'memcore ui' needs the inspector's packages"),
    ("build_server needs the MCP SDK", "'memcore mcp' needs the MCP SDK"),
    (" (on_conflict=)", ""),
    ("and see verify_audit()", "and see 'memcore audit verify'"),
    ("open it with read_only=True, or get write permission", "get write permission"),
    ("is read-only: open it with read_only=True", "is read-only: only verbs that read work here"),
    ("key_file=, or open it with read_only=True", "MEMCORE_KEY_FILE; verbs that only read take it"),
    ("to look into it, open it with read_only=True", "verbs that only read take it as it is"),
    (", or open the store with read_only=True", "; verbs that only read work on it"),
    ("index the sessions with a handle that may write", "add --index"),
    (", or open it with read_only=True", "; verbs that only read take it as it is"),
)  # fmt: skip
"""Words for programs in messages of the library, and what the command line has in their place."""


def said_here(text: str) -> str:
    """A message of the library, with advice that the command line can follow."""
    for ours, here in _SAID_HERE:
        text = text.replace(ours, here)
    return text


def warn(text: str) -> None:
    """Print one line on stderr."""
    with muted_if_full():
        print(f"memcore: {escape(_without_password(said_here(text)))}", file=sys.stderr)


_PASSWORD: Final = re.compile(r"(:/+[^\s/:@]*:)\S+(?=@)|(password=)\S+")


def _without_password(text: str) -> str:
    """Hide what may be the password of an address, whichever message repeats it."""
    return _PASSWORD.sub(r"\1\2***", text)


@contextmanager
def muted_if_full() -> Iterator[None]:
    """Give up stderr if it is closed or full: there is nowhere left to report that."""
    try:
        yield
        sys.stderr.flush()
    except OSError:
        # Python would end with another exit code when it flushes what is buffered.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stderr.fileno())
        os.close(sink)


def warn_all(texts: Iterable[str], prefix: str = "") -> None:
    """Warn of each text, of many that differ in names and numbers alone of the first three."""
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kinds.setdefault(_VARIES.sub("", text), []).append(text)
    for alike in kinds.values():
        shown = alike if len(alike) <= _ALIKE_SHOWN + 1 else alike[:_ALIKE_SHOWN]
        for text in shown:
            warn(f"{prefix}{text}")
        if len(shown) < len(alike):
            warn(f"{prefix}and {len(alike) - len(shown):,} more like these")


def complain(text: str) -> None:
    """Print the error line of a failing verb on stderr."""
    warn(f"error: {text}")


def timestamp(seconds: float) -> str:
    """The time in UTC, to the second; a time outside the calendar as a number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    rows = [(name, _shown(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    flexible: int = -1,
    wrap: bool = False,
) -> None:
    """Print a table: with rich on a terminal, as aligned text elsewhere. Numbers align right.

    If the terminal is too narrow, the ``flexible`` column is cut or wrapped. If that does not
    suffice, the terminal wraps the lines.
    """
    body = [list(row) for row in rows]
    columns = range(len(headings))
    numeric = [
        bool(body) and all(isinstance(row[at], int | float) for row in body) for at in columns
    ]
    cells = [[_shown(value) for value in row] for row in body]
    widths = [
        max([_width(heading), *(_width(row[at]) for row in cells)])
        for at, heading in enumerate(headings)
    ]
    flexible %= len(headings)
    if not sys.stdout.isatty() or not _print_rich(
        headings, cells, numeric, widths, flexible, wrap=wrap
    ):
        _print_plain(headings, cells, numeric, widths)


def _print_plain(
    headings: Sequence[str], cells: list[list[str]], numeric: list[bool], widths: list[int]
) -> None:
    for row in ([heading.upper() for heading in headings], *cells):
        padded = [
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _print_rich(
    headings: Sequence[str],
    cells: list[list[str]],
    numeric: list[bool],
    widths: list[int],
    flexible: int,
    *,
    wrap: bool,
) -> bool:
    """Print the table with rich; if the terminal is too narrow, print nothing and return False."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, emoji=False)
    fixed = sum(widths) - widths[flexible] + COLUMN_GAP * len(widths)
    room = min(widths[flexible], console.width - fixed)
    if room < min(FLEXIBLE_WIDTH_MIN, widths[flexible]):
        return False
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if numeric[at] else "left",
            no_wrap=not (wrap and at == flexible),
            overflow="fold" if wrap else "ellipsis",
            width=room if at == flexible else widths[at],
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)
    return True


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def _width(text: str) -> int:
    """Terminal columns that a text occupies: two per wide character, none per combining one."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


@contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """``report(done, total)`` for a progress bar on stderr; None if stderr is not a terminal."""
    with stages() as report:
        yield None if report is None else lambda done, total: report(label, done, total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None] | None]:
    """``report(what, done, total)`` for a progress bar on stderr; None if it is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )
