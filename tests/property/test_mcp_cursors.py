"""Cursors of the MCP server: any place comes back, nothing else does, and pages miss nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp")

from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.mcp import views
from memcore.mcp.views import open_cursor, seal_cursor

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ASKED = st.lists(st.none() | st.booleans() | st.integers(0, 99) | NAMES, max_size=4)
PLACES = st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=3)


@given(NAMES, ASKED, PLACES)
def test_a_place_comes_back(of, asked, at) -> None:
    cursor = seal_cursor(of, asked, at)
    assert cursor.isascii()
    assert len(cursor) <= 256
    assert open_cursor(cursor, of, asked, count=len(at)) == tuple(at)


@given(NAMES, ASKED, PLACES, ASKED, NAMES)
def test_a_cursor_is_of_one_list(of, asked, at, others, other) -> None:
    cursor = seal_cursor(of, asked, at)
    if (other, others) != (of, asked) and repr((other, others)) != repr((of, asked)):
        with pytest.raises(memcore.InvalidOptionError):
            open_cursor(cursor, other, others, count=len(at))
    with pytest.raises(memcore.InvalidOptionError):
        open_cursor(cursor, of, asked, count=len(at) + 1)


@given(st.data(), PLACES)
def test_a_changed_cursor_is_refused(data, at) -> None:
    cursor = seal_cursor("list", ["a"], at)
    place = data.draw(st.integers(0, len(cursor)))
    change = data.draw(st.text(max_size=3))
    width = data.draw(st.integers(0, 3))
    changed = cursor[:place] + change + cursor[place + width :]
    if changed != cursor:
        with pytest.raises(memcore.InvalidOptionError):
            open_cursor(changed, "list", ["a"], count=len(at))


@given(st.text() | st.binary() | st.integers() | st.none())
def test_anything_else_is_refused(given_) -> None:
    with pytest.raises(memcore.InvalidOptionError):
        open_cursor(given_, "list", [], count=1)


@given(st.binary(max_size=60))
def test_a_forged_body_is_refused(body) -> None:
    forged = views._spelt(views._mac(body) + body)
    with pytest.raises(memcore.InvalidOptionError):
        open_cursor(forged, "list", [], count=1)


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5))
def test_pages_of_memories_miss_nothing(trusted, limit) -> None:
    with memcore.open(":memory:") as db:
        scope = db.scope(user="a")
        for number, is_trusted in enumerate(trusted):
            by = "operator" if is_trusted else "import"
            scope.memory.remember(f"statement {number} {'x' * 300}", by=by)
        found, cursor = [], None
        while True:
            page = views.memory_page(scope, limit=limit, cursor=cursor)
            found += [each.id for each in page.memories]
            cursor = page.next_cursor
            if cursor is None:
                break
            assert len(page.memories) == limit
        wanted = [number for number, is_trusted in enumerate(trusted, 1) if is_trusted]
        assert found == wanted


@settings(deadline=None)
@given(st.sets(st.text(min_size=1, max_size=5), max_size=8), st.integers(1, 3))
def test_pages_of_sessions_miss_nothing(names, limit) -> None:
    names = {name for name in names if name.isprintable()}
    with memcore.open(":memory:") as db:
        scope = db.scope(user="a")
        for name in names:
            scope.session(name).append({"role": "user", "content": "x"})
        found, cursor = [], None
        while True:
            page = views.session_page(scope, limit, cursor)
            found += [each.session for each in page.sessions]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert sorted(found) == sorted(names)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9_000), max_size=9), st.integers(1, 4), st.integers(0, 3))
def test_pages_of_items_miss_nothing(lengths, limit, undone) -> None:
    with memcore.open(":memory:") as db:
        scope = db.scope(user="a")
        session = scope.session("s")
        session.append({"role": "user", "content": "first"})
        for length in lengths:
            session.append({"role": "user", "content": "x" * length})
        if min(undone, len(lengths)):
            session.undo(min(undone, len(lengths)))
        session.append({"role": "user", "content": "last"})
        found, cursor = [], None
        while True:
            page = views.item_page(scope, "s", limit=limit, chars=16_000, cursor=cursor)
            assert page.items
            found += [each.seq for each in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == [item.seq for item in session.items()]
