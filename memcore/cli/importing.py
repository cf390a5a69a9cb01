"""``memcore import``: conversations, one a line, or what ``memcore export`` wrote."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

import memcore
from memcore._fast import classify
from memcore.cli.exits import ExitCode
from memcore.cli.exported import Renaming, is_export, load_export, summarize_export
from memcore.cli.options import Redact, key_options
from memcore.cli.output import Progress, emit_json, print_pairs, progress, warn
from memcore.database.exchange import FORMATS
from memcore.formats import get_policy

__all__ = ["import_file"]


class MalformedLineError(Exception):
    """A line that holds no conversation; the text says why."""


@dataclass(slots=True)
class Tally:
    """What an import did."""

    conversations: int = 0
    items: int = 0
    calls: int = 0
    open_calls: int = 0
    orphans: int = 0
    skipped: int = 0
    """Conversations that were there already, whole, or that hold no messages."""
    failed: int = 0
    bytes: int = 0
    """Bytes of the lines that were read."""
    file_bytes: int = 0
    """Size of the database afterwards."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where conversations go and under which rules."""

    scope: memcore.Scope
    policy: str | None
    orphans: str
    append: bool

    def store(self, name: str, messages: list[Any], tally: Tally) -> None:
        """Store one conversation in one commit, and count it."""
        session = self.scope.session(name, policy=self.policy, orphans=self.orphans)
        revision, known = session.revision, len(session)
        if session.exists():
            if not self.append:
                tally.skipped += 1
                return
            self._expect_beginning(session, messages)
        fresh = messages[known:]
        if not fresh:
            tally.skipped += 1
            return
        receipt = session.extend(fresh, expected_revision=revision)
        broken = memcore.validate(messages, session.policy)
        tally.conversations += 1
        tally.items += len(fresh)
        tally.calls += sum(len(classify(message)[1]) for message in fresh)
        tally.open_calls += receipt.open_calls
        tally.orphans += sum(
            violation.rule == "orphan_result" and violation.position >= known
            for violation in broken
        )

    def _expect_beginning(self, session: memcore.Session, messages: list[Any]) -> None:
        stored = [item.message for item in session.items()]
        if messages[: len(stored)] != stored:
            msg = f"session {session.id!r} holds other items than the beginning of this line"
            raise MalformedLineError(msg)


def import_file(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .jsonl file; - for standard input.")
    ],
    store: Annotated[
        str,
        typer.Option(
            "--store", envvar="MEMCORE_STORE", metavar="PATH", help="The database; made if missing."
        ),
    ],
    *,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help=f"auto, {', '.join(FORMATS)}.")
    ] = "auto",
    user: Annotated[
        str | None, typer.Option(help="The user who owns the sessions (default, or as exported).")
    ] = None,
    app: Annotated[
        str | None, typer.Option(help="The application they belong to (default, or as exported).")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Pair policy of new sessions (openai_chat).")
    ] = None,
    counter: Annotated[
        str | None, typer.Option(help="What new sessions count tokens with (o200k_base).")
    ] = None,
    redact: Redact = None,
    prefix: Annotated[str, typer.Option(help="Put before every session's name.")] = "",
    orphans: Annotated[
        str | None, typer.Option(help="Results without their call: keep (the default) or raise.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add what is new to sessions that exist.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object.")
    ] = False,
) -> None:
    """Load conversations, one a line: {"id": ..., "messages": [...]} or a list of messages.

    One commit a conversation. A session that exists already is skipped, so the same file can be
    imported again; with --append, the messages that it lacks are added. A line without an id makes
    a session named after the file and the line. Lines that cannot be loaded are reported with their
    number, the others are loaded, and the exit code is 1.

    A file of 'memcore export' (jsonl) is known by its first line: its sessions come back with
    their policies, seqs, times, events and compactions.
    """
    if store == ":memory:":
        msg = "--store: an import into ':memory:' would be gone at once; name a file"
        raise memcore.InvalidOptionError(msg)
    policy = _policy(form, policy)
    _check_options(orphans, user=user, app=app)
    with _lines(file) as (source, total):
        lines = _Peeked(source)
        if form == "jsonl" or (form == "auto" and is_export(lines.first)):
            _refuse_options(policy=policy, orphans=orphans, append=append or None)
            renaming = Renaming(user, app, prefix)
            done = load_export(lines, total, store, renaming=renaming, counter=counter)
            summarize_export(done, file, as_json=as_json)
            return
        started = time.perf_counter()
        with (
            memcore.open(store, counter=counter, redact=redact, **key_options()) as db,
            progress("importing") as report,
        ):
            scope = db.scope(user=user or "default", app=app or "default")
            target = Target(scope, policy, orphans or "keep", append)
            tally = _load_all(target, lines, _Place(file, 0, prefix), total, report)
    tally.file_bytes = os.path.getsize(store)
    tally.seconds = time.perf_counter() - started
    _summarize(tally, as_json=as_json)
    if tally.failed:
        raise typer.Exit(ExitCode.FINDINGS)


def _load_all(
    target: Target, lines: Iterable[bytes], place: _Place, total: int, report: Progress | None
) -> Tally:
    tally = Tally()
    for number, line in enumerate(lines, 1):
        tally.bytes += len(line)
        _load(target, line, tally, replace(place, number=number))
        if report is not None:
            report(tally.bytes, max(total, tally.bytes))
    return tally


class _Peeked:
    """Lines of which the first that is not blank may be looked at beforehand."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._read: list[bytes] = []
        self.first = b""
        for line in source:
            self._read.append(line)
            if line.strip():
                self.first = line
                break

    def __iter__(self) -> Iterator[bytes]:
        return chain(self._read, self._source)


def _policy(form: str, policy: str | None) -> str | None:
    """The pair policy of new sessions: as asked, or the one that the format is named after."""
    if form not in ("auto", *FORMATS):
        msg = f"--format: expected auto, {', '.join(FORMATS)}; got {form!r}"
        raise memcore.InvalidOptionError(msg)
    if policy is None and form not in ("auto", "jsonl"):
        policy = form.replace("-", "_")
    if policy is not None:
        get_policy(policy)
    return policy


def _refuse_options(**given: object) -> None:
    """An export says all of a session itself."""
    for name, value in given.items():
        if value is not None:
            msg = f"--{name}: has no meaning for a file of 'memcore export'; leave it out"
            raise memcore.InvalidOptionError(msg)


def _check_options(orphans: str | None, **names: str | None) -> None:
    """Wrong options fail before a file is made, not once a line."""
    for what, name in names.items():
        if name == "":  # an unset variable of a script must not mean: whoever the file says
            msg = f"--{what}: is empty; give a name, or leave the option out"
            raise memcore.InvalidOptionError(msg)
    if orphans not in (None, "keep", "raise"):
        msg = f"--orphans: expected keep or raise, got {orphans!r}"
        raise memcore.InvalidOptionError(msg)


def _summarize(tally: Tally, *, as_json: bool) -> None:
    if as_json:
        emit_json("import", asdict(tally))
        return
    shown = asdict(tally) | {"seconds": f"{tally.seconds:.2f}"}
    print_pairs((name.replace("_", " "), value) for name, value in shown.items())


@contextmanager
def _lines(file: str) -> Iterator[tuple[BinaryIO, int]]:
    """The file's lines and its size in bytes, as far as it is known."""
    if file == "-":
        yield sys.stdin.buffer, 0
        return
    with Path(file).open("rb") as source:
        yield source, os.fstat(source.fileno()).st_size


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line stands."""

    file: str
    number: int
    prefix: str

    def name_of(self, conversation: Any) -> str:
        """The session's name."""
        found = conversation.get("id") if isinstance(conversation, dict) else None
        if found is None:
            stem = "stdin" if self.file == "-" else Path(self.file).stem
            return f"{self.prefix}{stem}-{self.number:06d}"
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            msg = f"id: expected a non-empty string or a number, got {found!r}"
            raise MalformedLineError(msg)
        return f"{self.prefix}{found}"


def _load(target: Target, line: bytes, tally: Tally, place: _Place) -> None:
    """Store the conversation of a line, or say why that cannot be done."""
    if not line.strip():
        return
    try:
        conversation = _parse(line)
        name = place.name_of(conversation)
        target.store(name, _messages_of(conversation), tally)
    except (MalformedLineError, memcore.CallerError) as error:
        tally.failed += 1
        warn(f"{place.file}:{place.number}: {error}")


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        msg = f"not UTF-8 at byte {error.start}"
        raise MalformedLineError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"not JSON: {error}"
        raise MalformedLineError(msg) from error


def _messages_of(conversation: Any) -> list[Any]:
    found = conversation.get("messages") if isinstance(conversation, dict) else conversation
    if not isinstance(found, list):
        what = "messages" if isinstance(conversation, dict) else "the line"
        msg = f"{what}: expected a list of messages, got {type(found).__name__}"
        raise MalformedLineError(msg)
    for at, message in enumerate(found):
        if not isinstance(message, Mapping):
            msg = f"messages[{at}]: expected an object, got {type(message).__name__}"
            raise MalformedLineError(msg)
    return found
