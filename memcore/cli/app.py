"""Typer application: verbs, global options, exit codes of errors."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import memcore
from memcore.cli import (
    audit,
    backup,
    bench,
    bundle,
    check,
    compact,
    copy_compact,
    demand,
    demo,
    doctor,
    erase,
    hold,
    keys,
    mcp,
    memory,
    migrate,
    prune,
    recount,
    recover,
    redact,
    repair,
    restore,
    retention,
    salvage,
    search,
    show,
    sweep,
    tree,
    ui,
)
from memcore.cli import export as exporting
from memcore.cli import import_ as importing
from memcore.cli import show as context
from memcore.cli import tree as diff
from memcore.cli import tree as listing
from memcore.cli import tree as stats
from memcore.cli.entry import OutputError, ProgramOptions, give_up_output, missing_package
from memcore.cli.options import EPILOG, ExitCode, exit_code_of
from memcore.cli.output import complain

__all__ = [
    "app",
]


class GuardedGroup(TyperGroup):
    """Reports exceptions of a verb as one line on stderr and an exit code."""

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
    cls=GuardedGroup,
    name="memcore",
    help="Look at, load and care for memcore databases: an agent's sessions in one local file.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
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


for _name, _verb in (
    ("import", importing.import_file),
    ("export", exporting.export_sessions),
    ("ls", listing.list_sessions),
    ("show", show.show_session),
    ("search", search.search_sessions),
    ("tree", tree.show_tree),
    ("ui", ui.show_file),
    ("diff", diff.show_difference),
    ("context", context.show_context),
    ("bundle", bundle.bundle_session),
    ("compact", compact.compact_session),
    ("repair", repair.repair_session),
    ("recover", recover.recover_session),
    ("recount", recount.recount_sessions),
    ("prune", prune.prune_threads),
    ("demand", demand.demand_of_store),
    ("erase", erase.erase_user),
    ("hold", hold.hold_data),
    ("retention", retention.keep),
    ("sweep", sweep.sweep_store),
    ("redact", redact.redact_store),
    ("stats", stats.show_stats),
    ("check", check.check_store),
    ("doctor", doctor.examine_store),
    ("backup", backup.back_up),
    ("restore", restore.restore_backup),
    ("copy-compact", copy_compact.copy_compact),
    ("salvage", salvage.salvage_file),
    ("migrate", migrate.migrate_file),
    ("keys", keys.show_keys),
    ("bench", bench.run_bench),
    ("mcp", mcp.serve),
    ("demo", demo.run_demo),
):
    app.command(_name, epilog="Exit codes: memcore --help.")(_verb)
app.add_typer(audit.verbs, name="audit")
app.add_typer(memory.verbs, name="memory")
