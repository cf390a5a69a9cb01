"""Ready policies: functions whose defaults are the presets of that name.

Where a preset follows a framework its docstring names it; the figures are that framework's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from memcore.compaction.clearing import ClearResults
from memcore.compaction.duplicates import DropDuplicates
from memcore.compaction.keeping import Keep
from memcore.compaction.policy import CompactionPolicy, Stage, SummaryStyle
from memcore.compaction.reducer import Reducer
from memcore.compaction.shortening import ElideOutputs, TruncateArguments
from memcore.compaction.thinking import StripReasoning
from memcore.compaction.trigger import Trigger

__all__ = [
    "PRESETS",
    "analysis",
    "coding",
    "conversation",
    "default",
    "head",
    "head_tail",
    "hybrid",
    "keep_last",
    "langchain_summary",
    "langchain_trim",
    "layered",
    "mathmodelagent",
    "recursive",
    "tail",
    "token_budget",
]

LIGHT: Final[tuple[Reducer, ...]] = (
    StripReasoning(),
    DropDuplicates(),
    ElideOutputs(max_tokens=2_000),
    TruncateArguments(max_tokens=500),
    ClearResults(keep_last=5),
)
"""What loses least comes first: repeated texts, the middle of long outputs, old results."""
SLICES: Final = ("slice", "last")


def default(*, max_items: int = 12, keep_last: int = 3) -> CompactionPolicy:
    """``mathmodelagent``, but calls that wait for their result stay for 200 items."""
    stage = Stage(triggers=(Trigger(items=max_items),), keep=Keep(last_items=keep_last))
    return CompactionPolicy(name="default", stages=(stage,), min_gain=0.0, fallback=SLICES)


def mathmodelagent(*, max_items: int = 12, keep_last: int = 3) -> CompactionPolicy:
    """MathModelAgent's memory: a summary above ``max_memory`` = 12 items; a slice if it fails.

    Where its rule finds no safe cut and keeps the last message, be it a result without its call,
    nothing is folded.
    """
    keep = Keep(last_items=keep_last, protect_open_items=0)
    stage = Stage(triggers=(Trigger(items=max_items),), keep=keep)
    return CompactionPolicy(name="mathmodelagent", stages=(stage,), min_gain=0.0, fallback=SLICES)


def keep_last(*, items: int = 20, slack: int = 20) -> CompactionPolicy:
    """The last items and no summary; due when ``slack`` more have come."""
    stage = Stage(
        triggers=(Trigger(items=items + slack),), keep=Keep(last_items=items), summary=None
    )
    return CompactionPolicy(name="keep_last", stages=(stage,))


def token_budget(*, tokens: int = 8_000, keep_tokens: int = 4_000) -> CompactionPolicy:
    """A summary above ``tokens``; the newest ``keep_tokens`` stay."""
    stage = Stage(triggers=(Trigger(tokens=tokens),), keep=Keep(last_items=1, tokens=keep_tokens))
    return CompactionPolicy(name="token_budget", stages=(stage,))


def hybrid(*, low: int = 4_000, high: int = 8_000, key_items: int = 40) -> CompactionPolicy:
    """Above ``low`` tokens outputs shrink; above ``high`` a summary beside the last key events.

    What the user said, tools returned and the runtime recorded are key events; of the last
    ``key_items`` as many stay as ``low`` tokens hold.
    """
    keep = Keep(last_items=1, key_items=key_items, max_tokens=low)
    return CompactionPolicy(
        name="hybrid",
        stages=(
            Stage(name="low", triggers=(Trigger(tokens=low),), keep=None, reducers=LIGHT),
            Stage(name="high", triggers=(Trigger(tokens=high),), keep=keep, reducers=LIGHT),
        ),
    )


def layered(*, light: int = 50, medium: int = 100, heavy: int = 200) -> CompactionPolicy:
    """Above ``light`` items masks, above ``medium`` a summary, above ``heavy`` the end alone."""
    return CompactionPolicy(
        name="layered",
        stages=(
            Stage(name="light", triggers=(Trigger(items=light),), keep=None, reducers=LIGHT),
            Stage(
                name="medium",
                triggers=(Trigger(items=medium),),
                keep=Keep(last_items=light - 1),
                reducers=LIGHT,
            ),
            Stage(
                name="heavy",
                triggers=(Trigger(items=heavy),),
                keep=Keep(last_items=min(10, light - 1)),
                summary=None,
            ),
        ),
    )


def tail(*, items: int = 10) -> CompactionPolicy:
    """AutoGen's BufferedChatCompletionContext: the last items alone."""
    return _window("tail", Keep(last_items=items), items)


def head(*, items: int = 10) -> CompactionPolicy:
    """A fixed window at the begin: the first items, and the last one."""
    return _window("head", Keep(first_items=items, last_items=1), items + 1)


def head_tail(*, first: int = 3, last: int = 7) -> CompactionPolicy:
    """AutoGen's HeadAndTailChatCompletionContext: the first and the last items."""
    return _window("head_tail", Keep(first_items=first, last_items=last), first + last)


def _window(name: str, keep: Keep, size: int) -> CompactionPolicy:
    """Due when two items more have come than the window holds, so that each run takes some off."""
    stage = Stage(triggers=(Trigger(items=size + 1),), keep=keep, summary=None)
    return CompactionPolicy(name=name, stages=(stage,), min_gain=0.0)


def langchain_trim(*, tokens: int = 4_000) -> CompactionPolicy:
    """LangChain's ``trim_messages(start_on="human", include_system=True)``."""
    keep = Keep(last_items=None, tokens=tokens, turn_start=True)
    stage = Stage(triggers=(Trigger(tokens=2 * tokens),), keep=keep, summary=None)
    return CompactionPolicy(name="langchain_trim", stages=(stage,))


def langchain_summary(*, tokens: int = 4_000, keep_items: int = 20) -> CompactionPolicy:
    """LangChain's SummarizationMiddleware, which keeps 20 messages."""
    stage = Stage(triggers=(Trigger(tokens=tokens),), keep=Keep(last_items=keep_items))
    return CompactionPolicy(name="langchain_summary", stages=(stage,))


def recursive(*, tokens: int = 12_000, keep_tokens: int = 4_000) -> CompactionPolicy:
    """Summaries of summaries: what is folded goes to the summarizer with the summary before it.

    With ``memcore.Recursive`` around the summarizer a large fold is summarized part by part, and
    the parts' summaries again.
    """
    stage = Stage(
        triggers=(Trigger(tokens=tokens),),
        keep=Keep(last_items=1, tokens=keep_tokens),
        summary=SummaryStyle(max_tokens=max(keep_tokens // 4, 1)),
    )
    return CompactionPolicy(name="recursive", stages=(stage,))


def coding(*, tokens: int = 60_000, keep_turns: int = 2) -> CompactionPolicy:
    """For agents that write code: old outputs go first, what was changed and why stays."""
    reducers: tuple[Reducer, ...] = (
        StripReasoning(),
        DropDuplicates(),
        ElideOutputs(max_tokens=4_000),
        TruncateArguments(max_tokens=1_000, keep_last=10),
        ClearResults(keep_last=10, min_gain_tokens=2_000),
    )
    return _task(
        "coding",
        tokens,
        keep_turns,
        reducers,
        "Keep exact file paths, commands, names and error messages; what was changed and why; what "
        "failed and must not be tried again; what is left to do.",
    )


def analysis(*, tokens: int = 40_000, keep_turns: int = 2) -> CompactionPolicy:
    """For agents that work with figures: outputs are shortened, never cleared."""
    reducers: tuple[Reducer, ...] = (
        StripReasoning(),
        DropDuplicates(),
        ElideOutputs(max_tokens=3_000),
        TruncateArguments(max_tokens=1_000),
    )
    return _task(
        "analysis",
        tokens,
        keep_turns,
        reducers,
        "Keep every figure with its unit and source, the queries and files that gave it, the "
        "assumptions, and what was ruled out.",
    )


def conversation(*, tokens: int = 8_000, keep_turns: int = 6) -> CompactionPolicy:
    """For talk with people: whole turns stay, who they are and what was promised is kept."""
    return _task(
        "conversation",
        tokens,
        keep_turns,
        LIGHT,
        "Keep who the user is, what they prefer, what was decided or promised, names and dates, "
        "and the open questions.",
    )


def _task(
    name: str, tokens: int, keep_turns: int, reducers: tuple[Reducer, ...], instructions: str
) -> CompactionPolicy:
    """Masks at two thirds of ``tokens`` or when a task ends, a summary above them."""
    return CompactionPolicy(
        name=name,
        stages=(
            Stage(
                name="light",
                triggers=(Trigger(tokens=tokens * 2 // 3), Trigger(event="task_end")),
                keep=None,
                reducers=reducers,
            ),
            Stage(
                name="summary",
                triggers=(Trigger(tokens=tokens),),
                keep=Keep(last_items=None, last_turns=keep_turns, max_tokens=tokens // 2),
                reducers=reducers,
                summary=SummaryStyle(instructions=instructions),
            ),
        ),
    )


PRESETS: Final[Mapping[str, Callable[[], CompactionPolicy]]] = {
    preset.__name__: preset
    for preset in (
        default,
        mathmodelagent,
        keep_last,
        token_budget,
        hybrid,
        layered,
        tail,
        head,
        head_tail,
        langchain_trim,
        langchain_summary,
        recursive,
        coding,
        analysis,
        conversation,
    )
}
