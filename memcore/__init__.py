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
    from memcore.audit import Audit
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
    from memcore.database.keying import KeyStatus, Rotation
    from memcore.database.migrating import MigrationReport, migrate
    from memcore.database.salvage import salvage
    from memcore.database.salvaged import SalvagedSession, SalvageReport
    from memcore.errors import (
        AuditError,
        CallerError,
        ClosedError,
        ContextOverflowError,
        CorruptStoreError,
        CorruptValueError,
        CounterUnavailableError,
        DuplicateRequestError,
        HeldError,
        HistoryViolationError,
        InternalError,
        InvalidItemError,
        InvalidOptionError,
        InvalidUpdateError,
        KeyFileError,
        KeyNeededError,
        MemcoreError,
        NotFoundError,
        OrphanResultError,
        OutcomeUnknownError,
        PlanStaleError,
        PolicyMismatchError,
        ReadOnlyError,
        RevisionConflict,
        ScopeError,
        StateSchemaError,
        StorageError,
        StoreAccessError,
        StoreFormatError,
        StoreFullError,
        StoreLockedError,
        SummarizerError,
        TamperedError,
        UnreadableItemsError,
        WrongKeyError,
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
    from memcore.privacy.provider import KeyProvider
    from memcore.retention import ErasureReceipt, Hold, verify_receipt
    from memcore.session import Compactor, Session, SessionState
    from memcore.session.recovered import Recovery, RecoveryStep
    from memcore.state import (
        Command,
        Delete,
        FileData,
        Merge,
        OmitInput,
        OmitOutput,
        Overwrite,
        Private,
        Reduction,
        SharedState,
        StateChanges,
        StateSchema,
        append_messages,
        merge_entries,
    )
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
    "Audit",
    "AuditError",
    "Branch",
    "BytesEstimate",
    "Calibration",
    "CallRecord",
    "CallableCounter",
    "CallerError",
    "Checkpoint",
    "ClosedError",
    "Command",
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
    "Delete",
    "Difference",
    "DuplicateRequestError",
    "ErasureReceipt",
    "ExactCounter",
    "Extractive",
    "FileData",
    "HeldError",
    "HistoryViolationError",
    "Hold",
    "InternalError",
    "InvalidItemError",
    "InvalidOptionError",
    "InvalidUpdateError",
    "Item",
    "ItemKind",
    "Keep",
    "KeyFileError",
    "KeyNeededError",
    "KeyProvider",
    "KeyStatus",
    "LiteLLMSummarizer",
    "Mask",
    "Media",
    "MemcoreError",
    "Merge",
    "MigrationReport",
    "NotFoundError",
    "OmitInput",
    "OmitOutput",
    "OpenAISummarizer",
    "OpenCall",
    "OrphanResultError",
    "OutcomeUnknownError",
    "Overwrite",
    "Plan",
    "PlanStaleError",
    "PolicyMismatchError",
    "Pressure",
    "Private",
    "ReadOnlyError",
    "Receipt",
    "RecountResult",
    "Recovery",
    "RecoveryStep",
    "Recursive",
    "Reduction",
    "Repair",
    "RepairResult",
    "RestoreReport",
    "RevisionConflict",
    "Rotation",
    "SalvageReport",
    "SalvagedSession",
    "ScaledCounter",
    "Scope",
    "ScopeError",
    "Session",
    "SessionEntry",
    "SessionState",
    "SharedState",
    "Stage",
    "StateChanges",
    "StateSchema",
    "StateSchemaError",
    "StorageError",
    "StoreAccessError",
    "StoreFormatError",
    "StoreFullError",
    "StoreLockedError",
    "Summarizer",
    "SummarizerError",
    "SummaryRequest",
    "SummaryStyle",
    "TamperedError",
    "TiktokenCounter",
    "TokenCounter",
    "Trigger",
    "Truncated",
    "UnreadableItemsError",
    "View",
    "Violation",
    "WrongKeyError",
    "aio",
    "append_messages",
    "compaction_policy",
    "count_messages",
    "count_tokens",
    "count_tools",
    "counter_for_model",
    "extractive",
    "fit",
    "get_counter",
    "merge_entries",
    "migrate",
    "open",
    "policy_mapping",
    "read_policy",
    "restore",
    "safe_cuts",
    "salvage",
    "truncate",
    "validate",
    "verify_receipt",
]

_NAMES = {
    "memcore.audit": "Audit",
    "memcore.compaction": (
        "AnthropicSummarizer CompactionPolicy Extractive Keep LiteLLMSummarizer "
        "OpenAISummarizer PRESETS Pressure Recursive Stage SummaryStyle Trigger "
        "compaction_policy extractive policy_mapping read_policy"
    ),
    "memcore.context": "fit safe_cuts validate",
    "memcore.counting": "count_messages count_tokens count_tools truncate",
    "memcore.database": (
        "CompactReport Database RestoreReport SalvageReport SalvagedSession Scope restore salvage"
    ),
    "memcore.database.branches": "Branch",
    "memcore.database.difference": "Difference",
    "memcore.database.keying": "KeyStatus Rotation",
    "memcore.database.migrating": "MigrationReport migrate",
    "memcore.errors": (
        "AuditError CallerError ClosedError ContextOverflowError CorruptStoreError "
        "CorruptValueError CounterUnavailableError DuplicateRequestError HeldError "
        "HistoryViolationError InternalError InvalidItemError InvalidOptionError "
        "InvalidUpdateError KeyFileError KeyNeededError MemcoreError NotFoundError "
        "OrphanResultError OutcomeUnknownError PlanStaleError PolicyMismatchError "
        "ReadOnlyError RevisionConflict ScopeError StateSchemaError StorageError "
        "StoreAccessError StoreFormatError StoreFullError StoreLockedError SummarizerError "
        "TamperedError UnreadableItemsError WrongKeyError"
    ),
    "memcore.model": (
        "Calibration CallRecord Checkpoint CompactionResult Context Item ItemKind Mask "
        "OpenCall Plan Receipt RecountResult Repair RepairResult SessionEntry Summarizer "
        "SummaryRequest View Violation"
    ),
    "memcore.privacy.provider": "KeyProvider",
    "memcore.retention": "ErasureReceipt Hold verify_receipt",
    "memcore.session": "Compactor Session SessionState",
    "memcore.session.recovered": "Recovery RecoveryStep",
    "memcore.state": (
        "Command Delete FileData Merge OmitInput OmitOutput Overwrite Private Reduction "
        "SharedState StateChanges StateSchema append_messages merge_entries"
    ),
    "memcore.tokens": (
        "BytesEstimate CallableCounter ExactCounter Media ScaledCounter TiktokenCounter "
        "TokenCounter Truncated counter_for_model get_counter"
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


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
