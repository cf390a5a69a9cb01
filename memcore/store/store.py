"""LmdbStore: ``open_store``, store handles, and the keys of an encrypted file."""

from __future__ import annotations

import fcntl
import os
import stat
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import field
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar
from weakref import WeakSet, ref

from memcore import store as package
from memcore.codec import keys
from memcore.codec.keys import SECRET_KEY
from memcore.codec.values import clock_us, open_number, seal_value
from memcore.errors import (
    ClosedError,
    InternalError,
    InvalidOptionError,
    KeyFileError,
    KeyNeededError,
    MemcoreError,
    NestedCallError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFullError,
    SupersededError,
    uncopied,
)
from memcore.faces import logger
from memcore.files import is_same
from memcore.limits import (
    MAP_BYTES_DEFAULT,
    MAP_BYTES_MAX,
    MAP_BYTES_MIN,
    STEADY_INTERVAL_MS_DEFAULT,
)
from memcore.options import checked_path, refuse_copies
from memcore.privacy.keyring import SUFFIX, Key, KeyProvider, KeyRing, Secret, key_provider
from memcore.records import record
from memcore.store.datafile import DURABILITIES, ENCRYPTED, LOCK, Format, newest_meta, take_whole
from memcore.store.environment import Environment, forgotten
from memcore.store.interface import SERVER_SCHEMES, Notifier, ReadTxn, Txn
from memcore.store.lmdb import RawEnv, already_open
from memcore.store.open_file import build_file, create_file, new_record
from memcore.store.redo_log import find_run
from memcore.store.transaction import stored_rows

if TYPE_CHECKING:
    import asyncio

    from memcore.store.copy import Judge
    from memcore.store.encryption import RowCipher

__all__ = [
    "KEYS_SUFFIX",
    "KeyOptions",
    "LmdbStore",
    "access_of",
    "check_mode",
    "close_if_unused",
    "close_unused",
    "drop",
    "end",
    "environments",
    "need_newest",
    "need_own",
    "new_ring",
    "open_store",
    "opening",
    "unlock",
    "vault_of",
]


# --- The environments of this process: one per file, and how they are forked and closed -----------
# The last handle of an environment closes it. A handle that was never closed releases its
# environment when it is finalized, possibly by the garbage collector, on any thread and with any
# lock held. The finalizer must therefore not block: it queues the environment for a thread that
# lives only while there is something to close. Opening a store first closes unused environments, so
# that a loop cannot open stores faster than that thread closes them.

_FORK_PATIENCE_SECONDS: Final = 5.0


class _OpenLock:
    """Lock that serializes opening and closing: ``with opening.lock``.

    Callers enter the lock itself, not a method of this class: an interrupt at the first line of an
    ``__exit__`` would leave it locked. A forked child needs a new lock, as its owner may be gone.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Replace the locks in the child of a fork, where their holders do not exist."""
        self.lock = RLock()
        self.closer = allocate_lock()
        """Held while a thread is closing dropped environments."""


environments: WeakSet[Environment] = WeakSet()
opening = _OpenLock()
_fork: list[tuple[int, bool]] = []
"""Threads that fork, and whether each had ``opening`` locked before."""


def _known() -> list[Environment]:
    """Return a snapshot of the set of environments."""
    while True:
        with suppress(RuntimeError):  # another thread added one during the iteration
            return list(environments)


def end(env: Environment) -> None:
    """Close an environment that has no handles left, and forget it."""
    try:
        env.shut()
    finally:
        # Even if closing failed: later openings of the file would be given this environment.
        environments.discard(env)


def close_if_unused(env: Environment) -> None:
    """Close an environment if it has no handles left."""
    with opening.lock:
        if env.count_handles():
            return
        # Under the lock: an opener has its handle by now, or sees this and waits (``_open_file``).
        env.closing = True
    # Outside the lock: the work that this waits for may itself open a store.
    end(env)


def drop(env: Environment, handle: int) -> None:
    """Release a handle that was garbage-collected unclosed; never blocks and takes no lock."""
    env.handles.pop(handle, None)
    if env.count_handles():
        return
    env.dropped = True
    forgotten.append(env)  # an interrupt may make this run twice, which is harmless
    if not opening.closer.locked():  # its holder checks the queue again after releasing it
        with suppress(RuntimeError):  # no thread can be started: the next opening closes it
            start_new_thread(_close_forgotten, ())


def close_unused(*, patient: bool = False) -> None:
    """Close environments without handles; ``patient`` also waits for those being closed."""
    # ``forgotten`` too: the weak reference to one that the collector revived is gone. One that this
    # thread leads is left out: closing it would wait for this thread.
    for env in [*_known(), *forgotten]:
        if not env.count_handles() and (patient or not env.closing) and not env.queue.led_here:
            _close_for_nobody(env)


def _close_forgotten() -> None:
    # Acquired here, not in ``drop``: an interrupt there would leave it locked for good.
    while forgotten and opening.closer.acquire(False):
        try:
            while forgotten:
                _close_for_nobody(forgotten[0])
                # Only now: a ``patient`` opening has to find it until it is closed.
                forgotten.popleft()
        finally:
            opening.closer.release()


def _close_for_nobody(env: Environment) -> None:
    try:
        close_if_unused(env)
    except Exception as error:  # noqa: BLE001 - there is no caller to report it to
        logger("memcore.store").error("a store that nobody closed did not close well: %s", error)


def _before_fork() -> None:
    # The child must not inherit an environment that is half opened or half closed. The timeout is
    # for a holder of the lock that waits for a transaction of this very thread.
    mine = opening.lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - as Condition checks
    _fork.append((get_ident(), mine))
    if not mine:
        # Noted before: of an interrupt right behind it nobody would know that it was acquired.
        opening.lock.acquire(timeout=_FORK_PATIENCE_SECONDS)
    for env in _known():
        env.fork.quiesce(_FORK_PATIENCE_SECONDS)


def _after_fork_in_parent() -> None:
    for env in _known():
        env.fork.resume()
    me = get_ident()
    for place, (thread, mine) in enumerate(_fork):
        # Another thread may be waiting to fork: its entry, and its lock, are not ours to give back.
        if thread == me:
            # Removed before the release: the second hook must not release the lock again.
            del _fork[place]
            if not mine and opening.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
                opening.lock.release()
            break


def _after_fork_in_child() -> None:
    opening.reset()
    _fork.clear()
    for env in _known():
        env.fork.forget()


os.register_at_fork(before=_before_fork)
for _ in range(2):
    # A signal that arrives during the fork is raised in the first of these hooks, and what a hook
    # raises is only printed: the second one then does its work. After a first one it does nothing.
    os.register_at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


# --- Unlocking a file: whether it is encrypted, and the vault that a key opens --------------------

KEYS_SUFFIX: Final = ".keys"
"""Suffix appended to a database's path to name its default key file."""
_ROWS_LOOKED_AT = 64
"""Rows examined per scope and kind: a session's first ones may be heads and index pages."""


@record(frozen=True, slots=True)
class KeyOptions:
    """Key provider and key file of an encrypted database, as given by the caller."""

    provider: KeyProvider = field(repr=False)
    key_file: str | None = None
    """Path of the key file; None: the database's path with ``.keys`` appended."""

    __reduce_ex__ = uncopied

    def path_for(self, database: str) -> str:
        """Return the path of a database's key file."""
        return self.key_file or database + KEYS_SUFFIX


def is_own_file(path: str, database: str, key_file: str | None = None) -> bool:
    """Return True if a path is that of a database, or of a file that belongs to it.

    Those are LMDB's lock, the key file and the secret that keys pseudonyms.
    """
    if database.startswith(SERVER_SCHEMES):
        return False
    real = os.path.realpath(database)
    own = [real, real + LOCK, real + SUFFIX, real + KEYS_SUFFIX]
    if key_file is not None:
        own.append(key_file)
    return any(is_same(path, each) for each in own)


def check_mode(durability: object, *, allow_unsafe: bool) -> None:
    """Reject an unknown durability mode, or one that can lose data without explicit consent.

    Raises:
        InvalidOptionError
    """
    if durability not in (None, *DURABILITIES):
        known = ", ".join(map(repr, DURABILITIES))
        msg = f"durability: expected one of {known}, got {durability!r}"
        raise InvalidOptionError(msg)
    if durability == "none" and not allow_unsafe:
        msg = (
            "durability='none' may corrupt the file when the power fails: pass allow_unsafe=True "
            "if the file is a cache or a test's, else leave durability out"
        )
        raise InvalidOptionError(msg)


def access_of(key: Key | None, key_file: str | os.PathLike[str] | None) -> KeyOptions | None:
    """Build KeyOptions from the options ``key`` and ``key_file``; None without a key.

    Raises:
        InvalidOptionError: ``key_file`` without ``key``.
        KeyNeededError: the source that ``key`` names has no key.
        ImportError: the ``cryptography`` or ``keyring`` package is missing.
    """
    if key is None:
        if key_file is not None:
            raise InvalidOptionError("key_file: needs key=, which opens it")
        return None
    return KeyOptions(
        key_provider(key), None if key_file is None else checked_path("key_file", key_file)
    )


def new_ring(access: KeyOptions, path: str) -> KeyRing:
    """Create the key file for a new database at ``path``, or reuse the one already there.

    Raises:
        KeyFileError: a key file with another database's keys exists, or it cannot be written.
        WrongKeyError: a key file exists that the key does not open.
    """
    if path == ":memory:":
        return KeyRing.create(None, access.provider)
    return KeyRing.create(access.path_for(path), access.provider)


def vault_of(access: KeyOptions | None, path: str) -> RowCipher | None:
    """Load a file's row cipher from its key file; None without a key.

    Raises:
        KeyFileError, WrongKeyError: the key file cannot be read.
    """
    if access is None:
        return None
    return package.RowCipher(KeyRing.load(access.path_for(path), access.provider))


def unlock(record: Format, path: str, access: KeyOptions | None) -> RowCipher | None:
    """Return a file's row cipher; None if the file is not encrypted.

    Raises:
        KeyNeededError: the file is encrypted and no key was given.
        WrongKeyError: the key does not open the key file.
        KeyFileError: the key file is missing, damaged, or belongs to another database.
        InvalidOptionError: a key was given and the file is not encrypted.
    """
    if not record.features & ENCRYPTED:
        if access is None:
            return None
        msg = (
            f"{path} is not encrypted, and a key was given: export its sessions, and import them "
            "into a new database that is opened with the key"
        )
        raise InvalidOptionError(msg)
    if access is None:
        raise KeyNeededError(f"{path} is encrypted; open it with key=")
    name = access.path_for(path)
    ring = KeyRing.load(name, access.provider)
    if ring.seed != record.seed:
        msg = f"{name} is the key file of another database than {os.fspath(path)}"
        raise KeyFileError(msg)
    return package.RowCipher(ring)


def need_own(store: LmdbStore, vault: RowCipher) -> None:
    """Reject a key file that another data file owns; the first opening for writing claims it.

    Data files assign the same numbers to different users, so erasing a user in this file would
    shred the keys of somebody in the other one. The owner is recorded durably in the data file
    first and in the key file second; if that is interrupted in between, the next opening resumes.

    Raises:
        KeyFileError: the key file belongs to another data file, possibly the one this is a copy of.
    """
    ring = vault.ring
    if ring.path is None:
        return
    if not (ring.owner and store.read(package.owner_of) == ring.owner):
        owner = store.transact(lambda txn: vault.own(txn, store.path), makes_room=True)
        if not ring.owner:
            # Else a power failure could undo the owner row and leave the claim: a file without an
            # owner is refused as a copy when its key file has one.
            store.make_durable()
            try:
                # In a transaction for its write lock, under which key files are changed.
                store.transact(lambda _: ring.claim(owner), makes_room=True)
            except KeyFileError as error:
                if ring.owner not in (b"", owner):
                    raise
                logger("memcore.store").warning(
                    "the next opening notes whose the key file is: %s", error
                )
    home = os.path.realpath(ring.path.removesuffix(KEYS_SUFFIX))
    # A compaction may be replacing the file right now: its new file is not another copy.
    if home not in (ring.path, os.path.realpath(store.path)) and _is_copy_of(store, home):
        raise package.copy_refused(store.path, home, ring.path)


def _is_copy_of(store: LmdbStore, other: str) -> bool:
    """Return True if ``other`` is a store whose owner row has the same owner.

    Backups have a blank owner, so a key file's database may have backups anywhere.
    """
    try:
        fd = os.open(other, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        env = store.environment()
        if (status.st_dev, status.st_ino) in (env.next_key, env.key):
            return False
        if not stat.S_ISREG(status.st_mode) or find_run(fd, other).seed != store.file_id:
            return False
    except (OSError, StorageError):
        return False  # not a database, or too damaged to be used
    finally:
        os.close(fd)
    try:
        with closing(open_store(other, read_only=True, create=False, blind=True)) as found:
            return found.read(package.owner_of) == store.read(package.owner_of)
    except StorageError:
        return True  # it has the same seed, and its owner cannot be read


def need_newest(env: Environment, vault: RowCipher) -> None:
    """Reject a key file that is older than the database.

    Writing with it would mint new keys for users who already have contents, and everything written
    with those is lost once the right key file is restored. The database records the newest data key
    that it has seen; files written by older versions of memcore do not, and there a stale key file
    is detected by users who have contents but no keys.

    Raises:
        KeyFileError: it is older, or was replaced by an older one since it was read.
    """
    noted = env.read(vault.noted)
    vault.ring.refresh()  # after the read: another process may just have minted the key
    if noted > vault.ring.last:
        raise _older(vault, f"that has seen data key {noted}, its last one is {vault.ring.last}")

    def look(txn: ReadTxn) -> int | None:
        key = keys.counter(keys.Counter.SCOPE)
        value = txn.get(key)
        last = 0 if value is None else open_number(key, value)
        found = (
            _first_content(txn, kind, vault.ring.minted, last) for kind in package.CLOSED_KINDS
        )
        return min((scope for scope in found if scope is not None), default=None)

    found = env.read(look)
    if found is None:
        return
    vault.ring.refresh()
    if vault.ring.minted > found:
        return  # another process had just minted the key
    raise _older(vault, "users have contents for whom it has no key")


def _older(vault: RowCipher, how: str) -> KeyFileError:
    return KeyFileError(
        f"{vault.ring.path} is older than the database: {how}; restore the newest copy, or open "
        "the database read-only for what can be read"
    )


def _first_content(txn: ReadTxn, kind: int, first: int, last: int) -> int | None:
    """Find the first scope in a range with an encrypted row of a kind; empty scopes cost nothing.

    The bounds come from a row that may be damaged, so the loop iterates over keys, not numbers.
    """
    if first > last:
        return None
    start, stop = keys.scoped(kind, first), keys.after(keys.scoped(kind, last))
    while start < stop:
        scope = looked = 0
        for key, value in stored_rows(txn, start, stop):
            found = int.from_bytes(key[1:9], "big")
            scope, looked = found, looked + 1 if found == scope else 1
            if package.number_of(value) is not None:
                return scope
            if looked == _ROWS_LOOKED_AT:
                break  # continue with the next scope
        else:
            return None
        start = keys.after(keys.scoped(kind, scope))
    return None


# --- Opening a store, and the handle that callers hold --------------------------------------------

T = TypeVar("T")
_TRIES: Final = 8
"""Attempts to open a file that LMDB's binding still regards as open."""


def open_store(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    durability: str | None = None,
    map_bytes: int = MAP_BYTES_DEFAULT,
    steady_interval_ms: int = STEADY_INTERVAL_MS_DEFAULT,
    verify: bool = False,
    access: KeyOptions | None = None,
    blind: bool = False,
) -> LmdbStore:
    """Open or create the store at ``path``; ``":memory:"`` is private and discarded at close.

    ``durability=None`` means the mode that the file records, or ``"full"`` for a new one.
    ``access`` opens an encrypted store, and makes a new one encrypted. A ``blind`` handle, which
    must be read-only, needs no key: it sees contents as they are stored.
    """
    name = os.fsdecode(os.fspath(path))
    _check_options(name, durability, map_bytes)
    close_unused()
    for tries_left in reversed(range(_TRIES)):
        try:
            if name == ":memory:":
                return _open_memory(map_bytes, access)
            # LMDB derives the lock file from the path: all names of a file must map to one lock.
            file = os.path.realpath(name)
            if not os.path.lexists(file) or (create and not read_only and _is_empty(file)):
                _create(file, durability, access, allowed=create and not read_only)
            fresh: list[Environment] = []
            made = _open_file(
                partial(
                    _shared,
                    file,
                    read_only,
                    map_bytes,
                    steady_interval_ms,
                    verify=verify,
                    fresh=fresh,
                ),
                lambda env: _handle(env, read_only, durability, access, blind),
            )
            return _proven(_verified(made) if verify and not fresh else made)
        except StorageError as error:
            # LMDB's binding tracks files by inode, and forgets one only once it is fully closed.
            if not tries_left or not already_open(error.__cause__):
                raise
        close_unused(patient=True)
    raise AssertionError  # the last try returned or raised


def _open_file(
    shared: Callable[[], Environment], handle: Callable[[Environment], LmdbStore]
) -> LmdbStore:
    """Return a handle on the shared environment, after waiting for one that is being closed."""
    while True:
        store = None
        try:
            with opening.lock:
                env = shared()
                if not env.closing:
                    store = handle(env)
            if store is not None:
                return store
        except BaseException:
            if store is not None:
                # An interrupt: the caller never gets this handle to close.
                store.close()
            close_unused()  # the environment may have been opened without getting a handle
            raise
        # Another thread is closing its last handle, or was interrupted while doing so.
        with suppress(MemcoreError):  # reported to the thread that closes it
            end(env)


def _proven(store: LmdbStore) -> LmdbStore:
    """Verify that a handle may write with its key file. Runs without ``opening``, as it may block.

    Raises:
        KeyFileError: it may not; the handle is closed.
    """
    try:
        if store.vault is not None and not store.read_only:
            need_newest(store.environment(), store.vault)
            need_own(store, store.vault)
    except BaseException:
        store.close()
        raise
    return store


def _create(name: str, durability: str | None, access: KeyOptions | None, *, allowed: bool) -> None:
    """Create a file, and its key file if encrypted, unless another process created it first.

    That process may even have written already; the data keys that exist then do no harm. A failed
    creation leaves its key file in place for the next attempt: another process may already use it.
    """
    if not allowed:
        raise StoreAccessError(f"{name}: there is no such file")
    try:
        seed = None if access is None else new_ring(access, name).seed
    except KeyFileError:
        if os.path.lexists(name) and not _is_empty(name):
            return
        raise
    with suppress(FileExistsError):
        create_file(name, durability or "full", seed=seed)


def _is_empty(name: str) -> bool:
    """Return True if a file of 0 bytes exists: a reserved name, as ``tempfile`` creates it."""
    try:
        status = os.stat(name)
    except OSError:
        return False  # opening it reports the reason
    return stat.S_ISREG(status.st_mode) and not status.st_size


def _handle(
    env: Environment,
    read_only: bool,
    durability: str | None,
    access: KeyOptions | None,
    blind: bool,
) -> LmdbStore:
    recorded = _format(env).durability
    if durability not in (None, recorded):
        raise InvalidOptionError(
            f"{env.path} is a store with durability {recorded!r}, not {durability!r}; leave"
            " durability out to open it as it is"
        )
    if not (blind and read_only):
        vault = unlock(_format(env), env.path, access)
        if env.vault is None:
            env.vault = vault
        elif vault is not None:  # keep the first vault: its ciphers are in use
            env.vault.ring.adopt(vault.ring)
    return LmdbStore(env, read_only=read_only)


def _check_options(name: str, durability: str | None, map_bytes: int) -> None:
    if not name:
        raise InvalidOptionError("the path is empty")
    if durability is not None and durability not in DURABILITIES:
        raise InvalidOptionError(f"durability {durability!r} is none of {', '.join(DURABILITIES)}")
    if name == ":memory:" and durability not in (None, "none"):
        raise InvalidOptionError('a ":memory:" store cannot be durable; leave durability out')
    if not MAP_BYTES_MIN <= map_bytes <= MAP_BYTES_MAX:
        raise InvalidOptionError(f"map_bytes is not within {MAP_BYTES_MIN}..{MAP_BYTES_MAX}")


def _verified(store: LmdbStore) -> LmdbStore:
    """Verify the pages of an environment that was open already; closes the handle if they are bad.

    Without ``opening`` locked: this waits for the lead, whose holder may be opening a store.
    """
    try:
        env = store.environment()
        env.refuse(env.check(env.judge))
    except BaseException:
        store.close()
        raise
    return store


def _shared(
    name: str,
    read_only: bool,
    map_bytes: int,
    interval_ms: int,
    *,
    verify: bool,
    fresh: list[Environment],
) -> Environment:
    """Return this process's environment of the file, which may be closing, or a new one.

    A new one is verified, if asked for, and added to ``fresh``.
    """
    with suppress(OSError):  # ``attach`` reports it
        status = os.stat(name)
        for env in _known():
            # By inode: a file may have several paths, and opened twice in one process it would lose
            # its POSIX locks with the first of the two descriptors to be closed.
            if (status.st_dev, status.st_ino) in (env.key, env.next_key):
                if env.closing:
                    return env
                if not read_only:
                    # It waits for the lead with ``opening`` locked: no leader may open a store.
                    env.need_writable()
                return env
    env = Environment(name, map_bytes=map_bytes, interval_seconds=interval_ms / 1000)
    try:
        env.attach(read_only=read_only, verify=verify)
        fresh.append(env)
        environments.add(env)
    except BaseException:
        # There is nothing to flush but a replay, whose record stays in its slot.
        env.detach(settle=False)
        raise
    return env


def _format(env: Environment) -> Format:
    if env.format is None:
        raise InternalError("an environment without a format record")
    return env.format


def _open_memory(map_bytes: int, access: KeyOptions | None) -> LmdbStore:
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - only in-memory databases need it

    ring = None if access is None else new_ring(access, ":memory:")
    record = new_record("none", seed=None if ring is None else ring.seed)
    try:
        with TemporaryDirectory(prefix="memcore-") as directory:
            name = os.path.join(directory, "memory")
            build_file(name, record, sync=False)
            env = Environment(name, map_bytes=map_bytes)
            env.vault = None if ring is None else package.RowCipher(ring)
            with opening.lock:  # a fork sees it completely set up or not at all
                env.attach(read_only=False)
                env.private = True
                env.has_name = False  # its directory goes now
                env.path = ":memory:"
                environments.add(env)
                return LmdbStore(env, read_only=False)
    except OSError as error:
        raise package.refusal(error, ":memory:") from error


class SecretRow:
    """Row that holds a secret until it has a file."""

    __slots__ = ("_store",)

    def __init__(self, store: LmdbStore) -> None:
        self._store: Callable[[], LmdbStore | None] = ref(store)

    def _open(self) -> LmdbStore:
        store = self._store()
        if store is None:
            raise ClosedError("the store is closed; open it again")
        return store

    def _kept(self, value: bytes | None) -> bytes | None:
        key = self._open().environment().key
        return None if value is None or key is None else package.waiting_secret(value, key[1])

    def kept(self) -> bytes | None:
        """Return the secret held in the row, or None."""
        return self._kept(self._open().read(_secret_row))

    def is_used(self) -> bool:
        """Return True if the row exists, whether or not it holds a secret."""
        return self._open().read(_secret_row) is not None

    def change(self, fn: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace the secret with ``fn(secret)``, None for no secret, under the write lock."""
        store = self._open()
        env = store.environment()
        if env.queue.led_here or get_ident() in env.barrier.live:
            # Inside a transaction of this thread no row can be written, but a file can be.
            if fn(None) is not None:
                raise StoreFullError(f"{env.path}: no space is left for its secret file; free some")
            return None

        def closure(txn: Txn) -> bytes | None:
            row = _secret_row(txn)
            kept = self._kept(row)
            left = fn(kept)
            if left is None:
                txn.delete(SECRET_KEY)
            elif left != kept and env.key is not None:
                packed = package.packed_secret(left, env.key[1])
                txn.put(SECRET_KEY, seal_value(SECRET_KEY, packed))
            if row is not None and kept is None:
                logger("memcore.store").warning(
                    "%s: a secret that was damaged or of another file was dropped", env.path
                )
            return left

        return store.transact(closure, makes_room=True)


def _secret_row(txn: ReadTxn) -> bytes | None:
    return txn.get(SECRET_KEY)


class SecondPlace(Protocol):
    """A place that a commit has to reach before it is acknowledged."""

    def confirm(self) -> None:
        """Wait until everything committed before this call is there."""

    def confirm_later(self, stored: asyncio.Future[Any], outcome: asyncio.Future[Any]) -> None:
        """Give ``outcome`` the result of a commit, which is stored, once it is there."""


class LmdbStore:
    """Handle of an open store; handles of the same file share its environment and queue.

    Nothing that it references references it back, so it and everything it holds open are released
    with its last reference.
    """

    __slots__ = (
        "__weakref__", "_bars_writes", "_durability", "_env", "_second", "file_id", "path",
        "read_only", "secret", "seed", "vault",
    )  # fmt: skip

    def __init__(self, env: Environment, *, read_only: bool) -> None:
        self._env: Environment | None = env
        record = _format(env)
        self.path = env.path
        self.read_only = read_only
        self._bars_writes = read_only
        self._second: SecondPlace | None = None
        self._durability = record.durability
        self.file_id = record.seed
        self.vault = env.vault
        self.seed = record.seed if env.vault is None else env.vault.seed
        ring = None if env.vault is None else env.vault.ring.secret
        place = SecretRow(self) if ring is None else None
        self.secret = Secret(env.path, create=not read_only, ring=ring, place=place)
        env.handles[id(self)] = ref(self)
        if env.superseded:  # behind the line above: ``supersede`` bars the handles that it finds
            self._bars_writes = True

    __reduce__ = refuse_copies

    def __del__(self) -> None:
        env = self._env
        if env is not None:
            try:
                drop(env, id(self))
            except BaseException:  # an interrupt: nothing else would release the handle
                drop(env, id(self))
                raise

    is_server = False

    def now_us(self) -> int:
        """Return this machine's time in microseconds: writers of a file share it."""
        return clock_us()

    @property
    def durability(self) -> str:
        """Durability mode of the file, which ``copy_compact`` may change."""
        if self._env is not None and self._env.format is not None:
            self._durability = self._env.format.durability
        return self._durability

    @property
    def notifier(self) -> Notifier:
        """Notifier of commits made by this process, through any handle."""
        return self.environment().notifier

    @property
    def opened(self) -> int:
        """Number of times that a file was opened at the path, by any handle."""
        return self.environment().opened

    @property
    def place(self) -> tuple[int, int]:
        """Device and inode of the file."""
        status = os.fstat(self.environment().fd)
        return status.st_dev, status.st_ino

    def read(self, fn: Callable[[ReadTxn], T], *, patient: bool = True) -> T:
        """Run ``fn`` on one snapshot; a nested read shares the outer read's snapshot.

        A read that is not ``patient`` never waits for the lead.

        Raises:
            MapMovedError: not ``patient``, and the map has to be replaced first.
        """
        env = self._env
        if env is None:
            self._refuse_closed()
        return env.read(fn, patient=patient)

    def transact(self, fn: Callable[[Txn], T], *, makes_room: bool = False) -> T:
        """Run ``fn`` in a write transaction, commit it, and return the result."""
        env = self._env
        if env is None or self._bars_writes:
            self._refuse_write()
        if self._second is None:
            return env.queue.call(fn, makes_room=makes_room)
        result = env.queue.call(fn, makes_room=makes_room)
        self._second.confirm()
        return result

    def alone(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` under the write lock; nothing is committed."""
        env = self.environment()
        if self._bars_writes:
            self._refuse_write()
        return env.queue.call(lambda _: env.while_nobody_writes(fn), job=True)

    def submit(
        self,
        fn: Callable[[Txn], T],
        loop: asyncio.AbstractEventLoop,
        *,
        makes_room: bool = False,
        large: bool = False,
        future: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Queue ``fn`` from ``loop``'s thread; the future completes after the commit."""
        if self._bars_writes:
            self._refuse_write()
        queue, second = self.environment().queue, self._second
        if second is None:
            return queue.submit(fn, loop, makes_room=makes_room, large=large, future=future)
        outcome: asyncio.Future[T] = loop.create_future() if future is None else future
        stored = queue.submit(fn, loop, makes_room=makes_room, large=large)
        stored.add_done_callback(lambda _: second.confirm_later(stored, outcome))
        return outcome

    def flush(self) -> None:
        """Flush everything committed so far, including the last meta page, and anchor it.

        Raises:
            AuditError: everything is on the device except the anchor.
        """
        self.make_durable()
        env = self.environment()
        if env.audit is not None and not env.read_only:
            env.queue.call(env.audit.anchor, job=True)

    def make_durable(self) -> None:
        """Flush without anchoring: no power failure can undo earlier commits."""
        env = self.environment()
        if env.read_only:
            return
        env.hold(self._sync)  # the child of a fork reopens here, which also pins its snapshot
        if env.steady_sync is not None:
            env.steady()

    def _sync(self, _: RawEnv) -> None:
        env = self.environment()
        # In ``relaxed`` a flush alone makes nothing durable: openers go by the record.
        if env.steady_sync is None:
            env.leader.sync()

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        compact: bool = True,
        judge: Judge | None = None,
    ) -> None:
        """Copy one consistent snapshot to a new file without blocking writers.

        The copy's structure is verified, by ``judge`` if given, before it appears at ``target``.
        """
        final = os.path.realpath(os.fsdecode(os.fspath(target)))
        package.back_up(self.environment(), final, compact=compact, judge=judge)

    def copy_compact(
        self, *, durability: str | None = None, judge: Judge | None = None
    ) -> tuple[int, int]:
        """Replace the file with a compacted copy, optionally changing its durability mode.

        Returns:
            Size of the file before and after, in bytes.
        """
        env = self.environment()
        if self._bars_writes:
            self._refuse_write()
        if env.private:
            raise InvalidOptionError("an in-memory store has no file to compact")
        self.need_outside()
        with env.alone:  # before the lead, which whoever holds it needs, too
            return env.queue.call(
                lambda _: package.compact_file(env, durability=durability, judge=judge), job=True
            )

    def wipe_records(self) -> None:
        """Wipe the contents of the last commits from the redo slots; stored data is unaffected."""
        env = self.environment()
        env.queue.call(lambda _: package.wipe_slots(env), job=True)

    def restore(
        self, target: str, *, kept: str | None, replace: bool, judge: Judge | None = None
    ) -> None:
        """Put a copy of this store at ``target``; a file that it replaces is kept as ``kept``."""
        env = self.environment()
        owner = b"" if self.vault is None else self.vault.ring.owner
        if replace and os.path.lexists(target):
            package.restore_file(env, target, kept=kept, judge=judge, owner=owner)
        else:
            package.back_up(env, target, compact=False, judge=judge, owner=owner)

    def check(self) -> list[str]:
        """Verify the structure of the whole file, blocking writers; an empty list means clean."""
        env = self.environment()
        return env.check(env.walk)

    def stats(self) -> dict[str, Any]:
        """Return statistics of the file, the map and the queue."""
        return self.environment().hold(self._figures)

    def _figures(self, raw: RawEnv) -> dict[str, Any]:
        env = self.environment()
        meta = newest_meta(env.fd, env.path)
        info = raw.info()
        return {
            "path": self.path,
            "durability": self.durability,
            "read_only": self.read_only,
            "file_bytes": os.fstat(env.fd).st_size,
            "map_bytes": info["map_size"],
            "page_bytes": meta.page_bytes,
            "pages": meta.last_page + 1,
            "pages_used": 2 + meta.main_pages + meta.free_pages,
            "pages_free": meta.last_page - 1 - meta.main_pages - meta.free_pages,
            "entries": meta.entries - 2,
            "last_txnid": meta.txnid,
            "readers": info["num_readers"],
            "readers_max": info["max_readers"],
            "batches": env.leader.batches,
            "closures": env.leader.closures,
            "handles": env.count_handles(),
            "poisoned": bool(env.leader.poison),
            "steady_points": 0 if env.steady_sync is None else env.steady_sync.points,
            "unsteady_commits": 0 if env.steady_sync is None else env.steady_sync.uncovered,
        }

    @property
    def needs_recovery(self) -> bool:
        """True if this read-only handle sees the file one transaction behind. Advisory.

        A commit in progress looks the same. Opening the store for writing recovers it.
        """
        return self.environment().needs_recovery()

    def exclusive(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` with the file locked exclusively, keeping all other processes out.

        A process has one flock on a file, however many of its threads ask for it: they take turns.
        Not a context manager: an interrupt at its end would leave everybody locked out.

        Raises:
            StoreLockedError: another process has it open.
        """
        env = self.environment()
        self.need_outside()
        with env.alone:
            env.hold(lambda _: None)  # the child of a fork reopens here
            try:
                take_whole(env.fd, env.path)
                return fn()
            finally:
                # -1 in the child of a fork within ``fn``: the flock is shared with the parent, and
                # downgrading it here would let other processes in there.
                if env.fd >= 0:
                    fcntl.flock(env.fd, fcntl.LOCK_SH)

    def need_outside(self) -> None:
        """Refuse within a transaction: what is waited for may wait for it to end.

        Raises:
            NestedCallError
        """
        env = self.environment()
        if env.queue.led_here or get_ident() in env.barrier.live:
            raise NestedCallError(
                "inside a transaction this would wait for its end: do it after that"
            )

    def close(self) -> None:
        """Release the handle; the last one waits for pending work and closes the file."""
        env = self._env
        if env is None:
            return
        if env.queue.led_here or get_ident() in env.barrier.live:
            raise NestedCallError(
                "close() inside a transaction on the same thread: close it after that"
            )
        try:
            self._give_back(env)
        except Exception:
            raise
        except BaseException:  # an interrupt: finish, as nothing else would
            self._give_back(env)
            raise

    def _give_back(self, env: Environment) -> None:
        with opening.lock:
            self._env = None
            env.handles.pop(id(self), None)
        close_if_unused(env)

    def environment(self) -> Environment:
        """Return the open environment, for the other modules of this package.

        Raises:
            ClosedError
        """
        env = self._env
        if env is None:
            self._refuse_closed()
        return env

    def _refuse_closed(self) -> NoReturn:
        raise ClosedError(f"{self.path}: the store is closed; open it again")

    def wait_for(self, second: SecondPlace) -> None:
        """Have each commit through this handle wait until it is in a second place, too."""
        self._second = second

    def supersede(self, why: str) -> None:
        """Refuse writes through all handles of this process from now on, with SupersededError."""
        env = self.environment()
        env.superseded = why
        for handle in list(env.handles.values()):
            found = handle()
            if isinstance(found, LmdbStore):
                found._bars_writes = True  # noqa: SLF001 - of its own class

    def _refuse_write(self) -> NoReturn:
        if self._env is None:
            self._refuse_closed()
        if self._env.superseded:
            raise SupersededError(f"{self.path}: {self._env.superseded}")
        raise ReadOnlyError(f"{self.path}: the database is open read-only; open it for writing")
