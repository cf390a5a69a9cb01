"""Opening a database: the options of ``memcore.open``, checked up front."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from memcore import audit as auditing
from memcore import compaction as compacting
from memcore import retention as retaining
from memcore import session
from memcore.access import Access, AccessRequest, Authorizer, checked_actor, checked_authorizer
from memcore.database.database import Database
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.limits import (
    MAP_BYTES_DEFAULT,
    MAP_BYTES_MAX,
    MAP_BYTES_MIN,
    REMOVAL_PIECES_OPENING,
    STEADY_INTERVAL_MS_DEFAULT,
    STEADY_INTERVAL_MS_MAX,
)
from memcore.options import checked_bool, checked_int, checked_path
from memcore.rows.lifecycle import is_erasing
from memcore.session import Engine, resume_removals
from memcore.session.engine import Oversize, size_guard
from memcore.store import LmdbStore, open_store
from memcore.store.datafile import refuse_network
from memcore.store.store import access_of, check_mode
from memcore.store.transaction import is_audited
from memcore.telemetry import Telemetry, bound, opening
from memcore.tokens import TokenCounter, get_counter
from memcore.wire import policy_name

if TYPE_CHECKING:
    from memcore.audit import Audit
    from memcore.compaction import CompactionPolicy
    from memcore.compaction.reducers import Embed
    from memcore.privacy.keyring import Key
    from memcore.retention import RetentionRule
    from memcore.session.content_filter import Admission, Guards, Redact

__all__ = [
    "open_database",
]


Rules: TypeAlias = "tuple[RetentionRule, ...] | None"


@opening
def open_database(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    durability: str | None = None,
    read_only: bool = False,
    create: bool = True,
    counter: str | TokenCounter | None = None,
    recount: bool = False,
    policy: str = "openai_chat",
    compaction: CompactionPolicy | str | Mapping[str, Any] | None = None,
    embed: Embed | None = None,
    retention: Any = None,
    allow_unsafe: bool = False,
    map_bytes: int = MAP_BYTES_DEFAULT,
    steady_interval_ms: int = STEADY_INTERVAL_MS_DEFAULT,
    verify: bool = False,
    allow_network_fs: bool = False,
    key: Key | None = None,
    key_file: str | os.PathLike[str] | None = None,
    audit: Audit | None = None,
    authorizer: Authorizer | None = None,
    actor: str | None = None,
    redact: Redact = None,
    guard: Guards = None,
    item_bytes: int | None = None,
    oversize: Oversize | None = None,
    access_counts: bool = False,
    telemetry: Any = None,
) -> Database:
    """Open a memcore file; made if it is missing.

    Args:
        path: the file, or ``":memory:"`` for a private one that is gone at close. ``~`` at its
            beginning means home; URLs (``file:``) are refused.
        durability: ``"full"`` (every acknowledged change is on the device), ``"relaxed"`` (a power
            cut takes back at most the last ``steady_interval_ms``, a killed process nothing) or
            ``"none"`` (a power cut may corrupt the file; needs ``allow_unsafe=True``). Fixed when
            the file is made; None follows it, and is ``"full"`` for a new one.
        read_only: look, write nothing, create nothing; serves where nothing may be written to.
        create: make the file if it is missing, or one of 0 bytes.
        counter: what new sessions count with: ``"o200k_base"``, any of ``get_counter``.
        recount: count sessions of other counters anew, each when first used.
        policy: the pair policy of new sessions.
        compaction: how sessions are compacted: a CompactionPolicy, a mapping or the name of one of
            ``memcore.PRESETS``; None: ``"default"``.
        embed: gives a vector for each of a list of texts; for reducers that compare by meaning.
        retention: rules to store for the database, as ``Retention.set`` takes; None: those it has.
        allow_unsafe: consent to ``durability="none"``.
        map_bytes: virtual address space to map at first; it grows by itself.
        steady_interval_ms: how long after a change a ``"relaxed"`` file begins to make it durable.
            The first handle of a process decides.
        verify: judge every page of the file before it is opened, about a microsecond each: for
            files that come from others.
        allow_network_fs: consent to a network file system; no other host may open the file.
        key: encrypts the contents of a new file, and opens an encrypted one: 32 bytes,
            ``"env:NAME"``, ``"file:PATH"``, ``"keyring:SERVICE/NAME"``, a callable that gives the
            bytes, or an object that wraps keys (``memcore.KeyProvider``).
        key_file: where the data keys lie, encrypted with ``key``; None: at the path with ``.keys``
            behind it. Without this file nothing can be read: back it up, apart from the database.
        audit: chain every write under a key; a file is audited from its first opening with one on.
        authorizer: asked with an ``AccessRequest`` before a handle is opened; True allows it.
        actor: who works with this handle, as the authorizer is told.
        redact: what is replaced by placeholders before it is stored: a RedactionPolicy, a mapping
            or the name of one of its presets. Its secret is that of the key ring, else the file
            ``<path>.secret``. The first one is recorded in the file and holds for all who open it:
            None is that one, another one is refused (``Database.demand`` changes it).
        guard: a WriteGuard, or a list of them: who judges what is about to be stored; recorded and
            demanded as ``redact`` is.
        item_bytes: how large an item may be as JSON; None: 64 MiB.
        oversize: what becomes of a larger one: ``"reject"`` (None as well), ``"offload"``: its long
            texts are kept beside it and show their ends, or a function that makes a summary of one.
        access_counts: count how often sessions and items are read (``Session.accessed``).
        telemetry: ``"log"``, ``"otel"``, a callable that takes a Record, a Sink, or a list.

    Raises:
        KeyNeededError, WrongKeyError, KeyFileError: see docs/encryption.md.
        InvalidOptionError: an option is of a wrong type or out of range.
        NotFoundError: the file is missing and ``create`` or ``read_only`` forbids to make it.
        DemandError: the file demands another redaction, or a guard or redactor of yours.
        AuditError: the file is audited, and ``audit`` is missing or has another key.
        StoreFormatError, CorruptStoreError, StoreAccessError, StoreLockedError, StorageError
    """
    file = checked_path("path", path)
    _check_flags(
        read_only=read_only, create=create, verify=verify, recount=recount,
        allow_unsafe=allow_unsafe, allow_network_fs=allow_network_fs, access_counts=access_counts,
    )  # fmt: skip
    access = _access(authorizer, actor)
    _check_recount(recount, counter, read_only=read_only)
    check_mode(durability, allow_unsafe=allow_unsafe or file == ":memory:")
    _check_numbers(map_bytes, steady_interval_ms)
    by, preset = get_counter(counter), policy_name(policy)
    rule = None if compaction is None else compacting.compaction_policy(compaction)
    _check_objects(embed, audit)
    admitted = session.admission(redact, guard)
    sizes = size_guard(item_bytes, oversize)
    rules = None if retention is None else retaining.retention_rules(retention)
    store = _open_file(
        file, allow_network_fs=allow_network_fs, read_only=read_only, create=create,
        durability=durability, map_bytes=map_bytes, steady_interval_ms=steady_interval_ms,
        verify=verify, access=access_of(key, key_file),
    )  # fmt: skip
    try:
        engine = Engine(
            store, by, preset, recount, rule, embed,
            size_guard=sizes, access_counts=access_counts, audit=audit, access=access,
        )  # fmt: skip
        return bound(_opened(store, engine, rules, admitted, telemetry), store, telemetry)
    except BaseException:  # an interrupt as well: nobody else closes it
        store.close()
        raise


def _open_file(
    file: str, *, allow_network_fs: bool, read_only: bool, create: bool, **options: Any
) -> LmdbStore:
    """The store in a file, or in memory."""
    if file != ":memory:":
        _check_place(file, there=read_only or not create, any_fs=allow_network_fs)
    return open_store(file, read_only=read_only, create=create and not read_only, **options)


def _access(authorizer: object, actor: object) -> Access | None:
    asked, who = checked_authorizer(authorizer), checked_actor(actor)
    return None if asked is None else Access(asked, who, [])


def _check_place(file: str, *, there: bool, any_fs: bool) -> None:
    """Refuse a file that is missing though required, or lies on a network file system."""
    if there and not os.path.lexists(file):
        msg = f"{file!r}: there is no such file; open it for writing to make it"
        raise NotFoundError(msg)
    if not any_fs:
        refuse_network(os.path.realpath(file))


def _check_numbers(map_bytes: int, steady_interval_ms: int) -> None:
    _check_within("map_bytes", map_bytes, MAP_BYTES_MIN, MAP_BYTES_MAX)
    _check_within("steady_interval_ms", steady_interval_ms, 1, STEADY_INTERVAL_MS_MAX)


def _check_objects(embed: object, audit: object) -> None:
    if embed is not None and not callable(embed):
        msg = f"embed: expected a callable or None, got {type(embed).__name__}"
        raise InvalidOptionError(msg)
    if audit is not None and not isinstance(audit, auditing.Audit):
        msg = f"audit: expected a memcore.Audit or None, got {type(audit).__name__}"
        raise InvalidOptionError(msg)


def _opened(
    store: LmdbStore,
    engine: Engine,
    rules: Rules,
    admitted: Admission,
    told: Telemetry | None,
) -> Database:
    """Finish opening: start the audit, resume deletions that were cut short, make the handle.

    Raises:
        AuditError: the file is audited under another key, or no key was given.
    """
    writes = not store.read_only and not store.environment().leader.poison
    if engine.audit is not None or (writes and store.read(lambda t: is_audited(t, store.path))):
        auditing.start_audit(store, engine.audit)
    redacted = None if told is None else told.redacted
    engine.write_filter = session.settled(store, admitted).write_filter(store, redacted)
    if not store.read_only:
        sound = not store.environment().leader.poison  # else nobody may rest on what is read
        if sound:
            store.secret.settle()
            if store.vault is not None:
                retaining.bury_shredded(engine)
        resume_removals(store, pieces=REMOVAL_PIECES_OPENING)
        if sound and store.read(is_erasing):
            retaining.resume_erasures(engine, pieces=REMOVAL_PIECES_OPENING)
        if rules is not None and rules != retaining.Retention(engine).get():
            retaining.Retention(engine).set(rules)
        if engine.access is not None and engine.audit is not None:
            engine.access.tell_also(partial(_chain_access, store))
    return Database(engine)


def _chain_access(store: LmdbStore, request: AccessRequest, allowed: bool) -> None:
    """Record an access request and its outcome in the audit, before access is given."""
    details = {"allowed": allowed, **asdict(request)}
    store.transact(lambda txn: auditing.record_event(txn, 0, "access", details))


def _check_flags(**flags: bool) -> None:
    for name, value in flags.items():
        checked_bool(name, value)


def _check_recount(recount: bool, counter: object, *, read_only: bool) -> None:
    if recount and (counter is None or read_only):
        msg = "recount: needs a counter= to count with, and a file that is open for writing"
        raise InvalidOptionError(msg)


def _check_within(name: str, number: int, least: int, most: int) -> None:
    if checked_int(name, number, least=least) > most:
        msg = f"{name}: expected at most {most}, got {number}"
        raise InvalidOptionError(msg)
