"""The main job on conversations: import them all, check, and a legal context at every budget."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import memcore
import strategies
from messages import attempt, illegal, recount
from thinned import thinned

GENERATED = 400
SHARES = (100, 60, 30, 10)


def imported(path: Path, conversations: Iterable[tuple[str, list[Any]]]) -> memcore.Database:
    """A file with a session for each conversation."""
    db = memcore.open(path, durability="none", allow_unsafe=True)
    for name, messages in conversations:
        db.session(name, orphans="keep").extend(messages)
    return db


def contexts(session: memcore.Session) -> Iterable[tuple[int | None, memcore.Context]]:
    """Contexts at shares of the session's tokens, and the smallest that is possible."""
    whole = session.context()
    yield None, whole
    for share in SHARES:
        budget = max(1, whole.tokens * share // 100)
        found = attempt(session.context, budget)
        if isinstance(found, memcore.Context):
            yield budget, found
        else:
            assert found.needed_tokens > budget
    refused = attempt(session.context, 1)
    if isinstance(refused, memcore.ContextOverflowError):
        needed = refused.needed_tokens
        yield needed, session.context(needed)
        smaller = attempt(session.context, needed - 1)
        assert isinstance(smaller, memcore.ContextOverflowError)
        assert smaller.needed_tokens == needed


def is_suffix_behind_pins(context: memcore.Context, messages: list[Any]) -> bool:
    """Whether nothing was reordered or lost but what the repairs list."""
    if context.repairs:
        return True
    pins = 0
    while pins < len(messages) and messages[pins]["role"] in {"system", "developer"}:
        pins += 1
    tail = context.messages[pins:]
    return context.messages[:pins] == messages[:pins] and (
        not tail or tail == messages[len(messages) - len(tail) :]
    )


def look_at_all(db: memcore.Database, conversations: Iterable[tuple[str, list[Any]]]) -> int:
    seen = 0
    for name, messages in conversations:
        session = db.session(name)
        assert [item.message for item in session] == messages
        for budget, context in contexts(session):
            assert illegal(context.messages, "openai_chat") == [], name
            assert recount(context.messages, None) == context.tokens
            assert budget is None or context.tokens <= budget
            assert is_suffix_behind_pins(context, messages), name
            seen += 1
    return seen


def test_generated_conversations(path):
    conversations = [
        (f"c{at}", messages) for at, messages in enumerate(strategies.corpus_like(7, GENERATED))
    ]
    with imported(path, conversations) as db:
        assert db.check() == []
        assert look_at_all(db, conversations) > 3 * GENERATED
    with memcore.open(path) as db:
        assert db.stats()["items"] == sum(len(messages) for _, messages in conversations)


@pytest.mark.parametrize("every", thinned([8, 1], 1))
def test_real_conversations(path, corpus, every):
    with corpus.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, None, None, every)]
    conversations = [(row["id"], row["messages"]) for row in rows]
    with imported(path, conversations) as db:
        assert db.check() == []
        stats = db.stats()
        assert (stats["sessions"], stats["items"]) == (
            len(conversations),
            sum(len(messages) for _, messages in conversations),
        )
        look_at_all(db, conversations)


def test_compacted_conversations_stay_legal(path):
    conversations = list(enumerate(strategies.corpus_like(11, 150)))
    with imported(path, ((f"c{at}", m) for at, m in conversations)) as db:
        for at, messages in conversations:
            session = db.session(f"c{at}")
            session.compact(memcore.extractive if at % 3 else None, keep_last=at % 5)
            assert [item.message for item in session] == messages
            for _, context in contexts(session):
                assert illegal(context.messages, "openai_chat") == []
                assert recount(context.messages, None) == context.tokens
        assert db.check() == []
