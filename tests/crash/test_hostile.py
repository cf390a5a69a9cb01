"""Some hostile images; ``python -m tests.crash hostile --long`` opens ten thousand."""

from __future__ import annotations

import os
import select
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from lmdb.verify import verify

import memcore
from crash import hostile, hostile_verbs
from crash.hostile_anatomy import META_FIELDS, PAGE, field_of, nodes_of
from memcore.errors import CorruptStoreError, CorruptValueError
from memcore.rows.head import head_key
from memcore.store import datafile

HEAD = head_key(1, 1)


@pytest.fixture(scope="module")
def lab() -> Iterator[hostile.Laboratory]:
    with hostile.Laboratory(1) as made:
        yield made


def test_hostile_images_are_refused_or_reported(lab) -> None:
    lines: list[str] = []
    outcome = lab.examine(range(150), lines.append)
    assert outcome.done == 150
    assert outcome.findings == [], "\n".join(lines)
    assert outcome.facts["sound"] > 5
    assert outcome.facts["reported"] > 5
    assert outcome.facts["refused"] > 25


def test_an_image_is_the_same_whenever_it_is_made(lab) -> None:
    with hostile.Laboratory(1) as again:
        for number in range(30):
            assert bytes(again.image(number)[2].image) == bytes(lab.image(number)[2].image)


@pytest.fixture
def used(lab, tmp_path):
    """A path for damaged copies of a store, its sound bytes and their map."""
    at = [specimen.name for specimen in lab.specimens].index("used")
    path = tmp_path / "agent.memcore"

    def damage(*pieces: tuple[int, bytes]):
        image = bytearray(lab.specimens[at].content)
        for offset, piece in pieces:
            image[offset : offset + len(piece)] = piece
        path.write_bytes(image)
        return path

    return damage, lab.specimens[at].content, lab.anatomies[at]


def refused(path, match: str) -> None:
    with pytest.raises(CorruptStoreError, match=match):
        memcore.open(path, verify=True)


def key_at(content: bytes, node: int) -> tuple[int, bytes]:
    """Where the key of a node lies, and the key."""
    size = struct.unpack_from("<H", content, node + 6)[0]
    return node + 8, content[node + 8 : node + 8 + size]


def child_at(content: bytes, node: int) -> int:
    return int.from_bytes(content[node : node + 6], "little")


def test_a_separator_that_hides_rows_is_found(used) -> None:
    damage, content, found = used
    pairs = [
        (key_at(content, node), key_at(content, nodes_of(content, child_at(content, node))[1]))
        for branch in found.branches[1:]
        for node in nodes_of(content, branch)[1:]
        if len(nodes_of(content, child_at(content, node))) > 1
    ]
    (at, low), (_, second) = next(pair for pair in pairs if len(pair[0][1]) == len(pair[1][1]))
    assert low < second
    path = damage((at, second))  # the first row of the leaf is now searched for in another one
    assert verify(str(path), subdir=False) == []  # LMDB's own verifier does not look there
    refused(path, "keys out of order")


def test_check_reads_no_rows_through_a_damaged_structure(used, monkeypatch) -> None:
    """LMDB would end the process at this leaf, which lies beyond what an opening looks at."""
    monkeypatch.setattr(datafile, "_LOOK_NODES", 500)
    damage, _, found = used
    path = damage((found.leaves[-1] * PAGE + 10, b"\1"))
    refused(path, "flags")
    with memcore.open(path, read_only=True) as db:
        first, *_, last = db.check()
    assert "flags" in first
    assert "not checked" in last


def test_a_leaf_that_is_not_as_deep_as_the_others_is_found(used) -> None:
    damage, content, found = used
    leaf = struct.pack("<Q", found.leaves[5])[:6]
    refused(damage((nodes_of(content, found.branches[0])[0], leaf)), "flags")


def test_nodes_that_overlap_are_found(used) -> None:
    damage, content, found = used
    page = found.leaves[20] * PAGE
    refused(damage((page + 18, content[page + 16 : page + 18])), "overlap|out of order")


def test_a_value_that_leaves_its_run_is_found(used) -> None:
    damage, _, found = used
    refused(damage((found.overflows[1] * PAGE + 12, b"\xff\xff\0\0")), "pages")


def test_a_page_in_use_that_is_listed_as_free_is_found(used) -> None:
    damage, content, found = used
    node = nodes_of(content, found.free_list[0])[0]
    entries = struct.unpack_from("<Q", content, node + 16)[0]
    listed = struct.unpack_from(f"<{entries}Q", content, node + 24)
    leaf = next(page for page in found.leaves if page not in listed)
    pages = sorted({*listed[1:], leaf}, reverse=True)
    piece = struct.pack(f"<{entries}Q", *pages)
    refused(damage((node + 24, piece)), "in use already")


@pytest.mark.parametrize("step", [-4, 2, 2**40])
def test_meta_pages_that_are_not_of_two_transactions_in_a_row_are_refused(used, step) -> None:
    damage, content, found = used
    at = found.newest * PAGE + 16 + 128
    txnid = field_of(content, found.newest, "txnid") + step
    with pytest.raises(CorruptStoreError, match="in a row"):
        memcore.open(damage((at, struct.pack("<Q", txnid))))


@pytest.mark.parametrize("name", ["free_over", "main_over", "main_leaf"])
def test_counts_of_more_pages_than_there_are_are_refused(used, name) -> None:
    """Else room for what is written would be taken for missing, and made without end."""
    damage, _, found = used
    at = found.newest * PAGE + 16 + META_FIELDS[name][0]
    with pytest.raises(CorruptStoreError, match="claim"):
        memcore.open(damage((at, struct.pack("<Q", 2**32))))


def row_of(content: bytes, found, row: int) -> tuple[bytes, int, int]:
    """The last small row of one sort of a session's: its key, where its value lies, its size."""
    for page in reversed(found.leaves):
        for node in reversed(nodes_of(content, page)):
            size, flags, key_bytes = struct.unpack_from("<IHH", content, node)
            key = content[node + 8 : node + 8 + key_bytes]
            if not flags and key[0] == 5 and key[17] == row:
                return key, node + 8 + key_bytes, size
    raise AssertionError("no such row")


def test_a_damaged_row_is_told_once(used) -> None:
    damage, content, found = used
    key, start, _ = row_of(content, found, 3)
    path = damage((start + 30, b"\xff\xff\xff"))
    with memcore.open(path) as db:
        findings = db.check()
    assert sum(key.hex() in finding for finding in findings) == 1
    assert any(finding.startswith("session") and key.hex() in finding for finding in findings)


def test_a_session_without_its_head_is_corrupt_and_not_empty(tmp_path) -> None:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        chat = db.session("chat")
        chat.append({"role": "user", "content": "x"})
        db.engine.store.transact(lambda txn: txn.delete(HEAD))
        with pytest.raises(CorruptValueError, match="head"):
            chat.append({"role": "user", "content": "y"})
        with pytest.raises(CorruptValueError, match="head"):
            chat.tail(1)
    with memcore.open(path) as db:
        chat = db.session("chat")
        assert chat.exists()
        with pytest.raises(CorruptValueError, match="head"):
            len(chat)
        assert chat.recover().status == "recovered"
        assert [item.message["content"] for item in chat] == ["x"]
        assert db.check() == []


def test_rows_that_the_head_does_not_know_are_found(tmp_path) -> None:
    """An older head in place of a newer one: its checksum is right, the items behind it are not."""
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        chat = db.session("chat")
        chat.extend([{"role": "user", "content": str(n)} for n in range(3)])
        older = db.engine.store.read(lambda txn: txn.get(HEAD))
        chat.append({"role": "user", "content": "last"})
        db.engine.store.transact(lambda txn: txn.put(HEAD, older))
    with memcore.open(path) as db:
        assert any("which its head" in finding for finding in db.check())


# --- verbs and adapters ---------------------------------------------------------------------------


def test_verbs_and_adapters_stand_hostile_images() -> None:
    outcome = hostile_verbs.examine(range(10), 4, lambda _: None, others=8)
    assert outcome.findings == []
    assert outcome.done == 10


def adapter(monkeypatch, read) -> None:
    """Put ``read`` in the place of all adapters and verbs."""
    monkeypatch.setattr(hostile_verbs, "READERS", {"made": read})
    monkeypatch.setattr(hostile_verbs, "adapters", lambda: ["made"])
    monkeypatch.setattr(hostile_verbs, "add_runtimes", lambda _: None)
    monkeypatch.setattr(hostile_verbs, "READING", ())
    monkeypatch.setattr(hostile_verbs, "WRITING", ())
    monkeypatch.setattr(hostile_verbs, "read_sound", lambda _: defaultdict(set))
    monkeypatch.setattr(hostile_verbs._Examination, "_is_sound", lambda _: True)
    monkeypatch.setattr(hostile_verbs, "_opened", nullcontext)


def test_what_a_verb_or_an_adapter_does_wrong_is_found(monkeypatch) -> None:
    def wrong(path: Path, seen: set[str]) -> None:
        os.system("true")
        seen.add("a strange item")
        raise KeyError(path.name)

    adapter(monkeypatch, wrong)
    monkeypatch.setattr(hostile_verbs, "READING", (["check", "--nothing"], ["ls", "--store", "."]))
    found = "\n".join(hostile_verbs.examine(range(1), 4, lambda _: None).findings)
    assert "made: KeyError: 'image'" in found
    assert 'made: it ran ["os.system' in found
    assert "made reads what nobody stored: a strange item" in found
    assert "check: exit code 2" in found


def test_a_verb_that_never_ends_is_found(monkeypatch) -> None:
    def hangs(path: Path, seen: set[str]) -> None:
        while path is not None:
            pass

    adapter(monkeypatch, hangs)
    monkeypatch.setattr(hostile_verbs, "CPU_SECONDS", 0.3)
    findings = hostile_verbs.examine(range(1), 4, lambda _: None).findings
    assert len(findings) == 1
    assert "dies of SIGPROF in made" in findings[0]


def test_a_verb_that_waits_is_found(monkeypatch) -> None:
    adapter(monkeypatch, lambda path, seen: select.select([], [], [], 0.4))
    monkeypatch.setattr(hostile_verbs, "CPU_SECONDS", 0.3)
    findings = hostile_verbs.examine(range(1), 4, lambda _: None).findings
    assert len(findings) == 1
    assert "made: it waited for" in findings[0]


def test_adapters_read_in_sound_files_what_was_stored() -> None:
    with hostile.Laboratory(1) as lab:
        hostile_verbs.add_runtimes(lab)
        truth = hostile_verbs.read_sound(lab)
    names = hostile_verbs.adapters()
    assert names
    assert all(len(truth[name, "runtimes"]) > 5 for name in names)
