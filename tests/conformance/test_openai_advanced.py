"""Branches, turns and usage: what AdvancedSQLiteSession answers, MemcoreSession answers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("agents")

from agents.extensions.memory import AdvancedSQLiteSession
from agents.run_context import RunContextWrapper
from agents.usage import Usage
from openai.types.responses.response_usage import OutputTokensDetails

import memcore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.adapters.openai_agents.branch_rows import BranchAddress

EXAMPLES = int(os.environ.get("MEMCORE_EXAMPLES", "15"))
Story = Callable[[Any], Coroutine[Any, Any, Any]]
TIMES = {"timestamp", "created_at"}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}


def call(name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"c-{name}",
        "name": name,
        "arguments": "{}",
        **more,
    }


def result(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c-{name}", "output": "ok"}


TALK = [
    {"role": "system", "content": "be brief"},
    user("Weather in Wien? 50% \\ chance"),
    call("weather"),
    result("weather"),
    said("Sunny"),
    user([{"type": "input_text", "text": "And in Graz é?"}, {"type": "input_image"}]),
    call("weather", namespace="geo"),
    call("same", namespace="same"),
    {"type": "mcp_call", "id": "m", "server_label": "srv", "name": "look", "arguments": "{}"},
    {"type": "mcp_call", "id": "m2", "server_label": "srv", "arguments": "{}"},
    {"type": "shell_call", "call_id": "s", "action": {}},
    {"type": "tool_search_output", "call_id": None, "tools": []},
    {"type": "web_search_call", "id": "w", "name": "ignored"},
    said("Rain"),
    user("x" * 150),
    {"type": "tool_search_call", "call_id": "t", "arguments": {}},
    {"type": "tool_search_output", "call_id": "t", "tools": []},
    {"type": "reasoning", "id": "r", "summary": []},
    user(""),
]


def usage_of(n: int, *, details: bool = True) -> Any:
    usage = Usage(requests=n, input_tokens=10 * n, output_tokens=n, total_tokens=11 * n)
    usage.output_tokens_details = OutputTokensDetails(reasoning_tokens=n) if details else None  # type: ignore[assignment]
    return SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))


def timeless(value: Any) -> Any:
    """Without times; those are compared by their shape."""
    if isinstance(value, dict):
        return {
            key: len(found) if key in TIMES else timeless(found) for key, found in value.items()
        }
    return [timeless(each) for each in value] if isinstance(value, list) else value


async def answer(work: Coroutine[Any, Any, Any]) -> Any:
    """What a call answers, or how it refuses."""
    try:
        return timeless(await work)
    except ValueError as exc:
        return type(exc).__name__, str(exc)


def by_name(branches: Any) -> Any:
    """Branches by name: their order is by the second, which may end between ours and theirs."""
    return (
        sorted(branches, key=lambda row: row["branch_id"]) if type(branches) is list else branches
    )


async def all_of(session: Any, *branches: str | None) -> list[Any]:
    """All that can be asked."""
    found: list[Any] = [
        by_name(await answer(session.list_branches())),
        await session.get_session_usage(),
    ]
    for branch in (None, "main", "nowhere", *branches):
        found += [
            await session.get_items(branch_id=branch),
            await session.get_items(2, branch),
            await session.get_items(-1, branch_id=branch),
            await answer(session.get_conversation_turns(branch)),
            await answer(session.get_conversation_by_turns(branch)),
            await answer(session.find_turns_by_content("WIEN", branch)),
            await answer(session.find_turns_by_content("50% \\", branch)),
            await answer(session.find_turns_by_content("graz é", branch)),
            await answer(session.find_turns_by_content("É", branch)),
            await answer(session.find_turns_by_content("", branch)),
            [list(row) for row in await session.get_tool_usage(branch)],
            await session.get_session_usage(branch),
            await session.get_turn_usage(branch_id=branch),
            await session.get_turn_usage(1, branch),
        ]
    return found


def both(tmp_path: Path, story: Story) -> Any:
    """The answers of both, which are the same."""

    async def run() -> Any:
        advanced = AdvancedSQLiteSession(session_id="s", create_tables=True)
        with MemcoreSession(
            session_id="s",
            db_path=tmp_path / "m.db",
            create_tables=True,
            durability="none",
            allow_unsafe=True,
        ) as mine:
            expected, found = await story(advanced), await story(mine)
            advanced.close()
        assert found == expected
        return found

    return asyncio.run(run())


def test_empty(tmp_path: Path) -> None:
    async def story(session: Any) -> Any:
        return [
            await all_of(session),
            await answer(session.switch_to_branch("main")),
            await answer(session.switch_to_branch("x")),
            await answer(session.create_branch_from_turn(1)),
            await answer(session.create_branch_from_content("x")),
            await answer(session.delete_branch("x")),
            await session.store_run_usage(usage_of(1)),
            await all_of(session),
        ]

    both(tmp_path, story)


def test_turns_tools_and_usage(tmp_path: Path) -> None:
    async def story(session: Any) -> Any:
        found = []
        for at in range(0, len(TALK), 3):
            await session.add_items(TALK[at : at + 3])
            await session.store_run_usage(usage_of(at + 1, details=at % 2 == 0))
        found.append(await all_of(session))
        for _ in range(len(TALK) + 1):
            found += [await session.pop_item(), await session.get_turn_usage()]
        return [*found, await all_of(session)]

    assert both(tmp_path, story)[0][1]["total_turns"] == 4


def test_branches(tmp_path: Path) -> None:
    async def story(session: Any) -> Any:
        await session.add_items(TALK)
        await session.store_run_usage(usage_of(3))
        found = [
            await answer(session.create_branch_from_turn(turn, name))
            for turn, name in [(0, "a"), (5, "a"), (-1, None), (2, "main"), (2, "  "), (2, "")]
        ]
        found.append(await answer(session.create_branch_from_turn(3, "b")))
        found.append(await all_of(session))
        await session.add_items([user("other"), call("z"), result("z")])
        await session.store_run_usage(usage_of(7))
        found.append(await answer(session.create_branch_from_content("wien", "c")))
        found.append(await answer(session.create_branch_from_turn(1, "b")))
        await session.add_items([said("alone")])
        found.append(await all_of(session, "b", "c"))
        for branch in ("b", "c", "main", "d"):
            found.append(await answer(session.switch_to_branch(branch)))
            found.append(await session.pop_item())
            found.append(await all_of(session, "b", "c"))
        found.append(await answer(session.delete_branch("main")))
        found.append(await answer(session.delete_branch(" ")))
        await session.switch_to_branch("b")
        found.append(await answer(session.delete_branch("b")))
        found.append(await answer(session.delete_branch("b", force=True)))
        found.append(await answer(session.delete_branch("b")))
        found.append(await answer(session.create_branch_from_turn(1, "b")))
        found.append(await all_of(session, "b", "c"))
        await session.clear_session()
        found.append(await all_of(session, "b", "c"))
        await session.add_items([user("anew")])
        found.append(await answer(session.create_branch_from_turn(1, "c")))
        return found

    both(tmp_path, story)


def test_a_branch_of_nothing(tmp_path: Path) -> None:
    async def story(session: Any) -> Any:
        await session.add_items([user("one")])
        found = [await session.create_branch_from_turn(1, "empty"), await session.get_items()]
        found += [by_name(await answer(session.list_branches())), await session.pop_item()]
        found.append(await answer(session.switch_to_branch("empty")))
        await session.add_items([user("two")])
        found.append(await all_of(session, "empty"))
        await session.switch_to_branch("main")
        await session.pop_item()
        found.append(await answer(session.switch_to_branch("main")))
        await session.switch_to_branch("empty")
        found.append(await answer(session.delete_branch("empty", force=True)))
        return [*found, await all_of(session, "empty")]

    both(tmp_path, story)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from(TALK), max_size=4)),
        st.tuples(st.just("pop"), st.integers(1, 3)),
        st.tuples(st.just("branch"), st.integers(0, 4), st.sampled_from("abc")),
        st.tuples(st.just("switch"), st.sampled_from(["main", "a", "b", "c"])),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.booleans()),
        st.tuples(st.just("usage"), st.integers(1, 9)),
        st.tuples(st.just("clear")),
    ),
    max_size=14,
)


async def take(session: Any, step: Any) -> Any:  # noqa: PLR0911 - a case each
    match step:
        case ("add", items):
            return await session.add_items(items)
        case ("pop", count):
            return [await session.pop_item() for _ in range(count)]
        case ("branch", turn, name):
            return await answer(session.create_branch_from_turn(turn, name))
        case ("switch", name):
            return await answer(session.switch_to_branch(name))
        case ("delete", name, force):
            return await answer(session.delete_branch(name, force))
        case ("usage", n):
            return await session.store_run_usage(usage_of(n))
    return await session.clear_session()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_any_story(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    async def story(session: Any) -> Any:
        await session.add_items(TALK[:8])
        answers = [await take(session, step) for step in steps]
        return [*answers, await all_of(session, "a", "b", "c")]

    both(tmp_path_factory.mktemp("any"), story)


# --- what only memcore has to show ----------------------------------------------------------------


def test_reopened(tmp_path: Path) -> None:
    path = tmp_path / "m.db"

    async def before() -> Any:
        with MemcoreSession("s", path) as session:
            await session.add_items(TALK)
            await session.store_run_usage(usage_of(2))
            await session.create_branch_from_turn(3, "b")
            await session.add_items([user("new")])
            await session.store_run_usage(usage_of(5))
            return await all_of(session, "b")

    async def after() -> Any:
        with MemcoreSession("s", path) as session:
            assert session.current_branch_id == "main"
            await session.switch_to_branch("b")
            return await all_of(session, "b")

    expected = asyncio.run(before())
    assert asyncio.run(after()) == expected


def test_one_of_two_instances_gets_the_name(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "m.db"
        with MemcoreSession("s", path) as one, MemcoreSession("s", path) as two:
            await one.add_items([user("a"), user("b")])
            for at in range(20):
                answers = await asyncio.gather(
                    answer(one.create_branch_from_turn(2, f"n{at}")),
                    answer(two.create_branch_from_turn(2, f"n{at}")),
                )
                used = f"Branch ID 'n{at}' has already been used. Choose a new branch ID."
                assert sorted(answers, key=str) == [("ValueError", used), f"n{at}"]
                await one.switch_to_branch("main")
                await two.switch_to_branch("main")
            named = await asyncio.gather(
                *(each.create_branch_from_turn(1) for each in (one, two)), return_exceptions=True
            )
            assert len(set(named)) == 2

    asyncio.run(run())


def test_a_clear_by_another_instance_ends_a_branch(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "m.db"
        with MemcoreSession("s", path) as one, MemcoreSession("s", path) as two:
            await one.add_items([user("a"), user("b")])
            await one.create_branch_from_turn(2, "x")
            adding = one.add_items([user("queued")])
            await two.clear_session()
            await adding
            assert one.current_branch_id == "main"
            assert await two.get_items() == [user("queued")]
            assert await two.get_items(branch_id="x") == []
            with pytest.raises(ValueError, match="already been used"):
                await two.create_branch_from_turn(1, "x")

    asyncio.run(run())


def test_a_clear_in_the_middle_of_a_switch_wins(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "m.db"
    with MemcoreSession("s", path) as one, MemcoreSession("s", path) as two:
        asyncio.run(one.add_items([user("a"), user("b")]))
        asyncio.run(one.create_branch_from_turn(2, "x"))
        asyncio.run(one.switch_to_branch("main"))
        look = one._seen

        def slow(*args: Any) -> Any:
            found = look(*args)
            clearing = threading.Thread(target=lambda: asyncio.run(two.clear_session()))
            clearing.start()
            clearing.join()
            return found

        monkeypatch.setattr(one, "_seen", slow)
        asyncio.run(one.switch_to_branch("x"))
        assert one.current_branch_id == "main"
        assert asyncio.run(one.get_items()) == []


HOSTILE = ["s", "1:s:b", "\0", "\0@1:s:b", "a/b", "../x", "'; DROP", "\ud800", "x" * 70_000, "Main"]


def test_hostile_names(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "m.db"
        sessions = [MemcoreSession(name, path) for name in ("s", "1:s", "\0@1:s:b", "\0@1:s:a/b")]
        for session in sessions:
            await session.add_items([user(session.session_id), user("2")])
            for name in HOSTILE:
                assert await session.create_branch_from_turn(2, name) == name
                await session.add_items([user(name)])
                await session.switch_to_branch("main")
        for session in sessions:
            for name in HOSTILE:
                expected = [user(session.session_id), user(name)]
                assert await session.get_items(branch_id=name) == expected
            listed = {row["branch_id"] for row in await session.list_branches()}
            assert listed == {"main", *HOSTILE}
        await sessions[0].clear_session()
        assert await sessions[0].list_branches() == []
        assert len(await sessions[1].list_branches()) == len(HOSTILE) + 1
        for session in sessions:
            session.close()

    asyncio.run(run())


def test_usage_belongs_to_the_turn_that_was_there(tmp_path: Path) -> None:
    async def run() -> None:
        with MemcoreSession("s", tmp_path / "m.db") as session:
            await asyncio.gather(
                session.add_items([user("a")]),
                session.store_run_usage(usage_of(1)),
                session.add_items([user("b")]),
            )
            rows = await session.get_turn_usage()
            assert [row["user_turn_number"] for row in rows] == [1]
            await asyncio.gather(session.pop_item(), session.store_run_usage(usage_of(4)))
            assert (await session.get_turn_usage(1))["requests"] == 4

    asyncio.run(run())


def test_the_draft_of_a_branch_is_always_asked_for(tmp_path):
    """It compares the generation in every transaction, whatever is asked of the session."""
    with memcore.open(tmp_path / "db") as db:
        assert BranchAddress(db.scope(), "b", None, 0).always_drafts


def test_a_title_is_that_of_all_branches_when_calls_find_their_scope(path):
    async def main(db: memcore.Database) -> None:
        session = MemcoreSession("s1", db, scope_of=lambda _: ("app", "ann"))
        wrapper = RunContextWrapper(None)
        await session.add_items(
            [{"role": "user", "content": text} for text in "ab"], wrapper=wrapper
        )
        await session.set_title("T", wrapper=wrapper)
        await session.create_branch_from_turn(2, "br", wrapper=wrapper)
        assert await session.get_title(wrapper=wrapper) == "T"
        await session.set_metadata({"a": 1}, wrapper=wrapper)
        assert await session.get_metadata(wrapper=wrapper) == {"a": 1}

    with memcore.open(path) as db:
        asyncio.run(main(db))
