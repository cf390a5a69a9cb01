# Written by scripts/make_faces from __init__.py.
from memcore.access import AccessRequest as AccessRequest
from memcore import aio as aio
from memcore.audit import Audit as Audit
from memcore.compaction import AnthropicSummarizer as AnthropicSummarizer
from memcore.compaction import CompactionPolicy as CompactionPolicy
from memcore.compaction import Extractive as Extractive
from memcore.compaction import Keep as Keep
from memcore.compaction import LiteLLMSummarizer as LiteLLMSummarizer
from memcore.compaction import OpenAISummarizer as OpenAISummarizer
from memcore.compaction import PRESETS as PRESETS
from memcore.compaction import Pressure as Pressure
from memcore.compaction import Recursive as Recursive
from memcore.compaction import Stage as Stage
from memcore.compaction import SummaryStyle as SummaryStyle
from memcore.compaction import Trigger as Trigger
from memcore.compaction import compaction_policy as compaction_policy
from memcore.compaction import extractive as extractive
from memcore.compaction import policy_mapping as policy_mapping
from memcore.compaction import read_policy as read_policy
from memcore.context import convert as convert
from memcore.context import fit as fit
from memcore.context import safe_cuts as safe_cuts
from memcore.context import validate as validate
from memcore.database import Database as Database
from memcore.database import Scope as Scope
from memcore.database import open_database as open
from memcore.database.archive import Archive as Archive
from memcore.database.archive import ArchivedSession as ArchivedSession
from memcore.database.archive import open_archive as open_archive
from memcore.database.copying import CopyReport as CopyReport
from memcore.database.copying import copy_store as copy_store
from memcore.database.database import KeyStatus as KeyStatus
from memcore.database.database import Rotation as Rotation
from memcore.database.stats import Branch as Branch
from memcore.database.stats import Difference as Difference
from memcore.database.warm import Promotion as Promotion
from memcore.database.warm import WarmStatus as WarmStatus
from memcore.database.warm import promote as promote
from memcore import errors as errors
from memcore.errors import AccessDeniedError as AccessDeniedError
from memcore.errors import AuditError as AuditError
from memcore.errors import BlockedError as BlockedError
from memcore.errors import CallerError as CallerError
from memcore.errors import ClosedError as ClosedError
from memcore.errors import ContextOverflowError as ContextOverflowError
from memcore.errors import CorruptStoreError as CorruptStoreError
from memcore.errors import CorruptValueError as CorruptValueError
from memcore.errors import CounterUnavailableError as CounterUnavailableError
from memcore.errors import DemandError as DemandError
from memcore.errors import DuplicateRequestError as DuplicateRequestError
from memcore.errors import EmbedderError as EmbedderError
from memcore.errors import ExtractorError as ExtractorError
from memcore.errors import FencedError as FencedError
from memcore.errors import HeldError as HeldError
from memcore.errors import HistoryNeededError as HistoryNeededError
from memcore.errors import HistoryViolationError as HistoryViolationError
from memcore.errors import IllegalContextError as IllegalContextError
from memcore.errors import InternalError as InternalError
from memcore.errors import InvalidItemError as InvalidItemError
from memcore.errors import InvalidOptionError as InvalidOptionError
from memcore.errors import InvalidUpdateError as InvalidUpdateError
from memcore.errors import KeyCopyError as KeyCopyError
from memcore.errors import KeyFileError as KeyFileError
from memcore.errors import KeyNeededError as KeyNeededError
from memcore.errors import LeaseHeldError as LeaseHeldError
from memcore.errors import MemcoreError as MemcoreError
from memcore.errors import NestedCallError as NestedCallError
from memcore.errors import NotFoundError as NotFoundError
from memcore.errors import OptedOutError as OptedOutError
from memcore.errors import OrphanResultError as OrphanResultError
from memcore.errors import OutcomeUnknownError as OutcomeUnknownError
from memcore.errors import OutpacedError as OutpacedError
from memcore.errors import PlanStaleError as PlanStaleError
from memcore.errors import PolicyMismatchError as PolicyMismatchError
from memcore.errors import ReadOnlyError as ReadOnlyError
from memcore.errors import RevisionConflict as RevisionConflict
from memcore.errors import ScopeError as ScopeError
from memcore.errors import SourceError as SourceError
from memcore.errors import StaleParentError as StaleParentError
from memcore.errors import StateSchemaError as StateSchemaError
from memcore.errors import StorageError as StorageError
from memcore.errors import StoreAccessError as StoreAccessError
from memcore.errors import StoreFormatError as StoreFormatError
from memcore.errors import StoreFullError as StoreFullError
from memcore.errors import StoreLockedError as StoreLockedError
from memcore.errors import SummarizerError as SummarizerError
from memcore.errors import SupersededError as SupersededError
from memcore.errors import TamperedError as TamperedError
from memcore.errors import TargetExistsError as TargetExistsError
from memcore.errors import UndecodableError as UndecodableError
from memcore.errors import UnreadableItemsError as UnreadableItemsError
from memcore.errors import UnshippedError as UnshippedError
from memcore.errors import UntrustedTypeError as UntrustedTypeError
from memcore.errors import WrongKeyError as WrongKeyError
from memcore.maintenance.backup import CompactReport as CompactReport
from memcore.maintenance.backup import MigrationReport as MigrationReport
from memcore.maintenance.backup import RestoreReport as RestoreReport
from memcore.maintenance.backup import migrate as migrate
from memcore.maintenance.backup import restore as restore
from memcore.maintenance.salvage import SalvageReport as SalvageReport
from memcore.maintenance.salvage import SalvagedSession as SalvagedSession
from memcore.maintenance.salvage import salvage as salvage
from memcore.memory import AnthropicExtractor as AnthropicExtractor
from memcore.memory import Candidate as Candidate
from memcore.memory import CandidateOutcome as CandidateOutcome
from memcore.memory import Consolidation as Consolidation
from memcore.memory import ConsolidationPolicy as ConsolidationPolicy
from memcore.memory import ConsolidationStep as ConsolidationStep
from memcore.memory import Extraction as Extraction
from memcore.memory import ExtractionItem as ExtractionItem
from memcore.memory import ExtractionJob as ExtractionJob
from memcore.memory import ExtractionReport as ExtractionReport
from memcore.memory import Extractor as Extractor
from memcore.memory import Grants as Grants
from memcore.memory import Memories as Memories
from memcore.memory import MemoryWindow as MemoryWindow
from memcore.memory import MemoryWorker as MemoryWorker
from memcore.memory import OpenAIExtractor as OpenAIExtractor
from memcore.memory import Profile as Profile
from memcore.memory import Recall as Recall
from memcore.memory import RollingSummary as RollingSummary
from memcore.memory import RuleExtractor as RuleExtractor
from memcore.model import Calibration as Calibration
from memcore.model import CallRecord as CallRecord
from memcore.model import Checkpoint as Checkpoint
from memcore.model import CompactionResult as CompactionResult
from memcore.model import Context as Context
from memcore.model import Conversion as Conversion
from memcore.model import Envelope as Envelope
from memcore.model import Grant as Grant
from memcore.model import Item as Item
from memcore.model import ItemKind as ItemKind
from memcore.model import Mask as Mask
from memcore.model import Memory as Memory
from memcore.model import MemoryHit as MemoryHit
from memcore.model import OpenCall as OpenCall
from memcore.model import Plan as Plan
from memcore.model import Playbook as Playbook
from memcore.model import PlaybookPatch as PlaybookPatch
from memcore.model import RecalledMemory as RecalledMemory
from memcore.model import Receipt as Receipt
from memcore.model import RecountResult as RecountResult
from memcore.model import Repair as Repair
from memcore.model import RepairResult as RepairResult
from memcore.model import SearchHit as SearchHit
from memcore.model import SessionEntry as SessionEntry
from memcore.model import Source as Source
from memcore.model import Summarizer as Summarizer
from memcore.model import SummaryRequest as SummaryRequest
from memcore.model import TermScore as TermScore
from memcore.model import View as View
from memcore.model import Violation as Violation
from memcore.payload import AssembledPayload as AssembledPayload
from memcore.payload import LeftOut as LeftOut
from memcore.payload import Payload as Payload
from memcore.payload import PayloadPart as PayloadPart
from memcore.payload import PayloadPlan as PayloadPlan
from memcore.payload import PayloadUnit as PayloadUnit
from memcore.payload import SectionUse as SectionUse
from memcore.privacy import RedactingFilter as RedactingFilter
from memcore.privacy import RedactionPolicy as RedactionPolicy
from memcore.privacy.guards import InjectionGuard as InjectionGuard
from memcore.privacy.guards import Judgement as Judgement
from memcore.privacy.guards import LimitGuard as LimitGuard
from memcore.privacy.guards import NoWrites as NoWrites
from memcore.privacy.guards import ProtectedKeys as ProtectedKeys
from memcore.privacy.guards import SecretGuard as SecretGuard
from memcore.privacy.guards import WriteContext as WriteContext
from memcore.privacy.guards import WriteGuard as WriteGuard
from memcore.privacy.guards import as_operator as as_operator
from memcore.privacy.keyring import KeyProvider as KeyProvider
from memcore.retention import ErasureReceipt as ErasureReceipt
from memcore.retention import Hold as Hold
from memcore.retention import RetentionRule as RetentionRule
from memcore.retention import SweepReport as SweepReport
from memcore.retention import verify_receipt as verify_receipt
from memcore.search import Embedder as Embedder
from memcore.session import AgentView as AgentView
from memcore.session import Compactor as Compactor
from memcore.session import Delegation as Delegation
from memcore.session import Lease as Lease
from memcore.session import Session as Session
from memcore.session import SessionState as SessionState
from memcore.session.recovery import Recovery as Recovery
from memcore.session.recovery import RecoveryStep as RecoveryStep
from memcore.session.retry import LadderRules as LadderRules
from memcore.state import Command as Command
from memcore.state import Delete as Delete
from memcore.state import FileData as FileData
from memcore.state import Merge as Merge
from memcore.state import OmitInput as OmitInput
from memcore.state import OmitOutput as OmitOutput
from memcore.state import Overwrite as Overwrite
from memcore.state import Private as Private
from memcore.state import Reduction as Reduction
from memcore.state import SharedState as SharedState
from memcore.state import StateChanges as StateChanges
from memcore.state import StateSchema as StateSchema
from memcore.state import append_messages as append_messages
from memcore.state import merge_entries as merge_entries
from memcore.telemetry import AccessLog as AccessLog
from memcore.telemetry import LogSink as LogSink
from memcore.telemetry import OpenTelemetry as OpenTelemetry
from memcore.telemetry import Record as Record
from memcore.tokens import BytesEstimate as BytesEstimate
from memcore.tokens import CallableCounter as CallableCounter
from memcore.tokens import ExactCounter as ExactCounter
from memcore.tokens import Media as Media
from memcore.tokens import ScaledCounter as ScaledCounter
from memcore.tokens import TiktokenCounter as TiktokenCounter
from memcore.tokens import TokenCounter as TokenCounter
from memcore.tokens import Truncated as Truncated
from memcore.tokens import counter_for_model as counter_for_model
from memcore.tokens import get_counter as get_counter
from memcore.tokens.api import count_messages as count_messages
from memcore.tokens.api import count_tokens as count_tokens
from memcore.tokens.api import count_tools as count_tools
from memcore.tokens.api import truncate as truncate
from memcore import _fast as _fast

__version__: str

__all__ = [
    "PRESETS",
    "AccessDeniedError",
    "AccessLog",
    "AccessRequest",
    "AgentView",
    "AnthropicExtractor",
    "AnthropicSummarizer",
    "Archive",
    "ArchivedSession",
    "AssembledPayload",
    "Audit",
    "AuditError",
    "BlockedError",
    "Branch",
    "BytesEstimate",
    "Calibration",
    "CallRecord",
    "CallableCounter",
    "CallerError",
    "Candidate",
    "CandidateOutcome",
    "Checkpoint",
    "ClosedError",
    "Command",
    "CompactReport",
    "CompactionPolicy",
    "CompactionResult",
    "Compactor",
    "Consolidation",
    "ConsolidationPolicy",
    "ConsolidationStep",
    "Context",
    "ContextOverflowError",
    "Conversion",
    "CopyReport",
    "CorruptStoreError",
    "CorruptValueError",
    "CounterUnavailableError",
    "Database",
    "Delegation",
    "Delete",
    "DemandError",
    "Difference",
    "DuplicateRequestError",
    "Embedder",
    "EmbedderError",
    "Envelope",
    "ErasureReceipt",
    "ExactCounter",
    "Extraction",
    "ExtractionItem",
    "ExtractionJob",
    "ExtractionReport",
    "Extractive",
    "Extractor",
    "ExtractorError",
    "FencedError",
    "FileData",
    "Grant",
    "Grants",
    "HeldError",
    "HistoryNeededError",
    "HistoryViolationError",
    "Hold",
    "IllegalContextError",
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
    "LeftOut",
    "LimitGuard",
    "LiteLLMSummarizer",
    "LogSink",
    "Mask",
    "Media",
    "MemcoreError",
    "Memories",
    "Memory",
    "MemoryHit",
    "MemoryWindow",
    "MemoryWorker",
    "Merge",
    "MigrationReport",
    "NestedCallError",
    "NoWrites",
    "NotFoundError",
    "OmitInput",
    "OmitOutput",
    "OpenAIExtractor",
    "OpenAISummarizer",
    "OpenCall",
    "OpenTelemetry",
    "OptedOutError",
    "OrphanResultError",
    "OutcomeUnknownError",
    "OutpacedError",
    "Overwrite",
    "Payload",
    "PayloadPart",
    "PayloadPlan",
    "PayloadUnit",
    "Plan",
    "PlanStaleError",
    "Playbook",
    "PlaybookPatch",
    "PolicyMismatchError",
    "Pressure",
    "Private",
    "Profile",
    "Promotion",
    "ProtectedKeys",
    "ReadOnlyError",
    "Recall",
    "RecalledMemory",
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
    "RollingSummary",
    "Rotation",
    "RuleExtractor",
    "SalvageReport",
    "SalvagedSession",
    "ScaledCounter",
    "Scope",
    "ScopeError",
    "SearchHit",
    "SecretGuard",
    "SectionUse",
    "Session",
    "SessionEntry",
    "SessionState",
    "SharedState",
    "Source",
    "SourceError",
    "Stage",
    "StaleParentError",
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
    "SupersededError",
    "SweepReport",
    "TamperedError",
    "TargetExistsError",
    "TermScore",
    "TiktokenCounter",
    "TokenCounter",
    "Trigger",
    "Truncated",
    "UndecodableError",
    "UnreadableItemsError",
    "UnshippedError",
    "UntrustedTypeError",
    "View",
    "Violation",
    "WarmStatus",
    "WriteContext",
    "WriteGuard",
    "WrongKeyError",
    "aio",
    "append_messages",
    "as_operator",
    "compaction_policy",
    "convert",
    "copy_store",
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
    "open_archive",
    "policy_mapping",
    "promote",
    "read_policy",
    "restore",
    "safe_cuts",
    "salvage",
    "truncate",
    "validate",
    "verify_receipt",
]
