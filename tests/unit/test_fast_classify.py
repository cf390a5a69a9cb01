"""_fast.classify and the packed facts: a test for each row of the wire-format tables."""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
import strategies
from memcore import _fast
from oracle import (
    ABANDON,
    APPLY_PATCH,
    ASSISTANT,
    BY_NAME,
    CALL,
    COMPUTER,
    CUSTOM,
    EVENT,
    FUNCTION,
    LOCAL_SHELL,
    MCP_APPROVAL,
    MIXED,
    MODEL,
    OPAQUE,
    PROGRAM,
    REASONING,
    RESULT,
    SECOND,
    SERVER,
    SHELL,
    SYSTEM,
    THINKING,
    TOOL_SEARCH,
    TURN,
    USER,
)
from strategies import HostileDict, HostileList, HostileStr, no_deadline

SEED = bytes(range(16))


def chat_call(*ids: Any, **more: Any) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def blocks(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def parts(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(content)}


def use(i: Any, kind: str = "tool_use") -> dict[str, Any]:
    return {"type": kind, "id": i, "name": "f", "input": {}}


def answer(i: Any, kind: str = "tool_result") -> dict[str, Any]:
    return {"type": kind, "tool_use_id": i, "content": "ok"}


TEXT = {"type": "text", "text": "hello"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
F1, F2 = (FUNCTION, "c1"), (FUNCTION, "c2")
F_NAME = (FUNCTION | BY_NAME, "f")


def case(name: str, item: dict[str, Any], *expected: Any) -> Any:
    return pytest.param(item, expected, id=name)


def nothing(kind: int, flags: int = 0) -> tuple[Any, ...]:
    return kind, (), (), flags


CHAT = [
    case("system", {"role": "system", "content": "x"}, *nothing(SYSTEM)),
    case("developer", {"role": "developer", "content": "x"}, *nothing(SYSTEM)),
    case("user", {"role": "user", "content": "x"}, *nothing(USER)),
    case("user with parts", blocks("user", TEXT, {"type": "image_url"}), *nothing(USER)),
    case("assistant", {"role": "assistant", "content": "x"}, *nothing(ASSISTANT, MODEL)),
    case("assistant without content", {"role": "assistant"}, *nothing(ASSISTANT, MODEL)),
    case("one call", chat_call("c1"), ASSISTANT, (F1,), (), MODEL),
    case("parallel calls", chat_call("c1", "c2"), ASSISTANT, (F1, F2), (), MODEL),
    case("text beside calls", chat_call("c1", content="x"), ASSISTANT, (F1,), (), MODEL),
    case(
        "custom call",
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "custom", "custom": {}}]},
        *(ASSISTANT, (F1,), (), MODEL),
    ),
    case(
        "deprecated call",
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        *(ASSISTANT, (F_NAME,), (), MODEL),
    ),
    case("result", {"role": "tool", "tool_call_id": "c1"}, RESULT, (), (F1,), 0),
    case("result without an id", {"role": "tool", "content": "x"}, *nothing(RESULT)),
    case("deprecated result", {"role": "function", "name": "f"}, RESULT, (), (F_NAME,), 0),
    case("unknown role", {"role": "critic", "content": "x"}, *nothing(OPAQUE)),
]

IDS = [
    case("an id twice in one message", chat_call("c1", "c2", "c1"), ASSISTANT, (F1, F2), (), MODEL),
    case("empty id", chat_call("", "c1"), ASSISTANT, (F1,), (), MODEL),
    case("no id", chat_call(None, "c1"), ASSISTANT, (F1,), (), MODEL),
    case("an id of 41", chat_call("c" * 41), ASSISTANT, ((0, "c" * 41),), (), MODEL),
    case("an id of 65", chat_call("c" * 65), ASSISTANT, ((0, "c" * 65),), (), MODEL),
    case("an id of 5,000", chat_call("c" * 5_000), ASSISTANT, ((0, "c" * 5_000),), (), MODEL),
    case("a lone surrogate", chat_call("\ud800"), ASSISTANT, ((0, "\ud800"),), (), MODEL),
    case("ids of wrong types", chat_call(1, ["c1"], {}, b"c1"), *nothing(ASSISTANT, MODEL)),
    case("empty result id", {"role": "tool", "tool_call_id": ""}, *nothing(RESULT)),
    case("a call cut off", {"role": "assistant", "tool_calls": [{"id": "c1"}, {"fun": 1}, None]}, *(
        ASSISTANT, (F1,), (), MODEL)),
    case("calls that are no list", {"role": "assistant", "tool_calls": {"id": "c1"}}, *nothing(
        ASSISTANT, MODEL)),
    case("empty role", {"role": "", "type": "reasoning"}, *nothing(REASONING, MODEL)),
]  # fmt: skip


def responses_pair(stem: str, cls: int) -> list[Any]:
    call, output = f"{stem}_call", f"{stem}_call_output"
    return [
        case(call, {"type": call, "call_id": "c1", "id": "x"}, CALL, ((cls, "c1"),), (), MODEL),
        case(output, {"type": output, "call_id": "c1", "id": "x"}, RESULT, (), ((cls, "c1"),), 0),
    ]


LOCAL_CALL = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1"}
BOTH_IDS = ((LOCAL_SHELL, "c1"), (LOCAL_SHELL | SECOND, "lsh_1"))
SEARCH = (TOOL_SEARCH | BY_NAME, "tool_search")
CALLER = {"type": "program", "caller_id": "p1"}
RESPONSES = [
    *responses_pair("function", FUNCTION),
    *responses_pair("custom_tool", CUSTOM),
    *responses_pair("shell", SHELL),
    *responses_pair("apply_patch", APPLY_PATCH),
    *responses_pair("computer", COMPUTER),
    case("standalone output", {"type": "function_call_output", "output": "x"}, *nothing(RESULT)),
    case("local shell call", LOCAL_CALL, CALL, BOTH_IDS, (), MODEL),
    case(
        "local shell call with one id for both",
        {**LOCAL_CALL, "id": "c1"},
        *(CALL, BOTH_IDS[:1], (), MODEL),
    ),
    case(
        "local shell call without call_id",
        {"type": "local_shell_call", "id": "lsh_1"},
        *(CALL, ((LOCAL_SHELL, "lsh_1"),), (), MODEL),
    ),
    case(
        "local shell output of the schema",
        {"type": "local_shell_call_output", "id": "lsh_1"},
        *(RESULT, (), ((LOCAL_SHELL, "lsh_1"),), 0),
    ),
    case(
        "local shell output of the SDK",
        {"type": "local_shell_call_output", "call_id": "c1", "id": "own"},
        *(RESULT, (), ((LOCAL_SHELL, "c1"),), 0),
    ),
    case(
        "tool search",
        {"type": "tool_search_call", "call_id": "c1", "execution": "client"},
        *(CALL, ((TOOL_SEARCH, "c1"),), (), MODEL),
    ),
    case(
        "anonymous tool search",
        {"type": "tool_search_call", "call_id": None},
        *(CALL, (SEARCH,), (), MODEL),
    ),
    case("tool search output", {"type": "tool_search_output", "call_id": "c1"}, *(
        RESULT, (), ((TOOL_SEARCH, "c1"),), 0)),
    case("anonymous tool search output", {"type": "tool_search_output"}, RESULT, (), (SEARCH,), 0),
    case("server tool search", {"type": "tool_search_call", "execution": "server", "call_id": "c1"},
         *nothing(ASSISTANT, MODEL)),
    case("server tool search output", {"type": "tool_search_output", "execution": "server"},
         *nothing(ASSISTANT, MODEL)),
    case("program", {"type": "program", "call_id": "p1", "id": "x"}, *(
        CALL, ((PROGRAM, "p1"),), (), MODEL)),
    case("program output", {"type": "program_output", "call_id": "p1"}, *(
        RESULT, (), ((PROGRAM, "p1"),), 0)),
    case("child of a program", {"type": "function_call", "call_id": "c1", "caller": CALLER}, *(
        CALL, (F1,), ((PROGRAM | SECOND, "p1"),), MODEL)),
    case("direct caller", {"type": "function_call", "call_id": "c1", "caller": {"type": "direct"}},
         CALL, (F1,), (), MODEL),
    case("approval request", {"type": "mcp_approval_request", "id": "c1"}, *(
        CALL, ((MCP_APPROVAL, "c1"),), (), MODEL)),
    case("approval response", {"type": "mcp_approval_response", "approval_request_id": "c1"}, *(
        RESULT, (), ((MCP_APPROVAL, "c1"),), 0)),
    *(
        case(kind, {"type": kind, "id": "x", "call_id": "c1"}, *nothing(ASSISTANT, MODEL))
        for kind in sorted(oracle.SELF_CONTAINED)
    ),
    case("reasoning", {"type": "reasoning", "id": "rs_1"}, *nothing(REASONING, MODEL)),
    case("message", {"type": "message", "role": "assistant", "content": []}, *nothing(
        ASSISTANT, MODEL)),
    *(
        case(kind, {"type": kind, "id": "x", "call_id": "c1"}, *nothing(OPAQUE))
        for kind in ("compaction", "compaction_trigger", "item_reference", "additional_tools",
                     "configuration_update", "unknown_output", "mcp_call_output", "_output")
    ),
]  # fmt: skip

S1 = (SERVER, "c1")
ANTHROPIC = [
    case("tool_use", blocks("assistant", TEXT, use("c1"), use("c2")), *(
        ASSISTANT, (F1, F2), (), MODEL)),
    case("thinking", blocks("assistant", THOUGHT, use("c1")), *(
        ASSISTANT, (F1,), (), MODEL | THINKING)),
    case("redacted thinking", blocks("assistant", {"type": "redacted_thinking"}), *nothing(
        ASSISTANT, MODEL | THINKING)),
    case("text after tool_use", blocks("assistant", use("c1"), TEXT), *(
        ASSISTANT, (F1,), (), MODEL)),
    case("tool_result", blocks("user", answer("c1"), answer("c2")), RESULT, (), (F1, F2), TURN),
    case("text after results", blocks("user", answer("c1"), TEXT), *(
        RESULT, (), (F1,), MIXED | TURN)),
    case("text before results", blocks("user", TEXT, answer("c1")), *(
        RESULT, (), (F1,), MIXED | TURN)),
    case("a result without an id", blocks("user", answer(None)), *nothing(USER)),
    case("server tool answered at once",
         blocks("assistant", use("c1", "server_tool_use"), answer("c1", "web_search_tool_result")),
         *nothing(ASSISTANT, MODEL)),
    case("server tool to be answered later", blocks("assistant", use("c1", "server_tool_use")), *(
        ASSISTANT, (S1,), (), MODEL)),
    case("server tool answered later", blocks("assistant", answer("c1", "bash_tool_result")), *(
        ASSISTANT, (), (S1,), MODEL)),
    case("MCP tool",
         blocks("assistant", use("c1", "mcp_tool_use"), answer("c1", "mcp_tool_result")),
         *nothing(ASSISTANT, MODEL)),
    case("a system message in the list", blocks("system", TEXT), *nothing(SYSTEM)),
]  # fmt: skip

GEMINI = [
    case("call with id", parts("model", {"functionCall": {"id": "c1", "name": "f"}}), *(
        ASSISTANT, (F1,), (), MODEL)),
    case("calls without ids",
         parts("model", {"functionCall": {"name": "f"}}, {"functionCall": {"name": "f"}}),
         ASSISTANT, (F_NAME, F_NAME), (), MODEL),
    case("snake case", parts("model", {"function_call": {"name": "f"}}), *(
        ASSISTANT, (F_NAME,), (), MODEL)),
    case("thought", parts("model", {"text": "hm", "thought": True}), *nothing(
        ASSISTANT, MODEL | THINKING)),
    case("responses", parts("user", *[{"functionResponse": {"name": "f"}}] * 2), *(
        RESULT, (), (F_NAME, F_NAME), TURN)),
    case("response with id", parts("user", {"functionResponse": {"id": "c1", "name": "f"}}), *(
        RESULT, (), (F1,), TURN)),
    case("role function", parts("function", {"functionResponse": {"name": "f"}}), *(
        RESULT, (), (F_NAME,), TURN)),
    case("role tool", parts("tool", {"function_response": {"name": "f"}}), *(
        RESULT, (), (F_NAME,), TURN)),
    case("text beside responses", parts("user", {"functionResponse": {"name": "f"}}, {"text": "x"}),
         RESULT, (), (F_NAME,), TURN | MIXED),
    case("user", parts("user", {"text": "x"}), *nothing(USER)),
    case("server tools are echoed", parts("model", {"toolCall": {"id": "c1"}}), *nothing(
        ASSISTANT, MODEL)),
    case("a call by the user is none", parts("user", {"functionCall": {"name": "f"}}), *nothing(
        USER)),
]  # fmt: skip


def langchain(name: str, body: dict[str, Any], *expected: Any) -> list[Any]:
    kind = {"ai": "AI"}.get(name, name.capitalize()) + "Message"
    path = ["langchain", "schema", "messages", kind]
    constructor = {"lc": 1, "type": "constructor", "id": path, "kwargs": body}
    chunk = {**constructor, "id": [*path[:-1], kind + "Chunk"]}
    what = f"{name} {sorted(body)}"
    return [
        case(f"{what} flat", {"type": name, **body}, *expected),
        case(f"{what} chunk", {"type": kind + "Chunk", **body}, *expected),
        case(f"{what} data", {"type": name, "data": body}, *expected),
        case(f"{what} constructor", constructor, *expected),
        case(f"{what} constructed chunk", chunk, *expected),
    ]


LC_CALL = {"id": "c1", "name": "f", "args": {}, "type": "tool_call"}
LANGCHAIN = [
    *langchain("human", {"content": "x"}, *nothing(USER)),
    *langchain("system", {"content": "x"}, *nothing(SYSTEM)),
    *langchain("ai", {"content": "x"}, *nothing(ASSISTANT, MODEL)),
    *langchain("ai", {"tool_calls": [LC_CALL]}, ASSISTANT, (F1,), (), MODEL),
    *langchain(
        "ai",
        {"tool_calls": [LC_CALL], "invalid_tool_calls": [{"id": "c2"}, {"id": None}]},
        *(ASSISTANT, (F1, F2), (), MODEL),
    ),
    *langchain(
        "ai", {"tool_calls": [LC_CALL], "content": [use("c1")]}, ASSISTANT, (F1,), (), MODEL
    ),
    *langchain("ai", {"additional_kwargs": chat_call("c1")}, ASSISTANT, (F1,), (), MODEL),
    *langchain(
        "ai",
        {"additional_kwargs": {"function_call": {"name": "f"}}},
        *(ASSISTANT, (F_NAME,), (), MODEL),
    ),
    *langchain(
        "ai",
        {"content": [use("c1", "server_tool_call"),
                     {"type": "server_tool_result", "tool_call_id": "c1"}]},
        *nothing(ASSISTANT, MODEL),
    ),
    *langchain("tool", {"tool_call_id": "c1"}, RESULT, (), (F1,), 0),
    *langchain("function", {"name": "f"}, RESULT, (), (F_NAME,), 0),
    *langchain("chat", {"role": "user", "content": "x"}, *nothing(USER)),
    *langchain("chat", {"role": "critic", "content": "x"}, *nothing(OPAQUE)),
    case("remove", {"type": "remove", "id": "x"}, *nothing(OPAQUE)),
    case("other constructor", {"lc": 1, "type": "constructor", "id": ["x"], "kwargs": {}}, *nothing(
        OPAQUE)),
    case("constructor of nothing", {"lc": 1, "type": "constructor", "id": [], "kwargs": {}},
         *nothing(OPAQUE)),
]  # fmt: skip

ODD = [
    case("empty", {}, *nothing(OPAQUE)),
    case("no known key", {"x": 1}, *nothing(OPAQUE)),
    case("keys that are no strings", {1: 2, None: 3}, *nothing(OPAQUE)),
    case("a tuple is a list", {"role": "assistant", "tool_calls": ({"id": "c1"},)}, *(
        ASSISTANT, (F1,), (), MODEL)),
    case("an enum is a string", {"role": strategies.Role.TOOL, "tool_call_id": "c1"}, *(
        RESULT, (), (F1,), 0)),
    case("a subclass of dict", OrderedDict(chat_call("c1")), ASSISTANT, (F1,), (), MODEL),
    case("hostile strings", {"role": HostileStr("tool"), "tool_call_id": HostileStr("c1")}, *(
        RESULT, (), (F1,), 0)),
    case("hostile containers",
         HostileDict(chat_call(tool_calls=HostileList([HostileDict({"id": "c1"})]))),
         ASSISTANT, (F1,), (), MODEL),
]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "expected"),
    CHAT + IDS + RESPONSES + ANTHROPIC + GEMINI + LANGCHAIN + ODD,
)
def test_a_row_of_the_tables(item, expected):
    assert _fast.classify(item) == expected
    assert tuple(oracle.classify(item)) == expected


@no_deadline
@given(strategies.hostile_items)
def test_it_says_what_the_oracle_says_of_anything(item):
    found = _fast.classify(item)
    assert found == tuple(oracle.classify(item))
    assert all(type(text) is str for _, text in found[1] + found[2])
    assert _fast.pack_facts(item, SEED) is not None


@no_deadline
@given(st.one_of(strategies.histories(), strategies.mixed_histories()))
def test_it_says_what_the_oracle_says_of_histories(history):
    for entry in history:
        if isinstance(entry, dict):
            assert _fast.classify(entry) == tuple(oracle.classify(entry))


def test_only_a_dict_is_an_item():
    for call in (_fast.classify, lambda item: _fast.pack_facts(item, SEED)):
        with pytest.raises(TypeError, match="an item is a dict, not list"):
            call([])
        with pytest.raises(TypeError, match="an item is a dict, not NoneType"):
            call(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python 3.13 tells
def test_keys_with_code_of_their_own_are_survived():
    class Key:
        def __init__(self, item):
            self.item = item

        def __hash__(self):
            return hash("role")

        def __eq__(self, other):
            self.item.clear()
            raise RuntimeError

    item = {"type": "message"}
    item[Key(item)] = 1
    for _ in range(2):
        assert _fast.classify(item)[0] == OPAQUE


# --- packed facts ---------------------------------------------------------------------------------


def unpack(facts: bytes) -> tuple[int, int, list[int], list[int]]:
    kind, flags, n_close, n_open = struct.unpack_from("<BBHH", facts)
    keys = list(struct.unpack_from(f"<{n_close + n_open}Q", facts, 6))
    assert len(facts) == 6 + 8 * len(keys)
    return kind, flags, keys[:n_close], keys[n_close:]


def test_facts_hold_kind_flags_and_hashed_keys():
    kind, flags, closes, opens = unpack(_fast.pack_facts(chat_call("c1", "c2"), SEED))
    assert (kind, flags, closes, len(opens)) == (ASSISTANT, MODEL, [], 2)
    assert opens[0] != opens[1]
    result = unpack(_fast.pack_facts({"role": "tool", "tool_call_id": "c2"}, SEED))
    assert result == (RESULT, 0, [opens[1]], [])


def test_the_hash_is_siphash_1_3_of_the_utf8_text_keyed_by_seed_and_class():
    # Computed with the reference implementation's algorithm in plain Python, below.
    for cls, text in ((0, "c1"), (9, "call_0123456789abcdefgh"), (0, "ü"), (3, "x" * 64)):
        (found,) = unpack(_fast.pack_event(((cls, text),), SEED))[2]
        assert found == siphash13(SEED, cls, text.encode()) & ~3


def siphash13(seed: bytes, cls: int, data: bytes) -> int:
    mask = 2**64 - 1
    k0, k1 = struct.unpack("<QQ", seed)
    k0 ^= cls
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotl(x, b):
        return (x << b | x >> (64 - b)) & mask

    def sip_round():
        for a, b, c, d, r, s in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
            v[a] = (v[a] + v[b]) & mask
            v[b] = rotl(v[b], r) ^ v[a]
            v[a] = rotl(v[a], 32)
            v[c] = (v[c] + v[d]) & mask
            v[d] = rotl(v[d], s) ^ v[c]

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_classes_and_by_name_and_second_are_told_apart():
    keys = ((0, "c"), (1, "c"), (BY_NAME, "c"), (SECOND, "c"))
    _, _, closes, _ = unpack(_fast.pack_event(keys, SEED))
    assert [key & 3 for key in closes] == [0, 0, 1, 2]
    assert closes[0] >> 2 != closes[1] >> 2
    assert closes[0] >> 2 == closes[2] >> 2 == closes[3] >> 2


def test_another_seed_is_another_hash():
    one, two = (_fast.pack_facts(chat_call("c1"), os.urandom(16)) for _ in range(2))
    assert one != two


def test_an_event_gives_up_calls():
    assert unpack(_fast.pack_event((), SEED)) == (EVENT, 0, [], [])
    kind, flags, closes, _ = unpack(_fast.pack_event((F1, F2), SEED))
    assert (kind, flags, len(closes)) == (EVENT, ABANDON, 2)


def test_more_calls_than_fit_are_refused():
    most = [str(i) for i in range(65_535)]
    facts = _fast.pack_facts(chat_call(*most), SEED)
    assert facts is not None
    assert len(facts) == 6 + 8 * 65_535
    assert _fast.pack_facts(chat_call(*most, "one more"), SEED) is None
    assert _fast.pack_facts(chat_call(*most, "0"), SEED) == facts
    assert _fast.pack_event(tuple((0, i) for i in [*most, "one more"]), SEED) is None


@pytest.mark.parametrize("seed", [b"", bytes(15), bytes(17)])
def test_the_seed_has_16_bytes(seed):
    for call in (
        lambda: _fast.pack_facts({}, seed),
        lambda: _fast.pack_event((), seed),
        lambda: _fast.Ledger().find_call(0, "c1", seed),
    ):
        with pytest.raises(ValueError, match="16 bytes"):
            call()


def test_malformed_abandons_are_refused():
    for abandons in ((1,), ((0, 1),), ((0,),), (("0", "c1"),), ((0, None),)):
        with pytest.raises((TypeError, ValueError)):
            _fast.pack_event(abandons, SEED)
