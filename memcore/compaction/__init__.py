"""Compaction: a pure plan, a summary made outside any transaction, one view record."""

from memcore.compaction.clearing import ClearResults
from memcore.compaction.duplicates import DropDuplicates, DropSimilar
from memcore.compaction.embedding import as_embedder, wordllama_embedder
from memcore.compaction.extract import Extractive, extractive
from memcore.compaction.keeping import Keep
from memcore.compaction.mapping import compaction_policy, policy_mapping, read_policy
from memcore.compaction.mended import Mended, mended
from memcore.compaction.offloading import OffloadResults
from memcore.compaction.plan import fallback_plan, make_plan
from memcore.compaction.policy import CompactionPolicy, Stage, SummaryStyle
from memcore.compaction.presets import PRESETS
from memcore.compaction.prompts import detect_language
from memcore.compaction.record import Outcome, applies, record_view
from memcore.compaction.recursive import Recursive
from memcore.compaction.reduce import REDUCERS, reduce_all, reducer_from
from memcore.compaction.reducer import Reducer, Reduction, Visible
from memcore.compaction.shaping import Basis, shape
from memcore.compaction.shortening import ElideOutputs, TruncateArguments
from memcore.compaction.summarize import (
    AnthropicSummarizer,
    LiteLLMSummarizer,
    ModelSummarizer,
    OpenAISummarizer,
)
from memcore.compaction.thinking import StripReasoning
from memcore.compaction.transcript import Caps
from memcore.compaction.trigger import Pressure, Trigger

__all__ = [
    "PRESETS",
    "REDUCERS",
    "AnthropicSummarizer",
    "Basis",
    "Caps",
    "ClearResults",
    "CompactionPolicy",
    "DropDuplicates",
    "DropSimilar",
    "ElideOutputs",
    "Extractive",
    "Keep",
    "LiteLLMSummarizer",
    "Mended",
    "ModelSummarizer",
    "OffloadResults",
    "OpenAISummarizer",
    "Outcome",
    "Pressure",
    "Recursive",
    "Reducer",
    "Reduction",
    "Stage",
    "StripReasoning",
    "SummaryStyle",
    "Trigger",
    "TruncateArguments",
    "Visible",
    "applies",
    "as_embedder",
    "compaction_policy",
    "detect_language",
    "extractive",
    "fallback_plan",
    "make_plan",
    "mended",
    "policy_mapping",
    "read_policy",
    "record_view",
    "reduce_all",
    "reducer_from",
    "shape",
    "wordllama_embedder",
]
