"""Salvage: nothing wrong is ever taken over, all that can be proven is, and the rest is named."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from threaded import Thread, texts

import memcore
from memcore.codec import keys
from memcore.codec.keys import SECRET_KEY, Care, Counter, Kind, Row, ThreadRow, scoped, session_row
from memcore.codec.values import seal_value
from memcore.errors import NotFoundError, StoreAccessError, StoreFormatError, StoreLockedError
from memcore.log import Head
from memcore.maintenance.check import damage_of
from memcore.maintenance.salvage_rows import is_row
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import tombstone_of
from memcore.session.session import ref_of, store_of
from memcore.store.encryption import SECRET_ROW_BYTES
from memcore.store.page_scan import PageScan, RowCandidate, readable_metas
from memcore.store.redo_log import find_run
from thinned import thinned

PAGE = 4096
Who = tuple[str, str, str]


def user(number: int, rng: random.Random) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number} " + "x" * rng.randrange(20, 600)}


def call(number: int) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"result {number}"},
    ]


def fill(db: memcore.Database, rng: random.Random) -> dict[Who, dict[int, Any]]:
    """Sessions with all that there is; what was ever stored, by session and seq."""
    ever: dict[Who, dict[int, Any]] = {}

    def note(session: memcore.Session, name: str, owner: str) -> None:
        known = ever.setdefault(("app", owner, name), {})
        known.update((item.seq, item.message) for item in session.items())

    for number in range(20):
        owner, name = f"u{number % 3}", f"s{number}"
        scope = db.scope(app="app", user=owner)
        session = scope.session(name)
        for _ in range(rng.randrange(1, 6)):
            batch: list[dict[str, Any]] = []
            for at in range(rng.randrange(1, 25)):
                batch += call(rng.randrange(10**9)) if rng.random() < 0.2 else [user(at, rng)]
            session.extend(batch)
            note(session, name, owner)
            if rng.random() < 0.4:
                session.undo(rng.randrange(1, 4))
            session.record("note", {"number": number})
            session.state.update({"number": number, "text": "w" * rng.randrange(10, 900)})
            shared = {f"app:field {number % 5}": number, f"user:field {number}": "v" * number}
            session.state.update(shared)
            session.report_usage(5_000, model=f"m{number % 2}")
        if number % 6 == 0:
            session.append({"role": "user", "content": "large " + "z" * 200_000})
        if number % 5 == 0:
            fork = session.fork(f"f{number}")
            # What was undone before it may be live where no head tells otherwise.
            note(session, name, owner)
            ever["app", owner, f"f{number}"] = dict(ever["app", owner, name])
            fork.extend([user(at, rng) for at in range(8)])
            session.extend([user(at, rng) for at in range(3)])
            note(fork, f"f{number}", owner)
        if number % 7 == 0:
            session.compact(keep_last=4)
        note(session, name, owner)
    for owner in ("u0", "u1"):
        scope = db.scope(app="app", user=owner)
        for at in range(120):
            value = {"at": at, "text": "y" * rng.randrange(10, 200)}
            scope.kv("k").put(f"key{at}", value, ttl_seconds=9999 if at % 3 == 0 else None)
        scope.blobs.put(rng.randbytes(300_000))
    for number in (4, 11):
        db.delete_session(f"s{number}", user=f"u{number % 3}", app="app")
    return ever


def content(path: Path) -> tuple[dict[Who, dict[int, Any]], dict[tuple[str, str], Any]]:
    sessions: dict[Who, dict[int, Any]] = {}
    values: dict[tuple[str, str], Any] = {}
    with memcore.open(path, read_only=True) as db:
        for entry in db.sessions():
            session = db.session(entry.session_id, user=entry.user, app=entry.app)
            found = {item.seq: item.message for item in session.items()}
            sessions[entry.app, entry.user, entry.session_id] = found
            session.context(budget_tokens=10**6)
            for key, value in session.state.all().items():
                values[entry.user, f"{entry.session_id}.{key}"] = value
        for app, owner in db.scopes():
            for key, value in db.scope(app=app, user=owner).kv("k").scan():
                values[owner, key] = value
    return sessions, values


class Sound:
    """A sound file, and what was ever in it."""

    def __init__(self, path: Path, durability: str) -> None:
        with memcore.open(path, durability=durability) as db:
            self.ever = fill(db, random.Random(7))
            assert db.check() == []
        self.raw = path.read_bytes()
        self.path = path
        self.sessions, self.values = content(path)
        self.items = sum(map(len, self.sessions.values()))


@pytest.fixture(scope="module", params=["full", "relaxed"])
def sound(request, tmp_path_factory) -> Sound:
    return Sound(tmp_path_factory.mktemp("salvage") / "sound", request.param)


@pytest.fixture
def saved(tmp_path) -> Path:
    return tmp_path / "saved"


def meta_of(raw: bytes, tmp_path: Path) -> Any:
    path = tmp_path / "meta"
    path.write_bytes(raw[: 2 * PAGE])
    with path.open("rb") as file:
        return readable_metas(file.fileno())[0]


def zero(raw: bytearray, page: int) -> None:
    raw[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)


def salvaged(raw: bytes, tmp_path: Path, saved: Path) -> memcore.SalvageReport:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(raw)
    report = memcore.salvage(damaged, saved)
    assert damaged.read_bytes() == raw
    with memcore.open(saved) as db:
        assert db.check() == []
        for entry in db.sessions():  # and it can be written to
            session = db.session(entry.session_id, user=entry.user, app=entry.app)
            before = len(session)
            session.append({"role": "user", "content": "goes on"})
            assert len(session) == before + 1
            session.undo()
    assert {path.name for path in saved.parent.iterdir() if ".new-" in path.name} == set()
    return report


def compare(sound: Sound, saved: Path) -> tuple[float, float]:
    """The share of live items and entries that are there; nothing may be there that never was."""
    sessions, values = content(saved)
    good = 0
    for who, found in sessions.items():
        owners = [who] if who in sound.ever else renamed(sound, who, found)
        for seq, message in found.items():
            assert sound.ever[owners[0]].get(seq) == message, (who, seq)
        good += max(
            sum(sound.sessions.get(owner, {}).get(seq) == message for seq, message in found.items())
            for owner in owners
        )
    same = sum(sound.values.get(key) == value for key, value in values.items())
    return good / sound.items, same / len(sound.values)


def renamed(sound: Sound, who: Who, found: dict[int, Any]) -> list[Who]:
    """The sessions whose items these are: the rows that name a session or a user may be lost.

    Where such rows lie in the file is a matter of time.
    """
    assert who[2].startswith("salvaged-") or who[1].startswith("scope-"), who
    owners = [owner for owner, known in sound.ever.items() if found.items() <= known.items()]
    assert owners, (who, sorted(found))
    return owners


# --- whole files ----------------------------------------------------------------------------------


def test_a_sound_file_comes_through_as_it_is(sound, tmp_path, saved) -> None:
    report = salvaged(sound.raw, tmp_path, saved)
    assert compare(sound, saved) == (1, 1)
    assert set(content(saved)[0]) == set(sound.sessions)
    assert (report.items, report.items_lost, report.share) == (sound.items, 0, 1)
    assert (report.damaged, report.lost, report.unsure) == ((), (), ())
    assert (report.pages_unread, report.blobs_lost) == (0, 0)
    with memcore.open(saved) as db, memcore.open(sound.path) as before:
        assert db.durability == before.durability == report.durability
        for number in range(0, 20, 7):
            view = db.session(f"s{number}", user=f"u{number % 3}", app="app").context()
            theirs = before.session(f"s{number}", user=f"u{number % 3}", app="app").context()
            assert view.messages == theirs.messages


def test_the_waiting_redo_record_counts(tmp_path, saved) -> None:
    path = tmp_path / "cut"
    with memcore.open(path) as db:
        session = db.session("chat")
        session.append({"role": "user", "content": "one"})
        metas = path.read_bytes()[: 2 * PAGE]
        session.append({"role": "user", "content": "two"})
    raw = metas + path.read_bytes()[2 * PAGE :]
    report = salvaged(raw, tmp_path, saved)
    assert (report.items, report.unsure) == (2, ())


def test_a_relaxed_file_of_another_boot_counts_up_to_its_steady_point(
    tmp_path, saved, monkeypatch
) -> None:
    """What was committed later was not flushed: any page of it may be torn."""
    path = tmp_path / "relaxed"
    with memcore.open(path, durability="relaxed") as db:
        session = db.session("chat")
        session.append({"role": "user", "content": "steady"})
        db.flush()
        record = path.read_bytes()
        session.append({"role": "user", "content": "later"})
        raw = bytearray(path.read_bytes())
    first = raw.index(b"memcore-redo-v1\0") - 16
    raw[first : first + 130 * PAGE] = record[first : first + 130 * PAGE]  # no later steady point
    monkeypatch.setattr("memcore.store.steady.boot_id", lambda: bytes(16))
    assert salvaged(bytes(raw), tmp_path, saved).items == 1


# --- a corpus of damages --------------------------------------------------------------------------


def no_metas(raw: bytearray, _: random.Random, __: Any) -> None:
    zero(raw, 0)
    zero(raw, 1)


def one_meta(raw: bytearray, _: random.Random, meta: Any) -> None:
    zero(raw, ~meta.txnid & 1)


def truncated(raw: bytearray, _: random.Random, __: Any) -> None:
    del raw[len(raw) * 3 // 10 :]


def pages_zeroed(raw: bytearray, rng: random.Random, __: Any) -> None:
    for page in rng.sample(range(2, len(raw) // PAGE), 200):
        zero(raw, page)


def some_pages_zeroed(raw: bytearray, rng: random.Random, __: Any) -> None:
    for page in rng.sample(range(2, len(raw) // PAGE), 20):
        zero(raw, page)


def pages_of_noise(raw: bytearray, rng: random.Random, __: Any) -> None:
    for page in rng.sample(range(2, len(raw) // PAGE), 40):
        raw[page * PAGE : (page + 1) * PAGE] = rng.randbytes(PAGE)


def pages_swapped(raw: bytearray, rng: random.Random, __: Any) -> None:
    for _ in range(10):
        a, b = (page * PAGE for page in rng.sample(range(2, len(raw) // PAGE), 2))
        raw[a : a + PAGE], raw[b : b + PAGE] = raw[b : b + PAGE], raw[a : a + PAGE]


def root_zeroed(raw: bytearray, _: random.Random, meta: Any) -> None:
    zero(raw, meta.main_root)


def root_and_free_list_zeroed(raw: bytearray, _: random.Random, meta: Any) -> None:
    zero(raw, meta.main_root)
    zero(raw, meta.free_root)


def root_flipped(raw: bytearray, rng: random.Random, meta: Any) -> None:
    raw[meta.main_root * PAGE + rng.randrange(64)] ^= 1 << rng.randrange(8)


def bits_flipped(raw: bytearray, rng: random.Random, __: Any) -> None:
    for _ in range(100):
        raw[rng.randrange(2 * PAGE, len(raw))] ^= 1 << rng.randrange(8)


Damage = Callable[[bytearray, random.Random, Any], None]
DAMAGES: list[tuple[Damage, float]] = [
    (no_metas, 1.0), (one_meta, 1.0), (truncated, 0.0), (pages_zeroed, 0.5),
    (some_pages_zeroed, 0.85), (pages_of_noise, 0.8), (pages_swapped, 0.85), (root_zeroed, 1.0),
    (root_and_free_list_zeroed, 1.0), (root_flipped, 1.0), (bits_flipped, 0.8),
]  # fmt: skip
"""With the share of the items that must come through."""


@pytest.mark.parametrize(
    ("damage", "least"), DAMAGES, ids=lambda found: getattr(found, "__name__", "")
)
def test_all_that_can_be_proven_comes_through(sound, tmp_path, saved, damage, least) -> None:
    raw = bytearray(sound.raw)
    damage(raw, random.Random(1), meta_of(sound.raw, tmp_path))
    report = salvaged(bytes(raw), tmp_path, saved)
    items, _ = compare(sound, saved)
    assert items >= least
    if items < 1:
        assert report.damaged or report.lost or report.pages_unread != 0


def test_what_a_readable_part_shows_to_be_deleted_stays_deleted(sound, tmp_path, saved) -> None:
    """The root is gone, but the free list tells old pages from current ones."""
    raw = bytearray(sound.raw)
    root_zeroed(raw, random.Random(0), meta_of(sound.raw, tmp_path))
    report = salvaged(bytes(raw), tmp_path, saved)
    assert set(content(saved)[0]) == set(sound.sessions)
    assert (report.unsure, report.lost, report.damaged) == ((), (), ())


def test_a_device_that_cannot_read_a_page_loses_that_page_only(
    sound, tmp_path, saved, monkeypatch
) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(sound.raw)
    broken = random.Random(3).sample(range(len(sound.raw) // PAGE), 30)
    inode, pread = damaged.stat().st_ino, os.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        pages = range(offset // PAGE, (offset + size - 1) // PAGE + 1)
        if os.fstat(fd).st_ino == inode and any(page in pages for page in broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    monkeypatch.setattr("os.pread", failing)
    memcore.salvage(damaged, saved)
    assert compare(sound, saved)[0] > 0.8


def test_the_places_of_the_redo_records_may_be_what_the_device_cannot_read(
    sound, tmp_path, saved, monkeypatch
) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(sound.raw)
    with damaged.open("rb") as file:
        run = find_run(file.fileno(), "")
    inode, pread = damaged.stat().st_ino, os.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == inode and any(offset <= at < offset + size for at in run.slots):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    monkeypatch.setattr("os.pread", failing)
    report = memcore.salvage(damaged, saved)
    assert compare(sound, saved) == (1, 1)
    assert report.pages_unread == (0 if run.relaxed else 1)  # a commit may have waited there


# --- one row --------------------------------------------------------------------------------------


@pytest.fixture
def chat(tmp_path) -> Path:
    path = tmp_path / "chat"
    with memcore.open(path) as db:
        session = db.session("chat")
        for number in range(40):
            session.append({"role": "user", "content": f"message {number:03} " + "x" * 300})
        session.extend(call(1))
        db.scope(user="other").kv("k").put("name", "value of the entry")
    return path


def flipped(raw: bytes, what: bytes) -> bytes:
    """Every copy of a row damaged: the current one and those on free pages and in the redo run."""
    assert what in raw
    return raw.replace(what, bytes((what[0] ^ 1,)) + what[1:])


def test_one_flipped_byte_loses_exactly_this_item(chat, tmp_path, saved) -> None:
    report = salvaged(flipped(chat.read_bytes(), b"message 007 "), tmp_path, saved)
    (session,) = report.damaged
    assert (session.session_id, session.lost, session.notes) == ("chat", (8,), ())
    assert (report.items, report.items_lost) == (41, 1)
    with memcore.open(saved) as db:
        found = db.session("chat")
        assert [item.seq for item in found.items()] == [*range(1, 8), *range(9, 43)]
        assert found.open_calls == []


def test_an_item_of_a_free_page_counts_if_the_index_vouches_for_it(chat, tmp_path, saved) -> None:
    """The current copy is damaged, an old one is not: it is the same row, its checksum says so."""
    raw = bytearray(chat.read_bytes())
    at = raw.find(b"message 039 ")
    copies = []
    while at >= 0:
        copies.append(at)
        at = raw.find(b"message 039 ", at + 1)
    assert len(copies) > 1
    for one in copies:
        alone = bytearray(raw)
        alone[one] ^= 1
        saved.unlink(missing_ok=True)
        report = salvaged(bytes(alone), tmp_path, saved)
        assert (report.items, report.items_lost, report.lost) == (42, 0, ())


def test_results_whose_call_is_lost_are_orphans(chat, tmp_path, saved) -> None:
    raw = flipped(chat.read_bytes(), b'"id":"c1"')
    report = salvaged(raw, tmp_path, saved)
    assert report.damaged[0].lost == (41,)
    with memcore.open(saved) as db:
        context = db.session("chat").context()
        assert memcore.validate(context.messages) == []
        assert all(message["role"] == "user" for message in context.messages)


def test_a_lost_entry_is_named(chat, tmp_path, saved) -> None:
    report = salvaged(flipped(chat.read_bytes(), b"value of the entry"), tmp_path, saved)
    assert (report.items, report.entries) == (42, 0)
    assert report.lost == ("entry 'name' of namespace 'k', as far as it reads",)


def test_a_lost_field_of_a_state_is_named(chat, tmp_path, saved) -> None:
    with memcore.open(chat) as db:
        db.session("chat").state.update({"goal": "the older goal"})
        db.session("chat").state.update({"goal": "the newer goal"})
    report = salvaged(flipped(chat.read_bytes(), b"the newer goal"), tmp_path, saved)
    assert report.lost == (
        "field 'goal' (counter 2) of the state of session 'chat', as far as it reads",
    )
    with memcore.open(saved) as db:
        assert db.session("chat").state.all() == {"goal": "the older goal"}


def test_what_sessions_share_is_saved_in_its_newest_values(chat, tmp_path, saved) -> None:
    with memcore.open(chat) as db:
        scope = db.scope(user="u", app="a")
        for turn in range(5):
            scope.app_state.update({"turn": turn, "lost": f"the lost value {turn}", "kept": None})
            scope.state.update({f"only {turn}": turn})
            scope.state.delete(f"only {turn - 1}")
    report = salvaged(flipped(chat.read_bytes(), b"the lost value 4"), tmp_path, saved)
    assert report.lost == ("field 'lost' of the state of app 'a', as far as it reads",)
    with memcore.open(saved) as db:
        assert ("a", "") not in db.scopes()
        scope = db.scope(user="u", app="a")
        assert scope.app_state.all() == {"turn": 4, "kept": None}
        assert scope.state.all() == {"only 4": 4}
        assert (scope.app_state.counter, scope.state.counter) == (5, 9)
        assert db.scope(user="new", app="a").session("s").state["app:turn"] == 4
        assert scope.app_state.put("turn", 5) == 6


@pytest.mark.parametrize("owner", ["u", None])
def test_what_sessions_share_is_there_without_its_header(chat, tmp_path, saved, owner) -> None:
    with memcore.open(chat) as db:
        scope = db.scope(user="u", app="a")
        state = scope.app_state if owner is None else scope.state
        state.update({"a": 1, "b": 1})
        state.update({"a": 2})
    with lmdb.open(str(chat), subdir=False) as env:
        for number in range(3):  # nothing current holds an old one
            with env.begin(write=True) as txn:
                txn.put(scoped(Kind.STATE, 2) + bytes(8), b"x%d" % number)
    with memcore.open(chat) as db:
        (found,) = db.check()
        assert damage_of(found).name == "STATE"
    salvaged(chat.read_bytes(), tmp_path, saved)
    with memcore.open(saved) as db:
        scope = db.scope(user="u", app="a")
        state = scope.app_state if owner is None else scope.state
        assert (state.all(), state.counter) == ({"a": 2, "b": 1}, 2)


@pytest.mark.parametrize("with_items", [False, True])
def test_a_state_without_its_header_is_there(chat, tmp_path, saved, with_items) -> None:
    with memcore.open(chat) as db:
        session = db.session("chat" if with_items else "other")
        session.state.update({"a": 1, "b": 1})
        session.state.update({"a": 2})
    with lmdb.open(str(chat), subdir=False) as env:
        for number in range(3):  # nothing current holds an old one
            with env.begin(write=True) as txn:
                txn.put(session_row(1, 1 if with_items else 2, Row.STATE, 0), b"x%d" % number)
    salvaged(chat.read_bytes(), tmp_path, saved)
    with memcore.open(saved) as db:
        state = db.session(session.id).state
        assert (state.all(), state.counter) == ({"a": 2, "b": 1}, 2)


def test_without_head_and_index_the_items_are_there(chat, tmp_path, saved) -> None:
    head = b"openai_chat"
    report = salvaged(flipped(chat.read_bytes(), head), tmp_path, saved)
    (session,) = report.damaged
    assert (session.items, session.lost) == (42, ())
    assert "its head was lost" in session.notes[0]


@pytest.mark.parametrize("policy", ["op\x04nai_chat", "", "x" * 200])
def test_a_policy_that_none_has_is_damage_of_the_head(chat, tmp_path, saved, policy) -> None:
    key = head_key(1, 1)

    def forge(txn):
        head = Head.unpack(key, txn.get(key))
        head.policy = policy
        txn.put(key, seal_value(key, head.pack()))

    with memcore.open(chat) as db:
        db.engine.store.transact(forge)
    with memcore.open(chat) as db:
        session, item = db.session("chat"), {"role": "user", "content": "x"}
        for read in (
            lambda: list(session.items()),
            lambda: session.context(100),
            lambda: session.append(item),
        ):
            with pytest.raises(memcore.CorruptValueError) as caught:
                read()
            assert caught.value.key == key
        assert any("head" in finding for finding in db.check())
    report = salvaged(chat.read_bytes(), tmp_path, saved)
    assert (report.items, report.items_lost) == (42, 0)


def test_a_value_that_holds_a_page_injects_nothing(tmp_path, saved) -> None:
    """Whoever may store a blob can store what looks like a page with rows of somebody else."""
    donor, path = tmp_path / "donor", tmp_path / "victim"
    with memcore.open(donor, durability="none", allow_unsafe=True) as db:
        for _ in range(3):
            db.session("s", user="a", app="x").append({"role": "user", "content": "forged words"})
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        db.session("s", user="a", app="x").append({"role": "user", "content": "true words"})
    raw = donor.read_bytes()
    at = meta_of(raw, tmp_path).main_root * PAGE
    page = raw[at : at + PAGE]
    with memcore.open(path) as db:
        start, stride = 0, 0
        for number in range(8):  # a page is believed only in its own place: guess it
            mark = b"mark %02d" % number
            places = range(start + stride + 1, start + stride + 30)
            pages = b"".join(place.to_bytes(8, "little") + page[8:] for place in places)
            db.scope(user="b", app="x").blobs.put(mark.ljust(PAGE - 26) + pages)
            found = path.read_bytes().index(mark) // PAGE
            stride, start = found - start, found
    damaged = bytearray(path.read_bytes())
    there = [
        place
        for place in range(2, len(damaged) // PAGE)
        if damaged[place * PAGE :][:8] == place.to_bytes(8, "little")
        and b"forged words" in damaged[place * PAGE :][:PAGE]
    ]
    assert there
    no_metas(damaged, random.Random(0), None)
    salvaged(bytes(damaged), tmp_path, saved)
    sessions, _ = content(saved)
    assert sessions["x", "a", "s"] == {1: {"role": "user", "content": "true words"}}


def test_a_session_of_which_no_row_can_be_copied_is_told(tmp_path, saved) -> None:
    """Neither its name nor its head is certain, and the contents of its items are lost."""
    path = tmp_path / "large"
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        chat, other = db.session("large"), db.session("other")
        chat.extend([{"role": "user", "content": f"{at} " + "z" * 200_000} for at in range(2)])
        other.append({"role": "user", "content": "still there"})
        scope, number = ref_of(chat).log.place
        gone = [keys.session_rows(scope, number, row) for row in (Row.HEAD, Row.INDEX)]

        def lose(txn: Any) -> None:
            for start in (*gone, bytes((Kind.BLOB,)), bytes((Kind.BLOB_CHUNK,))):
                txn.delete_range(start, keys.after(start))

        store_of(chat).transact(lose)
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env,
        (tmp_path / "copy").open("wb") as copy,
    ):
        env.copyfd(copy.fileno(), compact=True)  # without the freed pages, which hold them still
    raw = bytearray((tmp_path / "copy").read_bytes())
    no_metas(raw, random.Random(0), None)
    report = salvaged(bytes(raw), tmp_path, saved)
    told = {each.session_id: each for each in report.damaged}
    assert told["large"].lost == (1, 2)
    with memcore.open(saved) as db:
        assert db.check() == []
        assert list(db.session("large")) == []
        assert [item.message["content"] for item in db.session("other")] == ["still there"]


# --- refusals -------------------------------------------------------------------------------------


def test_what_salvage_refuses(chat, tmp_path, saved) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        memcore.salvage(tmp_path / "none", saved)
    with pytest.raises(StoreAccessError, match="exists"):
        memcore.salvage(chat, chat)
    foreign = tmp_path / "foreign"
    for raw in (b"", b"x", random.Random(1).randbytes(50 * PAGE), bytes(50 * PAGE)):
        foreign.write_bytes(raw)
        with pytest.raises(StoreFormatError, match="no row of memcore is left in it"):
            memcore.salvage(foreign, saved)
    with memcore.open(chat), pytest.raises(StoreLockedError):
        memcore.salvage(chat, saved)
    with pytest.raises(StoreAccessError):
        memcore.salvage(chat, tmp_path / "no" / "directory")
    assert not saved.exists()


def test_progress_is_told(chat, saved) -> None:
    seen: list[tuple[str, int, int]] = []
    memcore.salvage(chat, saved, progress=lambda *step: seen.append(step))
    assert list(dict.fromkeys(what for what, _, _ in seen)) == [
        "reading pages", "writing", "sorting sessions", "checking",
    ]  # fmt: skip
    assert all(0 <= done <= total for _, done, total in seen)


# --- deletions that were cut short, rows that make no sense --------------------------------------


def test_a_deletion_that_was_cut_short_is_not_undone(tmp_path, saved, monkeypatch) -> None:
    """Neither its rows nor those of the hidden sessions that only it kept come over."""
    path = tmp_path / "cut"
    large = "large " + "z" * 4_000_000
    with memcore.open(path) as db:
        parent = db.session("parent")
        parent.append({"role": "user", "content": "secret of the parent"})
        fork = parent.fork("fork")
        fork.extend([{"role": "user", "content": f"secret {n}"} for n in range(1500)])
        other = db.session("other")
        other.append({"role": "user", "content": "fine"})
        other.append({"role": "user", "content": large})
        db.session("blob").append({"role": "user", "content": large + " secret"})
        db.delete_session("parent")
        with monkeypatch.context() as patch:
            patch.setattr("memcore.session.delete._go_on", lambda *_: None)
            db.delete_session("fork")
            db.delete_session("blob")
        assert db.check() == []
    report = salvaged(path.read_bytes(), tmp_path, saved)
    assert (report.sessions, report.items, report.blobs) == (1, 2, 1)
    assert (report.items_lost, report.blobs_lost, report.damaged, report.lost) == (0, 0, (), ())
    assert b"secret" not in saved.read_bytes()
    with memcore.open(saved) as db:
        db.session("new").append({"role": "user", "content": "on"})
        assert db.check() == []


def test_an_entry_whose_key_is_damaged_is_lost_and_nothing_else(chat, tmp_path, saved) -> None:
    broken = chat.read_bytes().replace(b"name\0", b"name\1")
    report = salvaged(broken, tmp_path, saved)
    assert (report.items, report.entries) == (42, 0)


BODIES = (b"", b"\0", b"\xff" * 8, b"\xff" * 17, b"\xff" * 25, b"a\0", b"{}", b"\xff" * 400)


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 6, 8, 9, 10, 11])
def test_a_sealed_row_that_makes_no_sense_is_a_damaged_one(tmp_path, saved, kind) -> None:
    path = tmp_path / "sealed"
    with memcore.open(path) as db:
        fill(db, random.Random(3))
    with lmdb.open(str(path), subdir=False) as env:
        with env.begin() as txn:
            rows = [key for key, _ in txn.cursor() if key[0] == kind]
        rng = random.Random(kind)
        chosen = {key[17:18]: key for key in rows} if kind == 5 else {b"": rows[0]}
        for row in chosen.values():
            with env.begin(write=True) as txn:
                for key in {row, rng.choice(rows)}:
                    txn.put(key, seal_value(key, rng.choice(BODIES), rng.choice((0, 2, 8))))
                cut = row[: rng.randrange(1, len(row))]
                txn.put(cut, seal_value(cut, b"short"))
    report = memcore.salvage(path, saved)
    with memcore.open(saved) as db:
        assert db.check() == []
    assert report.items > 100


@pytest.mark.parametrize("row", ["head", "item"])
def test_a_row_that_claims_more_items_than_a_file_can_hold_is_not_believed(
    chat, tmp_path, saved, row
) -> None:
    with lmdb.open(str(chat), subdir=False) as env, env.begin(write=True) as txn:
        key = head_key(1, 1)
        head = Head.unpack(key, txn.get(key))
        if row == "head":
            head.next_seq = 2**50
            txn.put(key, seal_value(key, head.pack()))
        else:
            txn.delete(key)
            value = txn.get(session_row(1, 1, Row.ITEM, 1))
            key = session_row(1, 1, Row.ITEM, 2**50)
            txn.put(key, seal_value(key, value[10:], value[1]))
    report = salvaged(chat.read_bytes(), tmp_path, saved)
    assert (report.items, report.items_lost) == (42, 0)


# --- deleted sessions whose rows forks share ------------------------------------------------------


def hidden_parent(path: Path, *, neighbour: bool = False) -> RowCandidate:
    """A file with a session that is hidden for the sake of a fork; where its head lies."""
    with memcore.open(path) as db:
        session = db.session("parent")
        session.extend([{"role": "user", "content": f"shared {n}"} for n in range(10)])
        session.fork("child").append({"role": "user", "content": "mine"})
        session.extend([{"role": "user", "content": f"private {n}"} for n in range(10)])
        db.session("other").append({"role": "user", "content": "fine"})
        if neighbour:  # another user's name lies between the names and the head then
            db.session("chat", user="neighbour").append({"role": "user", "content": "hello"})
        db.delete_session("parent")
        assert db.check() == []
    with path.open("rb") as file:
        wreck = PageScan(file.fileno(), is_row)
        wreck.read()
    return wreck.rows[head_key(1, 1)][0]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_deleted_session_that_a_fork_needs_stays_deleted_without_its_head(
    tmp_path, saved, everywhere
) -> None:
    """Its old name is still in the file, and its old head if not every one is damaged."""
    path = tmp_path / "hidden"
    at = hidden_parent(path, neighbour=everywhere)
    raw = bytearray(path.read_bytes())
    raw[at.offset + 30] ^= 1
    damaged = flipped(raw, b"openai_chat") if everywhere else bytes(raw)
    salvaged(damaged, tmp_path, saved)
    sessions = {who[2]: len(found) for who, found in content(saved)[0].items()}
    assert {name: sessions[name] for name in sessions if name != "chat"} == {
        "child": 11,
        "other": 1,
    }
    with memcore.open(saved) as db:
        assert db.delete_session("child")  # and takes its parent along
        assert db.check() == []
    with lmdb.open(str(saved), subdir=False) as env, env.begin() as txn:
        assert not [value for _, value in txn.cursor() if b"private" in value]


@pytest.mark.parametrize("whole_page", [False, True])
def test_a_session_that_may_have_been_deleted_is_named(tmp_path, saved, whole_page) -> None:
    """Nothing tells whether what is lost held its name."""
    path = tmp_path / "hidden"
    at = hidden_parent(path)
    raw = bytearray(path.read_bytes())
    if whole_page:
        zero(raw, at.page)
    else:
        raw = bytearray(flipped(bytes(raw), b"openai_chat"))
    report = salvaged(bytes(raw), tmp_path, saved)
    notes = {found.session_id: found.notes for found in report.damaged}
    assert "it may have been deleted" in notes["parent"]


def test_an_old_head_that_says_deleted_is_believed(tmp_path, saved) -> None:
    """Without the meta pages no page is surer than another, but nothing undoes a deletion."""
    path = tmp_path / "hidden"
    hidden_parent(path)
    raw = bytearray(path.read_bytes())
    no_metas(raw, random.Random(0), None)
    report = salvaged(bytes(raw), tmp_path, saved)
    assert {who[2]: len(found) for who, found in content(saved)[0].items()} == {
        "child": 11,
        "other": 1,
    }
    assert "parent" not in {found.session_id for found in report.damaged}


@pytest.mark.parametrize("last_page", [10**6, 2**50])
def test_a_meta_page_that_names_a_page_far_behind_the_end_takes_no_time(
    path: Path, last_page: int
) -> None:
    with memcore.open(path) as db:
        db.session("s").extend([{"role": "user", "content": str(at)} for at in range(50)])
    content = bytearray(path.read_bytes())
    for page in (0, 1):  # a meta's last page and transaction are its last 16 bytes
        struct.pack_into("<Q", content, page * PAGE + 16 + 120, last_page)
    with path.open("rb") as file:
        root = readable_metas(file.fileno())[0].main_root
    content[root * PAGE + 10] ^= 0xFF  # no leaf any more: every page is looked at
    path.write_bytes(content)
    looked: list[int] = []

    class Watched(PageScan):
        def _page(self, number: int) -> Any:
            looked.append(number)
            return super()._page(number)

    with path.open("rb") as file:
        scan = Watched(file.fileno(), is_row)
        scan.read()
    assert scan.unread is not None
    assert scan.unread > last_page - len(content) // PAGE - 1
    assert max(looked) < len(content) // PAGE
    memcore.salvage(path, path.with_name("saved"))
    with memcore.open(path.with_name("saved")) as db:
        assert len(db.session("s")) == 50


# --- values that look like pages ------------------------------------------------------------------


def leaf(number: int, rows: list[tuple[bytes, bytes]]) -> bytes:
    """A page of LMDB's that holds rows."""
    page, upper, places = bytearray(PAGE), PAGE, []
    for key, value in rows:
        entry = struct.pack("<HHHH", len(value) & 0xFFFF, len(value) >> 16, 0, len(key))
        entry += key + value + b"\0" * ((len(key) + len(value)) & 1)
        upper -= len(entry)
        page[upper : upper + len(entry)] = entry
        places.append(upper)
    lower = 16 + 2 * len(places)
    struct.pack_into("<QHHHH", page, 0, number, 0, 2, lower, upper)
    struct.pack_into(f"<{len(places)}H", page, 16, *places)
    return bytes(page)


def planted(path: Path, rows: list[tuple[bytes, bytes]], hit: int) -> None:
    """A file whose user "mallory" has a value that looks like leaves where it lies.

    ``hit``: in the redo record (0), or in the pages of the value itself (1). Its root is damaged.
    """

    def fill(content: bytes) -> int:
        with memcore.open(path) as db:
            for user in ("alice", "mallory"):
                items = [{"role": "user", "content": f"{user} {at}"} for at in range(5)]
                db.session("s", user=user).extend(items)
            db.scope(user="mallory").kv("n").put("k", content)
        whole = path.read_bytes()
        at = whole.index(content[:36])
        for _ in range(hit):
            at = whole.index(content[:36], at + 1)
        return at

    mark = b"MARKMARKMARK" * 3
    at = fill(mark + bytes(20 * PAGE - len(mark)))
    path.unlink()
    first, gap = at // PAGE, PAGE - at % PAGE
    content = bytearray(mark + bytes(20 * PAGE - len(mark)))
    for number in range(18):
        start = number * PAGE + gap
        content[start : start + PAGE] = leaf(first + 1 + number, rows)
    assert fill(bytes(content)) == at
    whole = bytearray(path.read_bytes())
    with path.open("rb") as file:
        root = readable_metas(file.fileno())[0].main_root
    whole[root * PAGE : root * PAGE + 16] = b"\xff" * 16
    path.write_bytes(whole)


@pytest.mark.parametrize("hit", [0, 1])
def test_a_value_that_looks_like_leaves_is_none(path: Path, hit: int) -> None:
    """Neither where it lies nor in the redo record does what a user wrote become another's row."""
    with memcore.open(path) as db:
        for user in ("alice", "mallory"):
            db.session("s", user=user).append({"role": "user", "content": "x"})
        db.scope(user="alice").kv("notes").put("planted", "evil instruction")
        start, stop = bytes((Kind.KV,)), bytes((Kind.KV + 1,))
        entry = db.engine.store.read(lambda txn: list(txn.scan(start, stop)))
    path.unlink()
    grave = tombstone_of(1)  # alice's
    planted(
        path, [(grave, seal_value(grave, b"")), *entry][:: -1 if grave > entry[0][0] else 1], hit
    )
    memcore.salvage(path, path.with_name("saved"))
    with memcore.open(path.with_name("saved")) as db:
        assert sorted(user for _, user in db.scopes()) == ["alice", "mallory"]
        assert len(db.session("s", user="alice")) == 5
        assert db.scope(user="alice").kv("notes").get("planted") is None
        assert db.check() == []


def test_a_range_of_rows_is_not_read_out_of_a_value(path: Path) -> None:
    planted(path, [(SECRET_KEY, seal_value(SECRET_KEY, bytes(SECRET_ROW_BYTES)))], hit=1)
    with path.open("rb") as file:
        scan = PageScan(file.fileno(), is_row, within=(SECRET_KEY, SECRET_KEY + b"\0"))
        scan.read()
    assert scan.rows == {}


# --- numbers that were never given out ------------------------------------------------------------
# Whoever can write to a file can seal a row with any number. None may use up the numbers of the new
# file, or make it refuse anybody.

KEY = b"k" * 32
NAMES_LOST = (b"s\0", b"k\0", b"t\0")
PLANTED = (5, 2**40, 2**63 - 1, 2**64 - 1)
U64 = struct.Struct("<Q")
Rows = list[tuple[bytes, bytes]]


def row(key: bytes, body: bytes = b"") -> tuple[bytes, bytes]:
    return key, seal_value(key, body)


def name_row(prefix: bytes, number: int, *names: str) -> tuple[bytes, bytes]:
    packed = b"".join(map(keys.pack_text, names))
    return row(keys.name_key(prefix, *names), keys.u64(number) + packed)


def head_with(**fields: int) -> Callable[[Any], Rows]:
    def made(txn: Any) -> Rows:
        head = Head.unpack(key := head_key(1, 1), txn.get(key))
        for name, number in fields.items():
            setattr(head, name, number)
        return [row(key, head.pack())]

    return made


def another_head(scope: int, session: int) -> Callable[[Any], Rows]:
    return lambda txn: [row(head_key(scope, session), txn.get(head_key(1, 1))[10:])]


SCOPE_NAMES = bytes((Kind.SCOPE_NAME,))
NUMBERED: dict[str, Callable[[int], Rows | Callable[[Any], Rows]]] = {
    "counter of scopes": lambda n: [row(keys.counter(Counter.SCOPE), keys.u64(n))],
    "counter of sessions": lambda n: [row(keys.counter(Counter.SESSION), keys.u64(n))],
    "counter of namespaces": lambda n: [row(keys.counter(Counter.NAMESPACE), keys.u64(n))],
    "counter of threads": lambda n: [row(keys.counter(Counter.THREAD), keys.u64(n))],
    "counter of pools": lambda n: [row(keys.counter(Counter.POOL), keys.u64(n))],
    "counter of graph namespaces": lambda n: [
        row(keys.counter(Counter.GRAPH_NAMESPACE), keys.u64(n))
    ],
    "counter of data keys": lambda n: [row(keys.counter(Counter.DATA_KEY), keys.u64(n))],
    "scope": lambda n: [row(scoped(Kind.SCOPE, n), keys.pack_text("app") + keys.pack_text("m"))],
    "scope of a known user": lambda n: [
        row(scoped(Kind.SCOPE, n), keys.pack_text("default") + keys.pack_text("a"))
    ],
    "name of a scope": lambda n: [name_row(SCOPE_NAMES, n, "app", "m")],
    "name of a known scope": lambda n: [name_row(SCOPE_NAMES, n, "default", "a")],
    "name of a session": lambda n: [name_row(scoped(Kind.SESSION_NAME, 1), n, "evil")],
    "name of a session elsewhere": lambda n: [name_row(scoped(Kind.SESSION_NAME, n), 9, "evil")],
    "name of a namespace": lambda n: [name_row(scoped(Kind.KV_NAMESPACE, 1), n, "evil")],
    "name of a thread": lambda n: [name_row(scoped(Kind.THREAD_NAME, 1), n, "evil")],
    "session": lambda n: another_head(1, n),
    "session elsewhere": lambda n: another_head(n, 1),
    "removal": lambda n: [row(keys.removal_row(keys.session_prefix(1, n)))],
    "removal elsewhere": lambda n: [row(keys.removal_row(keys.session_prefix(n, n)))],
    "head of a thread": lambda n: [
        row(keys.thread_rows(1, n, ThreadRow.HEAD), struct.pack(">QQ", 1, 1))
    ],
    "pool of a thread": lambda n: [
        row(keys.thread_rows(1, 9, ThreadRow.HEAD), struct.pack(">QQ", n, 1))
    ],
    "terms": lambda n: [row(scoped(Kind.CARE, n, bytes((Care.TERMS,))), b"{}")],
    "mark of memory": lambda n: [row(scoped(Kind.CARE, n, bytes((Care.MEMORY,)), keys.u64(n)))],
    "tombstone": lambda n: [row(tombstone_of(n))],
    "last checkpoint": lambda n: [row(session_row(1, 1, Row.CHECKPOINT, 0), U64.pack(n))],
    "moment": lambda n: [row(session_row(1, 1, Row.MOMENT, 5), U64.pack(n))],
    "fork": lambda n: [row(session_row(1, 1, Row.CHILD, n))],
    "view of the head": lambda n: head_with(view_session=n, view_number=n),
    "block of the head": lambda n: head_with(link_session=n, link_block=n),
    "parent of the head": lambda n: head_with(parent_session=n),
    "next view": lambda n: head_with(next_view=n),
    "revision": lambda n: head_with(revision=n),
    "begin of the session": lambda n: head_with(parent_seq=n + 100 if n < 100 else n),
}  # fmt: skip


@pytest.fixture(scope="module", params=[None, KEY], ids=["clear", "encrypted"])
def numbered(request, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    path, key = tmp_path_factory.mktemp("numbered") / "base", request.param
    options = {} if key is None else {"key": key}
    with memcore.open(path, **options) as db:
        for who in ("a", "b"):
            session = db.session("s", user=who)
            session.extend([{"role": "user", "content": f"message {at}"} for at in range(20)])
            session.state.update({"field": 1})
            session.checkpoint("saved")
            db.scope(user=who).kv("k").put("entry", who)
            Thread(db.scope(user=who).graph, "thread").put(messages=texts(4))
        db.session("s", user="a").fork("fork").append({"role": "user", "content": "of the fork"})
        assert db.check() == []
    return path, options


def with_number(base: Path, path: Path, what: str, number: int) -> Path:
    """A copy of a file, with a planted number."""
    for end in ("", ".keys"):
        if Path(f"{base}{end}").exists():
            Path(f"{path}{end}").write_bytes(Path(f"{base}{end}").read_bytes())
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        rows = NUMBERED[what](number)
        for found, value in rows(txn) if callable(rows) else rows:
            txn.put(found, value)
    return path


CASES = [(what, number) for what in NUMBERED for number in PLANTED]


@pytest.mark.parametrize(("what", "number"), thinned(CASES, lambda at: not at % 11))
def test_a_planted_number_stops_no_salvage_and_uses_up_none(
    numbered, tmp_path, what, number
) -> None:
    base, options = numbered
    saved = tmp_path / f"saved {number:x}"
    path = with_number(base, tmp_path / f"file {number:x}", what, number)
    memcore.salvage(path, saved, **options)
    with memcore.open(saved, **options) as db:
        assert db.check() == []
        for who in ("a", "b"):
            session, scope = db.session("s", user=who), db.scope(user=who)
            assert len(session) == 20
            assert scope.kv("k").get("entry") == who
            session.state.update({"field": 2})
            session.append({"role": "user", "content": "more"})
            session.checkpoint("again")
            session.compact(keep_last=2)
            session.fork("another").append({"role": "user", "content": "of the fork"})
        for who in ("a", "new"):
            scope = db.scope(user=who)
            scope.kv("another").put("entry", 1)
            Thread(scope.graph, "another", namespace="n").put(messages=texts(4))
            assert scope.graph.threads()
        assert db.check() == []
        last = [
            db.engine.store.read(lambda txn, c=c: txn.get(keys.counter(c))) for c in range(1, 7)
        ]
        assert all(keys.number_of(value) < 2**48 for value in last if value)


@pytest.mark.parametrize("what", ["counter of sessions", "name of a scope", "session elsewhere"])
def test_a_number_that_was_never_given_out_is_told(numbered, tmp_path, what) -> None:
    base, options = numbered
    path = with_number(base, tmp_path / "file", what, 2**52)
    report = memcore.salvage(path, tmp_path / "saved", **options)
    assert [told for told in report.lost if str(2**52) in told]
    with memcore.open(tmp_path / "saved", **options) as db:
        assert sorted(db.scopes()) == [("default", "a"), ("default", "b")]


def test_a_name_like_those_that_salvage_makes_takes_nobodys_place(tmp_path, saved) -> None:
    path = tmp_path / "file"
    with memcore.open(path) as db:
        for user, name in (("a", "s"), ("a", "salvaged-1"), ("scope-1", "salvaged-2")):
            scope = db.scope(user=user, app="salvaged" if user != "a" else "default")
            scope.session(name).append({"role": "user", "content": name})
            scope.kv("k" if name == "s" else name).put("entry", name)
            Thread(scope.graph, "t" if name == "s" else name).put(messages=texts(4))
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        lost = (Kind.SCOPE, Kind.SCOPE_NAME)
        for found in [key for key, _ in txn.cursor() if key[0] in lost]:
            txn.delete(found) if b"a\0" in (found + txn.get(found))[-2:] else None
        for kind in (Kind.SESSION_NAME, Kind.KV_NAMESPACE, Kind.THREAD_NAME):
            first = [key for key, _ in txn.cursor() if key[0] == kind and key[9:] in NAMES_LOST]
            assert [txn.delete(key) for key in first] == [True]
    report = memcore.salvage(path, saved)
    assert (report.sessions, report.threads, report.entries, report.lost) == (3, 3, 3, ())
    with memcore.open(saved) as db:
        assert sorted(db.scopes()) == [("salvaged", "scope-1"), ("salvaged", "scope-1'")]
        scope = db.scope(app="salvaged", user="scope-1'")
        assert sorted(entry.session_id for entry in scope.sessions()) == [
            "salvaged-1",
            "salvaged-1'",
        ]
        assert [scope.kv(name).get("entry") for name in ("salvaged-1", "salvaged-1'")] == [
            "salvaged-1",
            "s",
        ]


def test_numbers_of_a_small_file_that_has_seen_much_are_believed(
    path: Path, tmp_path: Path
) -> None:
    """A file may have given out many more numbers than it has room for now."""
    with memcore.open(path) as db:
        db.session("first").append({"role": "user", "content": "hello"})
        db.engine.store.transact(lambda txn: names.pass_over(txn, Counter.SESSION, 10**9))
        db.session("last").append({"role": "user", "content": "goodbye"})
    for lost in (False, True):
        if lost:
            with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
                txn.delete(keys.counter(Counter.SESSION))
        report = memcore.salvage(path, tmp_path / f"saved {lost}")
        assert (report.sessions, report.lost) == (2, ())
        with memcore.open(tmp_path / f"saved {lost}") as db:
            db.session("new").append({"role": "user", "content": "again"})
            assert db.check() == []
            assert len(db.session("last")) == 1
