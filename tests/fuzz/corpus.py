"""Legal inputs for each target: what the mutators start from."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import orjson

from memcore._fast import pack_event, pack_facts, redo_record
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.graph import Cache, JsonCoder
from memcore.graph.encode import PAGE, Splitter
from memcore.graph.manifest import EMPTY, pack_typed
from memcore.graph.manifest import text as packed_text
from memcore.graph.rows import GraphCheckpointRow, Pool, Write, pack_writes
from memcore.rows import index
from memcore.rows.head import Head, Segment
from memcore.rows.item import prepare_item
from memcore.rows.usage import Anchor, Learned, pack_usage
from memcore.state.rows import StateHeader
from memcore.store import open_store
from memcore.tokens import get_counter
from vocabularies import small

from .resealed import bodies

SEED = bytes(range(16))
MESSAGES = (
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "done"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "?"},
        {"type": "tool_use", "id": "b", "name": "g", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": "x"}]},
    {"type": "function_call", "call_id": "c", "name": "h", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "y"},
    {"type": "reasoning", "id": "r", "summary": []},
    {"role": "model", "parts": [{"functionCall": {"name": "k", "args": {"n": 1.5e300}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "k", "response": {}}}]},
    {"role": "user", "content": "\ud800 lone", "n": 2**70},
)  # fmt: skip


def seeds(target: str) -> list[bytes]:
    """A few legal inputs, and the empty one."""
    return [b"", *_MAKERS[target]()]


def _json() -> list[bytes]:
    deep = b"[" * 300 + b"]" * 300
    return [codec.encode_json(message)[0] for message in MESSAGES] + [deep, b"1e400", b"[NaN]"]


def _wire() -> list[bytes]:
    return [orjson.dumps(message) for message in MESSAGES[:-1]]


def _keys() -> list[bytes]:
    row = keys.session_row(1, 2, 3, 4)
    return [keys.pack_text("a\0b\ud800"), keys.pack_text("x") + keys.pack_text("\0"), row,
            keys.expiry_row(77, row), b"\xff" * 600]  # fmt: skip


def _index() -> list[bytes]:
    facts = [pack_facts(message, SEED) or b"" for message in MESSAGES]
    facts.append(pack_event(((0, "a"),), SEED) or b"")
    records = [index.RECORD.pack(9, 1, at, 5) + fact for at, fact in enumerate(facts)]
    return [b"".join(records), *records, b"".join(records * 9)]


def _rows() -> list[bytes]:
    head = Head(policy="openai_chat", counter="bytes/4", now_ms=5)
    head.segments, head.count, head.next_seq = [Segment(1, 1, 4), Segment(2, 6, 9)], 8, 10
    counter = get_counter("bytes/4")
    found = [
        prepare_item(message, counter=counter, seed=SEED, now_us=9, meta={"m": 1}, request_id="r")
        for message in MESSAGES
    ]
    view = {"chain": 1, "parent": 3, "parent_owner": 2, "cut_seq": 4, "covered": 4, "summary": "s",
            "pinned": [1], "status": "summarized", "tokens_before": 9, "tokens_after": 1,
            "created_at": 1.5}  # fmt: skip
    anchor = Anchor(3_000, 900, 4, 1, (2, 3), "openai_chat")
    known = [Learned("m", "bytes/4", 1_500_000, 900, 2, anchor), Learned(None, "bytes/4")]
    block = b"".join(number.to_bytes(8, "little") for number in (2, 1, 0, 2, 1, 4, 2, 6, 9))
    return [head.pack(), *(one.body for one in found), orjson.dumps(view), block,
            keys.pack_text("app") + keys.pack_text("user"), pack_usage(known)[0],
            StateHeader(9, 5, (1, 3)).pack()]  # fmt: skip


def _redo() -> list[bytes]:
    first = {b"\1a": b"x", b"\2b": None, b"\3" * 511: b"y" * 900}
    return [redo_record(ops, 0, 0, 0)[28:] for ops in (first, {b"k": b""})]


TEXTS = (
    "The user's café — 3 items, १२३४५६७; 東京へ行く 👩‍👩‍👧‍👦!\r\n\tIt'LL do:   42\n\n",
    "def f(x):\n    return {'a': [1, 22, 333]}  # ———\n", '{"k": "v", "n": -1.5e300}\u2028\u3000 x',
    "aaaa" * 40, "<|endoftext|> \u017f'\u017f 'S", "\ud800 \ud83d\ude00\x1c\x85",
)  # fmt: skip


def _bpe() -> list[bytes]:
    """Each text as the readings have it, for both encodings and with some cut."""
    found = []
    for at, text in enumerate(TEXTS):
        for name in (0, 1):
            cut = bytes((7 * at, 0, 0, at * 9 + name))
            found.append(bytes([name]) + cut + text.encode("utf-8", "replace"))
            found.append(bytes([4 | name]) + cut + text.encode("utf-16-le", "surrogatepass"))
            found += [bytes([how << 1 | name]) + cut + text.encode("utf-8", "surrogatepass") * 2
                      for how in (1, 3, 4, 5)]  # fmt: skip
    return found


def _vocabulary() -> list[bytes]:
    found = []
    for pattern in (1, 2):
        file = small(pattern=pattern)
        found.append(len(file).to_bytes(2, "little") + bytes(4) + file + b"the thing aaaaaaa 123")
    return found


def _structure() -> list[bytes]:
    """A small store's pages with its tree moved to page 2."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store")
        store = open_store(path)
        dice = random.Random(1)
        for number in range(60):
            value = dice.randbytes(dice.choice((3, 90, 5000)))
            store.transact(lambda txn, n=number, v=value: txn.put(b"\1%03d" % n, v))
        store.close()
        content = path.read_bytes()
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    trees = [page for page in pages[2:] if page[10] in (1, 2) and not page[11]]
    moved = [(2).to_bytes(8, "little") + page[8:] for page in trees[:12]]
    metas = content[:8192]
    return [content[: 8192 + 4096 * 8], *(metas + page + b"".join(trees[:3]) for page in moved)]


def _nodes() -> list[bytes]:
    """Manifests of several values, their pages, and one that names a page."""
    secret = bytes(32)
    splitter = Splitter(Cache(), JsonCoder(), pool=1, epoch=1, secret=secret)
    values: list[Any] = [
        None, 7, "text" * 30, "x" * 70_000, [], ["a", "b" * 90] * 3, {"k": [1, 2, 3, 4], "l": {}},
        [f"entry {at} " * 9 for at in range(400)], {f"key {at}": at for at in range(300)},
        [[[[["deep" * 20] * 4] * 4] * 4] * 4],
    ]  # fmt: skip
    found = [splitter.split(value, None, "value")[0] for value in values]
    pages = [content for kind, content in splitter.fresh.values() if kind == PAGE]
    nested = b"\x01\x04json\x011"
    for _ in range(300):
        nested = b"\x03" + packed_text(nested)
    return [*found, *pages[:6], b"\x03" + packed_text(b"\x06" + bytes(16)), EMPTY, nested]


def _graph_rows() -> list[bytes]:
    row = GraphCheckpointRow(
        "0001", "parent", ("json", b"{}"), ("json", b'{"channel_versions":{}}')
    )
    writes = [Write("task", "path", at, "channel", node) for at, node in enumerate(_nodes()[:4])]
    return [row.pack(), pack_writes("task", writes), pack_typed("node", _nodes()[5]),
            pack_typed("writes", pack_writes("task", writes)), pack_typed("lost", b""),
            Pool(3, 1, sweeping=False, key=("bytes", bytes(32))).pack(), bytes(16),
            b"\0\0\0\1name"]  # fmt: skip


_MAKERS = {
    "bpe": _bpe,
    "graph_rows": _graph_rows,
    "index": _index,
    "json": _json,
    "keys": _keys,
    "nodes": _nodes,
    "redo": _redo,
    "resealed": bodies,
    "rows": _rows,
    "structure": _structure,
    "values": _keys,
    "vocabulary": _vocabulary,
    "wire": _wire,
}
