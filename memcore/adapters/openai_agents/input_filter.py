"""What every model call gets, for ``RunConfig(call_model_input_filter=)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, overload

from agents.run_config import CallModelData, ModelInputData

from memcore.adapters.openai_agents.window import Terms, legal_window
from memcore.tokens import TokenCounter

__all__ = ["safe_call_model_input_filter"]

InputFilter: TypeAlias = Callable[[CallModelData[Any]], ModelInputData]


@overload
def safe_call_model_input_filter(data: CallModelData[Any], /) -> ModelInputData: ...


@overload
def safe_call_model_input_filter(
    *,
    budget_tokens: int | None = ...,
    reserve_tokens: int = ...,
    counter: str | TokenCounter | None = ...,
) -> InputFilter: ...


def safe_call_model_input_filter(
    data: CallModelData[Any] | None = None,
    /,
    *,
    budget_tokens: int | None = None,
    reserve_tokens: int = 0,
    counter: str | TokenCounter | None = None,
) -> ModelInputData | InputFilter:
    """The input of one model call as the model may receive it.

    Pass it to ``RunConfig`` as it is, or called with the arguments below, which returns a filter.
    Nothing that it leaves out is lost to the session. Earlier turns go first; of a turn that alone
    is too large, what the user said stays, and the latest steps that fit. Of the last step alone
    outputs are shortened, the largest first.

    A list of nothing but results is passed as it is: it goes to a conversation that a server keeps.

    Args:
        data: what the Runner is about to send.
        budget_tokens: at most so many tokens, instructions included; None: no limit. If the
            smallest legal list is larger, it is passed all the same, and a warning is logged.
        reserve_tokens: of these, leave so many free (for tools, and the answer).
        counter: what counts, as in ``memcore.open``.

    Raises:
        InvalidOptionError: budget, reserve or counter are none.
    """
    terms = Terms(budget_tokens, reserve_tokens, counter)
    if data is None:
        return lambda asked: _filtered(asked, terms)
    return _filtered(data, terms)


def _filtered(data: CallModelData[Any], terms: Terms) -> ModelInputData:
    asked = data.model_data
    said = 0
    if terms.bounded and asked.instructions:
        said = terms.count({"role": "system", "content": asked.instructions})
    shown = legal_window(asked.input, None, terms.less(said))
    return ModelInputData([item for _, item in shown], asked.instructions)
