"""Memory and state for AI agents in one local file; never hands a model a broken history.

Names are imported on first use: ``memcore --version`` loads no storage code, and synchronous
programs load no asyncio facade.
"""

import sys as _sys

if not _sys.platform.startswith("linux"):
    _message = (
        f"memcore runs on Linux, not on {_sys.platform}: its locks, flushes and shared maps are "
        "those of Linux, and it is tested there alone; use a container, or WSL on Windows"
    )
    raise ImportError(_message)

try:
    from memcore import _fast as _fast
except ImportError as _exc:
    _message = (
        f"memcore's compiled core (memcore._fast) is not in {__path__[0]}, or was built for "
        "another Python: if that is a checkout and memcore is installed, work in another "
        "directory, or build it in place with 'pip install -e .' there; else install memcore with "
        f"pip ({_exc})"
    )
    raise ImportError(_message) from _exc

from memcore.distribution import warn_of_foreign_owners as _warn_of_foreign_owners
from memcore.faces import face

_warn_of_foreign_owners(__path__[0])

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "": "aio errors",
        "access": "AccessRequest",
        "audit": "Audit",
        "compaction": (
            "PRESETS AnthropicSummarizer CompactionPolicy Extractive Keep LiteLLMSummarizer "
            "OpenAISummarizer Pressure Recursive Stage SummaryStyle Trigger "
            "compaction_policy extractive policy_mapping read_policy"
        ),
        "context": "convert fit safe_cuts validate",
        "database": "Database Scope open=open_database",
        "database.database": "KeyStatus Rotation",
        "database.stats": "Branch Difference",
        "errors": (
            "AccessDeniedError AuditError BlockedError CallerError ClosedError "
            "ContextOverflowError CorruptStoreError CorruptValueError CounterUnavailableError "
            "DemandError DuplicateRequestError EmbedderError ExtractorError FencedError "
            "HeldError HistoryNeededError HistoryViolationError IllegalContextError "
            "InternalError InvalidItemError InvalidOptionError InvalidUpdateError "
            "KeyCopyError KeyFileError KeyNeededError LeaseHeldError MemcoreError "
            "NestedCallError NotFoundError OptedOutError OrphanResultError OutcomeUnknownError "
            "OutpacedError "
            "PlanStaleError PolicyMismatchError ReadOnlyError RevisionConflict ScopeError "
            "SourceError StaleParentError StateSchemaError StorageError StoreAccessError "
            "StoreFormatError StoreFullError StoreLockedError SummarizerError "
            "SupersededError TamperedError TargetExistsError "
            "UndecodableError UnreadableItemsError UnshippedError UntrustedTypeError WrongKeyError"
        ),
        "database.archive": "Archive ArchivedSession open_archive",
        "database.copying": "CopyReport copy_store",
        "database.warm": "Promotion WarmStatus promote",
        "maintenance.backup": "CompactReport MigrationReport RestoreReport migrate restore",
        "maintenance.salvage": "SalvageReport SalvagedSession salvage",
        "memory": (
            "AnthropicExtractor Candidate CandidateOutcome Consolidation ConsolidationPolicy "
            "ConsolidationStep Extraction ExtractionItem ExtractionJob ExtractionReport Extractor "
            "Grants Memories MemoryWindow MemoryWorker OpenAIExtractor Profile Recall "
            "RollingSummary RuleExtractor"
        ),
        "model": (
            "Calibration CallRecord Checkpoint CompactionResult Context Conversion Envelope Grant "
            "Item ItemKind Mask Memory MemoryHit OpenCall Plan Playbook PlaybookPatch Receipt "
            "RecalledMemory RecountResult Repair RepairResult SearchHit SessionEntry Source "
            "Summarizer SummaryRequest TermScore View Violation"
        ),
        "payload": (
            "AssembledPayload LeftOut Payload PayloadPart PayloadPlan PayloadUnit SectionUse"
        ),
        "privacy": "RedactingFilter RedactionPolicy",
        "privacy.guards": (
            "InjectionGuard Judgement LimitGuard NoWrites ProtectedKeys SecretGuard "
            "WriteContext WriteGuard as_operator"
        ),
        "privacy.keyring": "KeyProvider",
        "retention": "ErasureReceipt Hold RetentionRule SweepReport verify_receipt",
        "search": "Embedder",
        "session": "AgentView Compactor Delegation Lease Session SessionState",
        "session.recovery": "Recovery RecoveryStep",
        "session.retry": "LadderRules",
        "state": (
            "Command Delete FileData Merge OmitInput OmitOutput Overwrite Private Reduction "
            "SharedState StateChanges StateSchema append_messages merge_entries"
        ),
        "telemetry": "AccessLog LogSink OpenTelemetry Record",
        "tokens": (
            "BytesEstimate CallableCounter ExactCounter Media ScaledCounter TiktokenCounter "
            "TokenCounter Truncated counter_for_model get_counter"
        ),
        "tokens.api": "count_messages count_tokens count_tools truncate",
    },
)
