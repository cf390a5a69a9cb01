"""What a deleted session alone said is gone from every memory, whoever else supports this."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore import InvalidOptionError, NotFoundError, Source

SESSIONS = ("a", "b", "c")
ROLES = {"user": 1, "tool": 2}  # seq of an item of each
TEXTS = ("Likes tea", "likes tea.", "Has a dog", "Has the dog")

session = st.sampled_from(SESSIONS)
role = st.sampled_from(sorted(ROLES))
fields = st.sets(st.sampled_from(("attributes", "labels")))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), session, role, fields, st.sampled_from(TEXTS)),
        st.tuples(st.just("update"), session, role, fields, st.sampled_from((None, *TEXTS))),
        st.tuples(st.just("unite"), session, role, fields, st.none()),
        st.tuples(st.just("delete"), session, role, fields, st.none()),
    ),
    max_size=14,
)


def begin(scope: memcore.Scope, name: str) -> None:
    """Give a session an item of each role that a memory can cite."""
    made = scope.session(name)
    made.append({"role": "user", "content": "Likes tea. Has a dog."})
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    made.append({"role": "assistant", "content": None, "tool_calls": [call]})
    made.append({"role": "tool", "tool_call_id": "c1", "content": "Likes tea. Has a dog."})


def everything(scope: memcore.Scope) -> str:
    """Return all that any version of any memory says."""
    found = scope.memory.list()
    versions = [each for memory in found for each in scope.memory.history(memory.id)]
    return repr([(each.text, each.attributes, each.labels) for each in (*found, *versions)])


@given(steps=steps)
@settings(max_examples=60, deadline=None)
def test_what_only_a_deleted_session_said_is_gone(steps) -> None:
    with memcore.open(":memory:") as db:
        scope = db.scope(app="a", user="u")
        for name in SESSIONS:
            begin(scope, name)
        said_in: dict[str, set[str]] = defaultdict(set)
        gone: set[str] = set()
        for at, (action, name, who, names, text) in enumerate(steps):
            source = Source(name, ((1,) if who == "user" else (3,)))
            told = {each: {"of": f"{each}-{at}-{name}"} for each in sorted(names)}
            if action == "delete":
                scope.delete_session(name)
                gone |= {word for word, where in said_in.items() if where <= {name}}
                for where in said_in.values():
                    where.discard(name)
                assert [word for word in gone if word in everything(scope)] == []
                begin(scope, name)
            elif action == "unite":
                scope.memory.consolidate()
            elif action == "remember":
                scope.memory.remember(text, source=source, **told)
            else:
                found = scope.memory.list()
                if not found or not (text or told):
                    continue
                try:
                    scope.memory.update(found[at % len(found)].id, text=text, source=source, **told)
                except (InvalidOptionError, NotFoundError):
                    continue
            for each in told.values():
                if action in ("remember", "update"):
                    said_in[each["of"]].add(name)
                    gone.discard(each["of"])
        assert db.check() == []
