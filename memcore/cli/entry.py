"""Where the program starts: the answers that need no libraries, then typer."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Settings", "main"]


class Settings(NamedTuple):
    """What was asked of the program as a whole."""

    debug: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    ``--debug`` is taken from anywhere before ``--``, so that it can be put behind a command that
    has just failed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        from memcore import __version__

        print(f"memcore {__version__}")
        return 0
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    if debug:
        arguments.remove("--debug")
    _never_fail_to_print()
    from memcore.cli.app import app

    try:
        app(args=arguments, prog_name="memcore", obj=Settings(debug=debug))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


def _never_fail_to_print() -> None:
    """A terminal that lacks a character gets its escape, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
