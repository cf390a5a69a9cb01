"""Compaction: a pure plan, a summary computed outside any transaction, and one view record."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "plan": "Basis Mended PlanOutcome applies fallback_plan make_plan mended record_view shape",
        "policy": "CompactionPolicy Keep Pressure Stage SummaryStyle Trigger",
        "presets": "PRESETS compaction_policy policy_mapping read_policy",
        "reducers": (
            "REDUCERS ClearResults DropDuplicates DropSimilar ElideOutputs OffloadResults "
            "Reducer Reduction StripReasoning TruncateArguments Visible as_embedder "
            "reduce_all reducer_from wordllama_embedder"
        ),
        "summarizers": (
            "AnthropicSummarizer LiteLLMSummarizer ModelSummarizer OpenAISummarizer Recursive "
            "detect_language"
        ),
        "transcript": "Caps Extractive extractive",
    },
)
