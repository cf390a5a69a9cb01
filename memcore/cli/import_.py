"""``memcore import``: conversations, the output of ``memcore export``, other programs' stores."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final

import click

import memcore
from memcore import importing
from memcore.cli.options import (
    ExitCode,
    dry_run_option,
    former_policy_option,
    is_judged,
    key_options,
    need_directory,
    reading,
    redact_option,
    renamed,
    store_path,
    verb,
)
from memcore.cli.output import Progress, emit_json, print_pairs, progress, warn_all
from memcore.exchange.lines import FORMATS, Title
from memcore.exchange.load import Imported, ImportOptions
from memcore.importing import KINDS, ImportReport
from memcore.options import checked_path, counted
from memcore.records import record
from memcore.store.datafile import LMDB_MAGIC
from memcore.store.interface import SERVER_SCHEMES
from memcore.store.store import KEYS_SUFFIX
from memcore.wire import POLICIES, get_policy

__all__ = [
    "import_file",
]

_VALUE_BYTES_MAX: Final = 256 * 1024**2
"""Of a source that may be one JSON value, which is read at once."""
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
"""Around a value: a byte order mark, and white space."""
_OTHERS: Final = {
    b"SQLite format 3\0": "an SQLite database: --from adk, langchain-sql, langgraph, mem0 or "
    "openai-agents reads it",
    b"PK\x03\x04": "a zip archive: --from chatgpt reads that of an export of ChatGPT",
    b"\x1f\x8b": "compressed: unpack it, as with 'gunzip -c FILE | memcore import -'",
    b"\x28\xb5\x2f\xfd": "compressed: --from codex reads a rollout; unpack others",
}
"""Beginnings of other kinds of files, and how to read them."""
_HEAD_BYTES: Final = 64 * 1024
"""Of a source that is looked at before a database is made."""
_TOLD: Final = ("conversations", "sessions", "items", "skipped", "failed")
"""Counts of an import of lines that come first, and are printed even if they are 0."""
_TOLD_OF_CONVERSATIONS: Final = tuple(name for name in _TOLD if name != "sessions")
"""The same where no line is of an export, whose sessions alone are counted as such."""
_ALWAYS: Final = ("kind", "path", "read", "present")
"""Counts that are printed even if they are 0."""


@record(frozen=True, slots=True)
class Renaming:
    """The renaming of imported sessions: another user or application, a prefix."""

    user: str | None
    app: str | None
    prefix: str

    def __call__(self, title: Title) -> Title:
        """The title with the new names."""
        return replace(
            title,
            user=title.user if self.user is None else self.user,
            app=title.app if self.app is None else self.app,
            session=self.prefix + title.session,
        )


@verb("import")
@click.argument(
    "file",
    metavar="FILE",
    help="A .jsonl file, - for standard input; with --from what that kind is in.",
)
@click.option(
    "--store",
    required=True,
    metavar="PATH",
    envvar="MEMCORE_STORE",
    show_envvar=True,
    callback=store_path,
    help="The database; made if missing.",
)
@click.option(
    "--from",
    "kind",
    type=click.Choice(KINDS),
    metavar="KIND",
    help=f"Another program's: {', '.join(KINDS)}.",
)
@click.option(
    "--allow-type",
    "allowed",
    multiple=True,
    metavar="MODULE:NAME",
    help="With --from langgraph: a type that checkpoints may hold; its code will run.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("auto", *FORMATS)),
    default="auto",
    metavar="FORMAT",
    help=f"auto, {', '.join(FORMATS)}.",
)
@click.option("--user", metavar="USER", help="Who owns the sessions (as exported, or default).")
@click.option("--app", metavar="APP", help="Their application (as exported, or default).")
@click.option(
    "--pairs",
    type=click.Choice(tuple(POLICIES)),
    metavar="POLICY",
    help="Which calls and results of conversations are pairs (as exported, or openai_chat): "
    f"{', '.join(POLICIES)}.",
)
@former_policy_option
@click.option("--counter", help="What new sessions count tokens with (o200k_base).")
@redact_option
@click.option("--prefix", default="", help="Put before every session's name.")
@click.option(
    "--orphans",
    type=click.Choice(("keep", "raise")),
    default="keep",
    metavar="WHAT",
    help="Results of conversations without their call: keep or raise.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(("error", "skip", "rename", "append")),
    default="error",
    metavar="WHAT",
    help="If another session has the name: error, skip, rename or append.",
)
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
def import_file(
    file: str,
    store: str,
    *,
    kind: str | None,
    allowed: tuple[str, ...],
    form: str,
    user: str | None,
    app: str | None,
    pairs: str | None,
    former: str | None,
    counter: str | None,
    redact: str | None,
    prefix: str,
    orphans: str,
    on_conflict: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Load sessions: conversations, one per line or in an array, or what 'memcore export' wrote.

    A conversation is {"id": ..., "messages": [...]} or a list of messages; one without an id
    becomes a session named after the file and the line. An export's sessions are restored with
    their users, policies, seqs, times, events and compactions.

    A session that is already stored with equal content is counted as skipped, so an interrupted
    import can be rerun. If another session has the name: error reports the line, skip leaves it
    out, rename creates NAME (2), append adds the messages that the session lacks. Lines that cannot
    be loaded, and anything left out, are reported, and the rest is loaded; the exit code is 1 if
    anything failed.

    With --from, the histories of another program's store are copied; it is only read. Its ids and
    times are kept, and a second run adds nothing. --user and --app then own what has none there.

    --dry-run loads into a copy of the database, in the directory for temporary files, and reports
    the same; the copy is removed afterwards.
    """
    _check_places(store, user=user, app=app)
    pairs = renamed("--pairs", pairs, former)
    need_directory(store)
    checked_path("FILE", file)
    if kind is None and os.path.isdir(file):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
    if kind is None and allowed:
        msg = "--allow-type: has a meaning with --from langgraph alone; leave it out"
        raise memcore.InvalidOptionError(msg)
    if kind is None and _is_database(file):
        msg = (
            f"{file} is a memcore database, not lines of one: 'memcore copy' copies it, 'memcore "
            "export --all' writes the lines that an import takes"
        )
        raise memcore.SourceError(msg, place=file)
    if kind is not None:
        given = {"--format": form != "auto", "--pairs": pairs, "--orphans": orphans != "keep"}
        _need_none(kind, given)
        owner = {"user": user or "default", "app": app or "default"}
        source = importing.read(kind, file, allowed_types=_types(allowed), **owner)
        _import_from(
            source, _Target(store, {"counter": counter, "redact": redact}, dry_run),
            prefix=prefix, on_conflict=on_conflict, as_json=as_json,
        )  # fmt: skip
        return
    options: dict[str, Any] = {
        "rename": Renaming(user, app, prefix),
        "counter": None if counter is None else memcore.get_counter(counter),
        "format": form,
        "policy": _policy(form, pairs),
        "orphans": orphans,
        "on_conflict": on_conflict,
        "unnamed": "stdin" if file == "-" else Path(file).stem,
    }
    ImportOptions(**options)  # invalid ones fail before a database is created
    _need_json(file)
    target = _Target(store, {"counter": counter, "redact": redact}, dry_run)
    _import_lines(file, target, options, as_json=as_json)


@record(frozen=True, slots=True)
class _Target:
    """The database that an import goes to, with options for ``memcore.open``."""

    store: str
    options: dict[str, Any]
    dry_run: bool

    @contextmanager
    def opened(self) -> Iterator[memcore.Database]:
        """Open the database; for a dry run, a copy that is removed afterwards.

        Raises:
            InvalidOptionError: a dry run, and the database is on a server.
        """
        options = {"verify": is_judged(), **self.options, **key_options()}
        if not self.dry_run:
            with memcore.open(self.store, **options) as db:
                yield db
            return
        if self.store.startswith(SERVER_SCHEMES):
            msg = (
                "--dry-run: needs a copy of the database, and that is on a server; try it on a file"
            )
            raise memcore.InvalidOptionError(msg)
        with TemporaryDirectory(prefix="memcore-import-") as place:
            copy = os.path.join(place, "copy.memcore")
            key_file = options.pop("key_file", self.store + KEYS_SUFFIX)
            if os.path.lexists(self.store):
                with reading(self.store) as db:
                    db.backup(copy, verify=False)
            if os.path.lexists(copy) and os.path.lexists(key_file):
                # New users get keys, so it needs a key file of its own, which knows its data file.
                backup = os.path.join(place, "backup.memcore")
                os.rename(copy, backup)
                shutil.copyfile(key_file, copy + KEYS_SUFFIX)
                memcore.restore(backup, copy, key=options.get("key"))
            with memcore.open(copy, **options) as db:
                yield db


def _is_database(file: str) -> bool:
    """Return True for a file in the format of LMDB; a pipe is not read."""
    if not os.path.isfile(file):
        return False
    with open(file, "rb") as source:
        return source.read(20)[16:] == LMDB_MAGIC


def _need_json(file: str) -> None:
    """Refuse a file whose beginning holds no line of an object or array; a pipe is not read."""
    if not os.path.isfile(file):
        return
    with open(file, "rb") as source:
        head = source.read(_HEAD_BYTES)
    for magic, told in _OTHERS.items():
        if head.startswith(magic):
            msg = f"{file} is {told}"
            raise memcore.SourceError(msg, place=file)
    if head[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
        return  # each line is told of
    begins = [line.strip(_BLANK)[:1] for line in head.splitlines()]
    if any(begins) and not {b"[", b"{"}.intersection(begins):
        msg = f"{file}: no line at its beginning is a JSON object or array"
        raise memcore.SourceError(msg, place=file)


def _import_lines(file: str, target: _Target, options: dict[str, Any], *, as_json: bool) -> None:
    """Load lines; exit with code 1 if any could not be loaded."""
    started = time.perf_counter()
    with (
        _lines(file) as (source, total),
        target.opened() as db,
        progress("importing") as report,
    ):
        read = _CountedLines(source, total, report)
        done = db.import_(read, **options)
        size = db.stats().get("file_bytes")
    figures = {"bytes": read.bytes, "seconds": time.perf_counter() - started}
    figures |= {} if size is None else {"file_bytes": size}
    _summarize(done, file, as_json=as_json, dry_run=target.dry_run, **figures)


def _need_none(kind: str, given: Mapping[str, object]) -> None:
    """Refuse options for lines where another program's store is imported."""
    for name, is_given in given.items():
        if is_given:
            msg = f"{name} has no meaning with --from {kind}; leave it out"
            raise memcore.InvalidOptionError(msg)


def _types(given: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for each in given:
        module, separator, name = each.partition(":")
        if not (module and separator and name):
            msg = f"--allow-type: expected MODULE:NAME, got {each!r:.60}"
            raise memcore.InvalidOptionError(msg)
        found.append((module, name))
    return found


def _import_from(
    source: importing.Reading,
    target: _Target,
    *,
    prefix: str,
    on_conflict: str,
    as_json: bool,
) -> None:
    """Copy another program's store; exit with code 1 if anything failed."""
    importing.checked_conflict(on_conflict)
    source.check()  # a missing file fails before a database is created
    started = time.perf_counter()
    with target.opened() as db, progress("importing") as shown:
        told = None if shown is None else (lambda count: shown(count, count))
        report = importing.load(db, source, prefix=prefix, on_conflict=on_conflict, progress=told)
    seconds = time.perf_counter() - started
    _tell(report, as_json=as_json, seconds=seconds, dry_run=target.dry_run)


def _tell(report: ImportReport, *, as_json: bool, seconds: float, dry_run: bool) -> None:
    """Print a report: what was stored, mended and left out, and each failure."""
    warn_all((*report.left_out, *report.failures))
    if as_json:
        emit_json("import", asdict(report) | {"dry_run": dry_run, "seconds": seconds})
    else:
        counts = asdict(report)
        lists = {name: counts.pop(name) for name in ("mended", "skipped", "left_out", "failures")}
        pairs = [(name, value) for name, value in counts.items() if value or name in _ALWAYS]
        pairs += [
            (name, f"{what}: {count:,}")
            for name in ("mended", "skipped")
            for what, count in lists[name].items()
        ]
        pairs += [(name, len(lists[name])) for name in ("left_out", "failures")]
        pairs.append(("seconds", f"{seconds:.2f}"))
        print_pairs((name.replace("_", " "), value) for name, value in pairs)
        _tell_dry_run(dry_run)
    if report.failures:
        raise SystemExit(ExitCode.FINDINGS)


def _check_places(store: str, **owner: str | None) -> None:
    if store == ":memory:":
        msg = "--store: an import into ':memory:' would be gone at once; name a file"
        raise memcore.InvalidOptionError(msg)
    for what, name in owner.items():
        if name == "":  # an unset variable in a script does not mean the users in the file
            msg = f"--{what} is empty; give a name, or leave the option out"
            raise memcore.InvalidOptionError(msg)


def _policy(form: str, policy: str | None) -> str | None:
    """The pair policy of new sessions: the requested one, or the one named like the format."""
    if policy is None and form in FORMATS and form != "jsonl":
        policy = form.replace("-", "_")
    if policy is not None:
        get_policy(policy)
    return policy


def _tell_dry_run(dry_run: bool) -> None:
    if dry_run:
        print("a dry run: nothing was written")


def _summarize(
    done: Imported, file: str, *, as_json: bool, dry_run: bool, **figures: float
) -> None:
    """Print the counts and warn about each failure; exit with code 1 if there is one."""
    as_is = (f"{fault}; stored as it is" for fault in done.unreadable)
    no_place = (
        f"the field {name!r:.40} of {counted(count, 'conversation')} has no place in a session"
        for name, count in sorted(done.ignored.items())
    )
    warn_all((*done.left_out, *no_place, *as_is, *done.failures), f"{file}: ")
    shown: dict[str, Any] = asdict(done)
    for name in ("left_out", "unreadable", "failures"):
        shown[name] = len(shown.pop(name))
    shown |= {"failed": shown.pop("failures"), **figures}
    if as_json:
        emit_json("import", shown | {"dry_run": dry_run})
    else:
        shown |= {"ignored": sum(done.ignored.values()), "seconds": f"{figures['seconds']:.2f}"}
        told = {name: shown.pop(name) for name in _TOLD} | shown
        always = _TOLD if done.sessions else _TOLD_OF_CONVERSATIONS
        pairs = ((name, value) for name, value in told.items() if value or name in always)
        print_pairs((name.replace("_", " "), value) for name, value in pairs)
        _tell_dry_run(dry_run)
    if done.failures:
        raise SystemExit(ExitCode.FINDINGS)


@contextmanager
def _lines(file: str) -> Iterator[tuple[Iterable[bytes], int]]:
    """The file's lines and its size in bytes; 0 if the size is unknown."""
    if file == "-":
        yield _values(sys.stdin.buffer), 0
        return
    with Path(file).open("rb") as source:
        yield _values(source), os.fstat(source.fileno()).st_size


def _values(source: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a source; of one that is a single JSON value, a line a conversation."""
    ahead = _until_text(source)
    text = b"".join(ahead).strip(_BLANK)
    if text[:1] in (b"[", b"{"):
        if _loaded(text) is None:  # it goes on behind its line, or is no JSON
            ahead += [source.read(_VALUE_BYTES_MAX), source.readline()]
        else:
            ahead += _until_text(source)
        values = _conversations(b"".join(ahead).strip(_BLANK))
        yield from BytesIO(b"".join(ahead)) if values is None else values
    else:
        yield from ahead
    yield from source


def _until_text(source: BinaryIO) -> list[bytes]:
    """Return the lines up to the first one that is not blank."""
    found = []
    for line in source:
        found.append(line)
        if line.strip(_BLANK):
            break
    return found


def _loaded(text: bytes) -> Any:
    """Return an array or object; None if the text is no JSON, or goes on behind it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _conversations(text: bytes) -> list[bytes] | None:
    """Return the conversations of a JSON value, a line each; None: it has a value a line.

    An array with an object that has messages, or of arrays alone, has several.
    """
    value = _loaded(text)
    if value is None or (isinstance(value, dict) and b"\n" not in text):
        return None
    several = isinstance(value, list) and (
        any(isinstance(each, dict) and "messages" in each for each in value)
        or all(isinstance(each, list) for each in value)  # an empty array has none
    )
    try:
        return [
            json.dumps(each).encode("ascii") + b"\n" for each in (value if several else [value])
        ]
    except RecursionError:
        return None


class _CountedLines:
    """Lines whose bytes are counted and reported as they are read."""

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
