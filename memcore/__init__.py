"""Memory and state for AI agents in one local file; never hands a model a broken history."""

try:
    from memcore import _fast as _fast
except ImportError as _exc:
    _message = (
        "memcore's compiled core (memcore._fast) is missing or was built for another Python: "
        "install memcore with pip, or run 'python setup.py build_ext --inplace' in a checkout "
        f"({_exc})"
    )
    raise ImportError(_message) from _exc

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
