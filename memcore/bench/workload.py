"""Workload of a benchmark: conversations from a file or generated, with policy, counter, budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any, Final

from memcore.compaction import CompactionPolicy, compaction_policy
from memcore.database import Database, open_database
from memcore.errors import NotFoundError, SourceError
from memcore.model import ItemKind
from memcore.options import checked_path
from memcore.records import record
from memcore.testing.script import random_history
from memcore.tokens import get_counter
from memcore.wire import get_policy

__all__ = [
    "SampleConversation",
    "Workload",
    "generated",
    "read_workload",
]

GENERATED: Final = 20
TURNS: Final = (5, 40)


@record(frozen=True, slots=True)
class SampleConversation:
    """One conversation: its name, its wire format and its messages."""

    name: str
    pairs: str
    messages: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that is measured on."""

    source: str
    conversations: list[SampleConversation]
    failures: list[str]
    """Lines that could not be read, with the reason."""
    policy: CompactionPolicy
    counter: str
    budget_tokens: int | None = None
    """Budget of contexts; None: a quarter of the tokens of each conversation."""

    @property
    def items(self) -> int:
        """The number of all messages."""
        return sum(len(each.messages) for each in self.conversations)


def generated(
    *,
    pairs: str = "openai_chat",
    policy: CompactionPolicy | None = None,
    counter: str = "o200k_base",
    budget_tokens: int | None = None,
) -> Workload:
    """Make a workload of seeded conversations of agents, the same each time.

    Raises:
        InvalidOptionError: an unknown pair policy or counter.
    """
    get_policy(pairs)
    get_counter(counter)
    made = [
        SampleConversation(
            f"generated {at}", pairs, random_history(policy=pairs, seed=at, turns=TURNS)
        )
        for at in range(GENERATED)
    ]
    return Workload(
        source=f"{GENERATED} generated conversations",
        conversations=made,
        failures=[],
        policy=policy or compaction_policy(None),
        counter=counter,
        budget_tokens=budget_tokens,
    )


def read_workload(
    path: str | PathLike[str],
    *,
    pairs: str | None = None,
    policy: CompactionPolicy | None = None,
    counter: str = "o200k_base",
    budget_tokens: int | None = None,
) -> Workload:
    """Read conversations from JSON lines, as ``memcore import`` does; nothing is written.

    Args:
        path: a file of conversations, one a line, or an export.
        pairs: the pair policy of conversations; None: the line's own, or ``openai_chat``.
        policy: the compaction policy; None: the default.
        counter: a token counter's name.
        budget_tokens: the budget of contexts; None: a quarter of each conversation.

    Raises:
        NotFoundError: there is no such file.
        SourceError: no line of the file is a conversation with messages.
        InvalidOptionError: an unknown pair policy or counter.
    """
    name = checked_path("data", path)
    if pairs is not None:
        get_policy(pairs)
    try:
        with open(name, "rb") as file, open_database(":memory:", counter=counter) as db:
            found = db.import_(file, policy=pairs)
            made = list(_conversations(db))
    except FileNotFoundError as error:
        msg = f"data: there is no file {name!r}"
        raise NotFoundError(msg) from error
    if not made:
        why = f": {found.failures[0]}" if found.failures else ""
        msg = f"data: {name!r} has no conversation with messages{why}"
        raise SourceError(msg, place=name)
    return Workload(
        source=name,
        conversations=made,
        failures=found.failures,
        policy=policy or compaction_policy(None),
        counter=counter,
        budget_tokens=budget_tokens,
    )


def _conversations(db: Database) -> Iterator[SampleConversation]:
    for number, entry in enumerate(db.sessions(), 1):
        session = db.session(entry.session_id, user=entry.user, app=entry.app, orphans="keep")
        messages = [item.message for item in _messages(session.items())]
        if messages:
            # Users may have sessions of one name, and a name as long as names can be.
            name = f"{number} {entry.session_id:.80}"
            yield SampleConversation(name, entry.policy, messages)


def _messages(items: Iterable[Any]) -> Iterator[Any]:
    return (item for item in items if item.kind != ItemKind.EVENT)
