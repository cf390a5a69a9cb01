# Written by scripts/make_faces from __init__.py.
from memcore.compaction.plan import Basis as Basis
from memcore.compaction.plan import Mended as Mended
from memcore.compaction.plan import PlanOutcome as PlanOutcome
from memcore.compaction.plan import applies as applies
from memcore.compaction.plan import fallback_plan as fallback_plan
from memcore.compaction.plan import make_plan as make_plan
from memcore.compaction.plan import mended as mended
from memcore.compaction.plan import record_view as record_view
from memcore.compaction.plan import shape as shape
from memcore.compaction.policy import CompactionPolicy as CompactionPolicy
from memcore.compaction.policy import Keep as Keep
from memcore.compaction.policy import Pressure as Pressure
from memcore.compaction.policy import Stage as Stage
from memcore.compaction.policy import SummaryStyle as SummaryStyle
from memcore.compaction.policy import Trigger as Trigger
from memcore.compaction.presets import PRESETS as PRESETS
from memcore.compaction.presets import compaction_policy as compaction_policy
from memcore.compaction.presets import policy_mapping as policy_mapping
from memcore.compaction.presets import read_policy as read_policy
from memcore.compaction.reducers import ClearResults as ClearResults
from memcore.compaction.reducers import DropDuplicates as DropDuplicates
from memcore.compaction.reducers import DropSimilar as DropSimilar
from memcore.compaction.reducers import ElideOutputs as ElideOutputs
from memcore.compaction.reducers import OffloadResults as OffloadResults
from memcore.compaction.reducers import REDUCERS as REDUCERS
from memcore.compaction.reducers import Reducer as Reducer
from memcore.compaction.reducers import Reduction as Reduction
from memcore.compaction.reducers import StripReasoning as StripReasoning
from memcore.compaction.reducers import TruncateArguments as TruncateArguments
from memcore.compaction.reducers import Visible as Visible
from memcore.compaction.reducers import as_embedder as as_embedder
from memcore.compaction.reducers import reduce_all as reduce_all
from memcore.compaction.reducers import reducer_from as reducer_from
from memcore.compaction.reducers import wordllama_embedder as wordllama_embedder
from memcore.compaction.summarizers import AnthropicSummarizer as AnthropicSummarizer
from memcore.compaction.summarizers import LiteLLMSummarizer as LiteLLMSummarizer
from memcore.compaction.summarizers import ModelSummarizer as ModelSummarizer
from memcore.compaction.summarizers import OpenAISummarizer as OpenAISummarizer
from memcore.compaction.summarizers import Recursive as Recursive
from memcore.compaction.summarizers import detect_language as detect_language
from memcore.compaction.transcript import Caps as Caps
from memcore.compaction.transcript import Extractive as Extractive
from memcore.compaction.transcript import extractive as extractive

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
    "PlanOutcome",
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
