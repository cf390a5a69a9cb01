"""Repair plan: the actions that the findings of a check call for, in order.

Nothing is repaired in place: a backup is whole, and a salvaged copy is made beside the file, so
that no attempt makes anything worse. What a salvage keeps follows from the sort of row that is
damaged, which its key tells, and from the words of the finding where it names no key.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from memcore.codec.keys import Kind, Row

__all__ = [
    "RepairAction",
    "RepairPlan",
    "plan_repairs",
]


_KEY = re.compile(r"\bkey ([0-9a-f]{2,})\b")
_ROW_AT: Final = 17
"""Offset of the row byte in a session's key: kind u8, scope u64, session u64."""


class Damage(Enum):
    """Sorts of damage, the worst first: what is concerned, what a salvage does, what else helps."""

    STRUCTURE = (
        "pages of the file",
        "reads every page that can be read, and loses the rows that only damaged pages hold",
        "",
    )
    NAME = (
        "names of scopes and sessions",
        "keeps the sessions; those whose name is lost get one made of their number",
        "",
    )
    HEAD = (
        "what a session says of itself",
        "rebuilds it from its items; the last changes of it may be told wrong, as an undo",
        "",
    )
    ITEM = (
        "items",
        "keeps the other items of the session, and loses these",
        "the others can be read with session.items(skip_corrupt=True)",
    )
    BLOB = (
        "the content of blobs and large items",
        "keeps the others, and loses these and the items that refer to them",
        "put the same content again",
    )
    THREAD = (
        "threads of graphs: their checkpoints, values and chunks",
        "keeps what is whole; a value of which a part is lost says so when it is read",
        "go on from an older checkpoint, or put the value again: its parts are stored anew",
    )
    KEY_VALUE = (
        "key/value entries",
        "keeps the others, and loses these",
        "set the entry again, or delete it",
    )
    VIEW = (
        "compactions",
        "keeps all items, and loses these summaries",
        "compact again afterwards",
    )
    CHECKPOINT = (
        "checkpoints",
        "keeps all items, and loses these saved positions",
        "delete it (session.delete_checkpoint(NUMBER)): items and other checkpoints stay",
    )
    RELATION = (
        "what forks and their parents know of each other",
        "keeps all items, and writes it anew",
        "",
    )
    INDEX = ("the index of a session", "loses nothing: the index is made anew from the items", "")
    TOKENS = (
        "the token counts of a session",
        "loses nothing: the items are counted anew",
        "count them anew in place: memcore recount SESSION with the session's counter",
    )
    REFERENCE = (
        "counts of references to blobs",
        "loses nothing: the references are counted anew",
        "",
    )
    REQUEST = (
        "records of idempotency keys",
        "keeps all items; a retry with such a key is stored once more",
        "wait: they are forgotten a week after they were made",
    )
    USAGE = (
        "calibrations of token counts",
        "keeps all items; the calibration is learned anew",
        "nothing needs to be done: the next report_usage writes it anew",
    )
    STATE = (
        "fields of states",
        "keeps the other fields; of these it keeps what they were before, if that was not trimmed",
        "write the fields anew with the state's update()",
    )
    CARE = (
        "legal holds, opting out of memory, and erasures",
        "keeps holds and opt-outs that are whole, and leaves out all of who was erased",
        "memcore hold shows and sets holds; memcore erase --finish goes on with erasures",
    )
    LEASE = (
        "leases",
        "keeps all items; nobody holds the session",
        "session.recover() takes them away: nobody holds the session then",
    )
    MARK = (
        "counters, and marks of what expires or is being removed",
        "loses nothing: they are made anew",
        "",
    )

    @property
    def about(self) -> str:
        """The damaged part."""
        return str(self.value[0])

    @property
    def salvage(self) -> str:
        """Effect of ``memcore salvage`` on it."""
        return str(self.value[1])

    @property
    def instead(self) -> str:
        """Remedy that needs no new file; empty if there is none."""
        return str(self.value[2])


_KINDS: Final = {
    Kind.COUNTER: Damage.MARK,
    Kind.SCOPE: Damage.NAME,
    Kind.SCOPE_NAME: Damage.NAME,
    Kind.SESSION_NAME: Damage.NAME,
    Kind.BLOB: Damage.BLOB,
    Kind.BLOB_CHUNK: Damage.BLOB,
    Kind.BLOB_REFS: Damage.REFERENCE,
    Kind.BLOB_ADDRESS: Damage.REFERENCE,
    Kind.KV_NAMESPACE: Damage.KEY_VALUE,
    Kind.KV: Damage.KEY_VALUE,
    Kind.EXPIRY: Damage.MARK,
    Kind.REMOVAL: Damage.MARK,
    Kind.THREAD_NAME: Damage.NAME,
    Kind.THREAD: Damage.THREAD,
    Kind.CHUNK: Damage.THREAD,
    Kind.STATE: Damage.STATE,
    Kind.CARE: Damage.CARE,
}
_ROWS: Final = {
    Row.HEAD: Damage.HEAD,
    Row.INDEX: Damage.INDEX,
    Row.ITEM: Damage.ITEM,
    Row.VIEW: Damage.VIEW,
    Row.SEGMENTS: Damage.HEAD,
    Row.CHILD: Damage.RELATION,
    Row.REQUEST: Damage.REQUEST,
    Row.TOKENS: Damage.TOKENS,
    Row.USAGE: Damage.USAGE,
    Row.CHECKPOINT: Damage.CHECKPOINT,
    Row.STATE: Damage.STATE,
    Row.MOMENT: Damage.STATE,
    Row.LEASE: Damage.LEASE,
    Row.TERMS: Damage.MARK,
}
_WORDS: Final = tuple(
    (re.compile(words), damage)
    for words, damage in (
        (r"^the counter of|is listed for removal, but in use", Damage.MARK),
        (r"the index by expiry|^the terms", Damage.MARK),
        (r"erased scope|holds and erasures|the holds of the database", Damage.CARE),
        (r"as a fork|it was forked, does not list it", Damage.RELATION),
        (r"token counts|\brecount \d+|was not counted by", Damage.TOKENS),
        (r"field .* of its state|counter \d+ of its state|its state is said", Damage.STATE),
        (r"\bcheckpoint \d+", Damage.CHECKPOINT),
        (r"\bview \d+ of session \d+ is missing", Damage.VIEW),
        (r"its usage is anchored", Damage.USAGE),
        (r"reference count of the blob|its reference is not counted", Damage.REFERENCE),
        (r"chunks of the blob|\bblob [0-9a-f]+: |blob address|the blobs of scope", Damage.BLOB),
        (r"large content of item|item \d+: .*\bblob\b", Damage.BLOB),
        (r"index page|index record|its index\b|the index of session", Damage.INDEX),
        (r"item \d+ (cannot be decoded|of session \d+ is missing)", Damage.ITEM),
        (r"has no name row|no row names it|rows but no name|session names of scope", Damage.NAME),
        (r"^thread |^the pool \d+ of scope|thread names of scope", Damage.THREAD),
        (r"^session ", Damage.HEAD),
        (r"^the state of scope", Damage.STATE),
        (r"^scope \d+: ", Damage.NAME),
    )
)


@dataclass(frozen=True, slots=True)
class RepairAction:
    """Remedies for all findings of one sort of damage."""

    about: str
    """The damaged part."""
    findings: tuple[str, ...]
    salvage: str
    """Effect of a salvage on it."""
    instead: str
    """Remedy that needs no new file; empty if there is none."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Steps of a repair, and their effect on each finding."""

    steps: tuple[str, ...]
    """In the order to do them."""
    repairs: tuple[RepairAction, ...]
    """Every finding once, the worst damage first."""


def plan_repairs(findings: Iterable[str], path: str) -> RepairPlan:
    """Plan the repair of findings of ``Database.check``; empty without findings."""
    sorts: dict[Damage, list[str]] = {}
    for finding in findings:
        sorts.setdefault(damage_of(finding), []).append(finding)
    if not sorts:
        return RepairPlan((), ())
    repairs = tuple(
        RepairAction(damage.about, tuple(sorts[damage]), damage.salvage, damage.instead)
        for damage in Damage
        if damage in sorts
    )
    return RepairPlan(_steps(shlex.quote(path)), repairs)


def damage_of(finding: str) -> Damage:
    """Classify a finding; one that is not understood counts as damage of the structure."""
    key = _KEY.search(finding)
    if key is not None:
        raw = bytes.fromhex(key[1][: len(key[1]) & ~1])
        if raw[0] == Kind.SESSION and len(raw) > _ROW_AT:
            return _ROWS.get(raw[_ROW_AT], Damage.STRUCTURE)
        return _KINDS.get(raw[0], Damage.STRUCTURE)
    for words, damage in _WORDS:
        if words.search(finding):
            return damage
    return Damage.STRUCTURE


def _steps(file: str) -> tuple[str, ...]:
    restore = f"memcore restore BACKUP --store {file} --replace --yes"
    salvage = f"memcore salvage {file} --to NEW"
    return (
        "end the programs that use the file; look for errors of the device (dmesg, smartctl)",
        "look for the newest backup in which nothing is found: memcore check --store BACKUP",
        f"if what was written since it may be lost: {restore} (the file stays beside it)",
        f"if not, or without a backup: {salvage} copies what can be read and says what is lost",
        f"if nothing is found in NEW: {restore.replace('BACKUP', 'NEW')}",
    )
