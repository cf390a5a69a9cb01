"""History of an SDK session: opening, reading and writing items, encryption hooks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from agents.exceptions import UserError
from agents.memory.session_settings import SessionSettings, coerce_session_settings

from memcore import faces
from memcore.adapters.source import Done, Opened
from memcore.adapters.source import scope_of as scope_in
from memcore.aio import AsyncDatabase, AsyncSession
from memcore.aio.commit import commit_to
from memcore.codec.values import check_json
from memcore.database import Database, Scope
from memcore.database.scope import engine_of, need_access, scope_beside
from memcore.errors import (
    ClosedError,
    CorruptValueError,
    InvalidItemError,
    UnreadableItemsError,
    uncopied,
)
from memcore.limits import NAME_CHARS_MAX
from memcore.log import Prepared
from memcore.options import checked_int, checked_optional_seconds
from memcore.session import Session, SessionOptions, SessionRef, resume_removals
from memcore.session.append import PLAIN, admit_items, encode_items
from memcore.session.change import Change
from memcore.session.read import DecodedCache
from memcore.session.session import store_of
from memcore.session.tail import (
    ExpireItems,
    Renewal,
    Renewed,
    Seen,
    Tail,
    message_of,
    read_tail,
    seen_now,
)
from memcore.store.interface import Store
from memcore.telemetry import adapting, observe, observer_of

__all__ = [
    "MAIN",
    "MESSAGES_TABLE",
    "SESSIONS_TABLE",
    "Bound",
    "Clear",
    "Coder",
    "EncryptionKey",
    "History",
    "Place",
    "ScopeOf",
    "Sealer",
    "Unreadable",
    "app_of",
    "branch_name_of",
    "checked_keys",
    "digest_of",
    "finish_removal",
    "labels_of",
    "name_of",
    "options_in",
    "routed",
    "unreadable_error",
]


# --- Items of the SDK as memcore stores them, and back --------------------------------------------
# The SDK's stores accept anything that ``json.dumps`` writes. memcore stores JSON objects
# losslessly and refuses the rest: an item that is not an object, contains NaN, or is nested very
# deeply is wrapped as text in an object under a reserved key. Readers get the result of
# ``json.loads``.

_TEXT: Final = "__memcore_json__"
SEALED: Final = "__memcore_sealed__"
_LABELS: Final = ("type", "role", "call_id", "id", "approval_request_id")


class Unreadable(Exception):  # noqa: N818 - a signal to bulk readers, which count them
    """A stored message that this coder cannot decode; the exception's text is the reason."""


class Coder(Protocol):
    """Protocol: encodes items as messages and decodes them."""

    def quick(self, items: Sequence[Any]) -> list[dict[str, Any]] | None:
        """The messages if no encoding is needed (memcore may still refuse them); else None."""

    def encode(self, items: Sequence[Any], request: str | None) -> list[dict[str, Any]]:
        """Encode items as messages; deterministic for the same items of the same request.

        Raises:
            TypeError: an item is not serializable by ``json.dumps``.
            ValueError: an item contains itself.
        """

    def decode(self, message: dict[str, Any]) -> Any:
        """Decode a message to its item.

        Raises:
            Unreadable
        """

    def decode_all(self, messages: list[dict[str, Any]]) -> list[Any]:
        """Decode several messages to their items.

        Raises:
            Unreadable
        """


def labels_of(item: Any) -> dict[str, Any]:
    """The fields of an encrypted item that memcore needs in plaintext: type, role, call ids."""
    if not isinstance(item, dict):
        return {}
    return {key: item[key] for key in _LABELS if isinstance(item.get(key), str)}


class Clear:
    """The coder of an unencrypted session: stores items as they are."""

    def quick(self, items: Sequence[Any]) -> list[dict[str, Any]] | None:
        """As ``Coder.quick``."""
        for item in items:
            if type(item) is not dict or _TEXT in item or SEALED in item:
                return None
        return list(items)

    def encode(
        self,
        items: Sequence[Any],
        request: str | None,  # noqa: ARG002 - no effect here
    ) -> list[dict[str, Any]]:
        """As ``Coder.encode``."""
        return [self._encoded(item) for item in items]

    def _encoded(self, item: Any) -> dict[str, Any]:
        text = json.dumps(item)
        value = json.loads(text)
        if not isinstance(value, dict) or _TEXT in value or SEALED in value:
            return {_TEXT: text}
        try:
            check_json(value)
        except ValueError:
            return {**labels_of(value), _TEXT: text}
        return value

    def decode_all(self, messages: list[dict[str, Any]]) -> list[Any]:
        """As ``Coder.decode_all``."""
        for message in messages:
            if _TEXT in message or SEALED in message:
                return [self.decode(each) for each in messages]
        return messages

    def decode(self, message: dict[str, Any]) -> Any:
        """As ``Coder.decode``."""
        if _TEXT in message:
            try:
                return json.loads(message[_TEXT])
            except (TypeError, ValueError, RecursionError) as exc:  # not written by this class
                msg = "no item"
                raise Unreadable(msg) from exc
        if SEALED in message:
            raise Unreadable("no key")
        return message


# --- Place of an SDK session in memcore: its scope and name ---------------------------------------

SESSIONS_TABLE: Final = "agent_sessions"
MESSAGES_TABLE: Final = "agent_messages"
ScopeOf: TypeAlias = Callable[[Any], Scope | tuple[str, str]]
"""Maps the Runner's context wrapper to the scope of a call, or its ``(app, user)``."""

MAIN: Final = "main"
"""The initial branch of a session."""

_TABLED: Final = re.compile(r' \["(?:[^"\\]|\\.)*", "(?:[^"\\]|\\.)*"\]\Z', re.DOTALL)
_ESCAPE: Final = "\0"
_BRANCH: Final = _ESCAPE + "@"


def name_of(session_id: str) -> str:
    """The memcore name for a session id; distinct ids have distinct names.

    An id is its own name, except for ids that memcore does not allow as names: empty ones are
    escaped, and very long ones are hashed.

    Raises:
        TypeError: the id is not a string.
    """
    if not isinstance(session_id, str):
        msg = f"session_id: expected a str, got {type(session_id).__name__}"
        raise TypeError(msg)
    if session_id and session_id[0] != _ESCAPE and len(session_id) <= NAME_CHARS_MAX:
        return session_id
    if len(session_id) < NAME_CHARS_MAX:
        return _ESCAPE + session_id
    return f"{_ESCAPE}#{digest_of(session_id)}"


def branch_name_of(session_id: str, branch_id: str) -> str:
    """The memcore name of a branch, distinct from all session ids and other branches."""
    if branch_id == MAIN:
        return name_of(session_id)
    name = f"{_BRANCH}{len(session_id)}:{session_id}:{branch_id}"
    if len(name) <= NAME_CHARS_MAX:
        return name
    return f"{_BRANCH}#{digest_of(session_id)}{digest_of(branch_id)}"


def digest_of(text: str) -> str:
    """The SHA-256 digest of a text, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def app_of(app: str, sessions_table: str, messages_table: str) -> str:
    """The application for a pair of tables: as in SQLite, each pair is a separate space."""
    is_default = (sessions_table, messages_table) == (SESSIONS_TABLE, MESSAGES_TABLE)
    if is_default and not _TABLED.search(app):
        return app  # an app that looks as if it had table names appended gets them, too
    return f"{app} {json.dumps([sessions_table, messages_table])}"  # injective


def routed(base: Scope, scope_of: ScopeOf, wrapper: Any) -> Scope:
    """The scope that ``scope_of`` selects for a run.

    Raises:
        UserError: the call has no run context, and therefore no owner.
        TypeError: ``scope_of`` returned neither a Scope nor an ``(app, user)``.
    """
    if wrapper is None:
        msg = (
            "this MemcoreSession finds its user by scope_of=, so each call needs the run context: "
            "pass wrapper=, or use a session with user= where there is none"
        )
        raise UserError(msg)
    found = scope_of(wrapper)
    if isinstance(found, Scope):
        return found
    if isinstance(found, tuple) and [type(part) for part in found] == [str, str]:
        return scope_beside(base, app=found[0], user=found[1])
    msg = f"scope_of: expected a Scope or (app, user), got {found!r:.80}"
    raise TypeError(msg)


# --- Encrypted items: AES-256-GCM under a key of the session's own --------------------------------
# An encrypted item is stored as plaintext labels (its type, role and call ids, by which memcore
# pairs calls with results) and a sealed text in base64: key id 4 | nonce 12 | ciphertext and tag,
# lengths in bytes. The labels are authenticated as associated data. The session's key is derived
# from the caller's by HKDF with application, user and session id, so no item decrypts in another
# session.

EncryptionKey = str | bytes | Sequence[str | bytes]
"""A high-entropy secret, or several: the first one encrypts, all decrypt."""

_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_NAME: Final = b"memcore.openai_agents.v1"


def checked_keys(given: EncryptionKey) -> list[bytes]:
    """Validate the keys; return them as bytes.

    Raises:
        ValueError: there are none, or one is empty.
        TypeError: a key is neither str nor bytes.
    """
    keys = [given] if isinstance(given, str | bytes) else list(given)
    for key in keys:
        if not isinstance(key, str | bytes):
            msg = f"encryption_key: expected str or bytes, got {type(key).__name__}"
            raise TypeError(msg)
    if not keys or not all(keys):
        msg = "encryption_key is empty: pass a random secret, as Fernet.generate_key() makes one"
        raise ValueError(msg)
    return [key.encode() if isinstance(key, str) else key for key in keys]


class Sealer:
    """The coder of an encrypted session.

    Raises:
        ImportError: the package ``cryptography`` is missing.
    """

    __reduce_ex__ = uncopied

    def __init__(self, keys: Sequence[bytes], *place: str) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional dependency
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as exc:
            msg = f'encryption_key= needs: pip install "memcore-db[encryption]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        self._invalid = InvalidTag
        salt = json.dumps(place).encode()
        derived = [_derived(key, salt) for key in keys]
        self._ciphers = {_id_of(key): AESGCM(key) for key in reversed(derived)}
        self._id = _id_of(derived[0])
        self._nonce_key = hmac.digest(derived[0], b"nonce", "sha256")

    def quick(self, items: Sequence[Any]) -> list[dict[str, Any]] | None:  # noqa: ARG002
        """As ``Coder.quick``; always None."""
        return None

    def encode(self, items: Sequence[Any], request: str | None) -> list[dict[str, Any]]:
        """As ``Coder.encode``."""
        texts = [json.dumps(item) for item in items]
        return [self._sealed(text, at, request) for at, text in enumerate(texts)]

    def _sealed(self, text: str, at: int, request: str | None) -> dict[str, Any]:
        labels, content = labels_of(json.loads(text)), text.encode()
        bound = _bytes_of(labels)
        if request is None:
            nonce = os.urandom(_NONCE_BYTES)
        else:  # retries must produce the same bytes: a nonce only repeats for the same content
            said = json.dumps([request, at]).encode()
            digest = hashlib.sha256(content + bound).digest()
            nonce = hmac.digest(self._nonce_key, said + digest, "sha256")[:_NONCE_BYTES]
        body = self._ciphers[self._id].encrypt(nonce, content, bound)
        return {**labels, SEALED: base64.b64encode(self._id + nonce + body).decode()}

    def decode_all(self, messages: list[dict[str, Any]]) -> list[Any]:
        """As ``Coder.decode_all``."""
        return [self.decode(message) for message in messages]

    def decode(self, message: dict[str, Any]) -> Any:
        """As ``Coder.decode``."""
        if SEALED not in message:
            raise Unreadable("in clear")
        labels = {key: value for key, value in message.items() if key != SEALED}
        try:
            whole = base64.b64decode(message[SEALED], validate=True)
        except (binascii.Error, TypeError, ValueError) as exc:
            raise Unreadable("changed") from exc
        cipher = self._ciphers.get(whole[:_ID_BYTES])
        if cipher is None:
            raise Unreadable("another key")
        rest = whole[_ID_BYTES:]
        try:
            text = cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bytes_of(labels))
        except (self._invalid, ValueError) as exc:
            raise Unreadable("changed") from exc
        return json.loads(text)


def _bytes_of(labels: dict[str, Any]) -> bytes:
    return json.dumps(labels, sort_keys=True).encode()


def _derived(key: bytes, salt: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) with 32 bytes of output."""
    extracted = hmac.digest(hashlib.sha256(salt).digest(), key, "sha256")
    return hmac.digest(extracted, _NAME + b"\x01", "sha256")


def _id_of(key: bytes) -> bytes:
    """The id of a key, computable only from the key."""
    return hmac.digest(key, b"id", "sha256")[:_ID_BYTES]


def unreadable_error(session_id: str, reasons: Mapping[str, int]) -> UnreadableItemsError:
    """The error for items that a coder cannot read."""
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    msg = (
        f"{sum(reasons.values())} items of session {session_id!r} cannot be read ({said}): open it "
        "with the encryption_key= that they were written with, or with unreadable='skip' to leave "
        "them out"
    )
    return UnreadableItemsError(msg, reasons=reasons)


# --- Base of an SDK session: opening, place, and items read and written ---------------------------

T = TypeVar("T")
_TTL_SECONDS_MAX: Final = 1e9
_EXPIRED_SHARE: Final = 8
_UNREADABLE: Final = ("raise", "skip")
CACHE_BYTES: Final = 16 * 1024**2
_CHUNK: Final = 512
"""Items to decode before yielding to other tasks of the loop."""


Place: TypeAlias = tuple[Store, str, str, str]
"""The file, the application, the user and the session's id."""


class Knowledge:
    """The version of a history that an instance has seen: its first read and its own later writes.

    A wrapper that replaces a whole history computes the replacement from its first read, even if it
    reads several times. Writes by others since then therefore never count as seen, whatever it
    reads later.
    """

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: Seen | None = None

    def read(self, ref: SessionRef) -> None:
        """Record the version before the first read."""
        if self.seen is None:
            self.seen = seen_now(ref)

    def wrote(self, session: int, revision: int) -> None:
        """Record a write of this instance; if others wrote before it, the known version stays."""
        seen = self.seen
        if seen is not None and seen.revision + 1 == revision and seen.session in (0, session):
            self.seen = Seen(session, revision)

    def moved(self, renewal: Renewal) -> None:
        """Follow a rewrite of the session under a new number."""
        if self.seen == (renewal.old, renewal.revision):
            self.seen = Seen(renewal.new, renewal.revision + 1)

    def forget(self) -> None:
        """Reset; the next read starts over."""
        self.seen = None


class Bound(NamedTuple):
    """The target of a call: session, branch, and item coder."""

    session: AsyncSession
    coder: Coder
    recall: DecodedCache
    address: SessionRef
    known: Knowledge
    branch: str = MAIN


class History(Opened):
    """A session's location and its items; ``MemcoreSession`` documents the arguments."""

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        db_path: str | os.PathLike[str] | Database | AsyncDatabase | Scope = ":memory:",
        sessions_table: str = SESSIONS_TABLE,
        messages_table: str = MESSAGES_TABLE,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        *,
        user: str | None = None,
        app: str | None = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
        scope_of: ScopeOf | None = None,
        encryption_key: EncryptionKey | None = None,
        unreadable: str = "raise",
        ttl_seconds: float | None = None,
        cache_bytes: int = CACHE_BYTES,
        create_tables: bool = False,  # noqa: ARG002 - of AdvancedSQLiteSession
        logger: logging.Logger | None = None,
    ) -> None:
        name_of(session_id)
        if unreadable not in _UNREADABLE:
            msg = f"unreadable: expected 'raise' or 'skip', got {unreadable!r}"
            raise ValueError(msg)
        self.session_id = session_id
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )
        self.db_path = db_path
        self.sessions_table = sessions_table
        self.messages_table = messages_table
        self.skipped_items = 0
        """Items that the last read omitted: damaged ones, and those skipped by ``unreadable``."""
        self._logger = logger or faces.logger("memcore.openai_agents")
        self._scope_of = scope_of
        self._keys = None if encryption_key is None else checked_keys(encryption_key)
        self._skips_unreadable = unreadable == "skip"
        ttl = checked_optional_seconds("ttl_seconds", ttl_seconds)
        self._ttl_us = None if ttl is None else round(min(ttl, _TTL_SECONDS_MAX) * 1e6)
        self._cache_bytes = checked_int("cache_bytes", cache_bytes)
        self._closed = False
        self._scope, self._owned = scope_in(
            db_path, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._scope = self._tabled(self._scope)
        self._last: tuple[Place, Bound] | None = None
        self._told = observer_of(db_path) or observer_of(getattr(db_path, "sync", None))
        self.observer = adapting(db_path, "openai_agents", place_of=self._place_told)
        if self._keys is not None:
            Sealer(self._keys)  # fails early if it cannot work

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r}, {self.db_path!r})"

    # --- opening and closing ----------------------------------------------------------------------

    def close(self) -> Done:
        """Close the session, and the file if it was opened here. Idempotent and final."""
        self._closed = True
        self._last = None
        return super().close()

    @property
    def is_closed(self) -> bool:
        """True once ``close`` has been called."""
        return self._closed

    async def ping(self) -> bool:
        """Return whether the session is usable: False once it or its database is closed."""
        if self._closed:
            return False
        try:
            engine_of(self._scope).store.read(lambda _: None)
        except ClosedError:
            return False
        return True

    def native(self, wrapper: Any = None) -> AsyncSession:
        """The memcore session that a call works on.

        Args:
            wrapper: the Runner's context wrapper, if available; used only with ``scope_of``.

        Raises:
            RuntimeError: the session is closed.
            UserError: ``scope_of`` is set, but no wrapper was given.
        """
        session = self.bound(wrapper).session
        if self._told is None:
            return session
        return AsyncSession(observe(session.sync, self._told))

    def bound(self, wrapper: Any = None) -> Bound:
        """As ``native``, with the item coder."""
        return self.bound_in(self.scope_for(wrapper))

    @property
    def scope(self) -> Scope:
        """The scope the session was created for; with ``scope_of``, calls may use others."""
        return self._scope

    def scope_for(self, wrapper: Any = None) -> Scope:
        """The scope of a call; raises what ``native`` raises."""
        self.need_open()
        if self._scope_of is None:
            return self._scope
        return self._tabled(routed(self._scope, self._scope_of, wrapper))

    def _tabled(self, scope: Scope) -> Scope:
        """The space within a scope that belongs to the table names."""
        app = app_of(scope.app, self.sessions_table, self.messages_table)
        if app == scope.app:
            return scope
        return scope_beside(scope, app=app, user=scope.user)

    def _place_told(self, _: Any, options: dict[str, Any]) -> tuple[str, str, str]:
        """App, user and session id of a call, for telemetry."""
        wrapper = options.get("wrapper")
        scope = self._scope
        if self._scope_of is not None and wrapper is not None:
            scope = routed(scope, self._scope_of, wrapper)
        return scope.app, scope.user, self.session_id

    def place_in(self, scope: Scope) -> Place:
        """The key of a scope's session: store, app, user, session id."""
        return engine_of(scope).store, scope.app, scope.user, self.session_id

    def bound_in(self, scope: Scope) -> Bound:
        """The target of calls in a scope."""
        last, place = self._last, self.place_in(scope)
        need_access(scope, "session", self.session_id)
        if last is not None and last[0] == place:
            return last[1]
        address = SessionRef(
            engine_of(scope), scope.app, scope.user, name_of(self.session_id), options_in(scope)
        )
        bound = self.bound_to(address, MAIN)
        self._last = place, bound
        return bound

    def bound_to(self, address: SessionRef, branch: str) -> Bound:
        """The target for the session at an address, with this session's coder."""
        place = address.app, address.user, self.session_id
        session = Session(address)
        coder: Coder = Clear() if self._keys is None else Sealer(self._keys, *place)
        recall = DecodedCache(coder.decode_all, most_bytes=self._cache_bytes)
        return Bound(AsyncSession(session), coder, recall, address, Knowledge(), branch)

    def need_open(self) -> None:
        """Check that the session is open.

        Raises:
            RuntimeError: it is closed.
        """
        if self._closed:
            msg = f"{type(self).__name__} is closed"
            raise RuntimeError(msg)

    # --- reading ----------------------------------------------------------------------------------

    async def read(self, bound: Bound, limit: int | None = None) -> list[Any]:
        """The last ``limit`` readable items; all of them if None or negative.

        Raises:
            UnreadableItemsError: some are not readable with the session's key, and ``unreadable``
                is not ``"skip"``.
        """
        if limit == 0:
            return []
        most = None if limit is not None and limit < 0 else limit
        window = most
        since_us = self.since_us()
        if not since_us:
            found = await self._regular(bound, most)
            if found is not None:
                return found
        while True:
            tail = read_tail(bound.address, window, since_us=since_us)
            items, skipped = await self._decoded(bound, tail)
            if tail.complete or most is None or window is None or len(items) >= most:
                break
            window *= 2
        self.skipped_items = skipped
        if tail.expired and tail.expired * _EXPIRED_SHARE >= tail.live:
            await self._remove_expired(bound, since_us)
        return items if most is None else items[-most:]

    async def _regular(self, bound: Bound, most: int | None) -> list[Any] | None:
        """The items of ``read`` from the cache of decoded items.

        None if some row needs individual handling.
        """
        try:
            found = await bound.recall.last(bound.address, most)
        except Unreadable:
            return None
        if found is None:
            return None
        items, complete = found
        if not complete and most is not None and len(items) < most:
            return None
        self.skipped_items = 0
        return items

    async def _decoded(self, bound: Bound, tail: Tail) -> tuple[list[Any], int]:
        """The decoded items, and the number of unreadable rows."""
        decode = bound.coder.decode
        items: list[Any] = []
        damaged = 0
        reasons: Counter[str] = Counter()
        for at, row in enumerate(tail.rows, 1):
            if at % _CHUNK == 0:
                await asyncio.sleep(0)
            try:
                if type(row) is not tuple:
                    damaged += 1
                    continue
                message = message_of(row)
                if message is not None:
                    items.append(decode(message))
            except CorruptValueError:
                damaged += 1
            except Unreadable as exc:
                reasons[str(exc)] += 1
        if reasons and not self._skips_unreadable:
            raise unreadable_error(self.session_id, reasons)
        skipped = damaged + sum(reasons.values())
        if skipped:
            self._logger.warning(
                "session %r: %d items cannot be read and are left out (%d damaged%s)",
                self.session_id,
                skipped,
                damaged,
                "".join(f", {count} {reason}" for reason, count in reasons.items()),
            )
        return items, skipped

    async def shown(self, bound: Bound, limit: int | None = None) -> list[Any]:
        """The history shown to a run; the same as ``read`` unless a subclass windows it."""
        return await self.read(bound, limit)

    # --- data stored with the items ---------------------------------------------------------------

    def beside(self, bound: Bound, change: Change[T]) -> Change[T]:  # noqa: ARG002 - see Usage
        """Wrap a change so that its commit includes data stored with the items."""
        return change

    def moves(self, bound: Bound) -> Renewed:
        """A callback that follows a rewrite of the session."""
        return lambda txn, renewal: txn.on_commit(lambda: bound.known.moved(renewal))

    # --- age --------------------------------------------------------------------------------------

    def since_us(self) -> int:
        """The expiry cutoff of items, in microseconds since the Unix epoch; 0: no expiry."""
        if self._ttl_us is None:
            return 0
        return max(engine_of(self._scope).now_us() - self._ttl_us, 1)

    async def remove_expired(self, *, wrapper: Any = None) -> int:
        """Remove items older than ``ttl_seconds`` from the file; return their number.

        Reading does so, too, once they make up an eighth of the items; until then they are only
        hidden. A call stays as long as its result.
        """
        bound = self.bound(wrapper)
        since_us = self.since_us()
        return await self._remove_expired(bound, since_us) if since_us else 0

    async def remove_due(self, bound: Bound) -> None:
        """Remove expired items, so that the remaining ones can be counted."""
        if since_us := self.since_us():
            await self._remove_expired(bound, since_us)

    async def _remove_expired(self, bound: Bound, since_us: int) -> int:
        store = store_of(bound.session.sync)
        change = ExpireItems(bound.address, since_us, renewed=self.moves(bound))
        gone, rest = await commit_to(store, change)
        if gone:
            self._logger.info("session %r: %d expired items removed", self.session_id, gone)
        await finish_removal(bound, rest)
        return gone

    # --- writing ----------------------------------------------------------------------------------

    def prepared(
        self, bound: Bound, items: Sequence[Any], request: str | None = None
    ) -> list[Prepared]:
        """Encode items for storage.

        Raises:
            TypeError: an item is not JSON-serializable.
        """
        ref = bound.address
        if ref.scope_filter is not None and self._keys is not None:
            return self._sealed(bound, items, request)
        messages = bound.coder.quick(items)
        if messages is not None:
            try:
                return encode_items(ref, messages, PLAIN)
            except InvalidItemError:
                pass  # the standard library may still encode it, or raises the precise error
        return encode_items(ref, bound.coder.encode(items, request), PLAIN)

    def _sealed(self, bound: Bound, items: Sequence[Any], request: str | None) -> list[Prepared]:
        """Encode items after redacting them, because guards cannot inspect encrypted ones.

        Raises:
            BlockedError: a guard refuses an item, or would quarantine it.
        """
        ref = bound.address
        admitted = admit_items(ref, Clear().encode(items, request))
        return encode_items(ref, bound.coder.encode(admitted, request), PLAIN, admitted=True)


async def finish_removal(bound: Bound, rest: list[bytes]) -> None:
    """Remove the rows that a commit left for later removal."""
    if rest:
        await asyncio.to_thread(resume_removals, store_of(bound.session.sync))


def options_in(scope: Scope) -> SessionOptions:
    """The options for the sessions of a scope; orphaned results are stored, too."""
    return SessionOptions("openai_responses", None, "keep", recount=engine_of(scope).recount)
