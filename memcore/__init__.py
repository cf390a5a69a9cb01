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
        f"memcore's compiled core (memcore._fast) is not in {__path__[0]}, or was built for "
        "another Python: if that is a checkout and memcore is installed, work in another "
        "directory, or run 'python setup.py build_ext --inplace' there; else install memcore with "
        f"pip ({_exc})"
    )
    raise ImportError(_message) from _exc

if TYPE_CHECKING:
    from memcore import aio, errors
    from memcore.access import AccessRequest
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
    from memcore.database import CompactReport, Database, RestoreReport, Scope, restore
    from memcore.database import open_database as open  # noqa: A004 - memcore.open is the public name
    from memcore.database.database import KeyStatus, Rotation
    from memcore.database.stats import Branch, Difference
    from memcore.errors import (
        AccessDeniedError,
        AuditError,
        BlockedError,
        CallerError,
        ClosedError,
        ContextOverflowError,
        CorruptStoreError,
        CorruptValueError,
        CounterUnavailableError,
        DemandError,
        DuplicateRequestError,
        FencedError,
        HeldError,
        HistoryViolationError,
        InternalError,
        InvalidItemError,
        InvalidOptionError,
        InvalidUpdateError,
        KeyCopyError,
        KeyFileError,
        KeyNeededError,
        LeaseHeldError,
        MemcoreError,
        NotFoundError,
        OptedOutError,
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
    from memcore.maintenance.backup import MigrationReport, migrate
    from memcore.maintenance.salvage import SalvagedSession, SalvageReport, salvage
    from memcore.model import (
        Calibration,
        CallRecord,
        Checkpoint,
        CompactionResult,
        Context,
        Envelope,
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
    from memcore.privacy import RedactingFilter, RedactionPolicy
    from memcore.privacy.guards import (
        InjectionGuard,
        Judgement,
        LimitGuard,
        NoWrites,
        ProtectedKeys,
        SecretGuard,
        WriteContext,
        WriteGuard,
        as_operator,
    )
    from memcore.privacy.keyring import KeyProvider
    from memcore.retention import ErasureReceipt, Hold, RetentionRule, SweepReport, verify_receipt
    from memcore.session import Compactor, Lease, Session, SessionState
    from memcore.session.recovery import Recovery, RecoveryStep
    from memcore.session.retry import LadderRules
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
    from memcore.telemetry import AccessLog, LogSink, OpenTelemetry, Record
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
    from memcore.tokens.api import count_messages, count_tokens, count_tools, truncate

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "AccessDeniedError",
    "AccessLog",
    "AccessRequest",
    "AnthropicSummarizer",
    "Audit",
    "AuditError",
    "BlockedError",
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
    "DemandError",
    "Difference",
    "DuplicateRequestError",
    "Envelope",
    "ErasureReceipt",
    "ExactCounter",
    "Extractive",
    "FencedError",
    "FileData",
    "HeldError",
    "HistoryViolationError",
    "Hold",
    "InjectionGuard",
    "InternalError",
    "InvalidItemError",
    "InvalidOptionError",
    "InvalidUpdateError",
    "Item",
    "ItemKind",
    "Judgement",
    "Keep",
    "KeyCopyError",
    "KeyFileError",
    "KeyNeededError",
    "KeyProvider",
    "KeyStatus",
    "LadderRules",
    "Lease",
    "LeaseHeldError",
    "LimitGuard",
    "LiteLLMSummarizer",
    "LogSink",
    "Mask",
    "Media",
    "MemcoreError",
    "Merge",
    "MigrationReport",
    "NoWrites",
    "NotFoundError",
    "OmitInput",
    "OmitOutput",
    "OpenAISummarizer",
    "OpenCall",
    "OpenTelemetry",
    "OptedOutError",
    "OrphanResultError",
    "OutcomeUnknownError",
    "Overwrite",
    "Plan",
    "PlanStaleError",
    "PolicyMismatchError",
    "Pressure",
    "Private",
    "ProtectedKeys",
    "ReadOnlyError",
    "Receipt",
    "Record",
    "RecountResult",
    "Recovery",
    "RecoveryStep",
    "Recursive",
    "RedactingFilter",
    "RedactionPolicy",
    "Reduction",
    "Repair",
    "RepairResult",
    "RestoreReport",
    "RetentionRule",
    "RevisionConflict",
    "Rotation",
    "SalvageReport",
    "SalvagedSession",
    "ScaledCounter",
    "Scope",
    "ScopeError",
    "SecretGuard",
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
    "SweepReport",
    "TamperedError",
    "TiktokenCounter",
    "TokenCounter",
    "Trigger",
    "Truncated",
    "UnreadableItemsError",
    "View",
    "Violation",
    "WriteContext",
    "WriteGuard",
    "WrongKeyError",
    "aio",
    "append_messages",
    "as_operator",
    "compaction_policy",
    "count_messages",
    "count_tokens",
    "count_tools",
    "counter_for_model",
    "errors",
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
    "memcore.access": "AccessRequest",
    "memcore.audit": "Audit",
    "memcore.compaction": (
        "AnthropicSummarizer CompactionPolicy Extractive Keep LiteLLMSummarizer OpenAISummarizer "
        "PRESETS Pressure Recursive Stage SummaryStyle Trigger compaction_policy extractive "
        "policy_mapping read_policy"
    ),
    "memcore.context": "fit safe_cuts validate",
    "memcore.tokens.api": "count_messages count_tokens count_tools truncate",
    "memcore.database": (
        "CompactReport Database RestoreReport SalvageReport SalvagedSession Scope restore salvage"
    ),
    "memcore.database.stats": "Branch Difference",
    "memcore.database.database": "KeyStatus Rotation",
    "memcore.maintenance.backup": "MigrationReport migrate",
    "memcore.model": (
        "Calibration CallRecord Checkpoint CompactionResult Context Envelope Item ItemKind Mask "
        "OpenCall Plan Receipt RecountResult Repair RepairResult SessionEntry Summarizer "
        "SummaryRequest View Violation"
    ),
    "memcore.errors": (
        "AccessDeniedError AuditError BlockedError CallerError ClosedError ContextOverflowError "
        "CorruptStoreError CorruptValueError CounterUnavailableError DemandError "
        "DuplicateRequestError FencedError HeldError HistoryViolationError InternalError "
        "InvalidItemError InvalidOptionError InvalidUpdateError KeyCopyError KeyFileError "
        "KeyNeededError LeaseHeldError MemcoreError NotFoundError OptedOutError OrphanResultError "
        "OutcomeUnknownError PlanStaleError PolicyMismatchError ReadOnlyError RevisionConflict "
        "ScopeError StateSchemaError StorageError StoreAccessError StoreFormatError "
        "StoreFullError StoreLockedError SummarizerError TamperedError UnreadableItemsError "
        "WrongKeyError"
    ),
    "memcore.privacy": "RedactingFilter RedactionPolicy",
    "memcore.privacy.guards": (
        "InjectionGuard Judgement LimitGuard NoWrites ProtectedKeys SecretGuard WriteContext "
        "WriteGuard as_operator"
    ),
    "memcore.privacy.keyring": "KeyProvider",
    "memcore.retention": "ErasureReceipt Hold RetentionRule SweepReport verify_receipt",
    "memcore.session": "Compactor Lease Session SessionState",
    "memcore.session.recovery": "Recovery RecoveryStep",
    "memcore.session.retry": "LadderRules",
    "memcore.state": (
        "Command Delete FileData Merge OmitInput OmitOutput Overwrite Private Reduction "
        "SharedState StateChanges StateSchema append_messages merge_entries"
    ),
    "memcore.telemetry": "AccessLog LogSink OpenTelemetry Record",
    "memcore.tokens": (
        "BytesEstimate CallableCounter ExactCounter Media ScaledCounter TiktokenCounter "
        "TokenCounter Truncated counter_for_model get_counter"
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # for a type checker there are the public names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a public name from its home on first use."""
        if name in ("aio", "errors"):
            found: Any = import_module(f"memcore.{name}")
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
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
