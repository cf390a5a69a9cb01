"""Encrypted files of the crash harness: how they are opened, the verbs that change their keys.

A lane's state says nothing of keys: it is what its user has stored, under whatever key.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import memcore
from memcore.privacy.keyring import KeyRing, key_provider

from .audits import audit_beside
from .timeline import Timeline
from .verbs import Place, Step, verb

KEYS = (bytes(range(32)), bytes(range(32, 64)))
"""The keys that protect the key file in turn."""
AVAILABLE = find_spec("cryptography") is not None
FILE = "agent.memcore"


def key_file(path: Path) -> Path:
    """The key file of a database or of a backup of it, which lie beside each other."""
    return path.with_name(f"{FILE}.keys")


def open_any(path: Path, *, sealed: bool = False, **options: Any) -> memcore.Database:
    """Open a file that may be audited, and of a sealed scene encrypted under either key."""
    keys = [{"key": key, "key_file": str(key_file(path))} for key in KEYS] if sealed else [{}]
    refused: memcore.MemcoreError | None = None
    for key in keys:
        try:
            return _open(path, key | options)
        except memcore.WrongKeyError as error:
            refused = error
    assert refused is not None
    raise refused


def put_back(path: Path) -> Path:
    """Restore a backup as a database by itself: a copy is not written beside the keys in use."""
    place = path.parent / f"{path.name}.restored"
    place.mkdir()
    shutil.copy(key_file(path), place)
    target = place / FILE
    refused: memcore.MemcoreError | None = None
    for key in KEYS:
        try:
            memcore.restore(path, target, key=key)
        except memcore.WrongKeyError as error:
            refused = error
        else:
            return target
    assert refused is not None
    raise refused


def _open(path: Path, options: dict[str, Any]) -> memcore.Database:
    try:
        return memcore.open(path, **options)
    except memcore.AuditError:
        return memcore.open(path, audit=audit_beside(path), **options)


@verb()
def rekey(place: Place, step: Step) -> None:
    """``rekey number``: another key protects the key file from now on."""
    place.db.rotate_key(KEYS[step.arguments[0] % 2])


@verb()
def reseal(place: Place, step: Step) -> None:
    """``reseal``: all contents under new data keys, while others read and write."""
    place.db.rotate_data_keys()


def key_findings(path: Path, timeline: Timeline, cut: int) -> list[str]:
    """The key file is under a key that it may be under at a power cut, and no other.

    A new key is durable when it is acknowledged, whatever the mode of the database.
    """
    rekeys = sorted(
        (track.begun[number], track.acked[number], operation[1] % 2)
        for track in timeline.tracks.values()
        for number, operation in enumerate(track.operations)
        if operation[0] == "rekey"
    )
    done = [at for at, (_, acked, _) in enumerate(rekeys) if acked < cut]
    first = done[-1] if done else -1
    possible = {rekeys[first][2] if done else 0}
    possible |= {key for begun, _, key in rekeys[first + 1 :] if begun < cut}
    opens = set()
    for at, key in enumerate(KEYS):
        try:
            KeyRing.load(str(key_file(path)), key_provider(key))
        except memcore.WrongKeyError:
            continue
        opens.add(at)
    return [] if opens & possible else [f"the key file is under {opens}, not one of {possible}"]
