"""Entry point: handles what needs no libraries, then runs the verbs."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from signal import ITIMER_REAL, SIG_DFL, SIGALRM, SIGTERM, getsignal, setitimer, signal
from threading import current_thread, main_thread
from typing import Any, Final, NamedTuple, NoReturn

__all__ = [
    "ExitCode",
    "OutputError",
    "ProgramOptions",
    "Terminated",
    "give_up_output",
    "main",
    "missing_package",
]


class ExitCode(IntEnum):
    """Exit codes of the program."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    CORRUPT = 5
    REFUSED = 6
    STORAGE = 7
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a verb as Ctrl-C does: what it left behind is removed."""


class OutputError(Exception):
    """Standard output cannot be written: the device is full, or the reader has closed it.

    No OSError: click would take a closed pipe for a failure of its own.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.errno = error.errno
        self.strerror = error.strerror


class _Output(io.FileIO):
    """Standard output, with errors that are distinguishable from those of files."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


_LIBRARIES: Final = ("click", "rich")
_EXTRAS: Final = {
    "anyio": "mcp", "cryptography": "encryption", "jinja2": "ui", "mcp": "mcp",
    "psycopg": "postgres", "psycopg_pool": "postgres", "pyarrow": "parquet", "re2": "pii",
    "starlette": "ui", "tiktoken": "tiktoken", "uvicorn": "ui", "wordllama": "embed",
    "zstandard": "zstd",
}  # fmt: skip
"""The extra that brings a package."""


class ProgramOptions(NamedTuple):
    """The global options of the program."""

    debug: bool
    is_program: bool = False
    """True if this process is the command; False if a program called ``main`` with arguments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    ``--debug`` is accepted anywhere before ``--``, so that it can be appended to a command that has
    just failed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    # Only the main thread may set what signals do.
    is_program = argv is None and current_thread() is main_thread()
    if is_program and getsignal(SIGTERM) is SIG_DFL:
        signal(SIGTERM, _terminate)
    if is_program:
        sys.unraisablehook = _raise_again
    try:
        code = _run(arguments, is_program=is_program)
        sys.stdout.flush()
        if _dropped:  # it came when the verb was done
            raise _dropped.pop()
    except OutputError as error:
        return give_up_output(error)
    except KeyboardInterrupt as error:  # while modules are loaded; verbs report theirs themselves
        is_term = isinstance(error, Terminated)
        print(f"memcore: error: {'terminated' if is_term else 'interrupted'}", file=sys.stderr)
        return ExitCode.TERMINATED if is_term else ExitCode.INTERRUPTED
    finally:
        _dropped.clear()
        if is_program:
            setitimer(ITIMER_REAL, 0)  # at the end of Python, its signal would kill the process
    return code


_dropped: list[KeyboardInterrupt] = []
"""An interrupt that Python dropped, until it is raised again."""


def _terminate(*_: Any) -> NoReturn:
    raise Terminated


def _raise_dropped(*_: Any) -> None:
    if _dropped:
        raise _dropped.pop()


def _raise_again(found: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt a moment later if it came in a finalizer, where Python drops it."""
    error = found.exc_value
    if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
        _dropped[:] = [Terminated() if isinstance(error, Terminated) else KeyboardInterrupt()]
        signal(SIGALRM, _raise_dropped)
        setitimer(ITIMER_REAL, _AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(found)


_AGAIN_SECONDS: Final = 0.01


def _run(arguments: list[str], *, is_program: bool) -> int:
    if arguments == ["--version"]:
        from memcore import __version__

        print(f"memcore {__version__}")
        return 0
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = "--debug" in arguments[:end]
    if debug:
        arguments.remove("--debug")
    _never_fail_to_print()
    try:
        from memcore.cli.app import app
    except ImportError as error:
        text = missing_package(error)
        if not text or debug:
            raise
        print(f"memcore: error: {text}", file=sys.stderr)
        return ExitCode.USAGE

    import click

    try:
        options = ProgramOptions(debug, is_program)
        code = app.main(arguments, prog_name="memcore", obj=options, standalone_mode=False)
    except click.ClickException as error:
        from memcore.cli.output import muted_if_full

        with muted_if_full():
            error.show()
        return error.exit_code
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return code if isinstance(code, int) else 0


def missing_package(error: ImportError) -> str:
    """The message for a package that cannot be imported; empty for memcore's own modules."""
    if not error.name or error.name.partition(".")[0] == "memcore":
        return ""
    if error.name.partition(".")[0] in _LIBRARIES:
        return f"the command line needs click and rich: pip install 'memcore-db[cli]' ({error})"
    if "pip install" in str(error):
        return str(error)
    extra = _EXTRAS.get(error.name.partition(".")[0])
    how = "install it with pip" if extra is None else f"pip install 'memcore-db[{extra}]'"
    return f"the package {error.name} is missing or broken ({error}): {how}"


def _open_streams() -> None:
    """Reopen closed standard streams, so that no database file gets their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    out = sys.stdout
    if type(out) is io.TextIOWrapper:
        raw = _Output(out.fileno(), "wb", closefd=False)
        # With PYTHONUNBUFFERED, Python's own stream is unbuffered too.
        buffer: Any = raw if isinstance(out.buffer, io.FileIO) else io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(
            buffer,
            encoding=out.encoding,
            errors=out.errors,
            line_buffering=out.line_buffering,
            write_through=out.write_through,
        )


def give_up_output(error: OutputError) -> int:
    """Report that nothing more can be printed; return the exit code."""
    from memcore.cli.output import complain

    # Redirect the buffered output, or Python reports an error when it flushes at exit.
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
    if error.errno == errno.EPIPE:
        return ExitCode.BROKEN_PIPE  # the reader has closed the pipe
    complain(f"standard output: {error.strerror}")
    return ExitCode.STORAGE


def _never_fail_to_print() -> None:
    """Print characters that the terminal cannot encode as escapes, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
