"""What notebooks show of a database, a session and a context."""

from __future__ import annotations

from memcore.codec import keys
from memcore.session.session import ref_of
from messages import assistant, user

EVIL = "<script>alert(1)</script>\u202e\x00"


def test_items_are_shown_as_text(db) -> None:
    session = db.session(f"chat {EVIL}")
    session.extend([user(EVIL if n == 25 else f"q{n}") for n in range(30)])
    for shown in (session._repr_html_(), db._repr_html_(), session.context()._repr_html_()):
        assert "<script" not in shown
        assert "\u202e" not in shown
        assert "\x00" not in shown
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x00" in shown
    assert "30 items, the last 20" in session._repr_html_()
    assert session._repr_html_().count("<tr>") == 21


def test_long_texts_and_lists_are_cut(db) -> None:
    for number in range(60):
        db.session(f"s{number:02}").append(user("x"))
    db.session("a").extend([user("word " * 10_000), assistant("b")])
    assert db._repr_html_().count("<tr>") == 51
    assert "the first of them" in db._repr_html_()
    assert len(db.session("a")._repr_html_()) < 2_000


def test_nothing_is_shown_of_what_is_not_there(db) -> None:
    assert "0 items" in db.session("none")._repr_html_()
    assert not db.session("none").exists()


def test_what_cannot_be_read_is_shown_by_its_repr(open_db) -> None:
    db = open_db()
    session = db.session("s")
    session.append(user("x"))
    db.close()
    assert session._repr_html_() is None
    assert db._repr_html_() is None


def test_damaged_items_are_counted(db) -> None:
    session = db.session("s")
    session.extend([user(f"q{n}") for n in range(30)])
    place = db.engine.store.read(ref_of(session).find)
    key = keys.session_row(*place, keys.Row.ITEM, 25)
    sound = db.engine.store.read(lambda txn: txn.get(key))
    db.engine.store.transact(lambda txn: txn.put(key, b"no row"))
    assert "30 items, the last 20, 1 of them damaged" in session._repr_html_()
    db.engine.store.transact(lambda txn: txn.put(key, sound))
