"""Opens a database: the options of ``memcore.open``, validated up front."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from memcore import audit as auditing
from memcore import compaction as compacting
from memcore import retention as retaining
from memcore import search, session
from memcore.access import Access, AccessRequest, Authorizer, checked_authorizer
from memcore.database.database import Database
from memcore.errors import InvalidOptionError, NotFoundError, StoreAccessError
from memcore.files import absent_directory
from memcore.limits import (
    MAP_BYTES_DEFAULT,
    MAP_BYTES_MAX,
    MAP_BYTES_MIN,
    REMOVAL_PIECES_OPENING,
    STEADY_INTERVAL_MS_DEFAULT,
    STEADY_INTERVAL_MS_MAX,
)
from memcore.options import checked_bool, checked_int, checked_optional_text, checked_path
from memcore.rows.lifecycle import is_erasing
from memcore.session import Engine, resume_removals
from memcore.session.engine import Oversize, size_guard
from memcore.store import Store, open_store
from memcore.store.datafile import refuse_network
from memcore.store.interface import SERVER_SCHEMES, need_known_address
from memcore.store.store import access_of, check_mode
from memcore.store.transaction import is_audited
from memcore.telemetry import Telemetry, bound, opening
from memcore.tokens import TokenCounter, get_counter
from memcore.wire import policy_name

if TYPE_CHECKING:
    from memcore.audit import Audit
    from memcore.compaction import CompactionPolicy
    from memcore.compaction.reducers import Embed
    from memcore.database.warm import WarmCopy
    from memcore.privacy.keyring import Key
    from memcore.retention import RetentionRule
    from memcore.search import Embedder
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
    embedder: Embedder | None = None,
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
    warm: str | None = None,
    ship: str = "async",
    telemetry: Any = None,
) -> Database:
    """Open a memcore file; create it if it is missing.

    Args:
        path: the file, or ``":memory:"`` for a private one that is discarded at close. A leading
            ``~`` is expanded; ``file:`` and other addresses are refused.
        durability: ``"full"`` (every acknowledged change is on the device), ``"relaxed"`` (a power
            failure loses at most the last ``steady_interval_ms``, a killed process nothing) or
            ``"none"`` (a power failure may corrupt the file; needs ``allow_unsafe=True``). Fixed
            when the file is created; None uses the file's mode, and ``"full"`` for a new one.
        read_only: write nothing and create nothing; works on read-only media.
        create: create the file if it is missing or has 0 bytes.
        counter: the token counter of new sessions: ``"o200k_base"``, anything ``get_counter``
            takes.
        recount: recount sessions of other counters, each when first used.
        policy: the pair policy of new sessions.
        compaction: how sessions are compacted: a CompactionPolicy, a mapping or the name of one of
            ``memcore.PRESETS``; None: ``"default"``.
        embed: returns a vector for each of a list of texts; for reducers that compare by meaning.
        embedder: turns texts into vectors for searches; a ``memcore.Embedder`` (docs/search.md).
        retention: rules to store in the database, as for ``Retention.set``; None keeps its rules.
        allow_unsafe: consent to ``durability="none"``.
        map_bytes: initial size of the memory map in bytes; it grows as needed.
        steady_interval_ms: delay in ms after a change until a ``"relaxed"`` file starts to make it
            durable. Set by the first handle in a process.
        verify: check every page before the file is opened, about a microsecond each: for files
            from untrusted sources.
        allow_network_fs: consent to a network file system; no other host may open the file.
        key: encrypts the contents of a new file, and opens an encrypted one: 32 bytes,
            ``"env:NAME"``, ``"file:PATH"``, ``"keyring:SERVICE/NAME"``, a callable that returns the
            bytes, or an object that wraps keys (``memcore.KeyProvider``).
        key_file: path of the data keys, encrypted with ``key``; None: ``path`` with the suffix
            ``.keys``. Without this file nothing can be read: back it up, apart from the database.
        audit: chain every write under a key; a file is audited once it was opened with one.
        authorizer: called with an ``AccessRequest`` before a handle is opened; True allows it.
        actor: the actor behind this handle, as passed to the authorizer.
        redact: the policy that replaces content with placeholders before it is stored: a
            RedactionPolicy, a mapping, the name of a preset, or True for the default. Its secret
            comes from the key ring, else from the file ``<path>.secret``. The first policy is
            recorded in the file and binds every later open: None uses it, a different one is
            refused (``Database.demand`` changes it).
        guard: a WriteGuard, or a list of them, that checks content before it is stored; recorded
            and required like ``redact``.
        item_bytes: the largest item, in bytes of JSON; None: 64 MiB.
        oversize: the handling of larger items: ``"reject"`` (the same as None), ``"offload"`` (long
            texts are stored separately and only their ends shown), or a function that summarizes a
            long text.
        access_counts: count how often sessions and items are read (``Session.accessed``).
        warm: the address of a schema on a server that keeps a warm copy of the file, which
            ``memcore.promote`` makes a store of its own (docs/postgres.md); needs psycopg.
        ship: ``"sync"``: a change through this handle is acknowledged when it is in the warm copy,
            too; ``"async"``: it gets there within a second.
        telemetry: ``"log"``, ``"otel"``, a callable that takes a Record, a Sink, or a list.

    Raises:
        KeyNeededError, WrongKeyError, KeyFileError: see docs/encryption.md.
        InvalidOptionError: an option has the wrong type or is out of range.
        NotFoundError: the file is missing, and ``create`` or ``read_only`` forbids creating it.
        DemandError: the file requires another redaction, or a custom guard or redactor not given.
        AuditError: the file is audited, and ``audit`` is missing or has another key.
        SupersededError: the warm copy was promoted, or follows another file.
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
    model = None if embedder is None else search.checked_embedder(embedder)
    admitted = session.admission(redact, guard)
    sizes = size_guard(item_bytes, oversize)
    rules = None if retention is None else retaining.retention_rules(retention)
    _check_warm(warm, ship)
    if file.startswith(SERVER_SCHEMES):
        _refuse_of_files(key=key, audit=audit, warm=warm)
    store = _open_file(
        file, allow_network_fs=allow_network_fs, read_only=read_only, create=create,
        durability=durability, map_bytes=map_bytes, steady_interval_ms=steady_interval_ms,
        verify=verify, access=access_of(key, key_file),
    )  # fmt: skip
    try:
        engine = Engine(
            store, by, preset, recount, rule, embed, model,
            size_guard=sizes, access_counts=access_counts, audit=audit, access=access,
        )  # fmt: skip
        _begin(store, engine, rules, admitted, telemetry)
        copy = None if warm is None else _followed(store, warm, ship)
        return bound(Database(engine, copy), store, telemetry)
    except BaseException:  # an interrupt as well: nothing else would close the store
        store.close()
        raise


def _open_file(
    file: str, *, allow_network_fs: bool, read_only: bool, create: bool, **options: Any
) -> Store:
    """Open the store in a file, in memory or on a server."""
    if file.startswith(SERVER_SCHEMES):
        return _open_server(file, read_only=read_only, create=create, **options)
    need_known_address(file)
    if file != ":memory:":
        _check_place(file, there=read_only or not create, any_fs=allow_network_fs)
    return open_store(file, read_only=read_only, create=create and not read_only, **options)


def _refuse_of_files(**given: object) -> None:
    """Reject options that a store on a server does not have.

    Raises:
        InvalidOptionError
    """
    for name, value in given.items():
        if value is not None:
            msg = f"{name}: only a file has it, not a store on a server; leave {name} out"
            raise InvalidOptionError(msg)


def _check_warm(warm: object, ship: object) -> None:
    if ship not in ("async", "sync"):
        raise InvalidOptionError(f"ship: expected 'async' or 'sync', got {ship!r:.80}")
    if warm is None and ship == "sync":
        raise InvalidOptionError("ship: there is no warm copy to ship to; give its address as warm")
    if warm is not None and not (isinstance(warm, str) and warm.startswith(SERVER_SCHEMES)):
        msg = "warm: expected the address of a schema on a server, postgresql://HOST/NAME#SCHEMA"
        raise InvalidOptionError(msg)


def _followed(store: Store, address: str, ship: str) -> WarmCopy:
    """Start a warm copy.

    Raises:
        InvalidOptionError, SupersededError
        ImportError: psycopg is not installed.
    """
    from memcore.database.warm import WarmCopy  # noqa: PLC0415 - few files have one

    try:
        made = WarmCopy(store, address)
    except ImportError as exc:
        raise _without_psycopg(exc) from exc
    made.start(is_sync=ship == "sync")
    return made


def _without_psycopg(error: ImportError) -> ImportError:
    msg = f'a store on a server needs psycopg: pip install "memcore-db[postgres]" ({error})'
    return ImportError(msg, name=error.name)


def _open_server(address: str, *, read_only: bool, create: bool, **options: Any) -> Store:
    """Open a store in PostgreSQL.

    Raises:
        InvalidOptionError: an option is one of files.
        ImportError: psycopg is not installed.
    """
    try:
        from memcore.store.postgres.store import PostgresStore  # noqa: PLC0415 - an optional dependency
    except ImportError as exc:
        raise _without_psycopg(exc) from exc
    durability = options["durability"]
    store: Store = PostgresStore(address, read_only=read_only, create=create, durability=durability)
    return store


def _access(authorizer: object, actor: object) -> Access | None:
    asked, who = checked_authorizer(authorizer), checked_optional_text("actor", actor)
    return None if asked is None else Access(asked, who, [])


def _check_place(file: str, *, there: bool, any_fs: bool) -> None:
    """Refuse a file that is missing though required, or is on a network file system."""
    real = os.path.realpath(file)
    absent = absent_directory(real)
    if absent:
        is_file = ": it is a file" if os.path.lexists(absent) else ""
        msg = f"{file!r}: there is no directory {absent!r}{is_file}"
        raise NotFoundError(msg) if there else StoreAccessError(msg)
    if there and not os.path.lexists(file):
        msg = f"{file!r}: there is no such file; without create=False or read_only=True it is made"
        raise NotFoundError(msg)
    if not any_fs:
        refuse_network(real)


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


def _begin(
    store: Store,
    engine: Engine,
    rules: Rules,
    admitted: Admission,
    told: Telemetry | None,
) -> None:
    """Start the audit and resume interrupted deletions.

    Raises:
        AuditError: the file is audited under another key, or no key was given.
    """
    writes = not store.read_only and not store.environment().leader.poison
    if engine.audit is not None or (writes and store.read(lambda t: is_audited(t, store.path))):
        auditing.start_audit(store, engine.audit)
    redacted = None if told is None else told.redacted
    engine.filter_writes(session.settled(store, admitted).write_filter(store, redacted))
    if not store.read_only:
        sound = not store.environment().leader.poison  # if poisoned, reads cannot be trusted
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


def _chain_access(store: Store, request: AccessRequest, allowed: bool) -> None:
    """Record an access request and its outcome in the audit, before access is granted."""
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
