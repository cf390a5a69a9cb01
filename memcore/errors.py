"""Every exception that memcore raises, in one tree.

MemcoreError
├── CallerError                the call was wrong; nothing was stored
│   ├── InvalidItemError       not a mapping, not JSON, NaN, too large
│   ├── InvalidOptionError     an argument is unknown, of a wrong type or out of range
│   ├── OrphanResultError      a tool result whose call is not in the history
│   ├── HistoryViolationError  ``validate(..., raise_on_error=True)`` found violations
│   ├── IllegalContextError    a memory under test gave an illegal context, or raised
│   ├── BlockedError           a guard refused the write
│   ├── DuplicateRequestError  an idempotency key was reused with different content
│   ├── RevisionConflict       ``expected_revision`` is not the current revision
│   ├── OutpacedError          every attempt lost the race against other writers; try again
│   ├── StaleParentError       another checkpoint was stored after this one's parent
│   ├── HistoryNeededError     remaining checkpoints need what was to be deleted
│   ├── PlanStaleError         the history changed under a compaction plan
│   ├── PolicyMismatchError    the session has a different policy or counter
│   ├── CounterUnavailableError  the session's token counter cannot be loaded here
│   ├── StateSchemaError       a class is not a valid schema, or two schemas conflict
│   ├── InvalidUpdateError     the schema of the state does not allow the update
│   ├── ContextOverflowError   the smallest legal context is larger than the budget
│   ├── NotFoundError          no such session, item, call or blob
│   ├── LeaseHeldError         another owner holds the session's lease
│   ├── FencedError            the handle's lease was taken over or released
│   ├── AccessDeniedError      the authorizer denied it, or failed
│   ├── UntrustedTypeError     a stored value names a type that was not allowed
│   ├── ScopeError             the request is outside the handle's scope
│   ├── HeldError              what was to be deleted is under a legal hold
│   ├── DemandError            the file requires a redaction policy or guard that was not given
│   ├── OptedOutError          the user opted out of long-term memory
│   ├── SupersededError        the file's warm copy was promoted, or follows another file
│   ├── ReadOnlyError          a write through a read-only handle
│   ├── ClosedError            the database was closed
│   ├── KeyNeededError         the database is encrypted, and no key was given
│   ├── WrongKeyError          the key does not open the key file
│   ├── UnreadableItemsError   items cannot be decrypted: written with another key, or changed
│   ├── AuditError             no key for an audited file, or its audit cannot be anchored
│   ├── EmbedderError          the embedder failed, or its answer is not a vector for each text
│   ├── SummarizerError        the model's answer is not a summary; a fallback is used
│   ├── ExtractorError         the model's answer holds no memories; the job is tried again
│   └── SourceError            what is to be imported is of another kind, damaged or not trusted
├── StorageError               the file or the device failed
│   ├── StoreFullError         no space on the device, or the map cannot grow
│   ├── StoreAccessError       the operating system refused to open or write the file
│   ├── StoreLockedError       another process holds the file in a way that excludes this call
│   ├── StoreFormatError       not a memcore file, or one of a newer format
│   ├── CorruptStoreError      the structure of the file is damaged or truncated
│   ├── CorruptValueError      one value fails its checksum; the others stay readable
│   │   ├── TamperedError      one value does not decrypt, or is in clear
│   │   └── UndecodableError   one value is intact, but this serialiser cannot read it
│   ├── KeyFileError           the key file is missing, damaged or cannot be written
│   ├── UnshippedError         a change is stored in the file, but not in its warm copy yet
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
    "EmbedderError",
    "ExtractorError",
    "FencedError",
    "HeldError",
    "HistoryNeededError",
    "HistoryViolationError",
    "IllegalContextError",
    "InternalError",
    "InvalidItemError",
    "InvalidOptionError",
    "InvalidUpdateError",
    "KeyCopyError",
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
    "SourceError",
    "StaleParentError",
    "StateSchemaError",
    "StorageError",
    "StoreAccessError",
    "StoreFormatError",
    "StoreFullError",
    "StoreLockedError",
    "SummarizerError",
    "SupersededError",
    "TamperedError",
    "UndecodableError",
    "UnreadableItemsError",
    "UnshippedError",
    "UntrustedTypeError",
    "WrongKeyError",
]


class MemcoreError(Exception):
    """Base class of everything that memcore raises deliberately.

    Errors can be pickled and copied, with their attributes: worker processes hand them on.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        found: Any = super().__reduce__()
        return _unpickled, found[:2], *found[2:]


def _unpickled(cls: type[MemcoreError], args: tuple[Any, ...]) -> MemcoreError:
    """Make an error again; without ``__init__`` if that needs attributes, which pickle restores."""
    try:
        return cls(*args)
    except TypeError:
        return cls.__new__(cls, *args)


class CallerError(MemcoreError):
    """The call was wrong; nothing was stored and nothing was lost."""


class InvalidItemError(CallerError, ValueError):
    """The item is not a mapping, cannot be written as JSON, or is above the size limit."""


class InvalidOptionError(CallerError, ValueError):
    """An argument is unknown, has a wrong type or is out of range."""


class TargetExistsError(InvalidOptionError):
    """The target of ``copy_store`` is there already, and is not replaced."""


class OrphanResultError(CallerError):
    """A tool result answers no call of this history.

    ``call_id`` is the id without a call; ``position`` is the item's position in the batch.
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


class IllegalContextError(CallerError, AssertionError):
    """A memory under test gave an illegal context, or raised; ``finding`` says what and where."""

    def __init__(self, message: str, *, finding: object) -> None:
        super().__init__(message)
        self.finding = finding


class BlockedError(CallerError):
    """A guard refused the write; none of the change was stored.

    ``verdict`` is the decision and ``reason`` the guard's reason, which never holds content.
    """

    def __init__(self, message: str, *, verdict: str = "block", reason: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict
        self.reason = reason


class DuplicateRequestError(CallerError):
    """The idempotency key was used before with different content."""


class RevisionConflict(CallerError):  # noqa: N818 - the architecture's public name
    """The session has moved on: ``current`` is its revision, ``expected`` the one required."""

    def __init__(self, message: str, *, expected: int, current: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.current = current


class OutpacedError(CallerError):
    """Other writers kept changing what the call works on before it could finish; try again."""


class StaleParentError(CallerError):
    """The parent, ``parent``, is no longer the newest checkpoint, which is ``newest``."""

    def __init__(self, message: str, *, parent: str | None, newest: str | None) -> None:
        super().__init__(message)
        self.parent = parent
        self.newest = newest


class HistoryNeededError(CallerError):
    """Checkpoints that remain need values of those that were to be deleted."""


class PlanStaleError(CallerError):
    """The history changed between planning a compaction and committing it; plan again."""


class PolicyMismatchError(CallerError):
    """The session was created with a different policy or counter than the one requested."""


class CounterUnavailableError(CallerError):
    """The session's token counter cannot be loaded here."""


class StateSchemaError(CallerError, TypeError):
    """A class is not a valid schema of a state, or several schemas contradict each other."""


class InvalidUpdateError(CallerError, ValueError):
    """The state's schema does not allow the update; ``key`` is the field, if it concerns one."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class ContextOverflowError(CallerError):
    """Even the smallest legal context needs more tokens than the budget.

    ``needed_tokens`` is its size, ``budget_tokens`` the budget.
    """

    def __init__(self, message: str, *, needed_tokens: int, budget_tokens: int) -> None:
        super().__init__(message)
        self.needed_tokens = needed_tokens
        self.budget_tokens = budget_tokens


class NotFoundError(CallerError, LookupError):
    """The session, item, call, blob or file does not exist."""


class ScopeError(CallerError):
    """The handle is bound to one scope, and the request is outside it."""


class HeldError(CallerError):
    """A legal hold covers what was to be deleted; ``reason`` is the reason given for the hold."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class DemandError(CallerError):
    """The file requires a redaction policy or guard that was not given; the message names it."""


class OptedOutError(CallerError):
    """The user opted out of long-term memory (``opt_out_memory``); nothing was stored."""


class AccessDeniedError(CallerError):
    """The authorizer did not allow the request, or failed; its exception is then the cause.

    The message names the request and reveals nothing of what exists.
    """


class UntrustedTypeError(CallerError):
    """A stored value names a type (``module``, ``name``) that the handle may not build.

    Nothing of it was imported or run. If the type is one of your program's, allow it.
    """

    def __init__(self, message: str, *, module: str, name: str) -> None:
        super().__init__(message)
        self.module = module
        self.name = name


class LeaseHeldError(CallerError):
    """``owner`` holds the session until ``expires_at`` (Unix time in seconds), under ``epoch``."""

    def __init__(self, message: str, *, owner: str, epoch: int, expires_at: float) -> None:
        super().__init__(message)
        self.owner = owner
        self.epoch = epoch
        self.expires_at = expires_at


class FencedError(CallerError):
    """The handle's lease of ``epoch`` has ended; ``current`` is the session's epoch."""

    def __init__(self, message: str, *, epoch: int, current: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.current = current


class SupersededError(CallerError):
    """The store lives on elsewhere: its warm copy was promoted, or follows another file."""


class ReadOnlyError(CallerError):
    """A write through a handle that was opened with ``read_only=True``."""


class ClosedError(CallerError):
    """The database was closed; open it again."""


class KeyNeededError(CallerError):
    """The database is encrypted, and no key was given or none is at the expected place."""


class KeyCopyError(CallerError, TypeError):
    """An object that holds a key was pickled or copied; open or create another one instead."""


def uncopied(holder: object, *_: Any) -> NoReturn:
    """Serve as ``__reduce_ex__`` of a class that holds a key: pickling would leak the key.

    Raises:
        KeyCopyError
    """
    msg = (
        f"{type(holder).__name__} holds a key, and is neither pickled nor copied: hand on where "
        "the key comes from, and make it anew there"
    )
    raise KeyCopyError(msg)


class WrongKeyError(CallerError):
    """The key does not open the key file; nothing was read or changed."""


class UnreadableItemsError(CallerError):
    """Items of an encrypted session cannot be read; none was removed, and none is hidden.

    ``reasons`` counts them by reason: ``"another key"`` (written with a key that was not given),
    ``"changed"`` (they fail authentication), ``"no key"`` (they are encrypted, and the session was
    opened without a key), ``"in clear"`` (they are not encrypted, and the session is).
    """

    def __init__(self, message: str, *, reasons: Mapping[str, int]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class AuditError(CallerError):
    """An audited file has no key or the wrong one, or its audit cannot be anchored now."""


class EmbedderError(CallerError):
    """The embedder failed, or did not return a vector of finite numbers for each text.

    Nothing of its answer is stored. ``mode="lexical"`` searches without it.
    """


class SummarizerError(CallerError):
    """The answer of a model is not a summary; the compaction then uses its fallback.

    ``reason`` is ``cut`` (it reached its token limit), ``refused``, ``empty``, ``tool_calls`` (it
    called a tool instead) or ``failed`` (the provider reported a failure, or the answer has another
    form). Exceptions of a client (no connection, a timeout, a status of 400 or more) propagate
    unchanged.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ExtractorError(CallerError):
    """The answer of a model holds no memories, or not in the form that was asked for.

    ``reason`` is ``cut`` (it reached its token limit), ``refused`` or ``failed``. Exceptions of a
    client (no connection, a timeout, a status of 400 or more) propagate unchanged.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class SourceError(CallerError, ValueError):
    """A source to import is of another kind or version, damaged, locked, or must not be read.

    ``place`` is the file, with the table and row or the line if it is one; the source is unchanged.
    """

    def __init__(self, message: str, *, place: str) -> None:
        super().__init__(message)
        self.place = place


class StorageError(MemcoreError):
    """The file or the device failed."""


class StoreFullError(StorageError):
    """The device is full, or the map cannot grow; the file is unchanged."""


class StoreAccessError(StorageError):
    """The operating system refused to open, read or write the file."""


class StoreLockedError(StorageError):
    """Another process holds the file in a way that excludes this call."""


class StoreFormatError(StorageError):
    """The path is not a memcore file, or has a format that this version cannot read."""


class CorruptStoreError(StorageError):
    """The structure of the file is damaged or the file is truncated."""


class CorruptValueError(StorageError):
    """One value fails its checksum; ``key`` is the damaged row. Other rows stay readable."""

    def __init__(self, message: str, *, key: bytes) -> None:
        super().__init__(message)
        self.key = key


class TamperedError(CorruptValueError):
    """One value of an encrypted database does not decrypt; ``key`` is its row.

    It was changed, moved here from another row, is in clear, or its data key is gone: its user was
    erased, or the key file is older than the database.
    """


class UndecodableError(CorruptValueError):
    """A stored value passes its checksum, but the handle's serialiser cannot read it.

    The serialiser that wrote it (another class, version or option) may be able to; nothing
    indicates damage.
    """


class KeyFileError(StorageError):
    """The key file is missing, damaged, of another database, or cannot be written."""


class UnshippedError(StorageError):
    """A change is stored in the file, but not in its warm copy yet."""


class OutcomeUnknownError(StorageError):
    """A commit failed in a way that hides whether it took effect; close, reopen and check."""


class InternalError(MemcoreError):
    """A bug in memcore; please report it with the traceback."""


class NestedCallError(CallerError, InternalError):
    """A call was made inside a transaction, a read or a callback, whose end it would wait for.

    An InternalError, too: earlier versions raised that.
    """
