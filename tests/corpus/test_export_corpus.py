"""Real conversations through an export and back, in the form that keeps all and as messages."""

from __future__ import annotations

import json
from itertools import islice

import pytest

import memcore
from thinned import thinned


@pytest.mark.parametrize("every", thinned([8, 1], 1))
def test_the_corpus_comes_back(corpus, tmp_path, every) -> None:
    options = {"durability": "none", "allow_unsafe": True}
    with (
        memcore.open(tmp_path / "a.memcore", **options) as db,
        memcore.open(tmp_path / "b.memcore", **options) as other,
        memcore.open(tmp_path / "c.memcore", **options) as third,
    ):
        written = {}
        with corpus.open("rb") as lines:
            for line in islice(lines, None, None, every):
                conversation = json.loads(line)
                name, messages = conversation["id"], conversation["messages"]
                db.session(name, orphans="keep").extend(messages)
                written[name] = messages
        export = tmp_path / "export.jsonl"
        with export.open("wb") as target:
            target.writelines(db.export())
        with export.open("rb") as source:
            done = other.import_(source)
        assert (done.sessions, done.failures) == (len(written), [])
        with export.open("rb") as source:
            assert b"".join(other.export()) == source.read()
        assert other.check() == []
        told: list[str] = []
        lines = b"".join(other.export(format="openai-chat", left_out=told.append)).splitlines()
        for line in lines:
            found = json.loads(line)
            messages = written.pop(found["id"])
            if not any(text.startswith(f"session {found['id']!r}") for text in told):
                assert found["messages"] == messages
            assert memcore.validate(found["messages"]) == []
        assert written == {}
        assert len(told) < 25  # late results, results without a call, ids used twice, odd blocks
        # What an import cannot take of a damaged file leaves the rest whole.
        with export.open("rb") as source:
            done = third.import_(line for at, line in enumerate(islice(source, 5_000)) if at % 397)
        assert done.sessions > 200
        assert 0 < len(done.failures) < 30
        assert third.check() == []
