"""Presets: functions that return a policy, by default the preset of that name; policy mappings.

A preset that follows a framework names it in its docstring and uses that framework's figures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from os import PathLike
from typing import Any, Final

from memcore.compaction.policy import CompactionPolicy, Keep, Stage, SummaryStyle, Trigger
from memcore.compaction.reducers import (
    NAME_KEY,
    REDUCERS,
    ClearResults,
    DropDuplicates,
    ElideOutputs,
    Reducer,
    StripReasoning,
    TruncateArguments,
    reducer_from,
)
from memcore.errors import InvalidOptionError
from memcore.options import closest, need_instance, read_mapping

__all__ = [
    "PRESETS",
    "analysis",
    "coding",
    "compaction_policy",
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
    "policy_mapping",
    "read_policy",
    "recursive",
    "tail",
    "token_budget",
]


# --- Presets: functions that return a policy; their defaults give the preset of that name ---------

LIGHT: Final[tuple[Reducer, ...]] = (
    StripReasoning(),
    DropDuplicates(),
    ElideOutputs(max_tokens=2_000),
    TruncateArguments(max_tokens=500),
    ClearResults(keep_last=5),
)
"""Reducers, least lossy first: repeated texts, the middle of long outputs, old results."""
SLICES: Final = ("slice", "last")


def default(*, max_items: int = 12, keep_last: int = 3) -> CompactionPolicy:
    """``mathmodelagent``, except that a call awaiting its result is kept for 200 items."""
    stage = Stage(triggers=(Trigger(items=max_items),), keep=Keep(last_items=keep_last))
    return CompactionPolicy(name="default", stages=(stage,), min_gain=0.0, fallback=SLICES)


def mathmodelagent(*, max_items: int = 12, keep_last: int = 3) -> CompactionPolicy:
    """MathModelAgent's memory: a summary above ``max_memory`` = 12 items, or a slice if it fails.

    If there is no safe cut, MathModelAgent keeps the last message, even a result without its call;
    here nothing is folded.
    """
    keep = Keep(last_items=keep_last, protect_open_items=0)
    stage = Stage(triggers=(Trigger(items=max_items),), keep=keep)
    return CompactionPolicy(name="mathmodelagent", stages=(stage,), min_gain=0.0, fallback=SLICES)


def keep_last(*, items: int = 20, slack: int = 20) -> CompactionPolicy:
    """The last items without a summary; due once ``slack`` more have been appended."""
    stage = Stage(
        triggers=(Trigger(items=items + slack),), keep=Keep(last_items=items), summary=None
    )
    return CompactionPolicy(name="keep_last", stages=(stage,))


def token_budget(*, tokens: int = 8_000, keep_tokens: int = 4_000) -> CompactionPolicy:
    """A summary above ``tokens`` that keeps the newest ``keep_tokens``."""
    stage = Stage(triggers=(Trigger(tokens=tokens),), keep=Keep(last_items=1, tokens=keep_tokens))
    return CompactionPolicy(name="token_budget", stages=(stage,))


def hybrid(*, low: int = 4_000, high: int = 8_000, key_items: int = 40) -> CompactionPolicy:
    """Shrunken outputs above ``low`` tokens; above ``high``, a summary plus the last key events.

    Key events are user messages, tool results, final answers and runtime events; the last
    ``key_items`` of them stay, as far as they fit in ``low`` tokens.
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
    """Masks above ``light`` items, a summary above ``medium``, only the end above ``heavy``."""
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
    """AutoGen's BufferedChatCompletionContext: only the last items."""
    return _window("tail", Keep(last_items=items), items)


def head(*, items: int = 10) -> CompactionPolicy:
    """A fixed window at the start: the first items, plus the last one."""
    return _window("head", Keep(first_items=items, last_items=1), items + 1)


def head_tail(*, first: int = 3, last: int = 7) -> CompactionPolicy:
    """AutoGen's HeadAndTailChatCompletionContext: the first and the last items."""
    return _window("head_tail", Keep(first_items=first, last_items=last), first + last)


def _window(name: str, keep: Keep, size: int) -> CompactionPolicy:
    """A policy due at two items more than the window holds, so that each run removes some."""
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
    """Summaries of summaries: folded items are summarized together with the previous summary.

    With a summarizer wrapped in ``memcore.Recursive``, a large fold is summarized in parts and the
    partial summaries are merged.
    """
    stage = Stage(
        triggers=(Trigger(tokens=tokens),),
        keep=Keep(last_items=1, tokens=keep_tokens),
        summary=SummaryStyle(max_tokens=max(keep_tokens // 4, 1)),
    )
    return CompactionPolicy(name="recursive", stages=(stage,))


def coding(*, tokens: int = 60_000, keep_turns: int = 2) -> CompactionPolicy:
    """For coding agents: old outputs are reduced first; changes and their reasons are kept."""
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
    """For data-analysis agents: outputs are shortened, never cleared."""
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
    """For conversations with people: whole turns stay; the summary keeps people and promises."""
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
    """Masks above two thirds of ``tokens`` or when a task ends; a summary above ``tokens``."""
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


# --- Policies as mappings: from a TOML or JSON file, and back -------------------------------------
#   |     name = "mine"
#   |     window_tokens = 128000
#   |     [[stages]]
#   |     name = "light"
#   |     triggers = [{ fraction = 0.5 }, { event = "task_end" }]
#   |     keep = false
#   |     reducers = ["drop_duplicates", { reducer = "clear_results", keep_last = 3 }]
#   |     [[stages]]
#   |     name = "summary"
#   |     triggers = [{ fraction = 0.8 }]
#   |     keep = { last_turns = 2, tools = ["memo"] }
#   |     summary = { language = "zh" }
#
# ``preset = "hybrid"`` selects a preset; its parameters are sibling keys: ``low = 6000``.


def compaction_policy(given: object = None) -> CompactionPolicy:
    """A policy from a preset's name, a mapping, or a policy; None: ``default``.

    Raises:
        InvalidOptionError: an unknown name or key (with the closest match), or an invalid value.
    """
    if isinstance(given, CompactionPolicy):
        return given
    if given is None:
        return _named("default")
    if isinstance(given, str):
        return _named(given)
    if not isinstance(given, Mapping):
        msg = (
            "compaction policy: expected a preset's name, a mapping or a CompactionPolicy; got "
            f"{type(given).__name__}"
        )
        raise InvalidOptionError(msg)
    if "preset" in given:
        return _preset(given)
    found = _checked("policy", given, CompactionPolicy)
    if "stages" in found:
        found["stages"] = tuple(_stage(entry) for entry in _listed("stages", found["stages"]))
    if "fallback" in found:
        found["fallback"] = tuple(_listed("fallback", found["fallback"]))
    return CompactionPolicy(**found)


def read_policy(path: str | PathLike[str]) -> CompactionPolicy:
    """A policy from a file: JSON if its name ends in ``.json``, else TOML.

    Raises:
        NotFoundError: there is no such file.
        InvalidOptionError: it is not valid TOML or JSON, or as ``compaction_policy``.
    """
    return compaction_policy(read_mapping("compaction policy", path))


def policy_mapping(policy: CompactionPolicy) -> dict[str, Any]:
    """The mapping from which ``compaction_policy`` builds an equal policy; serializable as JSON.

    Raises:
        InvalidOptionError: it is no policy, or has a custom reducer, which has no name to give in
            a mapping.
    """
    need_instance("policy", policy, CompactionPolicy, what="a CompactionPolicy")
    found = _changed(policy)
    found["stages"] = [_stage_mapping(stage) for stage in policy.stages]
    return found


@cache  # asked for at each turn; names that are no preset raise, and are not kept
def _named(name: str) -> CompactionPolicy:
    return _preset({"preset": name})


def _preset(given: Mapping[str, Any]) -> CompactionPolicy:
    name = given["preset"]
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        near = _near(name, PRESETS)
        msg = f"compaction preset: expected one of {', '.join(PRESETS)}; got {name!r:.80}{near}"
        raise InvalidOptionError(msg)
    options = {key: value for key, value in given.items() if key != "preset"}
    _known(f"preset {name!r}", options, inspect.signature(preset).parameters)
    for key, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int):
            msg = f"preset {name!r}: {key}: expected an int, got {value!r:.80}"
            raise InvalidOptionError(msg)
    make: Callable[..., CompactionPolicy] = preset
    return make(**options)


def _stage(given: object) -> Stage:
    if isinstance(given, Stage):
        return given
    found = _checked("stage", given, Stage)
    if "triggers" in found:
        found["triggers"] = tuple(
            entry if isinstance(entry, Trigger) else Trigger(**_checked("trigger", entry, Trigger))
            for entry in _listed("triggers", found["triggers"])
        )
    for name, kind in (("keep", Keep), ("summary", SummaryStyle)):
        value = found.get(name)
        if value is True:
            del found[name]
        elif isinstance(value, Mapping):
            found[name] = kind(**_checked(name, value, kind))
    if "reducers" in found:
        found["reducers"] = tuple(
            _reducer(entry) for entry in _listed("reducers", found["reducers"])
        )
    return Stage(**found)


def _reducer(given: Any) -> Reducer:
    return reducer_from(given) if isinstance(given, str | Mapping) else given


def _stage_mapping(stage: Stage) -> dict[str, Any]:
    found = _changed(stage)
    found["triggers"] = [_changed(trigger) for trigger in stage.triggers]
    found["keep"] = False if stage.keep is None else _changed(stage.keep)
    found["summary"] = False if stage.summary is None else _changed(stage.summary)
    found["reducers"] = [_reducer_mapping(reducer) for reducer in stage.reducers]
    return found


def _reducer_mapping(reducer: Reducer) -> dict[str, Any]:
    name = getattr(reducer, "name", None)
    if not isinstance(name, str) or REDUCERS.get(name) is not type(reducer):
        msg = f"reducers: {type(reducer).__name__} is none of {', '.join(REDUCERS)}"
        raise InvalidOptionError(msg)
    return {NAME_KEY: name, **reducer.settings()}


def _changed(value: Any) -> dict[str, Any]:
    """The fields that differ from their defaults; the caller converts nested objects."""
    found = {}
    for field in fields(value):
        now = getattr(value, field.name)
        if field.default is MISSING or now != field.default:
            found[field.name] = (
                [list(e) if isinstance(e, tuple) else e for e in now]
                if (isinstance(now, tuple))
                else now
            )
    return found


def _checked(what: str, given: object, kind: type[Any]) -> dict[str, Any]:
    """The mapping as a dict; every key has to be a field of ``kind``."""
    if not isinstance(given, Mapping):
        msg = f"{what}: expected a mapping, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    defaults = {field.name: field.default for field in fields(kind)}
    _known(what, given, defaults)
    return {
        key: None if value is False and not isinstance(defaults[key], bool) else value
        for key, value in given.items()
    }


def _known(what: str, given: Mapping[Any, Any], names: Iterable[str]) -> None:
    known = list(names)
    for key in given:
        if key not in known:
            msg = f"{what}: has no {key!r:.80}; it has {', '.join(known)}{_near(key, known)}"
            raise InvalidOptionError(msg)


def _near(name: object, known: Iterable[str]) -> str:
    close = closest(str(name)[:100], list(known))
    return f"; did you mean {close[0]!r}?" if close else ""


def _listed(name: str, given: object) -> list[Any]:
    if not isinstance(given, list | tuple):
        msg = f"{name}: expected a list, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    return list(given)
