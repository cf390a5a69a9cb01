"""Interned names: scopes, sessions and key/value namespaces are integers in every other key.

A name row maps the name to its number and repeats the full name in its value: a name that does
not fit a key is found by its digest and compared there. Numbers come from one counter a sort for
the whole file, start at 1 and are never given out twice, so that a row left behind by a removed
session can never be taken for a row of a later one.
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
    "namespace_of",
    "new_session",
    "rename_session",
    "scope_names",
    "scope_of",
    "scopes",
    "session_of",
    "sessions",
]


_NOBODY: Final = ""
"""The user of the scope that belongs to an application itself."""


def check_name(name: object, what: str) -> None:
    """Validate a name; ``what`` says whose it is ("session", "app", ...).

    Any non-empty string up to ``NAME_CHARS_MAX`` characters is legal; nothing is normalised.

    Raises:
        InvalidOptionError: not a string, empty or too long.
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
    """The number of the scope ``(app, user)``, or None if nothing was ever stored in it.

    Raises:
        InvalidOptionError: a name is not legal.
    """
    check_name(app, "app")
    check_name(user, "user")
    return _number_of(txn, _scope_key(app, user), app, user)


def ensure_scope(txn: Txn, app: str, user: str) -> int:
    """The number of the scope ``(app, user)``; the first call gives it one.

    Raises:
        InvalidOptionError: a name is not legal.
    """
    scope = scope_of(txn, app, user)
    return _new_scope(txn, app, user) if scope is None else scope


def app_scope_of(txn: ReadTxn, app: str) -> int | None:
    """The number of the scope that belongs to the application itself, or None if it has nothing.

    Its user has no name, which no user can have: nobody's handle leads there.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    check_name(app, "app")
    return _number_of(txn, _scope_key(app, _NOBODY), app, _NOBODY)


def ensure_app_scope(txn: Txn, app: str) -> int:
    """The number of the scope that belongs to the application; the first call gives it one.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    scope = app_scope_of(txn, app)
    return _new_scope(txn, app, _NOBODY) if scope is None else scope


def _new_scope(txn: Txn, app: str, user: str) -> int:
    scope = _intern(txn, _scope_key(app, user), Counter.SCOPE, app, user)
    key = keys.scoped(Kind.SCOPE, scope)
    if txn.get(key) is not None:  # a new user would be handed the data of another
        msg = _no_counter("scopes", scope - 1, f"and scope {scope} is in use")
        raise CorruptValueError(msg, key=keys.counter(Counter.SCOPE))
    txn.put(key, seal_value(key, _pack(app, user)))
    return scope


def scope_names(txn: ReadTxn, scope: int) -> tuple[str, str]:
    """``(app, user)`` of a scope's number.

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
    """``(scope, app, user)`` of the scopes of all users in the order of their numbers."""
    for scope, app, user in all_scopes(txn):
        if user != _NOBODY:
            yield scope, app, user


def app_scopes(txn: ReadTxn) -> Iterator[tuple[int, str]]:
    """``(scope, app)`` of the scopes that belong to applications."""
    for scope, app, user in all_scopes(txn):
        if user == _NOBODY:
            yield scope, app


def all_scopes(txn: ReadTxn) -> Iterator[tuple[int, str, str]]:
    """Both; the user of an application's own is the empty text."""
    prefix = bytes((Kind.SCOPE,))
    for key, value in txn.scan(prefix, keys.after(prefix)):
        app, user = _pair(key, value)
        yield keys.split_scoped(key)[0], app, user


def found_scopes(
    txn: ReadTxn,
) -> tuple[dict[int, tuple[str, str]], list[tuple[str, str] | None]]:
    """``(app, user)`` by number of all scopes that one of their two rows names.

    With them, whose rows are damaged, row by row; None: neither row of that scope can be read.
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
        except (CorruptValueError, ValueError):  # or other than two names
            damaged.append(key)
            continue
        found.setdefault(scope, pair)
        of_key[keys.scoped(Kind.SCOPE, scope)] = of_key[_scope_key(*pair)] = pair
    return found, [of_key.get(key) for key in damaged]


# --- sessions ---------------------------------------------------------------------------------


def session_of(txn: ReadTxn, scope: int, name: str) -> int | None:
    """The number of the session that bears this name in the scope, or None.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    check_name(name, "session")
    return _number_of(txn, _session_key(scope, name), name)


def new_session(txn: Txn, scope: int, name: str) -> int:
    """Give the name a session number that no session of any scope ever had.

    Raises:
        InvalidOptionError: the name is not legal.
        InternalError: the name is in use (callers ask ``session_of`` in the same transaction).
    """
    if session_of(txn, scope, name) is not None:
        msg = f"session {name[:40]!r} exists in scope {scope}: its number must not be replaced"
        raise InternalError(msg)
    return _intern(txn, _session_key(scope, name), Counter.SESSION, name)


def drop_session_name(txn: Txn, scope: int, name: str) -> bool:
    """Free the name; whether a session bore it. The session's rows and number stay as they are.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    if session_of(txn, scope, name) is None:
        return False
    return txn.delete(_session_key(scope, name))


def rename_session(txn: Txn, scope: int, old: str, new: str) -> None:
    """Give the session ``old`` another name; number and rows stay as they are.

    Raises:
        InvalidOptionError: the new name is not legal.
        InternalError: no session has the old name, or one has the new one (callers ask first).
    """
    number = session_of(txn, scope, old)
    if number is None or session_of(txn, scope, new) is not None:
        msg = f"session {old[:40]!r} of scope {scope} cannot be renamed to {new[:40]!r}"
        raise InternalError(msg)
    txn.delete(_session_key(scope, old))
    key = _session_key(scope, new)
    txn.put(key, seal_value(key, keys.u64(number) + _pack(new)))
    txn.notify(NAMES)


def sessions(txn: ReadTxn, scope: int, start_after: str | None = None) -> Iterator[tuple[str, int]]:
    """``(name, session)`` in stored order: by code point, names too long for a key at the end.

    ``start_after`` continues behind a name, also behind one that was dropped in the meantime.

    Raises:
        InvalidOptionError: ``start_after`` is not a legal name.
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


# --- namespaces -------------------------------------------------------------------------------


def namespace_of(txn: ReadTxn, scope: int, name: str) -> int | None:
    """The number of a key/value namespace of the scope, or None if nothing was written to it.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    check_name(name, "namespace")
    return _number_of(txn, _namespace_key(scope, name), name)


def ensure_namespace(txn: Txn, scope: int, name: str) -> int:
    """The number of a key/value namespace of the scope; the first call gives it one.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    namespace = namespace_of(txn, scope, name)
    if namespace is None:
        namespace = _intern(txn, _namespace_key(scope, name), Counter.NAMESPACE, name)
    return namespace


def namespaces(txn: ReadTxn, scope: int) -> Iterator[tuple[str, int]]:
    """``(name, namespace)`` of the scope's key/value namespaces, as ``sessions``."""
    prefix = keys.scoped(Kind.KV_NAMESPACE, scope)
    return _names_in(txn, prefix, keys.after(prefix))


def found_names(txn: ReadTxn, kind: int, scope: int) -> tuple[dict[int, str], int]:
    """The readable names by number, of ``SESSION_NAME`` or ``KV_NAMESPACE``, and how many are not.

    What bears a name that cannot be read is there all the same.
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
    """The number of the thread that bears this name in the scope, or None.

    Raises:
        InvalidOptionError: the name is not legal.
    """
    if name != "":  # ids of threads come from frameworks, which take any
        check_name(name, "thread")
    return _number_of(txn, _thread_key(scope, name), name)


def new_thread(txn: Txn, scope: int, name: str) -> int:
    """A number for a name that no thread of the scope has."""
    return _intern(txn, _thread_key(scope, name), Counter.THREAD, name)


def drop_thread_name(txn: Txn, scope: int, name: str) -> None:
    """Take a thread's name away; its number is never given out again."""
    txn.delete(_thread_key(scope, name))


def threads(txn: ReadTxn, scope: int, start_after: str | None = None) -> Iterator[tuple[str, int]]:
    """``(name, thread)`` as ``sessions`` gives sessions."""
    prefix = keys.scoped(Kind.THREAD_NAME, scope)
    start = prefix if start_after is None else keys.behind(_thread_key(scope, start_after))
    return _names_in(txn, start, keys.after(prefix))


# --- salvage ----------------------------------------------------------------------------------


def register_scope(txn: Txn, scope: int, app: str, user: str) -> None:
    """Write the rows of a scope whose number was given out before."""
    key = _scope_key(app, user)
    txn.put(key, seal_value(key, keys.u64(scope) + _pack(app, user)))
    key = keys.scoped(Kind.SCOPE, scope)
    txn.put(key, seal_value(key, _pack(app, user)))


def register_session(txn: Txn, scope: int, name: str, session: int) -> None:
    """Write the name of a session whose number was given out before."""
    key = _session_key(scope, name)
    txn.put(key, seal_value(key, keys.u64(session) + _pack(name)))


def register_namespace(txn: Txn, scope: int, name: str, namespace: int) -> None:
    """Write the name of a namespace whose number was given out before."""
    key = _namespace_key(scope, name)
    txn.put(key, seal_value(key, keys.u64(namespace) + _pack(name)))


def thread_row(scope: int, name: str, thread: int) -> tuple[bytes, bytes]:
    """Key and value of the name of a thread whose number was given out before."""
    key = _thread_key(scope, name)
    return key, seal_value(key, keys.u64(thread) + _pack(name))


def register_last(txn: Txn, which: int, number: int) -> None:
    """Say which number of a sort was the last one given out."""
    key = keys.counter(which)
    txn.put(key, seal_value(key, keys.u64(number)))


def unpack_name(body: bytes) -> tuple[int, tuple[str, ...]]:
    """``(number, names)`` of a name row's body."""
    number, packed = _split(body)
    return number, keys.unpack_texts(packed)


# --- rows -------------------------------------------------------------------------------------


def _scope_key(app: str, user: str) -> bytes:
    return keys.name_key(bytes((Kind.SCOPE_NAME,)), app, user)


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


def _number_of(txn: ReadTxn, key: bytes, *names: str) -> int | None:
    value = txn.get(key)
    if value is None:
        return None
    number, packed = _split(open_value(key, value)[1])
    if packed != _pack(*names):
        # Only damage makes a name's row hold another: a digest of 32 bytes does not collide.
        msg = (
            f"the row {key.hex()} of the name {names[-1][:40]!r} holds another name; run "
            "'memcore check' and restore from a backup"
        )
        raise CorruptValueError(msg, key=key)
    return number


_NUMBER_MAX: Final = 2**62 - 1
_COUNTED: Final = {
    Counter.SCOPE: ("scopes", _NUMBER_MAX),
    Counter.SESSION: ("sessions", _NUMBER_MAX),
    Counter.NAMESPACE: ("key/value namespaces", _NUMBER_MAX),
    Counter.THREAD: ("threads", _NUMBER_MAX),
    Counter.POOL: ("pools of chunks", _NUMBER_MAX),
    Counter.GRAPH_NAMESPACE: ("namespaces of threads", 2**32 - 1),
}
"""Numbered things, in words, with the largest number: no file lives long enough to reach it."""


def next_number(txn: Txn, which: int) -> int:
    """The next number of a sort; none is given out twice.

    Raises:
        CorruptValueError: the counter is damaged, or at its end.
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
    """Yield what is wrong with a counter; ``used`` is the largest number of its sort in use."""
    what, most = _COUNTED[which]
    try:
        last = _last_number(txn, which)
    except CorruptValueError:
        return  # found as a damaged row
    if last < used:
        yield _no_counter(what, last, f"and {used} is in use")
    elif last >= most:
        yield _no_counter(what, last, "which nobody counts up to")


def pass_over(txn: Txn, which: int, number: int) -> None:
    """Have numbers of a sort given out above this one only."""
    register_last(txn, which, max(_last_number(txn, which), number))


def _intern(txn: Txn, key: bytes, which: int, *names: str) -> int:
    number = next_number(txn, which)
    txn.put(key, seal_value(key, keys.u64(number) + _pack(*names)))
    txn.notify(NAMES)
    return number
