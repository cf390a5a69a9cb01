"""``memcore export``: sessions as JSON lines, for another store or for a provider."""

from __future__ import annotations

import json
import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    app_option,
    find_session,
    json_option,
    need_directory,
    reading,
    redact_option,
    store_option,
    threads_of,
    user_option,
    verb,
    writing,
)
from memcore.cli.output import complain, emit_json, progress, warn
from memcore.exchange.lines import EXPORTS
from memcore.files import is_same, sync_directory
from memcore.options import checked_file, counted
from memcore.privacy import redaction_policy
from memcore.store.copy import beside
from memcore.store.datafile import LMDB_MAGIC, publish
from memcore.store.store import is_own_file

__all__ = [
    "export_sessions",
    "export_target",
]


_REPORT_PIECES: Final = 200
_OF_DATABASES: Final = ("-lock", ".keys", ".secret")
_KEY_VARIABLES: Final = ("MEMCORE_KEY", "MEMCORE_KEY_FILE", "MEMCORE_AUDIT_KEY_FILE")


@verb("export")
@store_option
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", help="The sessions' names.")
@click.option(
    "--to", required=True, metavar="FILE", help="The file to make; - for standard output."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(EXPORTS),
    default="jsonl",
    metavar="FORMAT",
    help=f"One of {', '.join(EXPORTS)}.",
)
@user_option
@app_option
@click.option(
    "--all", "everything", is_flag=True, help="All sessions (of --user and --app, if given)."
)
@click.option("--undone", is_flag=True, help="All undone items, too (jsonl, parquet).")
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@click.option(
    "--lossy", is_flag=True, help="What the format cannot hold may stay out: exit code 0."
)
@redact_option
@json_option
def export_sessions(
    store: str,
    sessions: tuple[str, ...],
    *,
    to: str,
    form: str,
    user: str | None,
    app: str | None,
    everything: bool,
    undone: bool,
    overwrite: bool,
    lossy: bool,
    redact: str | None,
    as_json: bool,
) -> None:
    """Write sessions as JSON lines, which 'memcore import' reads, or as a table of items.

    jsonl holds a session in full: seqs, times, meta, events, compactions. The message formats have
    one line {"id": ..., "metadata": ..., "messages": [...]} per session, with all messages, legal
    in that format; those that are so as appended are not changed. Everything that was changed, or
    that such a list cannot hold, is listed on stderr, and the exit code is then 1, unless --lossy
    is given. parquet is a table of items, for DuckDB, Polars or pandas. The file appears under its
    name only once it is complete.
    """
    # A user or an application alone says which sessions, too.
    if bool(sessions) == (everything or (not sessions and (user or app) is not None)):
        msg = "name the sessions to export, or give --all: one of the two"
        raise memcore.InvalidOptionError(msg)
    left_out: list[str] = []
    if to != "-":
        to = checked_file("--to", to)
    elif as_json:
        msg = "--json: with --to -, standard output has the export itself; name a file"
        raise memcore.InvalidOptionError(msg)
    is_shown = to == "-" and sys.stdout.isatty()
    if redact is not None:
        redaction_policy(redact)  # an unknown one is told before anything is written
        with reading(store) as db:
            _chosen(db, sessions, user, app)
        _need_secret(store)
    with reading(store) as db:
        found = _chosen(db, sessions, user, app)
        chosen: list[tuple[str | None, str | None, str | None]] = [(None, user, app)]
        if found:
            chosen = [(one.id, one.user, one.app) for one in found]
        total = sum(map(len, found)) or sum(
            entry.items for entry in db.sessions(user=user, app=app)
        )
        with (
            export_target(to, store, form, overwrite=overwrite) as target,
            # On a terminal the lines themselves are progress enough, and a bar would break them.
            nullcontext() if is_shown else progress("exporting") as report,
        ):
            pieces = chain.from_iterable(
                db.export(
                    name,
                    user=its,
                    app=of,
                    format=form,
                    undone=undone,
                    left_out=left_out.append,
                    redact=redact,
                )
                for name, its, of in chosen
            )
            for done, piece in enumerate(pieces):
                target.write(piece)
                if report is not None and not done % _REPORT_PIECES:
                    report(min(done, total), total)
        _warn_of_graphs(db, sessions, user, app)
    for text in left_out:
        warn(text)
    if as_json:
        size = os.path.getsize(to)
        emit_json("export", {"to": to, "format": form, "bytes": size, "left_out": left_out})
    elif to != "-":
        warn(f"{to}: {counted(os.path.getsize(to), 'byte')}")
    if left_out and not lossy:
        raise SystemExit(ExitCode.FINDINGS)


def _warn_of_graphs(
    db: memcore.Database, sessions: tuple[str, ...], user: str | None, app: str | None
) -> None:
    """Warn of threads of graphs, which no line holds, unless sessions were named."""
    count = 0 if sessions else sum(1 for _ in threads_of(db, user, app))
    if count:
        told = counted(count, "thread of graphs is", "threads of graphs are")
        warn(f"{told} not in an export: 'memcore copy' and 'memcore backup' copy them")


def _chosen(
    db: memcore.Database, sessions: tuple[str, ...], user: str | None, app: str | None
) -> list[memcore.Session]:
    """Return the sessions that were named, which have to be there; none: all of an owner."""
    _need_owner(db, user, app)
    return [find_session(db, name, user=user, app=app) for name in dict.fromkeys(sessions)]


def _need_secret(store: str) -> None:
    """Make the secret that keys placeholders, if there is none yet, which takes writing."""
    with reading(store) as db:
        try:
            db.engine.store.secret.value()
        except memcore.NotFoundError:
            pass
        else:
            return
    with writing(store) as db:
        db.engine.store.secret.value()


def _need_owner(db: memcore.Database, user: str | None, app: str | None) -> None:
    """Refuse to export nothing at all: the name may be mistyped, and an erasure may follow."""
    if user is None and app is None:
        return
    if all(user not in (None, its) or app not in (None, of) for of, its in db.scopes()):
        given = (("user", user), ("app", app))
        limits = [f"{kind} {value!r}" for kind, value in given if value is not None]
        msg = f"nothing is stored of {' in '.join(limits)}: is the name right?"
        raise memcore.NotFoundError(msg)


class _Escaping:
    """Writes JSON to a terminal, with what could steer it as escapes of JSON."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("surrogatepass")

    def write(self, piece: bytes) -> None:
        """Write a piece, which may end within a character."""
        text = self._decoder.decode(piece)
        if not text.isprintable():
            text = "".join(
                each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1]
                for each in text
            )
        sys.stdout.write(text)


@contextmanager
def export_target(
    to: str, store: str, form: str, *, overwrite: bool
) -> Iterator[BinaryIO | _Escaping]:
    """Standard output, or a file that is published once everything is written."""
    if to == "-" and sys.stdout.isatty():
        if form == "parquet":
            msg = "--to -: parquet is no text for a terminal; name a file"
            raise memcore.InvalidOptionError(msg)
        yield _Escaping()
        return
    if to == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    need_directory(to)
    problem = _why_not(to, store, overwrite=overwrite) if os.path.lexists(to) else ""
    if problem:
        complain(f"{to}: {problem}")
        raise SystemExit(ExitCode.REFUSED)
    with beside(to) as (temporary, fd):
        with open(fd, "wb", closefd=False) as target:
            yield target
            target.flush()
            os.fsync(fd)
        if overwrite:
            Path(temporary).replace(to)
            sync_directory(to)
        else:
            publish(temporary, to)


def _why_not(to: str, store: str, *, overwrite: bool) -> str:
    """The reason why the target may not be replaced; empty if it may be."""
    if not overwrite:
        return "exists; --overwrite replaces it"
    if os.path.exists(to):
        if not os.path.isfile(to):
            return "is no regular file; export to - and redirect that"
        if is_own_file(to, store):
            return "belongs to the database; name another file"
        with open(to, "rb") as file:
            is_store = file.read(20)[16:] == LMDB_MAGIC
        if is_store or to.endswith(_OF_DATABASES) or any(is_same(to, key) for key in _keys()):
            return "is a key, or belongs to another database; name another file"
    return ""


def _keys() -> Iterator[str]:
    """Yield the paths of keys that the environment names."""
    for name in _KEY_VARIABLES:
        given = os.environ.get(name, "").removeprefix("file:")
        if given:
            yield os.path.expanduser(given)
