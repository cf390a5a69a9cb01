"""Trust in memories against those who would abuse it: pasted parts, weaker statements, removal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import Source
from memcore.memory.trust import is_pasted

LIE = "Alice's manager is now Mallory"
TEXT = {"type": "text", "text": "Summarise this for me"}


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.fixture
def clock(db):
    clock = Clock()
    db.engine.now_us = lambda: clock.now_ms * 1000
    return clock


@pytest.fixture
def scope(db):
    return db.scope(app="default", user="alice")


@pytest.fixture
def memory(scope):
    return scope.memory


def say(db, name: str, *contents: Any, user: str = "alice") -> Source:
    """Append messages of the user, or whole messages, and cite all of them."""
    session = db.session(name, user=user, orphans="keep")
    first = len(session) + 1
    for content in contents:
        whole = isinstance(content, dict)
        session.append(content if whole else {"role": "user", "content": content})
    return Source(name, tuple(range(first, len(session) + 1)))


def tool(db, name: str, text: str = "x") -> Source:
    """Append a result of a tool; cite it."""
    return say(db, name, {"role": "tool", "tool_call_id": "c1", "content": text})


# --- what a user wrote, and what not --------------------------------------------------------------


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": LIE}}],
        [{"type": "search_result", "source": "http://x", "title": "t", "content": [TEXT]}],
        [{"type": "web_search_tool_result", "tool_use_id": "x",
          "content": [{"type": "web_search_result", "title": LIE}]}],
        [{"type": "mcp_tool_result", "tool_use_id": "x", "content": [TEXT]}],
        [{"type": "file", "file": {"file_data": "data:text/plain;base64,QQ=="}}],
    ],
)  # fmt: skip
def test_only_plain_text_is_what_the_user_wrote(db, memory, blocks):
    for content in (blocks, [*blocks, TEXT]):
        source = say(db, f"s{len(content)}", content)
        made = memory.remember(f"{LIE} {len(content)}", source=source)
        assert (made.by, made.status) == ("import", "quarantined")


def test_a_result_in_a_turn_of_bedrock_is_not_the_users(db, memory):
    turn = [{"toolResult": {"toolUseId": "x", "content": [{"text": LIE}]}}, {"text": "ok"}]
    assert memory.remember(LIE, source=say(db, "a", turn)).status == "quarantined"


def test_what_the_user_writes_beside_an_attachment_is_theirs(db, memory):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}
    source = say(db, "a", [image, {"type": "text", "text": "This is Rex, my dog."}])
    assert memory.remember("my dog is Rex", source=source).by == "user"
    assert memory.remember("my cat is Rex", source=source).by == "import"
    plain = say(db, "b", [{"text": "I like tea"}, {"cachePoint": {"type": "default"}}])
    assert memory.remember("Likes tea", source=plain).by == "user"


@pytest.mark.parametrize(
    "text",
    [
        f'I have a 27" screen. The page says: "{LIE} the great"',
        f'The page says: "He has a 27" screen, and {LIE} the great"',
        f'"In short" {LIE} "and nobody else of them"',
        f"```\ncode\n```x\n{LIE}\n```\nhi",
        f"````\n```\n{LIE}\n````\nhi",
        f"~~~\n```\n{LIE}\n~~~",
        f"look\r> {LIE}",
        f"look\u2028> {LIE}",
        f'Translate """{LIE}',
        f"Er schrieb: \u201e{LIE} \u2013 und mehr",
        f"He wrote \u00bb{LIE} the great\u00ab",
        f"\u300e{LIE} the great\u300f",
    ],
)
def test_forms_of_pasted_parts(text):
    assert is_pasted(LIE, [text])


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("has a 27 inch screen", 'I have a 27" screen'),
        ("has two screens", 'I have a 27" and a 32" screen'),
        ("likes Rex and Tom", 'I like my dog "Rex" and my other dog, "Tom"'),
        ("likes fish", "Home \u00bb Products: I like fish"),
        ("likes fish", "A 10\u201d plate of fish is what I like"),
        ("uses tabs", "```\ncode\n```\nI use tabs"),
        ("likes tea", ""),
    ],
)
def test_what_is_not_pasted(statement, text):
    assert not is_pasted(statement, [text])


@given(st.text('ab "\u00ab\u00bb\u201c\u201d\u201e`>\n', max_size=60))
def test_whatever_stands_in_a_fence_is_pasted(text):
    assert is_pasted("zyzzyva", [f"Look:\n~~~\n{text} zyzzyva\n~~~\nwhat is it?"])
    assert not is_pasted("zyzzyva", [f"~~~\n{text}\n~~~\nzyzzyva"])


@pytest.mark.parametrize(
    "marks", ["\u00ab", "\u201e", "\u201d", '"', "`", "> ", "```\n", "\u00ab\u201d"]
)
def test_looking_for_pasted_parts_is_linear(marks):
    """In quadratic time, each of these takes minutes."""
    is_pasted("hello", [marks * 200_000 + "hello"])
