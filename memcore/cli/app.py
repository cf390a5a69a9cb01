"""The program: its verbs, global options, exit codes of errors."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import get_completion_class

import memcore
from memcore.cli.entry import (
    OutputError,
    ProgramOptions,
    Terminated,
    give_up_output,
    missing_package,
)
from memcore.cli.options import EPILOG, ExitCode, InOrder, exit_code_of
from memcore.cli.output import complain, warn
from memcore.codec.keys import Kind
from memcore.store.environment import Environment
from memcore.store.lmdb import holders_of
from memcore.store.store import LmdbStore

__all__ = [
    "SECTIONS",
    "VERBS",
    "app",
    "command_of",
]


class Verb(NamedTuple):
    """A verb: its module below ``memcore.cli``, its name there, what the list of verbs says."""

    module: str
    name: str
    summary: str


VERBS: Final = {
    "ls": Verb("tree", "list_sessions", "List sessions with items, tokens and open calls."),
    "show": Verb("show", "show_session", "Show a session's items."),
    "context": Verb("show", "show_context", "Show the context within a budget."),
    "search": Verb("search", "search_sessions", "Find the items that best match some words."),
    "tree": Verb("tree", "show_tree", "Show sessions, their forks and checkpoints as a tree."),
    "diff": Verb("tree", "show_difference", "Show what only one of two histories has."),
    "stats": Verb("tree", "show_stats", "Show sizes and counters of the file."),
    "ui": Verb("ui", "show_file", "Show a file in a browser on this machine."),
    "import": Verb("import_", "import_file", "Load conversations, exports, other stores."),
    "export": Verb("export", "export_sessions", "Write sessions as JSON lines or as a table."),
    "bundle": Verb("bundle", "bundle_session", "Write a minimal reproduction of a failure."),
    "copy": Verb("copy_store", "copy_store", "Copy a store: from a file to a server, or back."),
    "promote": Verb("copy_store", "promote_copy", "Make the warm copy of a file a store."),
    "fork": Verb("session", "fork_session", "Create a session that shares another's history."),
    "checkpoint": Verb("session", "save_checkpoint", "Save a session's current position."),
    "rewind": Verb("session", "rewind_session", "Take a session back to a position."),
    "compact": Verb("compact", "compact_session", "Replace older items in contexts by a summary."),
    "uncompact": Verb("session", "uncompact_session", "Revert a session's last compaction."),
    "delete": Verb("session", "delete_session", "Delete a session; its forks stay."),
    "kv": Verb("values", "show_values", "Show or change a user's key/values."),
    "state": Verb("values", "show_state", "Show or change the state of a session."),
    "memory": Verb("memory", "verbs", "Show and manage what is remembered of a user."),
    "repair": Verb("repair", "repair_session", "Repair orphaned results and unanswered calls."),
    "recover": Verb("recover", "recover_session", "Make a session usable again."),
    "recount": Verb("recount", "recount_sessions", "Recount tokens with another counter."),
    "redact": Verb("redact", "redact_store", "Count or replace personal data that is stored."),
    "erase": Verb("erase", "erase_user", "Erase a user, and print the signed receipt."),
    "hold": Verb("hold", "hold_data", "Show, set or end legal holds."),
    "retention": Verb("retention", "keep", "Show or set retention rules."),
    "sweep": Verb("sweep", "sweep_store", "Delete what has expired or retention rules remove."),
    "archive": Verb("archive", "archived_data", "List, write out or erase what was archived."),
    "prune": Verb("prune", "prune_threads", "Remove old checkpoints of graph threads."),
    "audit": Verb("audit", "verbs", "Verify, show, anchor and cut the audit of a file."),
    "keys": Verb("keys", "show_keys", "Show the key file, or rotate keys."),
    "demand": Verb("demand", "demand_of_store", "Show or change what a file requires of writers."),
    "check": Verb("check", "check_store", "Check the whole file."),
    "doctor": Verb("doctor", "examine_store", "Show the file's state and surroundings; advise."),
    "backup": Verb("backup", "back_up", "Copy the database to a new file and verify the copy."),
    "restore": Verb("restore", "restore_backup", "Create the store from a backup."),
    "copy-compact": Verb("copy_compact", "copy_compact", "Replace the file with a compact copy."),
    "salvage": Verb("salvage", "salvage_file", "Copy what is sound in a damaged file."),
    "migrate": Verb("migrate", "migrate_file", "Upgrade a file of an older format."),
    "mcp": Verb("mcp", "serve", "Serve one user's memory and sessions to an MCP client."),
    "bench": Verb("bench", "run_bench", "Measure memcore on your own conversations."),
    "demo": Verb("demo", "run_demo", "Show the main features, surviving SIGKILL included."),
}

SECTIONS: Final = {
    "Inspect": "ls show context search tree diff stats ui",
    "Import and export": "import export bundle copy",
    "Sessions": "fork checkpoint rewind compact uncompact delete kv state memory",
    "Repair": "repair recover recount",
    "Privacy and retention": "redact erase hold retention sweep archive prune audit keys demand",
    "Maintenance": "check doctor backup restore promote copy-compact salvage migrate",
    "More": "mcp bench demo",
}
"""The verbs by purpose, as ``--help`` lists them."""


def command_of(name: str) -> click.Command:
    """The command of a verb; its module is imported now."""
    verb = VERBS[name]
    found: click.Command = getattr(import_module(f"memcore.cli.{verb.module}"), verb.name)
    return found


class VerbGroup(InOrder):
    """The verbs: one is imported when it is run, and its exceptions are reported as one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the verbs and what they do, a section for each purpose."""
        width = max(map(len, VERBS))
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), VERBS[name].summary) for name in names.split()]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the arguments name, imported, and the arguments behind it."""
        name, outline, rest = super().resolve_command(ctx, args)
        return name, outline if name is None else command_of(name), rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, turning exceptions into an error line and an exit code."""
        try:
            is_program = isinstance(ctx.obj, ProgramOptions) and ctx.obj.is_program
            with watched() if is_program else nullcontext():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except OutputError as error:
            raise SystemExit(give_up_output(error)) from None
        except Terminated:
            complain("terminated")
            raise SystemExit(ExitCode.TERMINATED) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise SystemExit(ExitCode.INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, click.ClickException | click.Abort | click.exceptions.Exit):
                raise  # click's own: usage errors, and the end of --help
            _report(error, debug=isinstance(ctx.obj, ProgramOptions) and ctx.obj.debug)
            raise SystemExit(exit_code_of(error)) from None
        return result


# --- Waits for another process: told of, and ended by Ctrl-C -------------------------------------
# Python runs the handler of a signal between two instructions of the main thread, which LMDB's lock
# holds up for as long as another process has it: one that is stopped, for ever.

_LOOK_SECONDS: Final = 1.0
_TOLD_LOOKS: Final = 5
_ENDED_LOOKS: Final = 2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = "\x1b[?25h"


@contextmanager
def watched() -> Iterator[None]:
    """Tell of a long wait for another process's commit, and let a signal end the program in it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, threading.get_ident()), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, b"\0")
        watcher.join()
        os.close(reader)
        os.close(writer)


def _watch(reader: int, main: int) -> None:
    looks = signalled = 0
    while True:
        if select.select([reader], [], [], _LOOK_SECONDS)[0]:
            numbers = os.read(reader, 64)
            if b"\0" in numbers:
                return
            signalled = max([signalled, *(each for each in numbers if each in _SIGNALS)])
            continue
        path = _waits_for(main)
        looks = 0 if path is None else looks + 1
        if looks == _TOLD_LOOKS:
            others = [pid for pid in holders_of(str(path)) or () if pid != os.getpid()]
            who = f" ({others[0]})" if len(others) == 1 else ""
            warn(f"{path}: waits for another process{who} to end its change; Ctrl-C ends this one")
        if signalled and looks >= _ENDED_LOOKS:
            # It has no transaction yet, so nothing of it is under way in the file.
            if sys.stderr.isatty():  # a progress bar hides it
                print(_SHOW_CURSOR, end="", file=sys.stderr)
            is_term = signalled == signal.SIGTERM
            complain("terminated" if is_term else "interrupted")
            os._exit(ExitCode.TERMINATED if is_term else ExitCode.INTERRUPTED)


def _waits_for(main: int) -> str | None:
    """Return the file whose write lock the main thread waits for; None: it does not wait."""
    frame = sys._current_frames().get(main)  # noqa: SLF001 - there is no other way to look
    if frame is None or frame.f_code is not LmdbStore.transact.__code__:
        return None
    env = frame.f_locals.get("env")
    return env.path if isinstance(env, Environment) and env.waits else None


_SESSION: Final = bytes((Kind.SESSION,))


def _report(error: Exception, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    missing = missing_package(error) if isinstance(error, ImportError) else ""
    if missing:
        text = missing
    elif not isinstance(error, memcore.MemcoreError | OSError):
        text = f"a bug in memcore: {type(error).__name__}: {text}; please report what --debug shows"
    elif isinstance(error, memcore.CorruptValueError) and error.key[:1] == _SESSION:
        text += "; 'memcore recover SESSION --dry-run' shows what is left of the session"
    complain(text or type(error).__name__)


def _print_completion(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    completes = None if shell is None else get_completion_class(shell)
    if completes is not None:
        print(completes(app, {}, "memcore", "_MEMCORE_COMPLETE").source())
        context.exit()


@click.group(
    "memcore",
    cls=VerbGroup,
    commands={name: click.Command(name, short_help=of.summary) for name, of in VERBS.items()},
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(memcore.__version__, prog_name="memcore", message="%(prog)s %(version)s")
@click.option(
    "--show-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Show the lines that make a shell complete verbs and options.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback with an error.")
def app() -> None:
    """Look at, load and care for memcore databases: an agent's sessions in one local file.

    The database is named by --store or the variable MEMCORE_STORE.
    """
