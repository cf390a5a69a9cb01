"""Files of format 1: every memcore from the freeze on opens and reads them, to the last row."""

from __future__ import annotations

import importlib.util
import json
import lzma
from pathlib import Path

import pytest

import memcore

FIXTURES = Path(__file__).parents[1] / "fixtures"
SPEC = importlib.util.spec_from_file_location("fixtures_make", FIXTURES / "make.py")
make = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make)


@pytest.fixture(params=list(make.KINDS))
def kept(request, path):
    """A committed file, as it was written; and how it is opened."""
    for suffix in ("", ".keys"):
        packed = FIXTURES / f"format1-{request.param}{suffix or '.memcore'}.xz"
        if packed.exists():
            Path(f"{path}{suffix}").write_bytes(lzma.decompress(packed.read_bytes()))
    if request.param == "sealed":
        pytest.importorskip("cryptography")
    chosen = make.KINDS[request.param]
    options = {name: chosen[name] for name in ("key", "audit") if name in chosen}
    return path, options


def told():
    return json.loads((FIXTURES / "format1.json").read_text(encoding="utf-8"))


def test_it_is_read_to_the_last_row(kept):
    path, options = kept
    for more in ({"read_only": True}, {}, {"verify": True}):
        with memcore.open(path, **options, **more) as db:
            assert db.check() == []
            assert json.loads(json.dumps(make.expected(db))) == told()


def test_it_is_written_on(kept):
    path, options = kept
    with memcore.open(path, **options) as db:
        session = db.scope(user="alice", app="support").session("chat", create=False)
        # A key is remembered for a week: it is a minute after the file was written.
        written_us = int(session.tail(1)[0].created_at * 1e6)
        db.engine.now_us = lambda: written_us + 60_000_000
        assert session.append({"role": "user", "content": "once"}, idempotency_key="k1").seq == 46
        session.rewind("before")
        session.append({"role": "user", "content": "later"})
        assert db.check() == []
        assert session.tail(1)[0].message["content"] == "later"
        if "audit" in options:
            assert db.verify_audit().findings == ()


def test_it_needs_no_migration(kept):
    path, _ = kept
    assert memcore.migrate(path, dry_run=True).version == 1


def test_it_can_be_copied_and_salvaged(kept, tmp_path):
    path, options = kept
    with memcore.open(path, **options) as db:
        db.copy_compact()
        assert json.loads(json.dumps(make.expected(db))) == told()
    keys = {name: options[name] for name in ("key",) if name in options}
    report = memcore.salvage(path, tmp_path / "saved.memcore", **keys)
    assert report.items_lost == 0
    with memcore.open(tmp_path / "saved.memcore", **keys) as db:
        assert db.check() == []
