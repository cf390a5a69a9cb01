"""What is fuzzed: each target takes any bytes and holds the laws of one decoder to them.

Bytes that are no legal input must be refused with a typed error; those that are accepted must come
back unchanged when they are encoded again. A target that returns is content; anything raised is a
finding.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from memcore._fast import Ledger, classify, pack_event, pack_facts, record_spans, redo_record
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.errors import CorruptValueError, MemcoreError
from memcore.rows import index, item, names, usage, views
from memcore.rows.head import Head
from memcore.state.rows import StateHeader
from memcore.store.datafile import inspect
from memcore.store.pages import DamageError, Tree, free_pages, walk_of
from memcore.store.redo_log import decode
from memcore.tokens import get_counter
from memcore.wire import get_policy

from .bpe import bpe, vocabularies
from .graphs import graph_rows, nodes
from .resealed import resealed

Target = Callable[[bytes], None]
SEED = bytes(range(16))
KEY = keys.session_row(1, 2, keys.Row.ITEM, 3)
PAGE = 4096


def json_values(data: bytes) -> None:
    """Whatever JSON says is encoded and decoded to the same; other bytes are typed errors."""
    for flags in (0, codec.FLAG_PLAIN_JSON):
        try:
            value = codec.decode_json(data, flags)
        except (CorruptValueError, RecursionError):
            continue
        try:
            encoded = codec.encode_json(value)
        except (ValueError, RecursionError):
            continue  # NaN, or nested deeper than we write
        assert repr(codec.decode_json(*encoded)) == repr(value)


def values(data: bytes) -> None:
    """A sealed value opens to what it was; under another key or with a flipped bit it does not."""
    key, body = data[:40] or b"\1", data[40:]
    flags = len(data) & 15
    sealed = codec.seal_value(key, body, flags)
    assert codec.open_value(key, sealed) == (flags, body)
    if data:
        at = int.from_bytes(data[:3], "little") % (8 * len(sealed))
        flipped = bytearray(sealed)
        flipped[at // 8] ^= 1 << at % 8
        for other_key, other in ((key, bytes(flipped)), (key + b"\0", sealed), (key, data)):
            with suppress(CorruptValueError):
                codec.open_value(other_key, other)
                raise AssertionError("damage was not found out")


def packed_keys(data: bytes) -> None:
    """Unpacked keys pack to themselves; others are typed errors."""
    with suppress(CorruptValueError):
        assert keys.pack_text(keys.unpack_text(data)) == data
    with suppress(CorruptValueError):
        assert b"".join(map(keys.pack_text, keys.unpack_texts(data))) == data
    with suppress(CorruptValueError):
        scope, session, row, number = keys.split_session_row(data)
        assert keys.session_row(scope, session, row, number)[1:] == data[1:]
    with suppress(CorruptValueError):
        assert keys.session_prefix(*keys.split_session_prefix(data))[1:] == data[1:17]
    if len(data) >= 9:
        expires_ms, key = keys.split_expiry_row(data)
        assert keys.expiry_row(expires_ms, key)[1:] == data[1:]
        scope, parts = keys.split_scoped(data)
        assert keys.scoped(data[0], scope, parts) == data
    text = data.decode("utf-8", "replace")
    one, two = text[: len(text) // 2], text[len(text) // 2 :]
    assert keys.unpack_texts(keys.pack_text(one) + keys.pack_text(two)) == (one, two)
    assert (keys.pack_text(one) < keys.pack_text(two)) == (one < two)
    assert len(keys.name_key(b"\4", one, two)) <= 511
    if data[:511].strip(b"\xff"):
        assert keys.behind(data[:511]) > data[:511]
        assert keys.after(data) > data


def index_pages(data: bytes) -> None:
    """A page's records tile it; the ledger takes exactly those, and refuses what has none."""
    spans = record_spans(data)
    tag = index.RECORD.unpack_from(data)[3] if len(data) >= index.RECORD.size else 0
    ledger = get_policy("openai_chat").new_ledger(3)
    loaded = ledger.load(data, 0, 2**31, tag)
    if spans is None:
        assert loaded < 0
        return
    assert [0, *(stop for _, stop in spans)] == [*(start for start, _ in spans), len(data)]
    assert loaded in (len(spans), -2)
    if loaded < 0:
        return
    again = get_policy("openai_chat").new_ledger(3)
    for start, stop in spans:
        again.push(data[start + index.RECORD.size : stop], index.RECORD.unpack_from(data, start)[0])
    _same(ledger, again)
    half = len(spans) // 2
    ledger.truncate(half)
    assert ledger.load(data, half, 2**31, tag) == len(spans) - half
    _same(ledger, again)
    _same(ledger.copy(), again)


def _same(one: Ledger, two: Ledger) -> None:
    for ledger in (one, two):
        assert len(ledger) == len(one)
    assert (one.tokens, one.open_count, one.safe_cuts()) == (
        two.tokens,
        two.open_count,
        two.safe_cuts(),
    )
    assert one.open_calls() == two.open_calls()
    for budget in (0, 1, 1000, 2**40):
        assert one.cut_for_budget(budget) == two.cut_for_budget(budget)
    assert one.tokens_of(0, len(one)) == two.tokens_of(0, len(two))


class _Rows:
    """A transaction over a few rows."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.get = rows.get

    def scan(self, *_: Any, **__: Any) -> list[Any]:
        return []


def rows(data: bytes) -> None:
    """Heads, items, views and names of sealed garbage are typed errors; whole ones come back."""
    with suppress(CorruptValueError):
        head = Head.unpack(KEY, codec.seal_value(KEY, data))
        assert head.pack() == data
        head.all_segments(_Rows({}), 1)
    for flags in (0, codec.FLAG_PLAIN_JSON):
        with suppress(CorruptValueError, RecursionError):
            found = item.decode_item(3, data, flags, 9)
            assert type(found.message) is dict
    with suppress(CorruptValueError):
        item.split_body(data)
    view = keys.session_row(1, 2, keys.Row.VIEW, 3)
    with suppress(CorruptValueError, RecursionError):
        chain = views.view_chain(_Rows({view: codec.seal_value(view, data)}), 1, 2, 3)
        assert all(stored.view.number == 3 for stored in chain)
    for flags in (0, codec.FLAG_PLAIN_JSON):
        with suppress(CorruptValueError):
            known = usage.unpack_usage(KEY, data, flags)
            assert usage.unpack_usage(KEY, *usage.pack_usage(known)) == known
    with suppress(CorruptValueError):
        assert StateHeader.unpack(KEY, codec.seal_value(KEY, data)).pack() == data
    scope = keys.scoped(keys.Kind.SCOPE, 7)
    with suppress(CorruptValueError):
        names.scope_names(_Rows({scope: codec.seal_value(scope, data)}), 7)
    block = keys.session_row(1, 2, keys.Row.SEGMENTS, 1)
    chained = Head(policy="openai_chat", counter="bytes/4", now_ms=0)
    chained.link_session, chained.link_block = 2, 1
    with suppress(CorruptValueError):
        chained.all_segments(_Rows({block: codec.seal_value(block, data)}), 1)


def redo_records(data: bytes) -> None:
    """Operations decode to what encodes to them; all else is None."""
    ops = decode(data)
    if ops is not None:
        encoded = redo_record(ops, 0, 0, 0)[28:]
        assert decode(encoded) == ops
        if len(encoded) == len(data):  # no key came twice
            assert encoded == data


def wire_items(data: bytes) -> None:
    """Any JSON object is classified, packed and loaded; what is stored decodes to itself."""
    try:
        value = orjson.loads(data)
    except ValueError:
        return
    message = value if isinstance(value, dict) else {"role": "user", "content": value}
    kind, opens, closes, _ = classify(message)
    facts = pack_facts(message, SEED)
    assert facts is not None
    assert facts[0] == kind
    pack_event(opens + closes, SEED)
    try:
        prepared = item.prepare_item(message, counter=get_counter("bytes/4"), seed=SEED, now_us=1)
    except MemcoreError:
        return
    if prepared.payload is None:
        assert item.decode_item(1, prepared.body, prepared.flags, 1).message == message
    record = index.RECORD.pack(prepared.tokens, 0, 0, 0) + prepared.facts
    assert record_spans(record) == [(0, len(record))]
    assert get_policy("openai_chat").new_ledger(3).load(record, 0, 1, 0) == 1


_scratch = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process


def structures(data: bytes) -> None:
    """Pages that are no tree of LMDB's are refused before anything follows them."""
    fd = _scratch.fileno()
    pages = max(len(data) // PAGE, 1)
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    with suppress(MemcoreError):
        inspect(fd, "fuzz")
    for tree in (Tree("tree", 2, 1), Tree("tree", 2, 2), Tree("list", 2, 1, 99)):
        with suppress(DamageError):
            walk = walk_of(fd, pages)
            for leaf in walk.leaves(tree):
                for row in leaf:
                    assert len(row.value) == row.size or row.run
                    if row.run:
                        walk.run(row.run, row.size)
            found = walk.rows, walk.referred()
            assert len(found[1]) == walk.own <= pages
            again = walk_of(fd, pages)
            again.judge(tree)
            assert (again.rows, again.referred()) == found
    with suppress(DamageError):
        assert all(2 <= page <= pages for page in free_pages(fd, 2, 1, pages))


TARGETS: dict[str, Target] = {
    "bpe": bpe,
    "graph_rows": graph_rows,
    "index": index_pages,
    "json": json_values,
    "keys": packed_keys,
    "nodes": nodes,
    "redo": redo_records,
    "resealed": resealed,
    "rows": rows,
    "structure": structures,
    "values": values,
    "vocabulary": vocabularies,
    "wire": wire_items,
}
