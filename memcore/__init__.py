"""Memory and state for AI agents in one local file; never hands a model a broken history.

The names are imported when they are first used: ``memcore --version`` loads no storage, and whoever
stays synchronous loads no asyncio facade.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    from memcore import _fast as _fast
except ImportError as _exc:
    _message = (
        "memcore's compiled core (memcore._fast) is missing or was built for another Python: "
        "install memcore with pip, or run 'python setup.py build_ext --inplace' in a checkout "
        f"({_exc})"
    )
    raise ImportError(_message) from _exc

if TYPE_CHECKING:
    from memcore import aio
    from memcore.compaction import CompactionRule, extractive
    from memcore.context import fit, safe_cuts, validate
    from memcore.database import Database, Scope
    from memcore.database import open_database as open  # noqa: A004 - memcore.open is the public name
    from memcore.errors import (
        CallerError,
        ClosedError,
        ContextOverflowError,
        CorruptStoreError,
        CorruptValueError,
        CounterUnavailableError,
        DuplicateRequestError,
        HistoryViolationError,
        InternalError,
        InvalidItemError,
        InvalidOptionError,
        MemcoreError,
        NotFoundError,
        OrphanResultError,
        OutcomeUnknownError,
        PlanStaleError,
        PolicyMismatchError,
        ReadOnlyError,
        RevisionConflict,
        ScopeError,
        StorageError,
        StoreAccessError,
        StoreFormatError,
        StoreFullError,
        StoreLockedError,
    )
    from memcore.model import (
        CallRecord,
        CompactionResult,
        Context,
        Item,
        ItemKind,
        OpenCall,
        Plan,
        Receipt,
        Repair,
        SessionEntry,
        SummaryRequest,
        View,
        Violation,
    )
    from memcore.session import Session
    from memcore.tokens import BytesEstimate, CallableCounter, TiktokenCounter, TokenCounter

__version__ = "0.1.0"

__all__ = [
    "BytesEstimate",
    "CallRecord",
    "CallableCounter",
    "CallerError",
    "ClosedError",
    "CompactionResult",
    "CompactionRule",
    "Context",
    "ContextOverflowError",
    "CorruptStoreError",
    "CorruptValueError",
    "CounterUnavailableError",
    "Database",
    "DuplicateRequestError",
    "HistoryViolationError",
    "InternalError",
    "InvalidItemError",
    "InvalidOptionError",
    "Item",
    "ItemKind",
    "MemcoreError",
    "NotFoundError",
    "OpenCall",
    "OrphanResultError",
    "OutcomeUnknownError",
    "Plan",
    "PlanStaleError",
    "PolicyMismatchError",
    "ReadOnlyError",
    "Receipt",
    "Repair",
    "RevisionConflict",
    "Scope",
    "ScopeError",
    "Session",
    "SessionEntry",
    "StorageError",
    "StoreAccessError",
    "StoreFormatError",
    "StoreFullError",
    "StoreLockedError",
    "SummaryRequest",
    "TiktokenCounter",
    "TokenCounter",
    "View",
    "Violation",
    "aio",
    "extractive",
    "fit",
    "open",
    "safe_cuts",
    "validate",
]

_HOMES = {
    "BytesEstimate": "memcore.tokens",
    "CallRecord": "memcore.model",
    "CallableCounter": "memcore.tokens",
    "CallerError": "memcore.errors",
    "ClosedError": "memcore.errors",
    "CompactionResult": "memcore.model",
    "CompactionRule": "memcore.compaction",
    "Context": "memcore.model",
    "ContextOverflowError": "memcore.errors",
    "CorruptStoreError": "memcore.errors",
    "CorruptValueError": "memcore.errors",
    "CounterUnavailableError": "memcore.errors",
    "Database": "memcore.database",
    "DuplicateRequestError": "memcore.errors",
    "HistoryViolationError": "memcore.errors",
    "InternalError": "memcore.errors",
    "InvalidItemError": "memcore.errors",
    "InvalidOptionError": "memcore.errors",
    "Item": "memcore.model",
    "ItemKind": "memcore.model",
    "MemcoreError": "memcore.errors",
    "NotFoundError": "memcore.errors",
    "OpenCall": "memcore.model",
    "OrphanResultError": "memcore.errors",
    "OutcomeUnknownError": "memcore.errors",
    "Plan": "memcore.model",
    "PlanStaleError": "memcore.errors",
    "PolicyMismatchError": "memcore.errors",
    "ReadOnlyError": "memcore.errors",
    "Receipt": "memcore.model",
    "Repair": "memcore.model",
    "RevisionConflict": "memcore.errors",
    "Scope": "memcore.database",
    "ScopeError": "memcore.errors",
    "Session": "memcore.session",
    "SessionEntry": "memcore.model",
    "StorageError": "memcore.errors",
    "StoreAccessError": "memcore.errors",
    "StoreFormatError": "memcore.errors",
    "StoreFullError": "memcore.errors",
    "StoreLockedError": "memcore.errors",
    "SummaryRequest": "memcore.model",
    "TiktokenCounter": "memcore.tokens",
    "TokenCounter": "memcore.tokens",
    "View": "memcore.model",
    "Violation": "memcore.model",
    "extractive": "memcore.compaction",
    "fit": "memcore.context",
    "safe_cuts": "memcore.context",
    "validate": "memcore.context",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name == "aio":
        found: Any = import_module("memcore.aio")
    elif name == "open":
        found = import_module("memcore.database").open_database
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        msg = f"module 'memcore' has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
