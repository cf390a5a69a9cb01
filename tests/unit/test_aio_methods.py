"""Asynchronous handles have the signatures and docstrings of the synchronous ones."""

from __future__ import annotations

import inspect

import pytest

from memcore import Database, Grants, Memories, Profile, Scope, Session
from memcore.aio import (
    AsyncBlobStore,
    AsyncDatabase,
    AsyncGrants,
    AsyncKeyValue,
    AsyncMemories,
    AsyncProfile,
    AsyncQuarantine,
    AsyncScope,
    AsyncSession,
)
from memcore.blobs import BlobStore
from memcore.kv import KeyValue
from memcore.session.content_filter import Quarantine

PAIRS = (
    (AsyncSession, Session),
    (AsyncDatabase, Database),
    (AsyncScope, Scope),
    (AsyncMemories, Memories),
    (AsyncProfile, Profile),
    (AsyncGrants, Grants),
    (AsyncKeyValue, KeyValue),
    (AsyncBlobStore, BlobStore),
    (AsyncQuarantine, Quarantine),
)
BY_HAND = {
    "AsyncSession": {
        "apply", "batch", "begin", "child", "compact", "fork", "ladder", "lease", "memory", "share",
        "store", "sync",
    },
    "AsyncDatabase": {"as_user", "compare", "scope", "session", "sweeper", "sync"},
    "AsyncMemories": {"grants", "sync"},
    "AsyncProfile": set(),
    "AsyncGrants": set(),
    "AsyncKeyValue": {
        "delete", "expires", "get", "increment", "put", "put_many", "transact",
    },
    "AsyncBlobStore": set(),
    "AsyncQuarantine": set(),
    "AsyncScope": {
        "app_state", "blobs", "delete_session", "kv", "memory", "quarantine", "session", "state",
        "sync",
    },
}  # fmt: skip


def public(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


def shape(member):
    found = member.fget if isinstance(member, property) else member
    return [
        (each.name, each.kind, each.default, each.annotation)
        for each in inspect.signature(found).parameters.values()
    ]


CASES = [
    (ours, theirs, name)
    for ours, theirs in PAIRS
    for name in sorted(public(ours) - BY_HAND[ours.__name__])
]


@pytest.mark.parametrize(("ours", "theirs", "name"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_a_method_takes_what_the_synchronous_one_takes(ours, theirs, name):
    mine, its = vars(ours)[name], vars(theirs)[name]
    assert isinstance(mine, property) == isinstance(its, property)
    assert shape(mine) == shape(its)
    assert mine.__doc__ is not None
    assert inspect.getdoc(mine) == inspect.getdoc(its)


def test_what_is_written_by_hand_is_there():
    for ours, _ in PAIRS:
        assert BY_HAND[ours.__name__] - {"sync"} <= public(ours)
    assert len(CASES) > 70
