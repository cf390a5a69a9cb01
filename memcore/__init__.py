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
    from memcore.compaction import (
        PRESETS,
        AnthropicSummarizer,
        CompactionPolicy,
        Extractive,
        Keep,
        LiteLLMSummarizer,
        OpenAISummarizer,
        Pressure,
        Recursive,
        Stage,
        SummaryStyle,
        Trigger,
        compaction_policy,
        extractive,
        policy_mapping,
        read_policy,
    )
    from memcore.context import fit, safe_cuts, validate
    from memcore.counting import count_messages, count_tokens, count_tools, truncate
    from memcore.database import (
        CompactReport,
        Database,
        RestoreReport,
        Scope,
        restore,
    )
    from memcore.database import open_database as open  # noqa: A004 - memcore.open is the public name
    from memcore.database.branches import Branch
    from memcore.database.difference import Difference
    from memcore.database.salvage import salvage
    from memcore.database.salvaged import SalvagedSession, SalvageReport
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
        SummarizerError,
    )
    from memcore.model import (
        Calibration,
        CallRecord,
        Checkpoint,
        CompactionResult,
        Context,
        Item,
        ItemKind,
        Mask,
        OpenCall,
        Plan,
        Receipt,
        RecountResult,
        Repair,
        RepairResult,
        SessionEntry,
        Summarizer,
        SummaryRequest,
        View,
        Violation,
    )
    from memcore.session import Compactor, Session
    from memcore.session.recovered import Recovery, RecoveryStep
    from memcore.tokens import (
        BytesEstimate,
        CallableCounter,
        ExactCounter,
        Media,
        ScaledCounter,
        TiktokenCounter,
        TokenCounter,
        Truncated,
        counter_for_model,
        get_counter,
    )

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "AnthropicSummarizer",
    "Branch",
    "BytesEstimate",
    "Calibration",
    "CallRecord",
    "CallableCounter",
    "CallerError",
    "Checkpoint",
    "ClosedError",
    "CompactReport",
    "CompactionPolicy",
    "CompactionResult",
    "Compactor",
    "Context",
    "ContextOverflowError",
    "CorruptStoreError",
    "CorruptValueError",
    "CounterUnavailableError",
    "Database",
    "Difference",
    "DuplicateRequestError",
    "ExactCounter",
    "Extractive",
    "HistoryViolationError",
    "InternalError",
    "InvalidItemError",
    "InvalidOptionError",
    "Item",
    "ItemKind",
    "Keep",
    "LiteLLMSummarizer",
    "Mask",
    "Media",
    "MemcoreError",
    "NotFoundError",
    "OpenAISummarizer",
    "OpenCall",
    "OrphanResultError",
    "OutcomeUnknownError",
    "Plan",
    "PlanStaleError",
    "PolicyMismatchError",
    "Pressure",
    "ReadOnlyError",
    "Receipt",
    "RecountResult",
    "Recovery",
    "RecoveryStep",
    "Recursive",
    "Repair",
    "RepairResult",
    "RestoreReport",
    "RevisionConflict",
    "SalvageReport",
    "SalvagedSession",
    "ScaledCounter",
    "Scope",
    "ScopeError",
    "Session",
    "SessionEntry",
    "Stage",
    "StorageError",
    "StoreAccessError",
    "StoreFormatError",
    "StoreFullError",
    "StoreLockedError",
    "Summarizer",
    "SummarizerError",
    "SummaryRequest",
    "SummaryStyle",
    "TiktokenCounter",
    "TokenCounter",
    "Trigger",
    "Truncated",
    "View",
    "Violation",
    "aio",
    "compaction_policy",
    "count_messages",
    "count_tokens",
    "count_tools",
    "counter_for_model",
    "extractive",
    "fit",
    "get_counter",
    "open",
    "policy_mapping",
    "read_policy",
    "restore",
    "safe_cuts",
    "salvage",
    "truncate",
    "validate",
]

_HOMES = {
    "PRESETS": "memcore.compaction",
    "AnthropicSummarizer": "memcore.compaction",
    "Branch": "memcore.database.branches",
    "BytesEstimate": "memcore.tokens",
    "Calibration": "memcore.model",
    "CallRecord": "memcore.model",
    "CallableCounter": "memcore.tokens",
    "CallerError": "memcore.errors",
    "Checkpoint": "memcore.model",
    "ClosedError": "memcore.errors",
    "CompactReport": "memcore.database",
    "CompactionPolicy": "memcore.compaction",
    "CompactionResult": "memcore.model",
    "Compactor": "memcore.session",
    "Context": "memcore.model",
    "ContextOverflowError": "memcore.errors",
    "CorruptStoreError": "memcore.errors",
    "CorruptValueError": "memcore.errors",
    "CounterUnavailableError": "memcore.errors",
    "Database": "memcore.database",
    "Difference": "memcore.database.difference",
    "DuplicateRequestError": "memcore.errors",
    "ExactCounter": "memcore.tokens",
    "Extractive": "memcore.compaction",
    "HistoryViolationError": "memcore.errors",
    "InternalError": "memcore.errors",
    "InvalidItemError": "memcore.errors",
    "InvalidOptionError": "memcore.errors",
    "Item": "memcore.model",
    "ItemKind": "memcore.model",
    "Keep": "memcore.compaction",
    "LiteLLMSummarizer": "memcore.compaction",
    "Mask": "memcore.model",
    "Media": "memcore.tokens",
    "MemcoreError": "memcore.errors",
    "NotFoundError": "memcore.errors",
    "OpenAISummarizer": "memcore.compaction",
    "OpenCall": "memcore.model",
    "OrphanResultError": "memcore.errors",
    "OutcomeUnknownError": "memcore.errors",
    "Plan": "memcore.model",
    "PlanStaleError": "memcore.errors",
    "PolicyMismatchError": "memcore.errors",
    "Pressure": "memcore.compaction",
    "ReadOnlyError": "memcore.errors",
    "Receipt": "memcore.model",
    "RecountResult": "memcore.model",
    "Recovery": "memcore.session.recovered",
    "RecoveryStep": "memcore.session.recovered",
    "Recursive": "memcore.compaction",
    "Repair": "memcore.model",
    "RepairResult": "memcore.model",
    "RestoreReport": "memcore.database",
    "RevisionConflict": "memcore.errors",
    "SalvageReport": "memcore.database",
    "SalvagedSession": "memcore.database",
    "ScaledCounter": "memcore.tokens",
    "Scope": "memcore.database",
    "ScopeError": "memcore.errors",
    "Session": "memcore.session",
    "SessionEntry": "memcore.model",
    "Stage": "memcore.compaction",
    "StorageError": "memcore.errors",
    "StoreAccessError": "memcore.errors",
    "StoreFormatError": "memcore.errors",
    "StoreFullError": "memcore.errors",
    "StoreLockedError": "memcore.errors",
    "Summarizer": "memcore.model",
    "SummarizerError": "memcore.errors",
    "SummaryRequest": "memcore.model",
    "SummaryStyle": "memcore.compaction",
    "TiktokenCounter": "memcore.tokens",
    "TokenCounter": "memcore.tokens",
    "Trigger": "memcore.compaction",
    "Truncated": "memcore.tokens",
    "View": "memcore.model",
    "Violation": "memcore.model",
    "compaction_policy": "memcore.compaction",
    "count_messages": "memcore.counting",
    "count_tokens": "memcore.counting",
    "count_tools": "memcore.counting",
    "counter_for_model": "memcore.tokens",
    "extractive": "memcore.compaction",
    "fit": "memcore.context",
    "get_counter": "memcore.tokens",
    "policy_mapping": "memcore.compaction",
    "read_policy": "memcore.compaction",
    "restore": "memcore.database",
    "safe_cuts": "memcore.context",
    "salvage": "memcore.database",
    "truncate": "memcore.counting",
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
