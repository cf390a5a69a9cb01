"""Policies as mappings: what a TOML or JSON file says, and back.

    name = "mine"
    window_tokens = 128000
    [[stages]]
    name = "light"
    triggers = [{ fraction = 0.5 }, { event = "task_end" }]
    keep = false
    reducers = ["drop_duplicates", { reducer = "clear_results", keep_last = 3 }]
    [[stages]]
    name = "summary"
    triggers = [{ fraction = 0.8 }]
    keep = { last_turns = 2, tools = ["memo"] }
    summary = { language = "zh" }

``preset = "hybrid"`` begins with a preset, whose parameters stand beside it: ``low = 6000``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from os import PathLike
from typing import Any

from memcore.compaction.keeping import Keep
from memcore.compaction.policy import CompactionPolicy, Stage, SummaryStyle
from memcore.compaction.presets import PRESETS
from memcore.compaction.reduce import NAME_KEY, REDUCERS, reducer_from
from memcore.compaction.reducer import Reducer
from memcore.compaction.trigger import Trigger
from memcore.errors import InvalidOptionError
from memcore.options import read_mapping

__all__ = ["compaction_policy", "policy_mapping", "read_policy"]


def compaction_policy(given: object = None) -> CompactionPolicy:
    """A policy from a preset's name, a mapping, or a policy; None: ``default``.

    Raises:
        InvalidOptionError: an unknown name or key (with the near match), or a bad value.
    """
    if isinstance(given, CompactionPolicy):
        return given
    if given is None:
        return PRESETS["default"]()
    if isinstance(given, str):
        return _preset({"preset": given})
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
    """A policy from a file: TOML, or JSON if its name ends so.

    Raises:
        NotFoundError: there is no such file.
        InvalidOptionError: it is no TOML or JSON, or as ``compaction_policy``.
    """
    return compaction_policy(read_mapping("compaction policy", path))


def policy_mapping(policy: CompactionPolicy) -> dict[str, Any]:
    """The mapping that ``compaction_policy`` makes an equal policy of; it can be written as JSON.

    Raises:
        InvalidOptionError: a reducer of your own has no name that a mapping could give.
    """
    found = _changed(policy)
    found["stages"] = [_stage_mapping(stage) for stage in policy.stages]
    return found


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
    """The fields that differ from their defaults; nested objects are left to the caller."""
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
    """The mapping as a dict, if ``kind`` has all its keys."""
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
    close = get_close_matches(str(name)[:100], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _listed(name: str, given: object) -> list[Any]:
    if not isinstance(given, list | tuple):
        msg = f"{name}: expected a list, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    return list(given)
