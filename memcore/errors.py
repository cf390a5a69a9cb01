"""Every exception that memcore raises, in one tree.

MemcoreError
├── CallerError                the call was wrong; nothing was stored
│   ├── InvalidItemError       not a mapping, not JSON, NaN, too large
│   ├── InvalidOptionError     an argument is unknown, of a wrong type or out of range
│   ├── OrphanResultError      a tool result whose call is not in the history
│   ├── HistoryViolationError  ``validate(..., raise_on_error=True)`` found violations
│   ├── BlockedError           a guard refuses what was to be stored
│   ├── DuplicateRequestError  an idempotency key was used again with other content
│   ├── RevisionConflict       ``expected_revision`` is not the current revision
│   ├── OutpacedError          other writers were faster every time; try again
│   ├── StaleParentError       another checkpoint was stored after the parent of this one
│   ├── HistoryNeededError     what is to be deleted is needed by checkpoints that stay
│   ├── PlanStaleError         the history changed under a compaction plan
│   ├── PolicyMismatchError    the session has another policy or counter
│   ├── CounterUnavailableError  the session's token counter cannot be loaded here
│   ├── StateSchemaError       a class cannot be read as a schema, or two do not go together
│   ├── InvalidUpdateError     an update that the schema of the state does not allow
│   ├── ContextOverflowError   the smallest legal context is larger than the budget
│   ├── NotFoundError          no such session, item, call or blob
│   ├── LeaseHeldError         another owner holds the session's lease
│   ├── FencedError            the lease of the handle was taken over, or given up
│   ├── AccessDeniedError      the authorizer refused it, or failed
│   ├── UntrustedTypeError     a stored value names a type that was not allowed
│   ├── ScopeError             the handle may not reach what it was asked for
│   ├── HeldError              what was to be deleted is under a legal hold
│   ├── DemandError            the file demands a redaction or guard that was not given
│   ├── OptedOutError          the user wants no long-term memory
│   ├── ReadOnlyError          a write through a read-only handle
│   ├── ClosedError            the database was closed
│   ├── KeyNeededError         the database is encrypted, and no key was given
│   ├── WrongKeyError          the key does not open the key file
│   ├── UnreadableItemsError   items cannot be decrypted: another key, or they were changed
│   ├── AuditError             no key for an audited file, or its audit cannot be anchored
│   └── SummarizerError        your model's answer is no summary; a fallback serves
├── StorageError               the file or the device is in trouble
│   ├── StoreFullError         no space on the device, or the map cannot grow
│   ├── StoreAccessError       the operating system refused to open or write the file
│   ├── StoreLockedError       another process holds the file in a way that excludes this call
│   ├── StoreFormatError       not a memcore file, or one of a newer format
│   ├── CorruptStoreError      the structure of the file is damaged or truncated
│   ├── CorruptValueError      one value fails its checksum; the others stay readable
│   │   ├── TamperedError      one value does not decrypt, or stands in clear
│   │   └── UndecodableError   one value is sound, but this serialiser cannot read it
│   ├── KeyFileError           the key file is missing, damaged or cannot be written
│   └── OutcomeUnknownError    a commit failed in a way that hides whether it took effect
└── InternalError              a bug in memcore; please report it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = [
    "AccessDeniedError",
    "AuditError",
    "BlockedError",
    "CallerError",
    "ClosedError",
    "ContextOverflowError",
    "CorruptStoreError",
    "CorruptValueError",
    "CounterUnavailableError",
    "DemandError",
    "DuplicateRequestError",
    "FencedError",
    "HeldError",
    "HistoryNeededError",
    "HistoryViolationError",
    "InternalError",
    "InvalidItemError",
    "InvalidOptionError",
    "InvalidUpdateError",
    "KeyFileError",
    "KeyNeededError",
    "LeaseHeldError",
    "MemcoreError",
    "NotFoundError",
    "OptedOutError",
    "OrphanResultError",
    "OutcomeUnknownError",
    "OutpacedError",
    "PlanStaleError",
    "PolicyMismatchError",
    "ReadOnlyError",
    "RevisionConflict",
    "ScopeError",
    "StaleParentError",
    "StateSchemaError",
    "StorageError",
    "StoreAccessError",
    "StoreFormatError",
    "StoreFullError",
    "StoreLockedError",
    "SummarizerError",
    "TamperedError",
    "UndecodableError",
    "UnreadableItemsError",
    "UntrustedTypeError",
    "WrongKeyError",
]


class MemcoreError(Exception):
    """The root of everything that memcore raises on purpose."""


class CallerError(MemcoreError):
    """The call was wrong; nothing was stored and nothing was lost."""


class InvalidItemError(CallerError, ValueError):
    """The item is not a mapping, cannot be written as JSON, or is above the size limit."""


class InvalidOptionError(CallerError, ValueError):
    """An argument is unknown, has a wrong type or is out of range."""


class OrphanResultError(CallerError):
    """A tool result answers no call of this history.

    ``call_id`` is the id that found no call; ``position`` is the item's place in the batch.
    """

    def __init__(self, message: str, *, call_id: str, position: int) -> None:
        super().__init__(message)
        self.call_id = call_id
        self.position = position


class HistoryViolationError(CallerError):
    """A message list breaks the rules of its policy; ``violations`` holds them in order."""

    def __init__(self, message: str, *, violations: tuple[object, ...]) -> None:
        super().__init__(message)
        self.violations = violations


class BlockedError(CallerError):
    """A guard refuses what was to be stored; nothing of the change is.

    ``verdict`` is what was decided, ``reason`` what the guard said: never content.
    """

    def __init__(self, message: str, *, verdict: str = "block", reason: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.reason = reason


class DuplicateRequestError(CallerError):
    """The idempotency key was used before with other content."""


class RevisionConflict(CallerError):  # noqa: N818 - the architecture's public name
    """The session moved on: ``current`` is its revision now, ``expected`` the one asked for."""

    def __init__(self, message: str, *, expected: int, current: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.current = current


class OutpacedError(CallerError):
    """Other writers changed what the call works on faster than it could; try again later."""


class StaleParentError(CallerError):
    """The parent is not the newest checkpoint any more: ``newest`` is, ``parent`` was given."""

    def __init__(self, message: str, *, parent: str | None, newest: str | None) -> None:
        super().__init__(message)
        self.parent = parent
        self.newest = newest


class HistoryNeededError(CallerError):
    """Checkpoints that stay need values of those that were to be deleted."""


class PlanStaleError(CallerError):
    """The history changed between planning a compaction and committing it; plan again."""


class PolicyMismatchError(CallerError):
    """The session was created with another policy or counter than the one asked for."""


class CounterUnavailableError(CallerError):
    """The token counter that the session was created with cannot be loaded here."""


class StateSchemaError(CallerError, TypeError):
    """A class cannot be read as a state's schema, or several schemas contradict each other."""


class InvalidUpdateError(CallerError, ValueError):
    """An update of a state that its schema does not allow; ``key`` is the field, if it is one's."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class ContextOverflowError(CallerError):
    """Even the smallest legal context needs more tokens than the budget.

    ``needed_tokens`` is what it needs, ``budget_tokens`` what was allowed.
    """

    def __init__(self, message: str, *, needed_tokens: int, budget_tokens: int) -> None:
        super().__init__(message)
        self.needed_tokens = needed_tokens
        self.budget_tokens = budget_tokens


class NotFoundError(CallerError, LookupError):
    """The session, item, call, blob or file does not exist."""


class ScopeError(CallerError):
    """The handle is bound to one scope and was asked for something outside it."""


class HeldError(CallerError):
    """A legal hold covers what was to be deleted; ``reason`` is what it was asked for with."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class DemandError(CallerError):
    """The file demands a redaction policy or guard that was not given; the message says which."""


class OptedOutError(CallerError):
    """The user wants no long-term memory (``opt_out_memory``): nothing was stored."""


class AccessDeniedError(CallerError):
    """The authorizer did not allow it, or failed; what it raised is the cause.

    It says what was asked for and nothing of what there is.
    """


class UntrustedTypeError(CallerError):
    """A stored value names a type (``module``, ``name``) that the handle was not allowed to build.

    Nothing of it was imported or run. If the type is the program's own, allow it.
    """

    def __init__(self, message: str, *, module: str, name: str) -> None:
        super().__init__(message)
        self.module = module
        self.name = name


class LeaseHeldError(CallerError):
    """``owner`` holds the session until ``expires_at`` (seconds since 1970), under ``epoch``."""

    def __init__(self, message: str, *, owner: str, epoch: int, expires_at: float) -> None:
        super().__init__(message)
        self.owner = owner
        self.epoch = epoch
        self.expires_at = expires_at


class FencedError(CallerError):
    """The handle's lease of ``epoch`` is over; ``current`` is the session's epoch now."""

    def __init__(self, message: str, *, epoch: int, current: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.current = current


class ReadOnlyError(CallerError):
    """A write was asked of a handle that was opened with ``read_only=True``."""


class ClosedError(CallerError):
    """The database was closed; open it again."""


class KeyNeededError(CallerError):
    """The database is encrypted and no key was given, or there is none where it should be."""


class KeyCopyError(CallerError, TypeError):
    """An object that holds a key was pickled or copied: open or make another one instead."""


def uncopied(holder: object, *_: Any) -> NoReturn:
    """Stand as ``__reduce_ex__`` in a class that holds a key: where bytes go, the key would go.

    Raises:
        KeyCopyError
    """
    msg = (
        f"{type(holder).__name__} holds a key, and is neither pickled nor copied: hand on where "
        "the key comes from, and make it anew there"
    )
    raise KeyCopyError(msg)


class WrongKeyError(CallerError):
    """The key does not open the key file; nothing was read, and nothing is changed."""


class UnreadableItemsError(CallerError):
    """Items of an encrypted session cannot be read; none was removed, and none is hidden.

    ``reasons`` says how many for which reason: ``"another key"`` (they were written with one that
    was not given), ``"changed"`` (they do not prove to be what was written), ``"no key"`` (they
    are encrypted and the session was opened without a key), ``"in clear"`` (they are not encrypted
    and the session is).
    """

    def __init__(self, message: str, *, reasons: Mapping[str, int]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class AuditError(CallerError):
    """An audited file without its key, with another one, or whose audit cannot be anchored now."""


class SummarizerError(CallerError):
    """The answer of a model is no summary; a compaction then takes its fallback.

    ``reason`` is ``cut`` (it reached its token limit), ``refused``, ``empty``, ``tool_calls`` (it
    called a tool instead) or ``failed`` (the provider says so, or the answer has another form).
    What a client raises (no connection, a timeout, a status of 400 or more) is raised as it is.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class StorageError(MemcoreError):
    """The file or the device is in trouble."""


class StoreFullError(StorageError):
    """No space is left on the device, or the map cannot grow; the file is as it was."""


class StoreAccessError(StorageError):
    """The operating system refused to open, read or write the file."""


class StoreLockedError(StorageError):
    """Another process holds the file in a way that excludes this call."""


class StoreFormatError(StorageError):
    """The path is no memcore file, or one of a format this version cannot read."""


class CorruptStoreError(StorageError):
    """The structure of the file is damaged or the file is truncated."""


class CorruptValueError(StorageError):
    """One value fails its checksum; ``key`` is the damaged row, other rows stay readable."""

    def __init__(self, message: str, *, key: bytes) -> None:
        super().__init__(message)
        self.key = key


class TamperedError(CorruptValueError):
    """One value of an encrypted database does not decrypt; ``key`` is its row.

    It was changed, moved here from another row, stands in clear, or its data key is gone: its user
    was erased, or the key file is older than the database.
    """


class UndecodableError(CorruptValueError):
    """A stored value passes its checksum, but the handle's serialiser cannot read it.

    The one that wrote it may: another class, version or option. Nothing says that it is damaged.
    """


class KeyFileError(StorageError):
    """The key file is missing, damaged, of another database, or cannot be written."""


class OutcomeUnknownError(StorageError):
    """A commit failed in a way that hides whether it took effect; close, reopen, look."""


class InternalError(MemcoreError):
    """A bug in memcore; please report it with the traceback."""
