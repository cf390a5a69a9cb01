"""``memcore ui``: look into a file with a browser."""

from __future__ import annotations

import webbrowser
from typing import Any

import click

import memcore
from memcore.cli.options import ExitCode, reading, store_path, verb
from memcore.cli.output import complain, escape

__all__ = [
    "show_file",
]


@verb("ui")
@click.argument(
    "file", required=False, metavar="[FILE]", callback=store_path, help="The database file."
)
@click.option(
    "--store",
    metavar="PATH",
    envvar="MEMCORE_STORE",
    show_envvar=True,
    callback=store_path,
    help="The database, if FILE is not given.",
)
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=0,
    metavar="PORT",
    help="0: a free one.",
)
@click.option("--browser/--no-browser", default=True, help="Open the address in a browser.")
@click.option("--reveal", is_flag=True, help="Show secrets and personal data, not placeholders.")
def show_file(
    file: str | None, *, store: str | None, port: int, browser: bool, reveal: bool
) -> None:
    """Show a file in a browser on this machine: sessions, contexts, memories, audit. Reads only.

    The printed address has a token: whoever does not know it sees nothing. Ctrl-C ends it.
    """
    path = file or store
    if path is None:
        complain("name the file: memcore ui FILE, or --store, or the variable MEMCORE_STORE")
        raise SystemExit(ExitCode.USAGE)
    from memcore.ui import Inspector, serve

    with reading(path) as db:
        serve(Inspector(db, redact=not reveal), port=port, ready=_announcing(browser))


def _announcing(browser: bool) -> Any:
    def ready(address: str) -> None:
        print(escape(f"memcore {memcore.__version__} shows the file at {address}"), flush=True)
        if browser:
            webbrowser.open(address)

    return ready
