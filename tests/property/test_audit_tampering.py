"""Every single change of an audited file by somebody without the key is named, and where it began.

The forger knows the format: whatever is changed gets a right checksum. Edits are made in a
transaction of LMDB that is verified as it is and given up again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

import memcore
from memcore.audit.anchors import read_anchor
from memcore.audit.verify import Suspicion, Verification, Why
from memcore.codec import keys
from memcore.codec.audit_entry import Chainer, Op, unpack_entry
from memcore.codec.keys import Row
from memcore.codec.values import seal_value
from memcore.store.audit_log import HEAD, Place, chain_of, told_row
from memcore.store.transaction import Snapshot

KEY = bytes(range(32))
SEED = int(os.environ.get("MEMCORE_AUDIT_SEED", "1"))
EVERY = bool(os.environ.get("MEMCORE_AUDIT_EVERY"))
SAMPLES = 10**9 if EVERY else 36


def message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def fill(path: Path, anchor: Path) -> bytes:
    """A file with a bit of everything; an old head of session 1."""
    audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=7)
    with memcore.open(path, audit=audit, durability="none", allow_unsafe=True) as db:
        first = db.session("first", user="ann")
        for n in range(12):
            first.append(message(f"text {n} " * 5))
        first.state.update({"mood": "fair", "count": 1})
        first.checkpoint("here")
        scope = db.scope(user="ann")
        old = db.engine.store.read(lambda txn: txn.get(keys.session_row(1, 1, Row.HEAD, 0)))
        first.state.update({"count": 2})
        first.undo(3)
        first.append(message("x" * 40_000))
        first.append(message("again"))
        fork = first.fork("fork", at=4)
        fork.append(message("on the fork"))
        db.session("gone", user="ann").append(message("soon deleted"))
        db.delete_session("gone", user="ann")
        db.session("second", user="bob", app="other").extend([message("one"), message("two")])
        facts = scope.kv("facts")
        for n in range(4):
            facts.put(f"k{n}", {"n": n})
        facts.delete("k1")
    return old


class Forged:
    """A store of one write transaction, which is never committed."""

    def __init__(self, path: Path, raw: Any) -> None:
        self.path = str(path)
        self._raw = raw

    def read(self, fn: Any) -> Any:
        snapshot = Snapshot()
        snapshot.raw, snapshot.get = self._raw, self._raw.get
        return fn(snapshot)


class File:
    """The file that all edits begin with."""

    def __init__(self, directory: Path) -> None:
        self.path, anchor = directory / "a.memcore", directory / "anchor"
        self.old_head = fill(self.path, anchor)
        with memcore.open(self.path, read_only=True) as db:
            seed = db.engine.store.seed
        self.chainer = Chainer(KEY, seed)
        self.lines = anchor.read_bytes().splitlines()
        self.seed = seed
        self.env = lmdb.open(str(self.path), subdir=False, map_size=2**26, metasync=False)
        with self.env.begin() as txn:
            self.rows = {bytes(k): bytes(v) for k, v in txn.cursor() if k[0] > 0}
        self.chains: dict[Place, dict[int, bytes]] = {}
        """The keys of the entries of each chain."""
        self.entry_of: dict[bytes, tuple[Place, int]] = {}
        """The last entry of each row that is noted."""
        self.heads: dict[Place, list[tuple[int, bytes]]] = {}
        self._index()

    def _index(self) -> None:
        last: dict[tuple[Place, bytes], int] = {}
        for key, value in self.rows.items():
            if key[0] == keys.Kind.SESSION and keys.row_of(key) == Row.AUDIT:
                scope, session = keys.split_session_prefix(key)
            elif key[0] == keys.Kind.CARE and key[9:11] == b"\x04\x01":
                scope, session = keys.split_scoped(key)[0], 0
            else:
                continue
            place, number = (scope, session), keys.number_of(key)
            self.chains.setdefault(place, {})[number] = key
            entry = unpack_entry(value[10:])
            if entry.op is Op.PUT:
                last[place, entry.said[32:]] = number
            if entry.head:
                self.heads.setdefault(place, []).append((number, entry.head))
        for key in self.rows:
            place = chain_of(key)
            if place is not None and not key.endswith(HEAD):
                self.entry_of[key] = place, last[place, told_row(self.chainer, place, key)]

    def verify(
        self, changes: dict[bytes, bytes | None], *, anchored: bool = True
    ) -> list[Suspicion]:
        with self.env.begin(write=True) as txn:
            for key, value in changes.items():
                txn.delete(key)
                if value is not None:
                    txn.put(key, value)
            lines = self.lines if anchored else ()
            found = Verification(
                Forged(self.path, txn), self.chainer, read_anchor(lines, self.chainer, self.seed)
            )
            found.run()
            txn.abort()
        return sorted(found.found.values())

    def resealed(self, key: bytes, like: bytes) -> bytes:
        """The value of a row, with another body, under a right checksum."""
        return seal_value(key, like[10:], like[1])

    def bent(self, key: bytes, at: int, bit: int) -> bytes:
        body = bytearray(self.rows[key][10:] or b"\0")
        body[at % len(body)] ^= 1 << bit
        return seal_value(key, bytes(body), self.rows[key][1])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[File]:
    found = File(tmp_path_factory.mktemp("audit"))
    yield found
    found.env.close()


def chosen(cases: list[Any]) -> list[Any]:
    return cases if len(cases) <= SAMPLES else random.Random(SEED).sample(cases, SAMPLES)


def all_entries(file: File) -> list[tuple[Place, int, bytes]]:
    return [(place, n, key) for place, chain in file.chains.items() for n, key in chain.items()]


def test_an_untouched_file_holds(file: File) -> None:
    assert file.verify({}) == []
    assert len(all_entries(file)) > 40
    assert {key[0] for key in file.entry_of} >= {0x02, 0x03, 0x04, 0x05, 0x07, 0x0A, 0x0B}


def test_a_changed_entry_is_named(file: File) -> None:
    rng = random.Random(SEED)
    for place, number, key in chosen(all_entries(file)):
        at, bit = rng.randrange(10_000), rng.randrange(8)
        found = file.verify({key: file.bent(key, at, bit)})
        assert [(s.place, s.number) for s in found] == [(place, number)], (at, bit)
        assert found[0].why in (Why.MODIFIED, Why.REORDERED)


def test_a_deleted_entry_is_named(file: File) -> None:
    for place, number, key in chosen(all_entries(file)):
        found = file.verify({key: None})
        is_last = number == max(file.chains[place])
        why = Why.TRUNCATED if is_last else Why.DELETED
        assert (place, number, why) in [s[:3] for s in found]
        # Where the end of a deleted session is not told any more, the anchor misses its chain.
        assert {s.place for s in found} <= {place, (1, 3)}


def test_swapped_entries_are_named(file: File) -> None:
    pairs = [
        (place, a, b) for place, chain in file.chains.items() for a in chain for b in chain if a < b
    ]
    for place, a, b in chosen(pairs):
        first, second = file.chains[place][a], file.chains[place][b]
        found = file.verify({
            first: file.resealed(first, file.rows[second]),
            second: file.resealed(second, file.rows[first]),
        })  # fmt: skip
        assert [s[:3] for s in found] == [(place, a, Why.REORDERED)]


def test_a_truncated_chain_is_named(file: File) -> None:
    for place, number, _ in chosen(all_entries(file)):
        gone = [key for n, key in file.chains[place].items() if n >= number]
        found = file.verify(dict.fromkeys(gone))
        assert (place, number, Why.TRUNCATED) in [s[:3] for s in found], (place, number)


def test_an_inserted_entry_is_named(file: File) -> None:
    for place, number, key in chosen(all_entries(file)):
        chain = file.chains[place]
        rows = keys.audit_rows(*place)
        changes: dict[bytes, bytes | None] = {key: file.bent(key, -40, 1)}
        for n in range(number, max(chain) + 1):
            moved = keys.numbered(rows, n + 1)
            changes[moved] = file.resealed(moved, file.rows[chain[n]])
        found = file.verify(changes)
        assert [s[:2] for s in found] == [(place, number)]
        assert found[0].why in (Why.INSERTED, Why.REORDERED)


def test_an_appended_entry_is_named(file: File) -> None:
    for place, chain in file.chains.items():
        after = keys.numbered(keys.audit_rows(*place), max(chain) + 1)
        body = bytearray(file.rows[chain[max(chain)]][10:])
        body[2:6] = (max(chain) + 1).to_bytes(4, "big")
        found = file.verify({after: seal_value(after, bytes(body))})
        assert [s[:3] for s in found] == [(place, max(chain) + 1, Why.INSERTED)]


def test_a_changed_row_is_named(file: File) -> None:
    rng = random.Random(SEED)
    for key, (place, number) in chosen(list(file.entry_of.items())):
        value = file.bent(key, rng.randrange(10_000), rng.randrange(8))
        found = file.verify({key: value})
        assert [s[:3] for s in found] == [(place, number, Why.MODIFIED)], key.hex()


def test_a_deleted_row_is_named(file: File) -> None:
    for key, (place, number) in chosen(list(file.entry_of.items())):
        assert [s[:3] for s in file.verify({key: None})] == [(place, number, Why.DELETED)], (
            key.hex()
        )


def test_swapped_rows_are_named(file: File) -> None:
    noted = file.entry_of
    pairs = [
        (a, b)
        for a in noted
        for b in noted
        if a < b and noted[a][0] == noted[b][0] and noted[a][0][1] and a[17] == b[17]
    ]
    for a, b in chosen(pairs):
        for values in (
            (file.rows[b], file.rows[a]),
            (file.resealed(a, file.rows[b]), file.resealed(b, file.rows[a])),
        ):
            found = file.verify(dict(zip((a, b), values, strict=True)))
            first = min(noted[a][1], noted[b][1])
            assert [s[:3] for s in found] == [(noted[a][0], first, Why.SWAPPED)]


def test_rows_between_users_are_named(file: File) -> None:
    """A row of one session under the key of another's."""
    noted = file.entry_of
    pairs = [
        (a, b) for a in noted for b in noted if a[0] == b[0] == 5 and noted[a][0] != noted[b][0]
    ]
    for a, b in chosen(pairs):
        found = file.verify({b: file.resealed(b, file.rows[a])})
        assert [s[:3] for s in found] == [(*noted[b], Why.MODIFIED)]


def test_an_inserted_row_is_named(file: File) -> None:
    for key, (place, _) in chosen(list(file.entry_of.items())):
        new = key[:-1] + bytes((key[-1] ^ 0x55,))
        if new in file.rows or chain_of(new) != place:
            continue
        found = file.verify({new: file.resealed(new, file.rows[key])})
        expected = (place, max(file.chains[place]) + 1, Why.UNAUDITED)
        assert expected in [s[:3] for s in found], key.hex()


def test_a_deleted_row_that_is_back_is_named(file: File) -> None:
    kv = next(key for key in file.entry_of if key[0] == keys.Kind.KV)
    gone = kv[:17] + keys.pack_text("k1")
    found = file.verify({gone: file.resealed(gone, file.rows[kv])})
    assert [s.why for s in found] == [Why.RESTORED]


def test_a_head_is_bound(file: File) -> None:
    for place, told in file.heads.items():
        key = keys.session_row(*place, Row.HEAD, 0)
        number = told[-1][0]
        for at in (0, 30, 200):
            found = file.verify({key: file.bent(key, at, 0)})
            assert [s[:3] for s in found] == [(place, number, Why.MODIFIED)]
        assert [s[:3] for s in file.verify({key: None})] == [(place, number, Why.DELETED)]


def test_a_head_that_is_rolled_back_is_named(file: File) -> None:
    from memcore.codec.audit_entry import head_digest_of

    key = keys.session_row(1, 1, Row.HEAD, 0)
    told = [n for n, digest in file.heads[1, 1] if digest == head_digest_of(file.old_head)]
    found = file.verify({key: file.old_head})
    assert [s[:3] for s in found] == [((1, 1), told[-1] + 1, Why.ROLLED_BACK)]


def test_a_whole_session_that_is_gone_is_named(file: File) -> None:
    for place in [p for p in file.chains if p[1]]:
        prefix = keys.session_prefix(*place)
        gone = [key for key in file.rows if key.startswith(prefix)]
        for anchored in (True, False):
            found = file.verify(dict.fromkeys(gone), anchored=anchored)
            assert (place, 1, Why.TRUNCATED) in [s[:3] for s in found]


def test_rows_and_their_entries_cut_off_together_are_named_by_the_anchor(file: File) -> None:
    """The last entry goes with the row that it tells of: without an anchor nothing would show."""
    place = max(p for p in file.chains if p[1])
    last = max(file.chains[place])
    rows = [key for key, at in file.entry_of.items() if at == (place, last)]
    changes = dict.fromkeys([*rows, file.chains[place][last]])
    assert [s[:3] for s in file.verify(changes)] == [(place, last, Why.TRUNCATED)]


def test_another_key_proves_nothing(file: File) -> None:
    chainer = Chainer(bytes(32), file.seed)
    with file.env.begin(write=True) as txn:
        found = Verification(Forged(file.path, txn), chainer, read_anchor((), chainer, file.seed))
        found.run()
        assert found.entries == 0
        assert {s.number for s in found.found.values()} == {1}
