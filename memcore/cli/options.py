"""Options shared by verbs, and the database or session that they select."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import memcore
from memcore import errors
from memcore.cli.entry import ExitCode
from memcore.cli.output import complain, warn
from memcore.files import absent_directory
from memcore.options import checked_path, counted
from memcore.rows import names
from memcore.store.interface import SERVER_SCHEMES, need_known_address
from memcore.store.store import is_own_file

if TYPE_CHECKING:
    from click.decorators import FC

    from memcore.graph import GraphStore, ThreadEntry

if "help" not in click.Argument.__init__.__code__.co_varnames:
    raise ImportError("click 8.5 or later is needed", name="click")

T = TypeVar("T")

__all__ = [
    "DAYS_MAX",
    "EPILOG",
    "REDACTIONS",
    "ExitCode",
    "FiniteRange",
    "InOrder",
    "app_option",
    "dry_run_option",
    "exit_code_of",
    "file_option",
    "find_position",
    "find_session",
    "former_policy_option",
    "graphs_of",
    "is_judged",
    "json_option",
    "key_options",
    "need_apart",
    "need_choice",
    "need_directory",
    "need_file",
    "need_new",
    "preset_or_file",
    "reading",
    "redact_option",
    "renamed",
    "session_argument",
    "store_option",
    "store_path",
    "threads_of",
    "user_option",
    "verb",
    "verify_option",
    "warn_of_stranger",
    "writing",
    "yes_option",
]


# --- Exit codes: one for each kind of outcome that a script may want to distinguish ---------------

EPILOG: Final = """\b
Exit codes:
  0  ok
  1  findings: check, audit verify, redact --dry-run or demo found something; import, export,
     recount, memory extract, salvage or recover had to leave something out; erase or keys left
     something for later
  2  usage: an option is missing, unknown or out of range, or needs a package that is missing
  3  not found: no such file, directory or session
  4  conflict: another process holds the file, or the session changed meanwhile
  5  corrupt or wrong format: not a memcore file, a newer one, or a damaged one; a source of
     an import that is so
  6  refused: needs --yes or a key, the target exists, or the budget cannot be met
  7  storage trouble: disk full, I/O error, no permission
  70  a bug in memcore
  130  interrupted; 141 the reader of the output went away; 143 terminated (0: ui and mcp, which
     end by that)
"""

# The first matching class decides.
_CODES: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (errors.NotFoundError, ExitCode.NOT_FOUND),
    (errors.TargetExistsError, ExitCode.REFUSED),
    (errors.InvalidOptionError, ExitCode.USAGE),
    (errors.CounterUnavailableError, ExitCode.USAGE),
    (errors.RevisionConflict, ExitCode.CONFLICT),
    (errors.PlanStaleError, ExitCode.CONFLICT),
    (errors.PolicyMismatchError, ExitCode.CONFLICT),
    (errors.DuplicateRequestError, ExitCode.CONFLICT),
    (errors.LeaseHeldError, ExitCode.CONFLICT),
    (errors.FencedError, ExitCode.CONFLICT),
    (errors.SupersededError, ExitCode.CONFLICT),
    (errors.OutpacedError, ExitCode.CONFLICT),
    (errors.StaleParentError, ExitCode.CONFLICT),
    (errors.StoreLockedError, ExitCode.CONFLICT),
    (errors.StoreFormatError, ExitCode.CORRUPT),
    (errors.CorruptStoreError, ExitCode.CORRUPT),
    (errors.CorruptValueError, ExitCode.CORRUPT),
    (errors.SourceError, ExitCode.CORRUPT),
    (errors.CallerError, ExitCode.REFUSED),
    (errors.StorageError, ExitCode.STORAGE),
    (ImportError, ExitCode.USAGE),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (FileExistsError, ExitCode.REFUSED),
    (IsADirectoryError, ExitCode.CORRUPT),
    (OSError, ExitCode.STORAGE),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error that ended a verb."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.BUG


# --- Options shared by several verbs, and the open database or session that they select -----------

_WRITER_PATIENCE_SECONDS: Final = 0.2
_SEQ_DIGITS_MAX: Final = 20


def store_path(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """The path of a database, with ``~`` expanded: the shell does not expand it in a variable.

    Raises:
        InvalidOptionError: ``given`` is not a path.
    """
    return None if given is None else checked_path("--store", given)


DAYS_MAX: Final = 1_000_000
"""Days of an age: no file is as old."""


class FiniteRange(click.FloatRange):
    """A number in a range; neither NaN nor an infinity, which every range without an end holds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number that a text stands for."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Return what help shows: of a range without ends, nothing."""
        has_end = self.min is not None or self.max is not None
        return super()._describe_range() if has_end else ""


class InOrder(click.Group):
    """A group that lists its verbs as they were added to it: what is needed first comes first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the verbs."""
        return list(self.commands)


def verb(
    name: str, *, of: click.Group | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function with options a verb of the program, or of a group of verbs."""

    def made(function: Callable[..., None]) -> click.Command:
        command = click.command(name, epilog="Exit codes: memcore --help.")(function)
        if of is not None:
            of.add_command(command)
        return command

    return made


def _store_option(text: str) -> Callable[[FC], FC]:
    return click.option(
        "--store",
        required=True,
        envvar="MEMCORE_STORE",
        show_envvar=True,
        metavar="PATH",
        help=text,
        callback=store_path,
    )


store_option = _store_option("The database file, or the address of a store on a server.")
file_option = _store_option("The database file.")
"""For verbs that do what only a file needs."""
user_option = click.option("--user", metavar="USER", help="Of this user only.")
app_option = click.option("--app", metavar="APP", help="Of this application only.")
REDACTIONS: Final = "default, strict, secrets, personal or zh"
"""The redaction policies that a verb takes by name."""
redact_option = click.option(
    "--redact", metavar="PRESET", help=f"Placeholders for what a redaction finds: {REDACTIONS}."
)
former_policy_option = click.option("--policy", "former", hidden=True)
"""The former name of other options: ``--policy`` is that of a compaction."""
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; write nothing."
)
yes_option = click.option("--yes", is_flag=True, help="Do it.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
verify_option = click.option(
    "--verify/--no-verify", default=True, help="Check the copy in full, or its structure only."
)
session_argument = click.argument("session_id", metavar="SESSION", help="The session's name.")


def renamed(new: str, given: str | None, former: str | None) -> str | None:
    """The value of an option, or of ``--policy``, as it was called before, with a warning.

    Raises:
        InvalidOptionError: both were given.
    """
    if former is None:
        return given
    if given is not None:
        msg = f"--policy is the former name of {new}: give one of them"
        raise memcore.InvalidOptionError(msg)
    warn(f"--policy is called {new} here now; the former name will go")
    return former


def need_choice(dry_run: bool, yes: bool, *, see: str, do: str) -> None:
    """End the program unless exactly one of --dry-run and --yes was given."""
    if dry_run and yes:
        complain("say either --dry-run or --yes, not both")
        raise SystemExit(ExitCode.USAGE)
    if not (dry_run or yes):
        complain(f"say --dry-run to see {see}, or --yes to {do}")
        raise SystemExit(ExitCode.REFUSED)


def need_directory(path: str) -> None:
    """Raise NotFoundError if a file has no directory to lie in; a server has none.

    Raises:
        InvalidOptionError: the path is empty, or an address that memcore does not know.
    """
    need_known_address(checked_path("FILE", path))
    absent = absent_directory(os.path.expanduser(path))
    if absent and not path.startswith(SERVER_SCHEMES):
        is_file = ": it is a file" if os.path.lexists(absent) else ""
        msg = f"{path}: there is no directory {absent!r}{is_file}"
        raise memcore.NotFoundError(msg)


def need_new(path: str) -> None:
    """End the program if a file to make exists: it is kept.

    Raises:
        NotFoundError: it has no directory.
    """
    need_directory(path)
    if os.path.lexists(path):
        complain(f"{path} exists; name a new file")
        raise SystemExit(ExitCode.REFUSED)


def need_apart(path: str, store: str) -> None:
    """End the program if a file to make is one that belongs to the database, there or not yet."""
    if is_own_file(path, store):
        complain(f"{path} belongs to the database; name another file")
        raise SystemExit(ExitCode.REFUSED)


def warn_of_stranger(
    db: memcore.Database, user: str | None, app: str | None = None, *, may_be_new: bool = False
) -> None:
    """Warn if nothing is stored of a user, or not in an application: a name may be mistyped.

    Not of one who is new to the store, if that may be.
    """
    if user is None:
        return
    if not user:
        msg = "the user name is empty; give a name, or leave the option out"
        raise memcore.InvalidOptionError(msg)
    apps = sorted(its_app for its_app, its_user in db.scopes() if its_user == user)
    if not apps and not may_be_new:
        warn(f"nothing is stored of user {user!r}: is the name right?")
    elif apps and app is not None and app not in apps:
        more = ", ..." if len(apps) > _APPS_TOLD else ""
        told = ", ".join(map(repr, apps[:_APPS_TOLD])) + more
        warn(f"nothing is stored of user {user!r} in application {app!r}; --app: {told}")


_APPS_TOLD: Final = 5


def key_options() -> dict[str, Any]:
    """``key`` and ``key_file`` of an encrypted database, from the environment.

    ``MEMCORE_KEY`` is the key or names its source; ``MEMCORE_KEY_FILE`` is the path of the key
    file.
    """
    found = {}
    key = os.environ.get("MEMCORE_KEY")
    if key:
        is_place = key.startswith(("env:", "file:", "keyring:"))
        found["key"] = key if is_place else "env:MEMCORE_KEY"
    name = os.environ.get("MEMCORE_KEY_FILE")
    if name:
        found["key_file"] = name
    return found


def is_judged() -> bool:
    """Return whether a verb validates every page of a file before it reads any.

    The file may come from anyone. It takes a microsecond per page; ``MEMCORE_VERIFY=0`` skips it.
    """
    return os.environ.get("MEMCORE_VERIFY", "1") != "0"


@contextmanager
def reading(
    store: str, *, verify: bool = True, embedder: memcore.Embedder | None = None
) -> Iterator[memcore.Database]:
    """Open the database for reading, without writing anything or disturbing a live writer."""
    need_file(store)
    verify = verify and is_judged()
    options = key_options()
    with memcore.open(store, read_only=True, verify=verify, embedder=embedder, **options) as db:
        if _was_interrupted(db):
            warn(
                f"{store}: its last commit was interrupted; it shows after the next opening for "
                "writing"
            )
        yield db


def _was_interrupted(db: memcore.Database) -> bool:
    """Return whether a commit awaits recovery, rather than being in progress in a live writer."""
    if not db.needs_recovery:
        return False
    before = db.engine.store.stats()["last_txnid"]
    time.sleep(_WRITER_PATIENCE_SECONDS)
    stands_still: bool = db.engine.store.stats()["last_txnid"] == before
    return stands_still and db.needs_recovery


@contextmanager
def writing(store: str, **options: Any) -> Iterator[memcore.Database]:
    """Open an existing database for writing; its pages are validated first, see ``is_judged``."""
    need_file(store)
    with _opened(store, **options) as db:
        yield db


def _opened(store: str, **options: Any) -> memcore.Database:
    """The open database, with the audit from the environment if the file has one.

    If the file requires guards or redactors, which are code, it is opened without them for
    maintenance, and content writes are refused.
    """
    options = {**key_options(), **options}
    try:
        return memcore.open(store, create=False, verify=is_judged(), **options)
    except memcore.AuditError:
        audit = memcore.Audit.from_environment()  # only now: passing one starts an audit
        if audit is None or "audit" in options:
            raise
        return _opened(store, **options, audit=audit)
    except memcore.DemandError:
        if "guard" in options:
            raise
        return _opened(store, **options, guard=memcore.NoWrites())


def need_file(store: str) -> None:
    """Raise NotFoundError if there is no such file, or directory; a server is not looked for.

    Raises:
        InvalidOptionError: the path is empty, or an address that memcore does not know.
    """
    need_directory(store)
    if store.startswith(SERVER_SCHEMES):
        return
    try:
        os.stat(store)
    except FileNotFoundError as exc:
        msg = f"{store}: there is no such file; 'memcore import' makes one"
        raise memcore.NotFoundError(msg) from exc
    except OSError as exc:
        msg = f"{store}: {exc.strerror}"
        raise memcore.StoreAccessError(msg) from exc


def preset_or_file(
    given: str,
    presets: Container[str],
    *,
    preset: Callable[[str], T],
    read: Callable[[str], T],
) -> T:
    """Return what a preset's name, or a file, stands for.

    A name that is not a preset's, but has a dot or a slash, is that of a file.
    """
    is_file = given not in presets and (os.path.exists(given) or bool(set(given) & set("./")))
    return read(given) if is_file else preset(given)


def find_session(
    db: memcore.Database, name: str, *, user: str | None, app: str | None
) -> memcore.Session:
    """The session of that name; user and application may be omitted if it is unambiguous.

    Raises:
        NotFoundError: there is no such session.
        InvalidOptionError: several users or applications have one.
    """
    found = []
    for its_app, its_user in db.scopes():
        if user not in (None, its_user) or app not in (None, its_app):
            continue
        session = db.session(name, user=its_user, app=its_app)
        if session.exists():
            found.append(session)
    if len(found) == 1:
        return found[0]
    if not found:
        limits = [f"{kind} {value!r}" for kind, value in (("user", user), ("app", app)) if value]
        where = f" of {' in '.join(limits)}" if limits else ""
        hint = "'memcore ls' lists them"
        if any(each.thread == name for _, _, each in threads_of(db, user, app)):
            hint = "it is the name of a graph's thread: see 'memcore ls --threads'"
        msg = f"there is no session {name!r}{where} in {db.path}; {hint}"
        raise memcore.NotFoundError(msg)
    owners = ", ".join(f"--user {s.user!r} --app {s.app!r}" for s in found[:3])
    msg = f"{counted(len(found), 'session')} are named {name!r}; say which: {owners}"
    raise memcore.InvalidOptionError(msg)


def threads_of(
    db: memcore.Database, user: str | None, app: str | None
) -> Iterator[tuple[str, str, ThreadEntry]]:
    """Yield application, user and entry of the threads of graphs, of all or of those named."""
    for its_app, its_user, graph in graphs_of(db, user, app):
        for entry in graph.threads():
            yield its_app, its_user, entry


def graphs_of(
    db: memcore.Database, user: str | None = None, app: str | None = None
) -> Iterator[tuple[str, str, GraphStore]]:
    """Yield application, user and graphs of those who may have some, of all or of those named.

    Most files have none, and then nothing is loaded that reads graphs.
    """
    if db.engine.store.read(names.scopes_with_threads):
        for its_app, its_user in db.scopes():
            if user in (None, its_user) and app in (None, its_app):
                yield its_app, its_user, db.scope(app=its_app, user=its_user).graph


def find_position(
    db: memcore.Database, spec: str, user: str | None, app: str | None
) -> tuple[memcore.Session, int | str | memcore.Checkpoint | None]:
    """The session and the position: SESSION, SESSION@SEQ, SESSION@CHECKPOINT, SESSION@#NUMBER.

    A session's name may itself contain an ``@``.

    Raises:
        NotFoundError: there is no such session, or no checkpoint of this number.
        InvalidOptionError: several users or applications have one.
    """
    cut = len(spec)
    while cut > 0:
        try:
            session = find_session(db, spec[:cut], user=user, app=app)
        except memcore.NotFoundError:
            cut = spec.rfind("@", 0, cut)
            continue
        if cut == len(spec):
            len(session)  # raises if a row of the name is damaged: then any session seems to exist
            return session, None
        position = spec[cut + 1 :]
        if not position:
            msg = f"{spec!r}: expected a seq or a checkpoint after @"
            raise memcore.InvalidOptionError(msg)
        return session, _position(session, position)
    name, at, _ = spec.rpartition("@")
    return find_session(db, name if at else spec, user=user, app=app), None


def _position(session: memcore.Session, text: str) -> int | str | memcore.Checkpoint:
    if text.isdecimal() and len(text) <= _SEQ_DIGITS_MAX:
        return int(text)
    number = text.removeprefix("#")
    if number == text or not number.isdecimal():
        return text
    for saved in session.checkpoints():
        if str(saved.number) == number:
            return saved
    msg = f"session {session.id!r} has no checkpoint {text[:40]}; 'memcore tree' lists them"
    raise memcore.NotFoundError(msg)
