"""Doctor: facts about a problematic file, and advice.

The file is never written and little is assumed about it: facts that cannot be determined are
omitted, and an error that prevents the store from being opened is part of the report.
"""

from __future__ import annotations

import os
import platform
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from memcore.distribution import NAME, foreign_owners
from memcore.errors import (
    CorruptStoreError,
    InvalidOptionError,
    KeyFileError,
    MemcoreError,
    StorageError,
    StoreLockedError,
)
from memcore.options import checked_path
from memcore.privacy.keyring import Key, read_key_file
from memcore.records import record
from memcore.store import lmdb as binding
from memcore.store import open_store
from memcore.store.copy import abandoned
from memcore.store.datafile import (
    ENCRYPTED,
    FORMAT_KEY,
    Format,
    is_network,
    mount_of,
    newest_meta,
)
from memcore.store.lmdb import holders_of, readers_of
from memcore.store.store import KeyOptions, access_of, need_newest

__all__ = [
    "DoctorReport",
    "examine",
]


FREE_SHARE_MAX: Final = 0.5
FREE_BYTES_MAX: Final = 64 * 1024**2
ROOM_BYTES_MIN: Final = 64 * 1024**2
LAG_MAX: Final = 1000
_MIB: Final = 1024**2
_LIBRARIES: Final = ("lmdb", "xxhash", "orjson")
_NO_FLUSH: Final = frozenset(("nobarrier", "barrier=0", "eatmydata"))
_PASSING: Final[dict[str, str]] = {
    "tmpfs": "is gone when the machine restarts",
    "ramfs": "is gone when the machine restarts",
    "overlay": "is gone with the container, unless this layer is kept: use a volume",
}


@record(frozen=True, slots=True)
class DoctorReport:
    """Facts about a file, and advice."""

    path: str
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Names and values by subject: file, store, keys, pages, use, place, versions."""
    advice: tuple[str, ...] = ()
    """Most urgent first; empty if nothing needs to be done."""
    error: MemcoreError | None = None
    """The error that opening the store raised, if any."""


def examine(
    path: str | os.PathLike[str],
    *,
    key: Key | None = None,
    key_file: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> DoctorReport:
    """Examine a store without changing it, even one that cannot be opened.

    Args:
        path: the store.
        key: opens the key file of an encrypted store; without it, it cannot be verified that the
            key file is the right one and the newest.
        key_file: path of the key file; None: next to the store.
        verify: validate every page before the store is opened, a microsecond each.

    Raises:
        InvalidOptionError: the store is in memory, or ``key_file`` is given without ``key``.
        FileNotFoundError, OSError: there is no such file, or it is not accessible.
    """
    file = checked_path("path", path)
    if file == ":memory:":
        msg = "a store in memory has no file to look at"
        raise InvalidOptionError(msg)
    file = os.path.realpath(file)
    status = Path(file).stat()
    facts: dict[str, dict[str, Any]] = {"file": _file(file, status)}
    if stat.S_ISREG(status.st_mode):
        with suppress(OSError, StorageError):
            facts["pages"] = _pages(file)
    facts["use"] = _use(file)  # before the store is opened here: that clears dead readers
    facts["place"] = _place(file)
    error: MemcoreError | None = None
    try:
        facts["store"] = _store(file, verify=verify)
        if facts["store"]["encrypted"]:
            place = f"{file}.keys" if key_file is None else checked_path("key_file", key_file)
            facts["keys"] = {"file": place}
            facts["keys"] |= _keys(file, place, access_of(key, key_file))
    except MemcoreError as problem:
        error = problem
    facts["versions"] = _versions()
    return DoctorReport(file, facts, tuple(_advice(file, facts, error)), error)


# --- Facts ----------------------------------------------------------------------------------------


def _file(path: str, status: os.stat_result) -> dict[str, Any]:
    return {
        "bytes": status.st_size,
        "bytes_on_device": status.st_blocks * 512,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": status.st_uid,
        "leftovers": _leftovers(path),
    }


def _leftovers(path: str) -> list[str]:
    """List unfinished files next to the store whose creating processes have died."""
    found: list[str] = []
    with suppress(OSError):
        found += abandoned(path)
    return sorted(found)


def _pages(path: str) -> dict[str, Any]:
    """Return the facts in the newest meta page."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        meta = newest_meta(fd, path)
    finally:
        os.close(fd)
    free = max(meta.last_page - 1 - meta.main_pages - meta.free_pages, 0)
    return {
        "page_bytes": meta.page_bytes,
        "pages": meta.last_page + 1,
        "free": free,
        "free_share": round(free / (meta.last_page + 1), 3),
        "free_bytes": free * meta.page_bytes,
        "last_txnid": meta.txnid,
        "rows": max(meta.entries - 2, 0),  # without the format record and the reserved run
    }


def _use(path: str) -> dict[str, Any]:
    holders = holders_of(path)
    found: dict[str, Any] = {"lock_file": os.path.lexists(f"{path}-lock")}
    if holders is None:
        return found
    found["processes"] = [pid for pid in holders if pid != os.getpid()]
    readers = None if os.getpid() in holders else readers_of(path)
    if readers is not None:
        held = [reader for reader in readers if reader.is_alive and reader.txnid is not None]
        found["readers"] = len(readers)
        found["dead_readers"] = [reader.pid for reader in readers if not reader.is_alive]
        oldest = min(held, key=lambda reader: reader.txnid or 0, default=None)
        if oldest is not None:
            found["oldest_snapshot"] = oldest.txnid
            found["oldest_reader"] = oldest.pid
    return found


def _place(path: str) -> dict[str, Any]:
    room = os.statvfs(path)
    found: dict[str, Any] = {"free_bytes": room.f_bavail * room.f_frsize}
    mount = mount_of(path)
    if mount is not None:
        found |= {
            "file_system": mount.kind,
            "mounted_at": mount.point,
            "source": mount.source,
            "options": mount.options,
        }
    return found


def _store(path: str, *, verify: bool) -> dict[str, Any]:
    """Read the facts that need an open store."""
    store = open_store(path, read_only=True, blind=True, verify=verify)
    try:
        record = Format.unpack(store.read(lambda txn: txn.get(FORMAT_KEY)), path)
        found = store.stats()
        return {
            "format": record.version,
            "encrypted": bool(record.features & ENCRYPTED),
            "durability": record.durability,
            "created_ms": record.created_ms,
            "map_bytes": found["map_bytes"],
            "readers_max": found["readers_max"],
            "needs_recovery": store.needs_recovery,
            "poisoned": found["poisoned"],
        }
    finally:
        store.close()


def _keys(path: str, key_file: str, access: KeyOptions | None) -> dict[str, Any]:
    """Read the facts about the key file.

    Raises:
        KeyFileError: it is missing, damaged, of another database, or older than the store.
        KeyNeededError, WrongKeyError: the key does not open it.
    """
    read_key_file(key_file)
    found = {"bytes": Path(key_file).stat().st_size, "key": "not given"}
    if access is not None:
        store = open_store(path, read_only=True, access=access)
        try:
            if store.vault is not None:
                need_newest(store.environment(), store.vault)
        finally:
            store.close()
        found["key"] = "opens it"
    return found


def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    found["LMDB"] = binding.library_version()
    found["python"] = platform.python_version()
    found["system"] = platform.platform()
    return found


# --- Advice ---------------------------------------------------------------------------------------


def _advice(
    path: str, facts: dict[str, dict[str, Any]], error: MemcoreError | None
) -> Iterator[str]:
    file = shlex.quote(path)
    if error is not None:
        yield from _on_error(file, facts, error)
    yield from _on_store(facts.get("store", {}))
    yield from _on_package()
    yield from _on_place(facts)
    yield from _on_use(facts)
    pages = facts.get("pages", {})
    free = pages.get("free_bytes", 0)
    if error is None and free > FREE_BYTES_MAX and pages["free_share"] > FREE_SHARE_MAX:
        yield (
            f"{free // _MIB:,} MiB of the file are free pages: 'memcore copy-compact --store "
            f"{file}' gives them back to the file system"
        )
    if facts["file"]["leftovers"]:
        names = " ".join(map(shlex.quote, facts["file"]["leftovers"]))
        yield f"a killed process left unfinished files: rm -- {names}"
    if pages and int(facts["file"]["mode"], 8) & 0o077:  # what is no store is left alone
        yield f"others than its owner may read or write the file: chmod 600 {file}"


def _on_error(file: str, facts: dict[str, dict[str, Any]], error: MemcoreError) -> Iterator[str]:
    if isinstance(error, CorruptStoreError):
        yield (
            "restore the newest backup in which 'memcore check' finds nothing: "
            f"'memcore restore BACKUP --store {file} --replace --yes' (this file is kept)"
        )
        yield (
            "without one, or for what was written since: "
            f"'memcore salvage {file} --to NEW' copies what can be read"
        )
    elif isinstance(error, StoreLockedError):
        pids = ", ".join(map(str, facts["use"].get("processes", ())))
        yield f"wait for the process that holds the file{f' ({pids})' if pids else ''}, or end it"
    elif isinstance(error, KeyFileError):
        yield (
            "put the newest copy of the key file in place: without it nothing can be written, and "
            "no content read whose key is missing; nobody can make it anew"
        )
        yield (
            "where the newest copy is lost, an older one reads what it has keys for: "
            f"'memcore salvage {file} --to NEW' copies that"
        )


def _on_store(store: dict[str, Any]) -> Iterator[str]:
    if store.get("poisoned"):
        yield "a commit failed here with an unknown outcome: close the store, open it, check it"
    if store.get("needs_recovery"):
        yield (
            "the last commit was interrupted (or is under way): whoever opens the store for "
            "writing completes it"
        )
    if store.get("durability") == "none":
        yield (
            "durability is 'none': a power cut may corrupt the file; if it is no cache, copy it "
            "to one that is durable"
        )


def _on_package() -> Iterator[str]:
    for owner in sorted(foreign_owners(os.path.dirname(os.path.dirname(__file__)))):
        yield (
            f"the distribution {owner} installs a package named memcore, too, and may have "
            f"overwritten files of {NAME}: pip uninstall {owner}, then reinstall {NAME}"
        )


def _on_place(facts: dict[str, dict[str, Any]]) -> Iterator[str]:
    place = facts["place"]
    kind = place.get("file_system", "")
    if is_network(kind):
        yield (
            f"the file lies on {kind}, where locks and the shared map do not hold between hosts: "
            "move it to a local disk"
        )
    if kind in _PASSING:
        yield f"what lies on {kind} {_PASSING[kind]}"
    if _NO_FLUSH & set(place.get("options", "").split(",")):
        yield "the file system is mounted without barriers: flushes do not reach the device"
    room = place["free_bytes"]
    if room < ROOM_BYTES_MIN:
        yield f"only {room // _MIB:,} MiB are free on the device: writes will fail soon; make room"
    elif room < facts["file"]["bytes_on_device"]:
        yield (
            f"{room // _MIB:,} MiB are free on the device: a backup of "
            f"{facts['file']['bytes_on_device'] // _MIB:,} MiB has to go elsewhere"
        )


def _on_use(facts: dict[str, dict[str, Any]]) -> Iterator[str]:
    use, last = facts["use"], facts.get("pages", {}).get("last_txnid", 0)
    if use.get("dead_readers"):
        pids = ", ".join(map(str, use["dead_readers"]))
        yield f"dead processes ({pids}) left reader slots: opening the store clears them"
    lag = last - use.get("oldest_snapshot", last)
    if lag > LAG_MAX:
        yield (
            f"process {use['oldest_reader']} reads a snapshot that is {lag:,} commits old: while "
            "it does, no page freed since can be used again; end that read"
        )
