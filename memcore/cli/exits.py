"""Exit codes: one for every sort of outcome that a script may want to tell apart."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from memcore import errors

__all__ = ["EPILOG", "ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """What the program returns."""

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


EPILOG: Final = """\b
Exit codes:
  0  ok
  1  findings: check or demo found something, import met lines it could not load, export left
     out what its format cannot hold, recount met sessions it could not count, salvage or
     recover had to leave something out, erase left something for --finish
  2  usage: an option is missing, unknown or out of range, or needs a package that is missing
  3  not found: no such file or session
  4  conflict: another process holds the file, or the session changed meanwhile
  5  corrupt or wrong format: not a memcore file, a newer one, or a damaged one
  6  refused: needs --yes, the target exists, or the budget cannot be met
  7  storage trouble: disk full, I/O error, no permission
  70  a bug in memcore
  130  interrupted; 141 the reader of the output went away
"""

# The first class that an error is an instance of decides.
_CODES: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (errors.NotFoundError, ExitCode.NOT_FOUND),
    (errors.InvalidOptionError, ExitCode.USAGE),
    (errors.RevisionConflict, ExitCode.CONFLICT),
    (errors.PlanStaleError, ExitCode.CONFLICT),
    (errors.PolicyMismatchError, ExitCode.CONFLICT),
    (errors.DuplicateRequestError, ExitCode.CONFLICT),
    (errors.StoreLockedError, ExitCode.CONFLICT),
    (errors.StoreFormatError, ExitCode.CORRUPT),
    (errors.CorruptStoreError, ExitCode.CORRUPT),
    (errors.CorruptValueError, ExitCode.CORRUPT),
    (errors.CallerError, ExitCode.REFUSED),
    (errors.StorageError, ExitCode.STORAGE),
    (ImportError, ExitCode.USAGE),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (OSError, ExitCode.STORAGE),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of an error that ended a verb."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.BUG
