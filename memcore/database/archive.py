"""Archives: what sweeps remove, as objects in a directory or in object storage, readable in place.

An archive holds lines of an export. Each removal writes objects of its own, which are complete and
durable before anything is deleted, and are never changed afterwards::

    APP/USER/SESSION/0001764460800000000-9f2c41d07a6be315.00000.last.jsonl.gz
    APP/USER/~entries/...       entries, fields and memories, which stand for themselves

The name ends in the time in microseconds, a random number, and the part: a long session has several
objects, of which only the last is marked so. Parts without a last one are what a crash left; the
data is still in the database, and readers skip them. Names of applications, users and sessions are
percent-encoded; long ones are replaced by ``~`` and a digest.

``memcore-archive.json`` says whether there is a key, and proves it. With one, an object is
``"memcore" | 01 | nonce 12 | AES-256-GCM of the compressed lines``, bound to the object's name, and
names are keyed digests.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol

from memcore._fast import clock_us
from memcore.codec.keys import blake2b
from memcore.database.database import Database
from memcore.database.open import open_database
from memcore.errors import (
    CorruptValueError,
    InvalidItemError,
    InvalidOptionError,
    KeyNeededError,
    NotFoundError,
    StorageError,
    TamperedError,
    WrongKeyError,
    uncopied,
)
from memcore.exchange import parse_line
from memcore.exchange.lines import Title
from memcore.files import open_private, put_private, sync_directory
from memcore.options import checked_path, counted, shown
from memcore.privacy.keyring import Cipher
from memcore.rows.names import check_name

__all__ = [
    "Archive",
    "ArchivedSession",
    "open_archive",
]


_PART_BYTES: Final = 8 * 1024**2
"""Lines of one object, in bytes before compression; one that is larger has an object of its own."""
_OBJECT_BYTES_MAX: Final = 1024**3
"""Size of an object's lines beyond which none is written, and none is read."""
_SEGMENT_CHARS_MAX: Final = 120
"""Longest encoded name within a path: directories allow 255, objects 1,024 for all three."""
_MARKER: Final = "memcore-archive.json"
"""Name of the object that says whether the others are encrypted, and proves a key."""
_PUT_ATTEMPTS: Final = 16
_ENTRIES: Final = "~entries"
"""Stands in a session's place; no encoded name is the same."""
_NAME: Final = re.compile(
    r"(?P<place>.+)/(?P<set>\d{19}-[0-9a-f]{16})\.(?P<part>\d{5})(?P<last>\.last)?\.jsonl\.gz"
)
_PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
)  # fmt: skip
_SEALED: Final = b"memcore\x01"
_GZIP: Final = b"\x1f\x8b"
_SCHEMES: Final = ("s3", "gs", "az", "memory")
"""Services that obstore knows; the last is one of its own, which ends with the process."""
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16
_BEGINS_SESSION: Final = b'{"memcore":'
_STANDS_ALONE: Final = b'{"expired":'


# --- Objects: where an archive's bytes lie --------------------------------------------------------


class Objects(Protocol):
    """Storage of objects by name; names are relative paths."""

    def put(self, name: str, content: bytes) -> None:
        """Store an object; it is durable when this returns.

        Raises:
            StorageError
        """

    def get(self, name: str) -> bytes:
        """Return an object's content.

        Raises:
            NotFoundError: there is no such object.
            StorageError
        """

    def names(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the names under a prefix, which ends in a slash or is empty, with their sizes."""

    def delete(self, name: str) -> None:
        """Delete an object; one that is missing is deleted already."""


class _Directory:
    """Objects as files of a directory, which only their owner may read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _at(self, name: str) -> str:
        return os.path.join(self._path, *name.split("/"))

    def put(self, name: str, content: bytes) -> None:
        path = self._at(name)
        with _translated(self._path):
            for left in reversed(range(_PUT_ATTEMPTS)):
                self._make(os.path.dirname(path))
                try:
                    put_private(path, content, new=False)
                except FileNotFoundError:  # an erasure removed the directory while it was empty
                    if not left:
                        raise
                else:
                    return

    def _make(self, directory: str) -> None:
        """Make a directory and those above it, durably: a lost one would take its files along."""
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for each in reversed(missing):
            with suppress(FileExistsError):  # another sweep was faster
                os.mkdir(each, 0o700)
            sync_directory(each)

    def get(self, name: str) -> bytes:
        try:
            with _translated(self._path), open(self._at(name), "rb", opener=open_private) as file:
                return file.read()
        except StorageError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                raise _missing(name) from exc
            raise

    def names(self, prefix: str) -> Iterator[tuple[str, int]]:
        with _translated(self._path):
            # What cannot be listed must not look like nothing: an erasure would pass over it.
            for where, below, files in os.walk(self._at(prefix.rstrip("/")), onerror=_unlisted):
                below.sort()
                for name in sorted(files):
                    path = os.path.join(where, name)
                    with suppress(FileNotFoundError):  # an erasure is under way
                        yield os.path.relpath(path, self._path), os.lstat(path).st_size

    def delete(self, name: str) -> None:
        path = self._at(name)
        with _translated(self._path):
            with suppress(FileNotFoundError):
                os.unlink(path)
                sync_directory(path)
            directory = os.path.dirname(path)
            with suppress(OSError):  # others are left in it
                while os.path.normpath(directory) != os.path.normpath(self._path):
                    os.rmdir(directory)
                    directory = os.path.dirname(directory)


def _unlisted(error: OSError) -> None:
    """Raise what a directory's listing ended with, unless an erasure has just removed it."""
    if not isinstance(error, FileNotFoundError):
        raise error


class _Bucket:
    """Objects of a service, by obstore: S3 and what speaks its protocol, Google's, Azure's."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore.exceptions import BaseError  # noqa: PLC0415
            from obstore.store import from_url  # noqa: PLC0415
        except ImportError as exc:
            msg = f'archives in object storage need: pip install "memcore-db[s3]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        self._api: Any = obstore
        self._errors: type[Exception] = BaseError
        self._shown = url.partition("?")[0]
        try:
            self._store: Any = from_url(url, **options)
        except (BaseError, ValueError, TypeError) as exc:
            msg = f"archive: {self._shown!r:.200} cannot be used: {_first_line(exc)}"
            raise InvalidOptionError(msg) from exc

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (self._errors, OSError) as exc:
            msg = f"the archive {self._shown} cannot be used: {_first_line(exc)}"
            raise StorageError(msg) from exc

    def put(self, name: str, content: bytes) -> None:
        # Overwrites: a retry, after an answer was lost, writes the same content again.
        with self._translated():
            self._api.put(self._store, name, content)

    def get(self, name: str) -> bytes:
        try:
            with self._translated():
                return bytes(self._api.get(self._store, name).bytes())
        except StorageError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):  # obstore derives its own from it
                raise _missing(name) from exc
            raise

    def names(self, prefix: str) -> Iterator[tuple[str, int]]:
        with self._translated():
            for page in self._api.list(self._store, prefix.rstrip("/") or None):
                for each in page:
                    if each["path"].startswith(prefix):
                        yield each["path"], each["size"]

    def delete(self, name: str) -> None:
        with self._translated(), suppress(FileNotFoundError):
            self._api.delete(self._store, name)


def _first_line(exc: BaseException) -> str:
    """Return what went wrong; obstore adds a dump of its own structures."""
    return str(exc).partition("\n")[0][:300]


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        msg = f"the archive {path} cannot be used: {exc.strerror or exc}"
        raise StorageError(msg) from exc


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"the archive has no object {name:.200}; it was erased meanwhile")


# --- The archive ----------------------------------------------------------------------------------


class ArchivedSession(NamedTuple):
    """Entry of one session in the list of an archive."""

    app: str
    user: str
    session: str
    pieces: int
    """Number of removals that added to it: one for a session that was removed as a whole."""
    bytes: int
    """Size of its objects."""
    archived_at: float
    """Time of the last addition, in seconds since 1970."""


class _Set(NamedTuple):
    """The objects that one removal wrote of one place."""

    place: str
    name: str
    parts: list[str]
    bytes: int

    @property
    def archived_us(self) -> int:
        """Time at which it was begun, in microseconds."""
        return int(self.name[:19])


class Archive:
    """Sessions and entries that sweeps have removed, by user; made by ``open_archive``.

    It can be given to ``Database.sweep`` and ``Database.sweeper`` as their ``archive``. Several
    databases, on any machines, may share one. Thread-safe.
    """

    __reduce_ex__ = uncopied

    def __init__(self, objects: Objects, *, key: bytes | None = None) -> None:
        self._objects = objects
        self._cipher = None if key is None else Cipher(key)
        self._name_key = b"" if key is None else blake2b(key, person=b"memcore archive").digest()
        self._is_known = False
        """True once the marker was seen to fit the key."""

    # --- writing ----------------------------------------------------------------------------------

    def write_lines(self, lines: Iterable[bytes]) -> int:
        """Write lines of an export durably, and return their number.

        Args:
            lines: pieces of any size; the first line is a title or stands alone, the last one ends.

        Raises:
            InvalidItemError: they are no lines of an export; nothing of them counts.
            StorageError: nothing of the archive was changed but that it may hold parts without an
                end, which readers skip.
        """
        self._need_key(begins=True)
        writer = _Writer(self, f"{clock_us():019d}-{os.urandom(8).hex()}")
        count, rest = 0, b""
        for piece in lines:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                writer.add(line + b"\n")
                count += 1
        if rest:
            msg = f"lines: the last one is cut short, after {counted(count, 'line')}"
            raise InvalidItemError(msg)
        writer.finish()
        return count

    def _need_key(self, *, begins: bool = False) -> None:
        """Require the key of the archive, by whose names everything is found.

        Args:
            begins: mark an archive that has no marker yet.

        Raises:
            KeyNeededError: it is encrypted, and no key was given.
            WrongKeyError: it was begun with another key, or without one.
        """
        if self._is_known:
            return
        proof = blake2b(self._name_key, person=b"memcore proof").hexdigest()
        mine = {"memcore_archive": 1, "key": None if self._cipher is None else proof}
        try:
            found = parse_line(self._objects.get(_MARKER))
        except NotFoundError:
            if begins:
                self._objects.put(_MARKER, json.dumps(mine).encode() + b"\n")
                self._is_known = True
            return
        except InvalidItemError as exc:
            raise _damaged(_MARKER) from exc
        if found != mine:
            if not isinstance(found, dict) or found.keys() != mine.keys():
                raise _damaged(_MARKER)
            if self._cipher is None:
                raise KeyNeededError("the archive is encrypted: open it with its key")
            begun = "with another key" if found["key"] else "without a key"
            raise WrongKeyError(f"the archive was begun {begun}: open it as it was begun")
        self._is_known = True

    def _put(self, name: str, content: bytes) -> None:
        if len(content) > _OBJECT_BYTES_MAX:  # raised before anything is deleted
            msg = (
                f"a line of {len(content):,} bytes is too large for an archive, which takes "
                f"{_OBJECT_BYTES_MAX:,}: archive to a file, or keep it"
            )
            raise StorageError(msg)
        packed = _compressed(content)
        if self._cipher is not None:
            nonce = os.urandom(_NONCE_BYTES)
            packed = _SEALED + nonce + self._cipher.encrypt(nonce, packed, name.encode())
        self._objects.put(name, packed)

    def _segment(self, name: str) -> str:
        """Encode a name for a path: reversibly if it is short and there is no key."""
        packed = name.encode("utf-8", "surrogatepass")
        if self._cipher is None:
            found = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in packed)
            if found and len(found) <= _SEGMENT_CHARS_MAX:
                return found
        return "~" + blake2b(packed, key=self._name_key, digest_size=_DIGEST_BYTES).hexdigest()

    def place(self, app: str, user: str, session: str | None) -> str:
        """Return the path of a session's objects; without a session, of what stands alone."""
        last = _ENTRIES if session is None else self._segment(session)
        return f"{self._segment(app)}/{self._segment(user)}/{last}"

    # --- reading ----------------------------------------------------------------------------------

    def sessions(self, *, user: str | None = None, app: str | None = None) -> list[ArchivedSession]:
        """List the archived sessions, by application, user and name.

        Args:
            user: of this user only; None: of all.
            app: of this application only; None: of all.

        Raises:
            StorageError, KeyNeededError, TamperedError
            CorruptValueError: an object is damaged.
        """
        found: dict[tuple[str, str, str], list[_Set]] = {}
        for each in self._sets(user=user, app=app):
            if not each.place.endswith("/" + _ENTRIES):
                said = self._title(each)
                found.setdefault((said["app"], said["user"], said["session"]), []).append(each)
        return [
            ArchivedSession(
                *name,
                len(sets),
                sum(each.bytes for each in sets),
                max(each.archived_us for each in sets) / 1e6,
            )
            for name, sets in sorted(found.items())
        ]

    def lines(
        self, *, user: str | None = None, app: str | None = None, session: str | None = None
    ) -> Iterator[bytes]:
        """Yield the archived lines, the oldest first, as ``Database.import_`` takes them.

        Raises:
            InvalidOptionError: a session without its user.
            StorageError, KeyNeededError, TamperedError
            CorruptValueError: an object is damaged.
        """
        for each in self._sets(user=user, app=app, session=session):
            if not each.place.endswith("/" + _ENTRIES):
                self._title(each)
            for part in each.parts:
                yield from self._lines_of(part)

    def open(
        self, *, user: str | None = None, app: str | None = None, session: str | None = None
    ) -> Database:
        """Return a database in memory with the archived sessions, to read, search or continue.

        Parts that several sweeps took are joined; of sessions that had one name after another, the
        later ones are named ``NAME (2)`` and so on. Nothing is written to the archive.

        Raises:
            NotFoundError: none is archived.
            InvalidItemError: a line cannot be imported.
            Others as ``lines``.
        """
        made = open_database(":memory:")
        try:
            done = made.import_(
                self.lines(user=user, app=app, session=session), on_conflict="rename"
            )
            if done.failures:
                msg = f"an archived session cannot be read: {done.failures[0]!s:.300}"
                raise InvalidItemError(msg)
            if not done.sessions:
                wanted = "any session" if session is None else f"session {session!r:.80}"
                raise NotFoundError(f"the archive does not hold {wanted} that was asked for")
        except BaseException:
            made.close()
            raise
        return made

    def erase(self, user: str, *, app: str | None = None, dry_run: bool = False) -> int:
        """Delete everything of a user, parts without an end included; return the objects' number.

        Versions that a bucket keeps, and its replicas, are for the service's own rules to delete.

        Args:
            user: the user.
            app: in this application only; None: in all.
            dry_run: count, and delete nothing.

        Raises:
            StorageError: some are left; repeat it.
        """
        check_name(user, "user")
        self._need_key()
        names = [name for name, _ in self._objects.names(self._prefix(app, None))]
        wanted = self._segment(user)
        names = [name for name in names if _user_in(name) == wanted]
        for name in names:
            if not dry_run:
                self._objects.delete(name)
        return len(names)

    def _prefix(self, app: str | None, user: str | None) -> str:
        if app is None:
            return ""
        return self._segment(app) + "/" + ("" if user is None else self._segment(user) + "/")

    def _sets(
        self, *, user: str | None = None, app: str | None = None, session: str | None = None
    ) -> list[_Set]:
        """Return the complete sets of objects, the oldest first.

        Those of one session are in the order of its items, whatever the clocks said that named
        them; a copy of a session that was used while it was archived, and so stayed, is left out.
        """
        self._need_key()
        for name, given in (("user", user), ("app", app), ("session", session)):
            if given is not None:
                check_name(given, name)
        if session is not None and user is None:
            msg = "session: say whose it is, by user= (and app=)"
            raise InvalidOptionError(msg)
        if session is not None and app is None:
            app = "default"
        wanted = None if session is None else self._segment(session)
        of_user = None if user is None else self._segment(user)
        found: dict[tuple[str, str], dict[int, tuple[str, int, bool]]] = {}
        for name, size in self._objects.names(self._prefix(app, user)):
            match = _NAME.fullmatch(name)
            if match is None or (of_user is not None and _user_in(name) != of_user):
                continue  # something else lies there
            if wanted is not None and match["place"].rpartition("/")[2] != wanted:
                continue
            parts = found.setdefault((match["place"], match["set"]), {})
            parts[int(match["part"])] = name, size, match["last"] is not None
        sets = []
        for (place, name), parts in found.items():
            if max(parts) == len(parts) - 1 and parts[max(parts)][2]:
                names = [parts[at][0] for at in range(len(parts))]
                sets.append(_Set(place, name, names, sum(each[1] for each in parts.values())))
        groups: dict[str, list[_Set]] = {}
        for each in sorted(sets, key=lambda each: (each.name, each.place)):
            groups.setdefault(each.place, []).append(each)
        return [each for group in groups.values() for each in self._in_order(group)]

    def _in_order(self, sets: list[_Set]) -> list[_Set]:
        """Return the sets of one place in the order of what they hold, without stale copies."""
        if len(sets) == 1 or sets[0].place.endswith("/" + _ENTRIES):
            return sets
        titled = [(Title.of(self._title(each)), each) for each in sets]
        titled.sort(key=lambda one: (one[0].created_ms, one[0].part, one[0].revision, one[1].name))
        return [
            each
            for (title, each), (later, _) in zip(titled, [*titled[1:], (None, None)], strict=True)
            # A session that was archived as a whole and stayed was archived as a whole again.
            if later is None or title.part or later.part or title.created_ms != later.created_ms
        ]

    def _title(self, found: _Set) -> Mapping[str, Any]:
        """Return the title with which the objects of a session begin.

        Raises:
            CorruptValueError: they begin with something else, or belong elsewhere.
        """
        said = _checked_title(found.parts[0], self._lines_of(found.parts[0]))
        if self.place(said["app"], said["user"], said["session"]) != found.place:
            raise _damaged(found.parts[0])
        return said

    def _lines_of(self, name: str) -> Iterator[bytes]:
        """Yield the lines of one object."""
        content = self._objects.get(name)
        if content.startswith(_SEALED):
            if self._cipher is None:
                raise KeyNeededError("the archive is encrypted: open it with its key")
            body = content[len(_SEALED) :]
            opened = self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], name.encode())
            if opened is None:
                msg = f"the object {name:.200} was encrypted with another key, or was changed"
                raise TamperedError(msg, key=b"")
            content = opened
        elif self._cipher is not None:
            msg = f"the object {name:.200} stands in clear in an archive that is encrypted"
            raise TamperedError(msg, key=b"")
        yield from _decompressed(content, name).splitlines(keepends=True)


class _Writer:
    """Distributes lines to objects by the place that they belong to."""

    def __init__(self, archive: Archive, name: str) -> None:
        self._archive = archive
        self._name = name
        self._place = ""
        self._held: dict[str, bytearray] = {}
        """Lines of each place that are not written yet."""
        self._parts: dict[str, int] = {}

    def add(self, line: bytes) -> None:
        """Add a line, in the order of the export."""
        if line.startswith(_STANDS_ALONE):
            self._hold(self._place_of(parse_line(line).get("expired")), line)
            return
        if line.startswith(_BEGINS_SESSION):
            self._end(self._place)
            self._place = self._place_of(parse_line(line), "session")
        elif not self._place:
            raise InvalidItemError(f"line: expected a title first, got {line!r:.80}")
        self._hold(self._place, line)

    def _place_of(self, said: Any, *names: str) -> str:
        """Return the place that a line names.

        Raises:
            InvalidItemError: it names none.
        """
        wanted = ("app", "user", *names)
        if not isinstance(said, dict) or not all(isinstance(said.get(n), str) for n in wanted):
            raise InvalidItemError(f"line: expected texts as {', '.join(wanted)}, got {said!r:.80}")
        return self._archive.place(said["app"], said["user"], said["session"] if names else None)

    def _hold(self, place: str, line: bytes) -> None:
        held = self._held.setdefault(place, bytearray())
        if held and len(held) + len(line) > _PART_BYTES:
            self._put(place, held, last=False)
            held.clear()
        held += line

    def _end(self, place: str) -> None:
        """End the objects of a place."""
        content = self._held.pop(place, None)
        if content:
            self._put(place, content, last=True)

    def finish(self) -> None:
        """Write what is left; without it, none of it counts."""
        for place in list(self._held):
            self._end(place)

    def _put(self, place: str, content: bytearray, *, last: bool) -> None:
        part = self._parts.get(place, 0)
        self._parts[place] = part + 1
        name = f"{place}/{self._name}.{part:05d}{'.last' if last else ''}.jsonl.gz"
        self._archive._put(name, bytes(content))  # noqa: SLF001 - its other half


def _user_in(name: str) -> str:
    """Return the encoded user in an object's name; empty if there is none."""
    parts = name.split("/")
    return parts[1] if len(parts) > 2 else ""  # noqa: PLR2004 - application, user, the rest


def _checked_title(name: str, lines: Iterator[bytes]) -> Mapping[str, Any]:
    """Return the title with which an object of a session begins.

    Raises:
        CorruptValueError: it begins with something else.
    """
    try:
        found = parse_line(next(lines, b""))
    except InvalidItemError as exc:
        raise _damaged(name) from exc
    if isinstance(found, dict) and all(
        isinstance(found.get(each), str) for each in ("app", "user", "session")
    ):
        return found
    raise _damaged(name)


def _damaged(name: str) -> CorruptValueError:
    msg = f"the archived object {name:.200} is damaged; restore it from a copy or a version"
    return CorruptValueError(msg, key=b"")


def _compressed(content: bytes) -> bytes:
    """Compress as gzip does, without a time: equal content, equal bytes."""
    work = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return work.compress(content) + work.flush()


def _decompressed(content: bytes, name: str) -> bytes:
    """Decompress an object; one that would fill the memory is damage.

    Raises:
        CorruptValueError
    """
    work = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        if not content.startswith(_GZIP):
            raise _damaged(name)
        found = work.decompress(content, _OBJECT_BYTES_MAX)
    except zlib.error as exc:
        raise _damaged(name) from exc
    if not work.eof or work.unused_data:
        raise _damaged(name)
    return found


# --- Opening --------------------------------------------------------------------------------------


def open_archive(
    target: str | os.PathLike[str], *, key: bytes | None = None, **options: Any
) -> Archive:
    """Open an archive: a directory, made on first use, or a URL of object storage.

    Args:
        target: a path, or ``s3://bucket/prefix``, ``gs://bucket/prefix``,
            ``az://account/container/prefix`` (with the extra ``s3``).
        key: 32 bytes with which everything is encrypted, names too; None: in clear.
        options: of the service, as obstore takes them: ``region``, ``endpoint``, ``access_key_id``,
            ``secret_access_key``, ``client_options`` and so on; without them, those of its
            environment variables and of the machine.

    Raises:
        InvalidOptionError: the target or an option is none of these.
        ImportError: an extra is missing.
    """
    if key is not None and (not isinstance(key, bytes) or len(key) != _KEY_BYTES):
        msg = f"key: expected {_KEY_BYTES} bytes or None, got {_shown_key(key)}"
        raise InvalidOptionError(msg)
    scheme = target.partition("://")[0] if isinstance(target, str) and "://" in target else ""
    if scheme:
        if scheme not in _SCHEMES:
            known = ", ".join(f"{each}://" for each in _SCHEMES[:-1])
            msg = f"archive: expected a directory or a URL ({known}), got {scheme:.20}://"
            raise InvalidOptionError(msg)
        return Archive(_Bucket(str(target), options), key=key)
    if options:
        msg = f"{next(iter(options))}: an option of object storage; {shown(target)} is a directory"
        raise InvalidOptionError(msg)
    path = os.path.abspath(checked_path("archive", target))
    if os.path.lexists(path) and not os.path.isdir(path):
        msg = f"archive: {path:.200} is no directory; pass a file to sweep(archive=) itself"
        raise InvalidOptionError(msg)
    return Archive(_Directory(path), key=key)


def _shown_key(key: object) -> str:
    """Say what was given, without repeating a secret."""
    return counted(len(key), "byte") if isinstance(key, bytes) else type(key).__name__
