"""Interned names: every string is legal, every number is given out once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from memcore.codec import keys
from memcore.codec import keys as texts
from memcore.codec.keys import Counter
from memcore.errors import CorruptValueError, InternalError, InvalidOptionError
from memcore.limits import NAME_CHARS_MAX
from memcore.rows import names
from tests.unit.fake_store import STORES, all_rows, damage, opened_store

HOSTILE = [
    "a", "a\x00", "a\x00b", "\x00", "\x00\x00", "a\x01", "ab", "A", "é", "e\u0301", "ﬁ", "fi",
    "\ud800", "\udfff", "\ue000", "😀", "\ud83d\ude00", "..", "/", " ", "\n", "0", "None",
    "x" * 480, "x" * 500, "x" * 501, "x" * 5000, "x" * 5001, "\x00" * 5000,
    "é" * NAME_CHARS_MAX, "y" * NAME_CHARS_MAX,
]  # fmt: skip


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    with opened_store(request.param, tmp_path) as opened:
        yield opened


def test_a_scope_is_numbered_once(store):
    first = store.transact(lambda txn: names.ensure_scope(txn, "app", "alice"))
    second = store.transact(lambda txn: names.ensure_scope(txn, "app", "bob"))

    assert (first, second) == (1, 2)
    assert store.transact(lambda txn: names.ensure_scope(txn, "app", "alice")) == 1
    assert store.read(lambda txn: names.scope_of(txn, "app", "alice")) == 1
    assert store.read(lambda txn: names.scope_names(txn, 2)) == ("app", "bob")


def test_asking_for_an_unknown_name_writes_nothing(store):
    def ask(txn):
        return (
            names.scope_of(txn, "app", "user"),
            names.session_of(txn, 1, "s"),
            names.namespace_of(txn, 1, "n"),
            list(names.scopes(txn)),
            list(names.sessions(txn, 1)),
        )

    assert store.read(ask) == (None, None, None, [], [])
    assert all_rows(store) == {}


def test_an_unknown_scope_number_is_our_bug(store):
    with pytest.raises(InternalError, match="scope number 7"):
        store.read(lambda txn: names.scope_names(txn, 7))


def test_app_and_user_are_told_apart_at_their_border(store):
    pairs = [("ab", "c"), ("a", "bc"), ("a\x00", "b"), ("a", "\x00b"), ("c", "ab")]
    pairs += [("x" * 3000, "y"), ("x" * 2999, "xy"), ("x", "x" * 2999 + "y")]

    numbers = [store.transact(lambda txn, p=p: names.ensure_scope(txn, *p)) for p in pairs]

    assert numbers == list(range(1, len(pairs) + 1))
    listed = store.read(lambda txn: list(names.scopes(txn)))
    assert listed == [(number, *pair) for number, pair in enumerate(pairs, 1)]


def test_hostile_names_stay_distinct_in_every_sort(store):
    def intern(txn):
        for name in HOSTILE:
            names.ensure_scope(txn, name, "u")
            names.ensure_scope(txn, "a", name)
            names.new_session(txn, 1, name)
            names.ensure_namespace(txn, 1, name)

    store.transact(intern)

    def numbers(txn):
        return (
            [names.scope_of(txn, name, "u") for name in HOSTILE],
            [names.scope_of(txn, "a", name) for name in HOSTILE],
            [names.session_of(txn, 1, name) for name in HOSTILE],
            [names.namespace_of(txn, 1, name) for name in HOSTILE],
        )

    for of_sort in store.read(numbers):
        assert None not in of_sort
        assert len(set(of_sort)) == len(HOSTILE)
    listed = store.read(lambda txn: {(app, user) for _, app, user in names.scopes(txn)})
    assert listed == {(n, "u") for n in HOSTILE} | {("a", n) for n in HOSTILE}
    assert dict(store.read(lambda txn: list(names.sessions(txn, 1)))).keys() == set(HOSTILE)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("", "is empty"), (None, "got NoneType"), (b"a", "got bytes"), (1, "got int"),
        ("x" * (NAME_CHARS_MAX + 1), "has 65537 characters"),
    ],
    ids=["empty", "None", "bytes", "int", "long"],
)  # fmt: skip
def test_what_is_no_name_is_refused(store, name, match):
    calls = [
        lambda txn: names.scope_of(txn, name, "u"),
        lambda txn: names.ensure_scope(txn, "a", name),
        lambda txn: names.session_of(txn, 1, name),
        lambda txn: names.new_session(txn, 1, name),
        lambda txn: names.drop_session_name(txn, 1, name),
        lambda txn: names.namespace_of(txn, 1, name),
        lambda txn: names.ensure_namespace(txn, 1, name),
    ]
    for call in calls:
        with pytest.raises(InvalidOptionError, match=match):
            store.transact(call)
    assert all_rows(store) == {}


def test_session_numbers_are_unique_in_the_file_and_never_reused(store):
    one = store.transact(lambda txn: names.new_session(txn, 1, "s"))
    two = store.transact(lambda txn: names.new_session(txn, 2, "s"))
    assert store.transact(lambda txn: names.drop_session_name(txn, 2, "s"))
    assert store.read(lambda txn: names.session_of(txn, 2, "s")) is None
    three = store.transact(lambda txn: names.new_session(txn, 2, "s"))

    assert (one, two, three) == (1, 2, 3)
    assert store.read(lambda txn: names.session_of(txn, 1, "s")) == 1
    assert not store.transact(lambda txn: names.drop_session_name(txn, 1, "other"))


def test_a_session_in_use_is_not_numbered_again(store):
    store.transact(lambda txn: names.new_session(txn, 1, "s"))

    with pytest.raises(InternalError, match="must not be replaced"):
        store.transact(lambda txn: names.new_session(txn, 1, "s"))
    assert store.read(lambda txn: names.session_of(txn, 1, "s")) == 1


def test_a_rolled_back_transaction_gives_out_nothing(store):
    def fail(txn):
        names.ensure_scope(txn, "a", "u")
        names.new_session(txn, 1, "s")
        raise KeyError

    with pytest.raises(KeyError):
        store.transact(fail)
    assert all_rows(store) == {}


def test_sessions_come_in_stored_order_and_page(store):
    short = sorted(name for name in HOSTILE if len(name) <= 100)

    def fill(txn):
        for name in reversed(HOSTILE):
            names.new_session(txn, 1, name)
        names.new_session(txn, 2, "of another scope")

    store.transact(fill)
    listed = [name for name, _ in store.read(lambda txn: list(names.sessions(txn, 1)))]

    assert [name for name in listed if len(name) <= 100] == short
    assert all(len(name) > 100 for name in listed[-4:])
    assert set(listed) == set(HOSTILE)
    for before, name in pairwise(listed):
        rest = store.read(lambda txn, b=before: next(names.sessions(txn, 1, b)))
        assert rest[0] == name
    assert store.read(lambda txn: list(names.sessions(txn, 1, listed[-1]))) == []


def test_paging_continues_behind_a_name_that_was_dropped(store):
    store.transact(lambda txn: [names.new_session(txn, 1, name) for name in "abc"])
    store.transact(lambda txn: names.drop_session_name(txn, 1, "b"))

    assert store.read(lambda txn: list(names.sessions(txn, 1, "b"))) == [("c", 3)]


def test_namespaces_belong_to_their_scope(store):
    def ensure(txn):
        return [names.ensure_namespace(txn, scope, "n") for scope in (1, 2, 1)]

    assert store.transact(ensure) == [1, 2, 1]
    assert store.read(lambda txn: names.namespace_of(txn, 2, "n")) == 2


@pytest.mark.parametrize("sort", ["scope", "session", "namespace"])
def test_a_digest_collision_is_no_mix_up(store, sort, monkeypatch):
    class Same:
        def __init__(self, packed, digest_size):
            self.size = digest_size

        def digest(self):
            return b"\x07" * self.size

    monkeypatch.setattr(texts, "blake2b", Same)
    ensure = {
        "scope": lambda txn, name: names.ensure_scope(txn, "a", name),
        "session": lambda txn, name: names.new_session(txn, 1, name),
        "namespace": lambda txn, name: names.ensure_namespace(txn, 1, name),
    }[sort]
    store.transact(lambda txn: ensure(txn, "x" * 600))

    with pytest.raises(CorruptValueError, match="holds another name"):
        store.transact(lambda txn: ensure(txn, "y" * 600))


def test_a_damaged_name_row_is_told(store):
    store.transact(lambda txn: names.ensure_scope(txn, "a", "u"))
    key = keys.name_key(bytes((keys.Kind.SCOPE_NAME,)), "a", "u")
    damage(store, key)

    with pytest.raises(CorruptValueError) as caught:
        store.read(lambda txn: names.scope_of(txn, "a", "u"))
    assert caught.value.key == key


@pytest.mark.parametrize("which", [Counter.SCOPE, Counter.SESSION, Counter.GRAPH_NAMESPACE])
def test_the_last_number_is_never_passed(store, which):
    last = 2**32 - 1 if which == Counter.GRAPH_NAMESPACE else 2**62 - 1
    store.transact(lambda txn: names.register_last(txn, which, last - 1))
    assert store.transact(lambda txn: names.next_number(txn, which)) == last
    for _ in range(2):
        with pytest.raises(CorruptValueError, match=r"the counter of .* says") as caught:
            store.transact(lambda txn: names.next_number(txn, which))
        assert caught.value.key == keys.counter(which)


def test_a_number_of_a_user_is_not_given_to_another(store):
    """A counter that somebody turned back gives nobody the data of those who came before."""
    store.transact(lambda txn: names.ensure_scope(txn, "app", "alice"))
    store.transact(lambda txn: names.register_last(txn, Counter.SCOPE, 0))
    with pytest.raises(CorruptValueError, match="scope 1 is in use"):
        store.transact(lambda txn: names.ensure_scope(txn, "app", "mallory"))
    assert store.read(lambda txn: names.scope_names(txn, 1)) == ("app", "alice")


def test_a_damaged_counter_gives_out_nothing(store):
    store.transact(lambda txn: names.new_session(txn, 1, "s"))
    damage(store, keys.counter(keys.Counter.SESSION))

    with pytest.raises(CorruptValueError):
        store.transact(lambda txn: names.new_session(txn, 1, "t"))
