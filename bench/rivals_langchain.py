"""LangChain's trimming and summarization, called as its users call them.

Where the function that is to be timed is hidden, the hidden one is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from histories import Signs
from trimming import SUMMARY, Message, Trim, missing

__all__ = [
    "Summarization",
    "approximate_tokens",
    "langchain_messages",
    "summarization_kept",
    "tiktoken_counter",
    "trim_messages_kept",
    "trimmed",
]


def langchain_messages(history: list[Message]) -> list[Any]:
    """The history as langchain-core's messages.

    Raises:
        NotInstalled: langchain-core is not there.
    """
    try:
        from langchain_core.messages.utils import convert_to_messages
    except ImportError as error:
        raise missing("langchain-core", error) from error
    return convert_to_messages(history)


@cache
def tiktoken_counter() -> Callable[[list[Any]], int]:
    """Tokens of langchain messages by tiktoken, o200k_base, as its documentation shows it.

    The encoding is built from the vocabulary that memcore ships: nothing is fetched.

    Raises:
        NotInstalled: tiktoken is not there.
    """
    from memcore.errors import CounterUnavailableError
    from memcore.tokens.builtin import shipped_encoding

    try:
        encode = shipped_encoding("o200k_base").encode_ordinary
    except CounterUnavailableError as error:
        raise missing("tiktoken", error) from error

    def count(messages: list[Any]) -> int:
        total = 3
        for message in messages:
            total += 3 + len(encode(str(message.content)))
            for call in getattr(message, "tool_calls", ()):
                total += len(encode(call["name"])) + len(encode(str(call["args"])))
        return total

    return count


def trimmed(messages: list[Any], max_tokens: int, counter: Any = None, **options: Any) -> list[Any]:
    """langchain-core's ``trim_messages``; without a counter, by its approximate one.

    Raises:
        NotInstalled: langchain-core is not there.
    """
    try:
        from langchain_core.messages.utils import trim_messages
    except ImportError as error:
        raise missing("langchain-core", error) from error
    by = "approximate" if counter is None else counter
    return trim_messages(messages, max_tokens=max_tokens, token_counter=by, **options)


def approximate_tokens(messages: Any) -> int:
    """langchain-core's ``count_tokens_approximately``.

    Raises:
        NotInstalled: langchain-core is not there.
    """
    try:
        from langchain_core.messages.utils import count_tokens_approximately
    except ImportError as error:
        raise missing("langchain-core", error) from error

    return count_tokens_approximately(messages)


class Summarization:
    """LangChain's SummarizationMiddleware with a summarizer that takes no time.

    Raises:
        NotInstalled: langchain is not there.
    """

    def __init__(self, trigger: tuple[str, int], keep: tuple[str, int]) -> None:
        try:
            from langchain.agents.middleware import SummarizationMiddleware
            from langchain_core.language_models.fake_chat_models import FakeListChatModel
        except ImportError as error:
            raise missing("langchain", error) from error
        model = FakeListChatModel(responses=[SUMMARY])
        try:
            self.middleware = SummarizationMiddleware(
                model, trigger=trigger, keep=keep, summarizer=lambda _: SUMMARY
            )
        except TypeError:  # before 1.4 only a model writes summaries
            self.middleware = SummarizationMiddleware(model, trigger=trigger, keep=keep)

    def before_model(self, messages: list[Any]) -> list[Any]:
        """What the model is shown: the messages, or the summary and the kept ones."""
        update = self.middleware.before_model({"messages": messages}, None)
        return messages if update is None else update["messages"][1:]

    def is_due(self, messages: list[Any]) -> bool:
        """Its trigger check, as ``before_model`` begins with it."""
        total = self.middleware.token_counter(messages)
        return bool(self.middleware._should_summarize(messages, total))  # noqa: SLF001

    def cut(self, messages: list[Any]) -> int:
        """Its search for the cut."""
        return self.middleware._determine_cutoff_index(messages)  # noqa: SLF001


def _of_langchain(messages: Sequence[Any]) -> list[Signs]:
    return [
        Signs(
            tuple(call["id"] for call in getattr(message, "tool_calls", ())),
            (message.tool_call_id,) if message.type == "tool" else (),
        )
        for message in messages
    ]


def trim_messages_kept(**options: Any) -> Trim:
    """``trim_messages`` within a share of the tokens that its approximate counter counts.

    Raises:
        NotInstalled: langchain-core is not there.
    """
    langchain_messages([])

    def trim(history: list[Message], share: float) -> list[Signs]:
        messages = langchain_messages(history)
        budget = max(1, int(approximate_tokens(messages) * share))
        return _of_langchain(trimmed(messages, budget, **options))

    return trim


def summarization_kept(kind: str) -> Trim:
    """SummarizationMiddleware that keeps a share of the ``messages`` or ``tokens``.

    Raises:
        NotInstalled: langchain is not there.
    """
    Summarization(("messages", 1), ("messages", 1))

    def trim(history: list[Message], share: float) -> list[Signs]:
        messages = langchain_messages(history)
        whole = approximate_tokens(messages) if kind == "tokens" else len(messages)
        middleware = Summarization(("messages", 1), (kind, max(1, int(whole * share))))
        return _of_langchain(middleware.before_model(messages))

    return trim
