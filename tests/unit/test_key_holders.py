"""What holds a key gives it away neither pickled nor copied, nor in a message."""

from __future__ import annotations

import base64
import copy
import pickle

import pytest

import memcore
from memcore.adapters.openai_agents.history import Sealer
from memcore.codec.audit_entry import Chainer
from memcore.errors import KeyCopyError
from memcore.privacy import Redaction, RedactionPolicy
from memcore.privacy.keyring import Cipher, DataKey, KeyRing, Secret, key_provider
from memcore.retention import ErasureRequest
from memcore.store.encryption import RowCipher
from memcore.store.store import KeyOptions

KEY = bytes(range(65, 97))
SHOWN = (KEY, KEY[:20], KEY.hex().encode(), base64.b64encode(KEY))


def ring():
    made = KeyRing.create(None, key_provider(KEY))
    made.secret = KEY
    made.mint(1)
    return made


def read_secret():
    secret = Secret("nowhere", create=False, ring=KEY)
    secret.value()
    return secret


def redaction():
    return Redaction(RedactionPolicy(), secret=KEY)


HOLDERS = {
    "audit": lambda: memcore.Audit(key=KEY),
    "audit with a callable": lambda: memcore.Audit(key=KEY.title),
    "chainer": lambda: Chainer(KEY, bytes(16)),
    "cipher": lambda: Cipher(KEY),
    "provider": lambda: key_provider(KEY),
    "access": lambda: KeyOptions(key_provider(KEY), "a.keys"),
    "data key": lambda: DataKey(1, KEY),
    "ring": ring,
    "vault": lambda: RowCipher(ring()),
    "secret": read_secret,
    "redaction": redaction,
    "redaction of a place": lambda: redaction().for_place("a", "u", "s"),
    "sealer": lambda: Sealer([KEY], "a", "u", "s"),
}
COPIES = {
    "pickle": pickle.dumps,
    "old pickle": lambda held: pickle.dumps(held, protocol=0),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "inside": lambda held: pickle.dumps({"options": [held]}),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_whoever_holds_a_key_is_not_copied(make, copied):
    with pytest.raises(KeyCopyError, match="holds a key") as caught:
        copied(make())
    assert isinstance(caught.value, TypeError)
    assert not any(shown in str(caught.value).encode() for shown in SHOWN)


@pytest.mark.parametrize("make", [*HOLDERS.values(), lambda: ErasureRequest("alice", key=KEY)])
def test_no_key_is_shown(make):
    told = f"{make()!r} {make()}".encode()
    assert not any(shown in told for shown in (*SHOWN, repr(KEY)[2:-1].encode()))


def test_a_database_is_not_pickled_with_its_keys(path):
    with memcore.open(path, key=KEY, audit=memcore.Audit(key=KEY)) as db:
        for held in (db, db.scope(), db.session("s"), db.engine, db.engine.store):
            with pytest.raises((TypeError, pickle.PicklingError)):  # the latter: it is observed
                pickle.dumps(held)
        assert KEY.hex() not in repr(db.engine)
