"""``memcore ui``: look into a file with a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated, Any

import typer

import memcore
from memcore.cli.options import ExitCode, reading, store_path
from memcore.cli.output import complain, escape

__all__ = [
    "show_file",
]


def show_file(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="The database file.", callback=store_path),
    ] = None,
    *,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="MEMCORE_STORE",
            metavar="PATH",
            help="The same, as other verbs take it.",
            callback=store_path,
        ),
    ] = None,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0: a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the address in a browser.")] = True,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show secrets and personal data, not placeholders.")
    ] = False,
) -> None:
    """Show a file in a browser on this machine: sessions, contexts, memories, audit. Reads only.

    The printed address has a token: whoever does not know it sees nothing. Ctrl-C ends it.
    """
    path = file or store
    if path is None:
        complain("name the file: memcore ui FILE, or --store, or the variable MEMCORE_STORE")
        raise typer.Exit(ExitCode.USAGE)
    from memcore.ui import Inspector, serve

    with reading(path) as db:
        serve(Inspector(db, redact=not reveal), port=port, ready=_announcing(browser))


def _announcing(browser: bool) -> Any:
    def ready(address: str) -> None:
        print(escape(f"memcore {memcore.__version__} shows the file at {address}"), flush=True)
        if browser:
            webbrowser.open(address)

    return ready
