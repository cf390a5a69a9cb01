"""Interned names: scopes, sessions and key/value namespaces are integers in all other keys.

A name row maps a name to its number and repeats the full name in its value: a name too long for a
key is looked up by its digest and compared with the value. Numbers come from one counter per kind
for the whole file, start at 1 and are never reused, so a row left by a removed session can never
be mistaken for a row of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memcore.codec import keys
from memcore.codec.keys import Counter, Kind
from memcore.codec.values import open_number, open_value, seal_value
from memcore.errors import CorruptValueError, InternalError, InvalidOptionError
from memcore.limits import NAME_CHARS_MAX
from memcore.store.interface import NAMES, ReadTxn, Txn

__all__ = [
    "app_scope_of",
    "app_scopes",
    "check_counter",
    "check_name",
    "drop_session_name",
    "ensure_app_scope",
    "ensure_namespace",
    "ensure_scope",
    "found_names",
    "found_scopes",
    "is_long_session_name",
    "namespace_of",
    "new_session",
    "prefetch_session",
    "rename_session",
    "scope_names",
    "scope_of",
    "scopes",
    "scopes_with_rows",
    "scopes_with_threads",
    "session_of",
    "sessions",
    "sessions_with_rows",
]


_NOBODY: Final = ""
"""User name of the scope that belongs to an application itself."""


def check_name(name: object, what: str) -> None:
    """Validate a name; ``what`` is its kind in messages ("session", "app", ...).

    Any non-empty string of up to ``NAME_CHARS_MAX`` characters is valid; nothing is normalised.

    Raises:
        InvalidOptionError: it is not a string, is empty or is too long.
    """
    if not isinstance(name, str):
        msg = f"the {what} name must be a str, got {type(name).__name__}"
        raise InvalidOptionError(msg)
    if not name:
        msg = f"the {what} name is empty: expected 1 to {NAME_CHARS_MAX} characters"
        raise InvalidOptionError(msg)
    if len(name) > NAME_CHARS_MAX:
        msg = (
            f"the {what} name {name[:40]!r}... has {len(name)} characters: expected at most "
            f"{NAME_CHARS_MAX}; use a digest of it as the name"
        )
        raise InvalidOptionError(msg)


# --- scopes -----------------------------------------------------------------------------------


def scope_of(txn: ReadTxn, app: str, user: str) -> int | None:
    """Return the number of the scope ``(app, user)``, or None if nothing was ever stored in it.

    Raises:
        InvalidOptionError: a name is invalid.
    """
    check_name(app, "app")
    check_name(user, "user")
    return _number_of(txn, _SCOPES, app, user)


def ensure_scope(txn: Txn, app: str, user: str) -> int:
    """Return the number of the scope ``(app, user)``, assigning one on the first call.

    Raises:
        InvalidOptionError: a name is invalid.
    """
    scope = scope_of(txn, app, user)
    return _new_scope(txn, app, user) if scope is None else scope


def app_scope_of(txn: ReadTxn, app: str) -> int | None:
    """Return the number of the application's own scope, or None if nothing was stored in it.

    Its user name is empty, which is not a valid name, so no user's handle can reach it.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    check_name(app, "app")
    return _number_of(txn, _SCOPES, app, _NOBODY)


def ensure_app_scope(txn: Txn, app: str) -> int:
    """Return the number of the application's own scope, assigning one on the first call.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    scope = app_scope_of(txn, app)
    return _new_scope(txn, app, _NOBODY) if scope is None else scope


def _new_scope(txn: Txn, app: str, user: str) -> int:
    scope = _intern(txn, _scope_key(app, user), Counter.SCOPE, app, user)
    key = keys.scoped(Kind.SCOPE, scope)
    if txn.get(key) is not None:  # a new user would get another user's data
        msg = _no_counter("scopes", scope - 1, f"and scope {scope} is in use")
        raise CorruptValueError(msg, key=keys.counter(Counter.SCOPE))
    txn.put(key, seal_value(key, _pack(app, user)))
    return scope


def scope_names(txn: ReadTxn, scope: int) -> tuple[str, str]:
    """Return ``(app, user)`` of a scope number.

    Raises:
        InternalError: no scope has this number (numbers never come from a caller).
    """
    key = keys.scoped(Kind.SCOPE, scope)
    value = txn.get(key)
    if value is None:
        msg = f"scope number {scope} has no name row; run 'memcore check' and report it"
        raise InternalError(msg)
    app, user = _pair(key, value)
    return app, user


def scopes(txn: ReadTxn) -> Iterator[tuple[int, str, str]]:
    """Yield ``(scope, app, user)`` of the scopes of all users in the order of their numbers."""
    for scope, app, user in all_scopes(txn):
        if user != _NOBODY:
            yield scope, app, user


def app_scopes(txn: ReadTxn) -> Iterator[tuple[int, str]]:
    """Yield ``(scope, app)`` of the scopes that belong to applications."""
    for scope, app, user in all_scopes(txn):
        if user == _NOBODY:
            yield scope, app


def all_scopes(txn: ReadTxn) -> Iterator[tuple[int, str, str]]:
    """Yield ``(scope, app, user)`` of all scopes; an application's own has an empty user."""
    prefix = bytes((Kind.SCOPE,))
    for key, value in txn.scan(prefix, keys.after(prefix)):
        app, user = _pair(key, value)
        yield keys.split_scoped(key)[0], app, user


def found_scopes(
    txn: ReadTxn,
) -> tuple[dict[int, tuple[str, str]], list[tuple[str, str] | None]]:
    """Return ``(app, user)`` by number of all scopes with at least one readable name row.

    Also returns, for each damaged name row, the ``(app, user)`` that it belongs to; None if neither
    row of that scope is readable.
    """
    found: dict[int, tuple[str, str]] = {}
    of_key: dict[bytes, tuple[str, str]] = {}
    damaged: list[bytes] = []
    start, stop = bytes((Kind.SCOPE,)), keys.after(bytes((Kind.SCOPE_NAME,)))
    for key, value in txn.scan(start, stop):
        try:
            if key[:1] == start:
                scope, pair = keys.split_scoped(key)[0], _pair(key, value)
            else:
                scope, packed = _split(open_value(key, value)[1])
                app, user = keys.unpack_texts(packed)
                pair = app, user
        except (CorruptValueError, ValueError):  # ValueError: not two names
            damaged.append(key)
            continue
        found.setdefault(scope, pair)
        of_key[keys.scoped(Kind.SCOPE, scope)] = of_key[_scope_key(*pair)] = pair
    return found, [of_key.get(key) for key in damaged]


# --- sessions ---------------------------------------------------------------------------------


def session_of(txn: ReadTxn, scope: int, name: str) -> int | None:
    """Return the number of the session with this name in the scope, or None.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    check_name(name, "session")
    return _number_of(txn, keys.scoped(Kind.SESSION_NAME, scope), name)


def prefetch_session(txn: ReadTxn, app: str, user: str, name: str) -> None:
    """Note that the session of a user is about to be read by its name."""
    suffix = _session_key(0, name)[_SCOPED_BYTES:]
    txn.prefetch_named(_scope_key(app, user), Kind.SESSION_NAME, suffix, Kind.SESSION)


def new_session(txn: Txn, scope: int, name: str) -> int:
    """Assign a session number that no session of any scope ever had to the name.

    Raises:
        InvalidOptionError: the name is invalid.
        InternalError: the name is in use (callers check ``session_of`` in the same transaction).
    """
    if session_of(txn, scope, name) is not None:
        msg = f"session {name[:40]!r} exists in scope {scope}: its number must not be replaced"
        raise InternalError(msg)
    return _intern(txn, _session_key(scope, name), Counter.SESSION, name)


def drop_session_name(txn: Txn, scope: int, name: str) -> bool:
    """Free the name; True if a session had it. The session's rows and number do not change.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    if session_of(txn, scope, name) is None:
        return False
    return txn.delete(_session_key(scope, name))


def rename_session(txn: Txn, scope: int, old: str, new: str) -> None:
    """Rename the session ``old``; its number and rows do not change.

    Raises:
        InvalidOptionError: the new name is invalid.
        InternalError: no session has the old name, or one has the new one (callers check first).
    """
    number = session_of(txn, scope, old)
    if number is None or session_of(txn, scope, new) is not None:
        msg = f"session {old[:40]!r} of scope {scope} cannot be renamed to {new[:40]!r}"
        raise InternalError(msg)
    txn.delete(_session_key(scope, old))
    key = _session_key(scope, new)
    txn.put(key, seal_value(key, keys.u64(number) + _pack(new)))
    txn.notify(NAMES)


def is_long_session_name(name: str) -> bool:
    """Return True if a session's name does not fit in a key: such names are listed after others."""
    prefix = len(_session_key(0, "")) - len(keys.pack_text(""))
    return not keys.text_fits(prefix, keys.pack_text(name))


def sessions(txn: ReadTxn, scope: int, start_after: str | None = None) -> Iterator[tuple[str, int]]:
    """Yield ``(name, session)`` in stored order: by code point, names too long for a key last.

    ``start_after`` continues after a name, even after one that was dropped in the meantime.

    Raises:
        InvalidOptionError: ``start_after`` is not a valid name.
    """
    prefix = keys.scoped(Kind.SESSION_NAME, scope)
    start = prefix
    if start_after is not None:
        check_name(start_after, "start_after")
        start = keys.behind(_session_key(scope, start_after))
    return _names_in(txn, start, keys.after(prefix))


def _names_in(txn: ReadTxn, start: bytes, stop: bytes) -> Iterator[tuple[str, int]]:
    for key, value in txn.scan(start, stop):
        number, packed = _split(open_value(key, value)[1])
        yield keys.unpack_text(packed), number


def scopes_with_rows(txn: ReadTxn, *kinds: int) -> list[int]:
    """Numbers of the scopes that have rows of one of the kinds, in order."""
    found: set[int] = set()
    for kind in kinds:
        start, stop = bytes((kind,)), bytes((kind + 1,))
        while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
            scope = keys.split_scoped(row[0])[0]
            found.add(scope)
            start = keys.after(keys.scoped(kind, scope))
    return sorted(found)


def scopes_with_threads(txn: ReadTxn) -> list[int]:
    """Numbers of the scopes that have rows of threads of graphs."""
    return scopes_with_rows(txn, Kind.THREAD_NAME, Kind.THREAD, Kind.CHUNK)


def sessions_with_rows(txn: ReadTxn) -> list[tuple[int, int]]:
    """``(scope, session)`` of every session that has rows."""
    found: list[tuple[int, int]] = []
    start, stop = bytes((Kind.SESSION,)), bytes((Kind.SESSION + 1,))
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return found
        scope, session = keys.split_session_prefix(row[0])
        found.append((scope, session))
        start = keys.after(keys.session_prefix(scope, session))


# --- namespaces -------------------------------------------------------------------------------


def namespace_of(txn: ReadTxn, scope: int, name: str) -> int | None:
    """Return the number of a key/value namespace of the scope, or None if nothing was written.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    check_name(name, "namespace")
    return _number_of(txn, keys.scoped(Kind.KV_NAMESPACE, scope), name)


def ensure_namespace(txn: Txn, scope: int, name: str) -> int:
    """Return the number of a key/value namespace of the scope, assigning one on the first call.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    namespace = namespace_of(txn, scope, name)
    if namespace is None:
        namespace = _intern(txn, _namespace_key(scope, name), Counter.NAMESPACE, name)
    return namespace


def namespaces(txn: ReadTxn, scope: int) -> Iterator[tuple[str, int]]:
    """Yield ``(name, namespace)`` of the scope's key/value namespaces, ordered as ``sessions``."""
    prefix = keys.scoped(Kind.KV_NAMESPACE, scope)
    return _names_in(txn, prefix, keys.after(prefix))


def found_names(txn: ReadTxn, kind: int, scope: int) -> tuple[dict[int, str], int]:
    """Return the readable names of ``SESSION_NAME`` or ``KV_NAMESPACE`` rows by number.

    Also returns the number of unreadable names; the objects that they name still exist.
    """
    found: dict[int, str] = {}
    damaged = 0
    prefix = keys.scoped(kind, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        try:
            number, packed = _split(open_value(key, value)[1])
            found[number] = keys.unpack_text(packed)
        except CorruptValueError:
            damaged += 1
    return found, damaged


# --- threads of graphs --------------------------------------------------------------------------


def thread_of(txn: ReadTxn, scope: int, name: str) -> int | None:
    """Return the number of the thread with this name in the scope, or None.

    Raises:
        InvalidOptionError: the name is invalid.
    """
    if name != "":  # thread ids come from frameworks, which allow an empty one
        check_name(name, "thread")
    return _number_of(txn, keys.scoped(Kind.THREAD_NAME, scope), name)


def new_thread(txn: Txn, scope: int, name: str) -> int:
    """Assign a number to a name that no thread of the scope has."""
    return _intern(txn, _thread_key(scope, name), Counter.THREAD, name)


def drop_thread_name(txn: Txn, scope: int, name: str) -> None:
    """Delete a thread's name; its number is never reused."""
    txn.delete(_thread_key(scope, name))


def threads(txn: ReadTxn, scope: int, start_after: str | None = None) -> Iterator[tuple[str, int]]:
    """Yield ``(name, thread)`` as ``sessions`` does for sessions."""
    prefix = keys.scoped(Kind.THREAD_NAME, scope)
    start = prefix if start_after is None else keys.behind(_thread_key(scope, start_after))
    return _names_in(txn, start, keys.after(prefix))


# --- salvage ----------------------------------------------------------------------------------


def register_scope(txn: Txn, scope: int, app: str, user: str) -> None:
    """Write the name rows of a scope with a number assigned before."""
    key = _scope_key(app, user)
    txn.put(key, seal_value(key, keys.u64(scope) + _pack(app, user)))
    key = keys.scoped(Kind.SCOPE, scope)
    txn.put(key, seal_value(key, _pack(app, user)))


def register_session(txn: Txn, scope: int, name: str, session: int) -> None:
    """Write the name row of a session with a number assigned before."""
    key = _session_key(scope, name)
    txn.put(key, seal_value(key, keys.u64(session) + _pack(name)))


def register_namespace(txn: Txn, scope: int, name: str, namespace: int) -> None:
    """Write the name row of a namespace with a number assigned before."""
    key = _namespace_key(scope, name)
    txn.put(key, seal_value(key, keys.u64(namespace) + _pack(name)))


def thread_row(scope: int, name: str, thread: int) -> tuple[bytes, bytes]:
    """Return key and value of the name row of a thread with a number assigned before."""
    key = _thread_key(scope, name)
    return key, seal_value(key, keys.u64(thread) + _pack(name))


def register_last(txn: Txn, which: int, number: int) -> None:
    """Record the last number of a kind that was assigned."""
    key = keys.counter(which)
    txn.put(key, seal_value(key, keys.u64(number)))


def unpack_name(body: bytes) -> tuple[int, tuple[str, ...]]:
    """Unpack ``(number, names)`` from a name row's body."""
    number, packed = _split(body)
    return number, keys.unpack_texts(packed)


# --- rows -------------------------------------------------------------------------------------


_SCOPES: Final = bytes((Kind.SCOPE_NAME,))
_SCOPED_BYTES: Final = len(keys.scoped(Kind.SESSION_NAME, 0))


def _scope_key(app: str, user: str) -> bytes:
    return keys.name_key(_SCOPES, app, user)


def _session_key(scope: int, name: str) -> bytes:
    return keys.name_key(keys.scoped(Kind.SESSION_NAME, scope), name)


def _namespace_key(scope: int, name: str) -> bytes:
    return keys.name_key(keys.scoped(Kind.KV_NAMESPACE, scope), name)


def _thread_key(scope: int, name: str) -> bytes:
    return keys.name_key(keys.scoped(Kind.THREAD_NAME, scope), name)


def _pack(*names: str) -> bytes:
    return b"".join(map(keys.pack_text, names))


def _pair(key: bytes, value: bytes) -> tuple[str, str]:
    found = keys.unpack_texts(open_value(key, value)[1])
    if len(found) != 2:  # noqa: PLR2004 - app and user
        msg = f"the name row {key.hex()} holds {len(found)} names; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return found[0], found[1]


def _split(body: bytes) -> tuple[int, bytes]:
    return int.from_bytes(body[:8], "big"), body[8:]


def _number_of(txn: ReadTxn, prefix: bytes, *names: str) -> int | None:
    packed = _pack(*names)
    key = keys.packed_name_key(prefix, packed)
    value = txn.get(key)
    if value is None:
        return None
    body = open_value(key, value)[1]
    if body[8:] != packed:
        # Only damage puts another name in this row: 32-byte digests do not collide.
        msg = (
            f"the row {key.hex()} of the name {names[-1][:40]!r} holds another name; run "
            "'memcore check' and restore from a backup"
        )
        raise CorruptValueError(msg, key=key)
    return int.from_bytes(body[:8], "big")


_NUMBER_MAX: Final = 2**62 - 1
_COUNTED: Final = {
    Counter.SCOPE: ("scopes", _NUMBER_MAX),
    Counter.SESSION: ("sessions", _NUMBER_MAX),
    Counter.NAMESPACE: ("key/value namespaces", _NUMBER_MAX),
    Counter.THREAD: ("threads", _NUMBER_MAX),
    Counter.POOL: ("pools of chunks", _NUMBER_MAX),
    Counter.GRAPH_NAMESPACE: ("namespaces of threads", 2**32 - 1),
}
"""Kinds of numbered objects: name in messages, and largest number, unreachable in practice."""


def next_number(txn: Txn, which: int) -> int:
    """Assign the next number of a kind; none is ever reused.

    Raises:
        CorruptValueError: the counter is damaged or exhausted.
    """
    last = _last_number(txn, which)
    what, most = _COUNTED[which]
    key = keys.counter(which)
    if last >= most:
        raise CorruptValueError(_no_counter(what, last, "which nobody counts up to"), key=key)
    txn.put(key, seal_value(key, keys.u64(last + 1)))
    return last + 1


def _last_number(txn: ReadTxn, which: int) -> int:
    key = keys.counter(which)
    value = txn.get(key)
    return 0 if value is None else open_number(key, value)


def _no_counter(what: str, last: int, why: str) -> str:
    return (
        f"the counter of {what} says {last}, {why}: it is damaged; restore a backup, or"
        " salvage the file"
    )


def check_counter(txn: ReadTxn, which: int, used: int) -> Iterator[str]:
    """Yield findings about a counter; ``used`` is the largest number of its kind in use."""
    what, most = _COUNTED[which]
    try:
        last = _last_number(txn, which)
    except CorruptValueError:
        return  # reported as a damaged row
    if last < used:
        yield _no_counter(what, last, f"and {used} is in use")
    elif last >= most:
        yield _no_counter(what, last, "which nobody counts up to")


def pass_over(txn: Txn, which: int, number: int) -> None:
    """Ensure that numbers of a kind are only assigned above this one from now on."""
    register_last(txn, which, max(_last_number(txn, which), number))


def _intern(txn: Txn, key: bytes, which: int, *names: str) -> int:
    number = next_number(txn, which)
    txn.put(key, seal_value(key, keys.u64(number) + _pack(*names)))
    txn.notify(NAMES)
    return number
