"""Typer application: verbs, global options, exit codes of errors."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

import memcore
from memcore.cli.entry import OutputError, ProgramOptions, give_up_output, missing_package
from memcore.cli.options import EPILOG, ExitCode, exit_code_of
from memcore.cli.output import complain

__all__ = [
    "VERBS",
    "app",
]


VERBS: Final = {
    "import": "import_.import_file",
    "export": "export.export_sessions",
    "ls": "tree.list_sessions",
    "show": "show.show_session",
    "search": "search.search_sessions",
    "tree": "tree.show_tree",
    "ui": "ui.show_file",
    "diff": "tree.show_difference",
    "context": "show.show_context",
    "bundle": "bundle.bundle_session",
    "fork": "session.fork_session",
    "checkpoint": "session.save_checkpoint",
    "rewind": "session.rewind_session",
    "compact": "compact.compact_session",
    "uncompact": "session.uncompact_session",
    "delete": "session.delete_session",
    "kv": "values.show_values",
    "state": "values.show_state",
    "repair": "repair.repair_session",
    "recover": "recover.recover_session",
    "recount": "recount.recount_sessions",
    "prune": "prune.prune_threads",
    "demand": "demand.demand_of_store",
    "erase": "erase.erase_user",
    "hold": "hold.hold_data",
    "retention": "retention.keep",
    "sweep": "sweep.sweep_store",
    "redact": "redact.redact_store",
    "stats": "tree.show_stats",
    "check": "check.check_store",
    "doctor": "doctor.examine_store",
    "backup": "backup.back_up",
    "restore": "restore.restore_backup",
    "copy-compact": "copy_compact.copy_compact",
    "copy": "copy_store.copy_store",
    "salvage": "salvage.salvage_file",
    "migrate": "migrate.migrate_file",
    "keys": "keys.show_keys",
    "bench": "bench.run_bench",
    "mcp": "mcp.serve",
    "demo": "demo.run_demo",
    "audit": "audit.verbs",
    "memory": "memory.verbs",
}
"""Module and name of each verb: a function, or an application with verbs of its own."""


class VerbGroup(TyperGroup):
    """Imports a verb when it is run or shown, and reports its exceptions as one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name) for name in VERBS}
        self._imported: set[str] = set()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a verb; None if there is none of this name."""
        if cmd_name in VERBS and cmd_name not in self._imported:
            self.commands[cmd_name] = _command(cmd_name)
            self._imported.add(cmd_name)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb, turning exceptions into an error line and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except OutputError as error:
            raise typer.Exit(give_up_output(error)) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # typer's own: usage errors, and verbs that exit
            _report(error, debug=isinstance(ctx.obj, ProgramOptions) and ctx.obj.debug)
            raise typer.Exit(exit_code_of(error)) from None
        return result


def _command(name: str) -> Any:
    module, _, attribute = VERBS[name].partition(".")
    verb = getattr(import_module(f"memcore.cli.{module}"), attribute)
    if isinstance(verb, typer.Typer):
        verb.info.name = name
        return typer.main.get_group(verb)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, epilog="Exit codes: memcore --help.")(verb)
    return typer.main.get_command(alone)


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
    complain(text or type(error).__name__)


app = typer.Typer(
    cls=VerbGroup,
    name="memcore",
    help="Look at, load and care for memcore databases: an agent's sessions in one local file.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"memcore {memcore.__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """The database is named by --store or the variable MEMCORE_STORE."""
