# Written by scripts/make_faces from __init__.py.
from memcore.memory.check import check_entries as check_entries
from memcore.memory.clearing import begin_clear as begin_clear
from memcore.memory.clearing import clear_step as clear_step
from memcore.memory.clearing import cleared_below as cleared_below
from memcore.memory.clearing import is_clear_mark as is_clear_mark
from memcore.memory.clearing import is_entry_below as is_entry_below
from memcore.memory.consolidate import Consolidation as Consolidation
from memcore.memory.consolidate import ConsolidationPolicy as ConsolidationPolicy
from memcore.memory.consolidate import ConsolidationStep as ConsolidationStep
from memcore.memory.coverage import uncover_session as uncover_session
from memcore.memory.extract import CandidateOutcome as CandidateOutcome
from memcore.memory.extract import ExtractionReport as ExtractionReport
from memcore.memory.extractors import AnthropicExtractor as AnthropicExtractor
from memcore.memory.extractors import OpenAIExtractor as OpenAIExtractor
from memcore.memory.files import MemoryFiles as MemoryFiles
from memcore.memory.grants import GRANT_ROWS as GRANT_ROWS
from memcore.memory.grants import Grants as Grants
from memcore.memory.grants import check_grants as check_grants
from memcore.memory.grants import drop_grants as drop_grants
from memcore.memory.jobs import ExtractionJob as ExtractionJob
from memcore.memory.jobs import JOB_ROWS as JOB_ROWS
from memcore.memory.jobs import check_jobs as check_jobs
from memcore.memory.jobs import is_job_row as is_job_row
from memcore.memory.jobs import read_again as read_again
from memcore.memory.jobs import version_of_job as version_of_job
from memcore.memory.judge import Candidate as Candidate
from memcore.memory.judge import Extraction as Extraction
from memcore.memory.judge import ExtractionItem as ExtractionItem
from memcore.memory.judge import Extractor as Extractor
from memcore.memory.lineage import check_roots as check_roots
from memcore.memory.lineage import note_roots as note_roots
from memcore.memory.lineage import root_of as root_of
from memcore.memory.memories import Memories as Memories
from memcore.memory.memories import tool_handle as tool_handle
from memcore.memory.playbook import check_playbooks as check_playbooks
from memcore.memory.playbook import export_outcomes as export_outcomes
from memcore.memory.playbook import redact_outcomes as redact_outcomes
from memcore.memory.playbook import texts_of_outcomes as texts_of_outcomes
from memcore.memory.profile import MemoryWindow as MemoryWindow
from memcore.memory.profile import Profile as Profile
from memcore.memory.recall import LAST_USER as LAST_USER
from memcore.memory.recall import Recall as Recall
from memcore.memory.recall import RecallPlace as RecallPlace
from memcore.memory.recall import Recalled as Recalled
from memcore.memory.recall import choose_memories as choose_memories
from memcore.memory.recall import embedded_place as embedded_place
from memcore.memory.recall import fenced as fenced
from memcore.memory.recall import line_of as line_of
from memcore.memory.rows import Book as Book
from memcore.memory.rows import INDEXES as INDEXES
from memcore.memory.rows import MemoryVersion as MemoryVersion
from memcore.memory.rows import count_entries as count_entries
from memcore.memory.rows import entry_at as entry_at
from memcore.memory.rows import entry_numbers as entry_numbers
from memcore.memory.rows import entry_of_version as entry_of_version
from memcore.memory.rows import expires_ms_of as expires_ms_of
from memcore.memory.rows import exported as exported
from memcore.memory.rows import is_earlier_version as is_earlier_version
from memcore.memory.rows import is_memory_row as is_memory_row
from memcore.memory.rows import stored_document as stored_document
from memcore.memory.rows import version_in as version_in
from memcore.memory.rules import RuleExtractor as RuleExtractor
from memcore.memory.search import index_memories as index_memories
from memcore.memory.search import lent_scores as lent_scores
from memcore.memory.statement import expire_entry as expire_entry
from memcore.memory.statement import forget_items as forget_items
from memcore.memory.statement import is_kept as is_kept
from memcore.memory.statement import mend as mend
from memcore.memory.statement import move_sources as move_sources
from memcore.memory.statement import names_in as names_in
from memcore.memory.statement import redact_entry as redact_entry
from memcore.memory.statement import texts_in as texts_in
from memcore.memory.statement import would_forget as would_forget
from memcore.memory.summary import RollingSummary as RollingSummary
from memcore.memory.tools import ToolHandle as ToolHandle
from memcore.memory.tools import answer_calls as answer_calls
from memcore.memory.tools import answer_named as answer_named
from memcore.memory.tools import reason_of as reason_of
from memcore.memory.tools import revise_noted as revise_noted
from memcore.memory.tools import take_note as take_note
from memcore.memory.tools import tool_schemas as tool_schemas
from memcore.memory.transfer import Arrival as Arrival
from memcore.memory.transfer import ArrivalBatch as ArrivalBatch
from memcore.memory.transfer import arrived_entry as arrived_entry
from memcore.memory.transfer import export_entries as export_entries
from memcore.memory.transfer import import_entry as import_entry
from memcore.memory.transfer import import_outcome as import_outcome
from memcore.memory.transfer import link_entries as link_entries
from memcore.memory.transfer import unlinked_entries as unlinked_entries
from memcore.memory.trust import ACTIVE_BY as ACTIVE_BY
from memcore.memory.trust import visible_text as visible_text
from memcore.memory.worker import ExtractionFailure as ExtractionFailure
from memcore.memory.worker import MemoryWorker as MemoryWorker
from memcore.memory.worker import Remembering as Remembering

__all__ = [
    "ACTIVE_BY",
    "GRANT_ROWS",
    "INDEXES",
    "JOB_ROWS",
    "LAST_USER",
    "AnthropicExtractor",
    "Arrival",
    "ArrivalBatch",
    "Book",
    "Candidate",
    "CandidateOutcome",
    "Consolidation",
    "ConsolidationPolicy",
    "ConsolidationStep",
    "Extraction",
    "ExtractionFailure",
    "ExtractionItem",
    "ExtractionJob",
    "ExtractionReport",
    "Extractor",
    "Grants",
    "Memories",
    "MemoryFiles",
    "MemoryVersion",
    "MemoryWindow",
    "MemoryWorker",
    "OpenAIExtractor",
    "Profile",
    "Recall",
    "RecallPlace",
    "Recalled",
    "Remembering",
    "RollingSummary",
    "RuleExtractor",
    "ToolHandle",
    "answer_calls",
    "answer_named",
    "arrived_entry",
    "begin_clear",
    "check_entries",
    "check_grants",
    "check_jobs",
    "check_playbooks",
    "check_roots",
    "choose_memories",
    "clear_step",
    "cleared_below",
    "count_entries",
    "drop_grants",
    "embedded_place",
    "entry_at",
    "entry_numbers",
    "entry_of_version",
    "expire_entry",
    "expires_ms_of",
    "export_entries",
    "export_outcomes",
    "exported",
    "fenced",
    "forget_items",
    "import_entry",
    "import_outcome",
    "index_memories",
    "is_clear_mark",
    "is_earlier_version",
    "is_entry_below",
    "is_job_row",
    "is_kept",
    "is_memory_row",
    "lent_scores",
    "line_of",
    "link_entries",
    "mend",
    "move_sources",
    "names_in",
    "note_roots",
    "read_again",
    "reason_of",
    "redact_entry",
    "redact_outcomes",
    "revise_noted",
    "root_of",
    "stored_document",
    "take_note",
    "texts_in",
    "texts_of_outcomes",
    "tool_handle",
    "tool_schemas",
    "uncover_session",
    "unlinked_entries",
    "version_in",
    "version_of_job",
    "visible_text",
    "would_forget",
]
