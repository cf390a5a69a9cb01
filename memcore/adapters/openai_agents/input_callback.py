"""What a run starts from, for ``RunConfig(session_input_callback=)``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias, overload

from memcore.adapters.openai_agents.window import Frame, Shown, Terms, legal_window
from memcore.tokens import TokenCounter

__all__ = ["safe_session_input_callback"]

InputCallback: TypeAlias = Callable[[list[Any], list[Any]], list[Any]]


@overload
def safe_session_input_callback(history: list[Any], new_input: list[Any], /) -> list[Any]: ...


@overload
def safe_session_input_callback(
    *,
    budget_tokens: int | None = ...,
    reserve_tokens: int = ...,
    counter: str | TokenCounter | None = ...,
) -> InputCallback: ...


def safe_session_input_callback(
    history: list[Any] | None = None,
    new_input: list[Any] | None = None,
    /,
    *,
    budget_tokens: int | None = None,
    reserve_tokens: int = 0,
    counter: str | TokenCounter | None = None,
) -> list[Any] | InputCallback:
    """The history and the new input of a run as the model may receive them.

    Pass it to ``RunConfig`` as it is, or called with the arguments below, which returns a callback.
    The new input always stays, whole and unchanged, with the calls that it answers; of the history
    the longest legal end that fits. The session stores the new input alone: what is left out,
    changed or answered synthetically is so for the model only.

    Args:
        history: the items of the session, a copy that belongs to the callback.
        new_input: those of this run.
        budget_tokens: at most so many tokens, with the new input; None: no limit. If the smallest
            legal list is larger, it is passed all the same, and a warning is logged.
        reserve_tokens: of these, leave so many free (for instructions, tools, and the answer).
        counter: what counts, as in ``memcore.open``.

    Raises:
        InvalidOptionError: budget, reserve or counter are none.
    """
    terms = Terms(budget_tokens, reserve_tokens, counter)
    if history is None or new_input is None:
        return lambda past, new: _combined(past, new, terms)
    return _combined(history, new_input, terms)


def _combined(history: list[Any], new_input: list[Any], terms: Terms) -> list[Any]:
    start = len(history)
    shown = legal_window([*history, *new_input], Frame(start, start), terms)
    return _owned(shown, history, new_input)


def _owned(shown: list[Shown], history: list[Any], new_input: list[Any]) -> list[Any]:
    """The items, each of which the SDK knows for one of the two lists.

    It stores what it finds in neither of them as new. So items of the history are changed in their
    place, and what memcore wrote becomes a part of the list of the history.
    """
    start, often = len(history), Counter(map(id, history))
    given = [*history, *new_input]
    found: list[Shown] = []
    shells: dict[Any, Any] = {}
    for source, item in shown:
        kept = _called(item, shells, source is not None and source < start)
        if source is None:
            history.append(kept)
        elif kept is not given[source] and source < start:
            if often[id(given[source])] > 1:
                history[source] = kept
            else:
                given[source].clear()
                given[source].update(kept)
                kept = given[source]
        found.append(Shown(source, kept))
    shown_new = {source for source, _ in found if source is not None and source >= start}
    for at in range(start, len(given)):
        if at not in shown_new:
            found.insert(_place(found, at), Shown(at, given[at]))
    return [item for _, item in found]


def _place(found: list[Shown], at: int) -> int:
    """Where an item of the new input belongs that no list may show."""
    behind = (n for n, (source, _) in enumerate(found) if source is not None and source > at)
    return next(behind, len(found))


def _called(item: dict[str, Any], shells: dict[Any, Any], of_history: bool) -> dict[str, Any]:
    """A local shell's call or output with the ``call_id`` that the SDK wants.

    The schema's outputs name their call by ``id``, and the SDK takes the call for unanswered, and
    drops it from the history, unless the ``call_id`` says so; it writes both itself.
    """
    kind, name, call_id = item.get("type"), item.get("id"), item.get("call_id")
    named = isinstance(call_id, str) and bool(call_id)
    if not isinstance(name, str) or not name:
        return item
    if kind == "local_shell_call" and of_history:
        shells[name] = call_id if named else name
        return item if named else {**item, "call_id": name}
    if kind == "local_shell_call_output" and not named and name in shells:
        return {**item, "call_id": shells[name]}
    return item
