"""Masks in views: which are in force, what they cost, and that nothing breaks contexts by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.values import decode_json, encode_json, open_value, seal_value
from memcore.compaction import ElideOutputs
from memcore.session.session import ref_of, store_of
from messages import assistant, call, illegal, recount, result, system, user

LONG = " ".join(f"word{n}" for n in range(100))


def rule(keep: memcore.Keep | None = None, *, masks: bool = True) -> memcore.CompactionPolicy:
    reducers = (ElideOutputs(max_tokens=20),) if masks else ()
    stage = memcore.Stage(
        name="s", triggers=(memcore.Trigger(items=1000),), keep=keep, reducers=reducers
    )
    return memcore.CompactionPolicy(name="p", min_gain=0.0, stages=(stage,))


def fill(session: memcore.Session, start: int, stop: int) -> None:
    for n in range(start, stop):
        session.extend([user(f"q{n}"), call(f"c{n}"), result(f"c{n}", LONG), assistant(f"a{n}")])


def keep(count: int, **options: Any) -> memcore.CompactionPolicy:
    return rule(memcore.Keep(last_items=count, **options), masks=False)


def test_masks_outlive_a_view_that_an_undo_took_away(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with memcore.open(path) as db:
        session = db.session("s")
        fill(session, 0, 10)
        session.compact(policy=rule(), force=True)
        fill(session, 10, 12)
        session.compact(lambda _: "short", keep_last=1)  # covers the masks
        session.rewind(40)  # and does not apply any more
        assert len(session.masks()) == 10
        view = session.compact(lambda _: "short", policy=keep(20), force=True).view
        assert view is not None
        assert len(session.masks()) == 5
        assert session.context().tokens == view.tokens_after
    with memcore.open(path) as db:
        assert db.session("s").context().tokens == view.tokens_after


def test_what_is_pinned_again_is_shown_alike_by_every_handle(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with memcore.open(path) as db:
        session = db.session("s")
        fill(session, 0, 10)
        session.compact(policy=rule(), force=True)
        session.extend([user(LONG) for _ in range(10)])
        session.compact(
            lambda _: "short", policy=keep(34), force=True
        )  # folds the first masked result
        view = session.compact(
            lambda _: "short", policy=keep(14, pinned=((2, 3),)), force=True
        ).view
        assert view is not None
        assert view.pinned == (1, 2, 3, 4) or 3 in view.pinned
        shown = session.masks(), session.context().tokens
        assert shown[0]  # masks are in force, and none is of the pinned item
        assert shown[1] == view.tokens_after
    with memcore.open(path) as db:
        session = db.session("s")
        assert (session.masks(), session.context().tokens) == shown


def test_a_forks_export_leaves_out_views_of_seqs_that_it_uses_again() -> None:
    with memcore.open(":memory:") as db, memcore.open(":memory:") as other:
        session = db.session("s")
        fill(session, 0, 6)
        session.compact(lambda _: "of the parent", keep_last=2)
        fork = session.fork("f", at=12)
        fill(fork, 20, 26)
        assert other.import_(db.export()).failures == []
        for name in ("s", "f"):
            assert other.session(name).context() == db.session(name).context()


MASKS = {
    "a hidden result": [4, "x", 0, None],
    "a hidden call": [3, "x", 0, None],
    "a hidden user": [2, "x", 0, None],
    "another kind": [3, "x", 3, {"role": "user", "content": "x"}],
    "a user that speaks for the model": [2, "x", 3, {"role": "assistant", "content": "x"}],
    "another call": [4, "x", 3, {"role": "tool", "tool_call_id": "nope", "content": "x"}],
    "no message": [4, "x", 3, {}],
    "a wrong role": [4, "x", 3, {"role": 5, "content": {"a": 1}}],
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_of_an_import_break_no_context(mask: list[Any]) -> None:
    with memcore.open(":memory:") as db, memcore.open(":memory:") as other:
        session = db.session("s")
        session.append(system())
        fill(session, 0, 6)
        session.compact(policy=rule(), force=True)
        lines = [json.loads(line) for line in db.export()]
        lines[-1]["view"]["masks"] = [mask]
        assert other.import_(json.dumps(line).encode() for line in lines).failures == []
        for budget in (None, 900, 400):
            context = other.session("s").context(budget)
            assert illegal(context.messages, "openai_chat") == []
            assert context.tokens == recount(context.messages, None)
            assert budget is None or context.tokens <= budget


def test_an_imports_counts_of_masks_are_not_believed() -> None:
    with memcore.open(":memory:") as db, memcore.open(":memory:") as other:
        fill(db.session("s"), 0, 3)
        db.session("s").compact(policy=rule(), force=True)
        lines = [json.loads(line) for line in db.export()]
        view = lines[-1]["view"]
        view["counter"], view["masks"] = "bytes/4", [[3, "x", 1, result("c0", LONG)]]
        assert other.import_(json.dumps(line).encode() for line in lines).failures == []
        session = other.session("s")
        session.recount("bytes/4")
        context = session.context()
        assert context.tokens == recount(context.messages)


def test_masks_alone_cover_nothing_whatever_the_policy_pins() -> None:
    with memcore.open(":memory:") as db:
        session = db.session("s")
        session.extend([system("one"), system("two")])
        fill(session, 0, 3)
        assert session.compact(policy=rule(), force=True).status == "masked"
        fill(session, 3, 5)
        view = session.compact(policy=rule(), force=True).view
        assert view is not None
        assert (view.cut_seq, view.covered) == (0, 0)
        session.set_policy("seed")
        assert [m["content"] for m in session.context().messages[:2]] == ["one", "two"]


def test_masks_are_put_upon_the_ledger_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from memcore.log import history as module

    made = []
    plain = module.MaskedLedger
    monkeypatch.setattr(module, "MaskedLedger", lambda *given: made.append(0) or plain(*given))
    with memcore.open(":memory:") as db:
        session = db.session("s")
        fill(session, 0, 20)
        session.compact(policy=rule())
        made.clear()
        for n in range(20):
            session.append(user(f"more {n}"))
            session.pressure()
            context = session.context(400)
            assert context.tokens == recount(context.messages, None)
        assert len(made) <= 1
        session.undo(25)
        context = session.context()
        assert context.tokens == recount(context.messages, None)


def test_pressure_counts_turns_and_events_wherever_the_view_ends() -> None:
    with memcore.open(":memory:") as db:
        session = db.session("s")
        session.append(system())
        fill(session, 0, 40)
        session.record("note", 1)
        assert (session.pressure().turns, session.pressure().items) == (40, 160)
        for kept in (130, 20):
            session.compact(lambda _: "short", policy=keep(kept), force=True)
            cut = session.views()[-1].cut_seq
            behind = [i for i in session.items(cut + 1) if i.kind != memcore.ItemKind.EVENT]
            turns = sum(item.kind == memcore.ItemKind.USER for item in behind)
            assert (session.pressure().turns, session.pressure().items) == (turns, len(behind))


def test_a_reference_of_too_many_digits_is_none() -> None:
    with memcore.open(":memory:") as db:
        db.session("s").append(user())
        with pytest.raises(memcore.InvalidOptionError, match="reference"):
            db.session("s").read_offloaded("item:" + "9" * 5000)


def test_a_salvaged_view_covers_only_items_that_are_left(tmp_path: Path) -> None:
    sound, saved = tmp_path / "m.db", tmp_path / "saved.db"
    with memcore.open(sound) as db:
        session = db.session("s")
        session.extend([user(f"message {n:03d} " + "x" * 3000) for n in range(40)])
        session.compact(lambda _: "short", keep_last=10)
    raw = sound.read_bytes()
    for n in (5, 6, 7):
        raw = raw.replace(b"message %03d" % n, b"massage %03d" % n)
    sound.write_bytes(raw)
    memcore.salvage(sound, saved)
    with memcore.open(saved) as db, memcore.open(":memory:") as other:
        session = db.session("s")
        assert len(session) == 37
        assert [view.covered for view in session.views()] == [27]
        assert len(session.context().messages) == 11  # the summary, and all that it does not cover
        assert other.import_(db.export()).failures == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("covered", 2**63),
        ("created_at", []),
        ("created_at", None),
        ("status", {}),
        ("masks", [[3]]),
    ],
)
def test_a_sealed_view_that_makes_no_sense_is_a_damaged_one(name: str, value: Any) -> None:
    with memcore.open(":memory:") as db:
        session = db.session("s")
        fill(session, 0, 6)
        session.compact(policy=rule(), force=True)
        log = ref_of(session).resolve()
        assert log is not None
        key = keys.session_row(log.scope, log.session, keys.Row.VIEW, 1)

        def damage(txn: Any) -> None:
            flags, body = open_value(key, txn.get(key))
            body, flags = encode_json({**decode_json(body, flags), name: value})
            txn.put(key, seal_value(key, body, flags))

        store_of(session).transact(damage)
        log.forget_all()
        for ask in (session.context, session.masks, session.views, lambda: list(db.export())):
            with pytest.raises(memcore.CorruptValueError):
                ask()
