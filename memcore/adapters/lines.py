"""Lines of a framework in a session: each an item where a model reads it, else an event.

A framework's message becomes an item of a known wire format, so that contexts, pairing and search
work on it. Nothing is kept twice: the rest of a line, in the ``meta`` of its item, refers to the
item for each value that the item has. So what is redacted, erased or expired in the item is so in
the line, and a line comes back equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from math import isfinite
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from memcore._fast import classify, whole
from memcore.blobs import StagedBlobLost
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, encode_json, open_value
from memcore.database import Scope
from memcore.database.scope import engine_of, scope_filter_of
from memcore.errors import InvalidItemError, RevisionConflict, StorageError, StoreLockedError
from memcore.kv.namespace import KeyValueTxn, KeyValueView, NamespaceWriter
from memcore.log import Prepared
from memcore.log.rewrite import plan_rewriting
from memcore.model import Item, ItemKind, Message
from memcore.rows import names
from memcore.rows.item import split_body
from memcore.rows.lifecycle import need_free
from memcore.session import ChangeBatch, Session, admitted_item, resume_removals
from memcore.session.append import STAGE_ATTEMPTS, stage, store
from memcore.session.rewrite import rewrite_planned
from memcore.session.session import ref_of
from memcore.session.tail import encode_again, renew
from memcore.state import state_counter
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Line",
    "LineSessions",
    "Lines",
    "Rows",
    "Writing",
    "call_input",
    "first_legal",
    "key_of",
    "name_of",
    "parts_of",
    "rest_of",
    "whole",
]


T = TypeVar("T")
_AT: Final = "$"
"""Only key of an object that stands for something else: with a list, for a value of the item by its
path; with a text, for a number that JSON does not have; with an object, for that as it is."""
_PLAIN: Final = frozenset(("role", "type"))
"""Keys of an item whose values are the format's own words."""
_BEFORE: Final = "event"
"""Rest of a line whose rest is an event of its own, right before the item."""
_REST_BYTES: Final = 16 * 1024
_ATTEMPTS: Final = 256
"""Attempts at a change while others write."""
_LAST: Final = 3
"""Items of which the last line is one, even if an event before it has its rest."""
_PART_CHARS: Final = 150
_OPENED_MAX: Final = 256


# --- The rest of a line ---------------------------------------------------------------------------


def rest_of(line: Any, item: Message) -> Any:
    """Return a JSON value with a reference to the item for each part that the item has."""
    places: dict[bytes, list[Any]] = {}
    _note(item, [], places)
    return _referring(line, places)


def _note(value: Any, path: list[Any], places: dict[bytes, list[Any]]) -> None:
    if isinstance(value, dict | list):
        text = _text_of(value)
        if path and value and text is not None:
            places.setdefault(text, path)
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in pairs:
            if key not in _PLAIN:
                _note(each, [*path, key], places)
    elif isinstance(value, str) and value:
        places.setdefault(encode_json(value)[0], path)


def _text_of(value: Any) -> bytes | None:
    """Return a value as JSON; None if it is not."""
    try:
        return encode_json(value)[0]
    except ValueError:
        return None


def _referring(value: Any, places: dict[bytes, list[Any]]) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return {_AT: str(value)}
    if not isinstance(value, dict | list | str):
        return value
    text = _text_of(value)
    found = None if text is None else places.get(text)
    if found is not None:
        return {_AT: found}
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_referring(each, places) for each in value]
    made = {key: _referring(each, places) for key, each in value.items()}
    return {_AT: made} if made.keys() == {_AT} else made


# --- Lines in a session ---------------------------------------------------------------------------


class Line(NamedTuple):
    """A line as it is stored."""

    seq: int
    value: dict[str, Any]
    item: Item


def _is_parted(line: Line, field: str) -> bool:
    """Return True if the rest of a line is an event before its item."""
    return (line.item.meta or {}).get(field) == _BEFORE


def _is_row_of(key: bytes, row: bytes, item: Item) -> bool:
    """Return True if a row still holds an item; of one in a blob, by the time of its creation."""
    flags, body = open_value(key, row)
    _, created_us, _, rest = split_body(body)
    if flags & FLAG_BLOB:
        return created_us == round(item.created_at * 1_000_000)
    return rest == encode_json(item.message)[0]


def _moved(name: str) -> RevisionConflict:
    msg = f"session {name[:80]!r} was written anew by another: read the line again"
    return RevisionConflict(msg, expected=0, current=0)


class Lines:
    """The lines of a framework in one session.

    Args:
        session: opened with ``orphans="keep"`` and ``shape="keep"``: the framework's log is kept as
            it is.
        field: the name of the rest in an item's meta, and the type of events.
        view: returns the message that a model reads in a line; None: it reads nothing.
    """

    def __init__(
        self,
        session: Session,
        field: str,
        view: Callable[[dict[str, Any]], Message | None],
    ) -> None:
        self.session = session
        self.field = field
        self._view = view

    # --- writing ----------------------------------------------------------------------------------

    def put(self, batch: ChangeBatch, line: dict[str, Any]) -> None:
        """Append a line in a batch.

        Raises:
            InvalidItemError: it is no JSON object.
        """
        if not isinstance(line, dict):
            msg = f"line: expected a dict, got {type(line).__name__}"
            raise InvalidItemError(msg)
        try:
            item = self._view(line)
            if item is not None and _text_of(item) is None:
                item = None  # a number that is none
            rest: Any = rest_of(line, item or {})
            size = 0 if item is None else len(encode_json(rest)[0])
        except RecursionError as exc:
            msg = "line: it is nested too deeply, or in a circle"
            raise InvalidItemError(msg) from exc
        if item is None:
            batch.record(self.field, rest)
            return
        if size > _REST_BYTES:
            batch.record(f"{self.field}.rest", rest)
            rest = _BEFORE
        batch.append(item, meta={self.field: rest})

    def writing(self, values: Iterable[dict[str, Any]], *, revision: int | None = None) -> Writing:
        """Return lines made ready, to be appended in a transaction of the caller's.

        Args:
            values: the lines.
            revision: append them only if the session is at this revision, else
                ``RevisionConflict``.
        """
        return Writing(self, values, revision)

    def commit(self, fill: Callable[[ChangeBatch], T]) -> T:
        """Commit what a function puts into a batch, and run it again if others wrote meanwhile.

        Returns:
            What the function returned; it has seen all that is stored before its own lines.

        Raises:
            StoreLockedError: others wrote again and again.
        """

        def change() -> T:
            # Both before the function reads anything. A change of the state alone leaves the
            # revision as it is, so two of these are told apart by the state's own counter.
            revision, counter = self.session.revision, self.session.state.counter
            with self.session.batch(expected_revision=revision) as batch:
                found = fill(batch)
                batch.expect_state(counter)
            return found

        return self.attempt(change)

    def attempt(self, change: Callable[[], T]) -> T:
        """Make a change, again while others write between its reading and its commit.

        Raises:
            StoreLockedError: they did so again and again.
        """
        for _ in range(_ATTEMPTS):
            with suppress(RevisionConflict):
                return change()
        msg = f"session {self.session.id[:80]!r} was written {_ATTEMPTS} times by others: try again"
        raise StoreLockedError(msg)

    def rewrite(self, line: Line, value: dict[str, Any]) -> None:
        """Put another line in the place of a stored one, whose text is then nowhere in the file.

        Token counts of contexts are those of the old text until the session is recounted. A line
        of another role, or of other calls, is put there by writing the session anew.

        Raises:
            HeldError: a legal hold covers the session.
            RevisionConflict: the session was written anew since the line was read: read it again.
        """
        try:
            self._rewrite(line, value)
        except InvalidItemError:
            self._renew([line], self.writing([value]), at=line.seq)

    def replace(
        self,
        gone: Callable[[Line], bool] | None,
        values: Iterable[dict[str, Any]] = (),
        *,
        prepare: Callable[[], Callable[[Line], bool]] | None = None,
    ) -> list[Line]:
        """Remove lines from the file and append others, in one commit.

        The session is written anew, so the items that stay get other seqs.

        Args:
            gone: returns True for a line to remove; None: all are removed.
            values: lines to append.
            prepare: returns ``gone`` for the lines and the state that are stored; it is called
                again if others wrote meanwhile.

        Returns:
            The lines that were removed, oldest first.

        Raises:
            HeldError: a legal hold covers the session.
            StoreLockedError: others wrote again and again.
        """
        writing = self.writing(values)

        def change() -> list[Line]:
            # Before anything is read; a change of the state leaves the revision as it is.
            revision, counter = self.session.revision, self.session.state.counter
            is_gone = gone if prepare is None else prepare()
            old = [line for line in self.read() if is_gone is None or is_gone(line)]
            if old:
                self._renew(old, writing, revision=revision, counter=counter)
            elif writing.change.items:
                store(writing.change)
            return old

        return self.attempt(change)

    def _renew(
        self,
        gone: Sequence[Line],
        writing: Writing,
        *,
        at: int | None = None,
        revision: int | None = None,
        counter: int | None = None,
    ) -> None:
        """Write the session anew without lines, with others at the place of a seq or at the end.

        Raises:
            RevisionConflict: it is at another revision, or its state at another counter.
            HeldError: a legal hold covers it.
        """
        ref = ref_of(self.session)
        old = {line.seq for line in gone}
        old |= {line.seq - 1 for line in gone if _is_parted(line, self.field)}

        def change(txn: Txn) -> bool:
            draft = ref.draft(txn, create=False)
            if draft is None:
                return False
            draft.expect(revision)
            if counter is not None and state_counter(txn, *draft.log.place) != counter:
                msg = f"session {ref.name[:80]!r}: its state was changed meanwhile"
                raise RevisionConflict(
                    msg, expected=draft.head.revision, current=draft.head.revision
                )
            need_free(txn, *draft.log.place, what=f"session {ref.name[:80]!r}")
            kept: list[Prepared] = []
            for item in encode_again(draft, 0, draft.count, seed=ref.engine.seed):
                if item.was not in old:
                    kept.append(item)
                elif item.was == at:
                    kept += writing.change.items
            if at is None:
                kept += writing.change.items
            try:
                return bool(renew(txn, ref, draft, kept))
            except BaseException:
                txn.spoil()  # it may be half done
                raise

        stage(ref, writing.change.items)
        if ref.engine.store.transact(change):
            resume_removals(ref.engine.store)

    def _rewrite(self, line: Line, value: dict[str, Any]) -> None:
        ref = ref_of(self.session)
        item = self._view(value)
        meta: Mapping[str, Any] | None = None
        if item is not None:
            meta = {self.field: rest_of(value, item)}
        message = {"type": self.field, "payload": rest_of(value, {})} if item is None else item
        if ref.scope_filter is not None:
            admitted = admitted_item(ref.scope_filter, message, meta)
            message, meta = admitted.message, admitted.meta
        changes = {line.seq: (line.item.message, message)}
        if _is_parted(line, self.field):
            gone = {"type": f"{self.field}.rest", "payload": None}
            changes[line.seq - 1] = gone, gone

        def change(txn: Txn) -> object:
            place = ref.find(txn)
            if place is None:
                return None
            need_free(txn, *place, what=f"session {ref.name[:80]!r}")
            planned = []
            for seq, messages in sorted(changes.items()):
                key = keys.session_row(*place, Row.ITEM, seq)
                row = txn.get(key)
                if row is None or (seq == line.seq and not _is_row_of(key, row, line.item)):
                    raise _moved(ref.name)
                planned.append(plan_rewriting(
                    (*place, seq), row, messages, seed=ref.engine.seed,
                    envelope=lambda old, of=seq: old if of != line.seq else {**old, "meta": meta},  # type: ignore[misc]
                ))  # fmt: skip
            return rewrite_planned(txn, ref.engine, *place, planned)

        ref.engine.store.transact(change, makes_room=True)

    # --- reading ----------------------------------------------------------------------------------

    def read(self, items: Iterable[Item] | None = None) -> Iterator[Line]:
        """Yield the lines among items, by default all of the session."""
        before: Any = None
        for item in self.session.items() if items is None else items:
            if item.kind == ItemKind.EVENT:
                before = item.message["payload"]
                if item.message["type"] == self.field and isinstance(before, dict):
                    yield Line(item.seq, whole(before, {}), item)
                continue
            rest = None if item.meta is None else item.meta.get(self.field)
            if rest is None:
                continue  # another writer's item
            value = whole(before if rest == _BEFORE else rest, item.message)
            if isinstance(value, dict):
                yield Line(item.seq, value, item)

    def last(self) -> Line | None:
        """Return the last line, if it is among the last items."""
        found = list(self.read(self.session.tail(_LAST)))
        return found[-1] if found else None

    def admitted(self, line: dict[str, Any]) -> Any:
        """Return a line as it comes back once it is stored: redacted, if the file has a policy.

        Raises:
            BlockedError: a guard refuses it.
        """
        scope_filter = ref_of(self.session).scope_filter
        if scope_filter is None:
            return line
        item = self._view(line)
        rest = rest_of(line, item or {})
        if item is None or _text_of(item) is None:
            event = admitted_item(scope_filter, {"type": self.field, "payload": rest}, None)
            return whole(event.message["payload"], {})
        found = admitted_item(scope_filter, item, {self.field: rest})
        return whole((found.meta or {}).get(self.field), found.message)

    def window(self, limit: int | None, *, legal: bool = True) -> list[Line]:
        """Return the last lines, oldest first.

        Args:
            limit: at most this many; None: all.
            legal: begin at no result whose call is left out.
        """
        if limit is None:
            return list(self.read())
        count = 2 * limit + 1  # most lines are one item, and a few are two
        items = self.session.tail(count)
        found = list(self.read(items))
        if len(found) < limit and len(items) == count:
            found = list(self.read())
        found = found[max(len(found) - limit, 0) :]
        if not legal:
            return found
        return found[first_legal([each.item.message for each in found]) :]


class LineSessions:
    """The sessions of a scope that hold lines, each opened once: a handle knows its history.

    Args:
        scope: the scope.
        field: as for ``Lines``.
        view: as for ``Lines``.
    """

    def __init__(
        self, scope: Scope, field: str, view: Callable[[dict[str, Any]], Message | None]
    ) -> None:
        self._scope = scope
        self._field = field
        self._view = view
        self._opened: dict[str, Lines] = {}
        self._lock = Lock()

    def at(self, name: str) -> Lines:
        """Return the lines of the session of a name."""
        with self._lock:
            found = self._opened.pop(name, None)
            if found is None:
                session = self._scope.session(
                    name, policy="anthropic", orphans="keep", shape="keep"
                )
                found = Lines(session, self._field, self._view)
            self._opened[name] = found  # the one that was used last
            if len(self._opened) > _OPENED_MAX:
                del self._opened[next(iter(self._opened))]
            return found


class Writing:
    """Lines made ready for one session; run in a transaction, again if that has to be rerun."""

    def __init__(
        self, lines: Lines, values: Iterable[dict[str, Any]], revision: int | None
    ) -> None:
        batch = lines.session.plan_batch(revision)
        self._ends: list[tuple[dict[str, Any], int]] = []
        for value in values:
            lines.put(batch, value)
            self._ends.append((value, len(batch.prepared)))
        self.change = batch.change()

    def run(self, txn: Txn) -> list[tuple[dict[str, Any], int]]:
        """Append the lines; return them with their seqs."""
        before = self.change(txn).seq - len(self.change.items)
        return [(value, before + end) for value, end in self._ends]


class Rows:
    """Rows of an adapter's namespace in a scope, written in the commit of lines.

    Args:
        scope: the scope.
        namespace: the name of the namespace.
    """

    def __init__(self, scope: Scope, namespace: str) -> None:
        self._scope = scope
        self._namespace = namespace
        self._kv = scope.kv(namespace)
        self._store = engine_of(scope).store

    def admitted(self, key: str, value: Any) -> Any:
        """Return a value as the file's guards and redaction let it be stored.

        Raises:
            BlockedError: a guard refuses it.
        """
        return value if self._kv.gate is None else self._kv.gate.value(value, key)

    def named(self, text: str | None, what: str) -> None:
        """Refuse a text that is looked up later, where redaction would change it.

        Raises:
            BlockedError: there is a policy, and it has findings.
        """
        scope_filter = scope_filter_of(self._scope)
        if scope_filter is not None:
            scope_filter.name(text, what)

    def read(self, fn: Callable[[KeyValueView], T]) -> T:
        """Run a function on one snapshot of the rows."""
        return self._kv.read(fn)

    def writer(self, txn: Txn) -> KeyValueTxn:
        """Return the rows in a write transaction."""
        writer = NamespaceWriter(txn, self._find, self._ensure, engine_of(self._scope).now_ms())
        return KeyValueTxn(lambda: writer)

    def commit(
        self,
        fn: Callable[[Txn, KeyValueTxn], T],
        *,
        writings: Iterable[Writing] = (),
        makes_room: bool = False,
    ) -> T:
        """Run a function in one write transaction: all that it writes is stored, or nothing.

        Args:
            fn: the change; it may be run again.
            writings: the lines that it appends, of which large ones are staged before.
            makes_room: it mostly deletes, and may run on a full device.
        """

        def closure(txn: Txn) -> T:
            try:
                return fn(txn, self.writer(txn))
            except BaseException:
                txn.spoil()  # what it wrote already must not be committed with others' changes
                raise

        changes = [writing.change for writing in writings]
        for _ in range(STAGE_ATTEMPTS):
            for change in changes:
                stage(change.ref, change.items)
            try:
                return self._store.transact(closure, makes_room=makes_room)
            except StagedBlobLost:
                continue
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)

    def _find(self, txn: ReadTxn) -> tuple[int, int] | None:
        scope = names.scope_of(txn, self._scope.app, self._scope.user)
        number = None if scope is None else names.namespace_of(txn, scope, self._namespace)
        return None if scope is None or number is None else (scope, number)

    def _ensure(self, txn: Txn) -> tuple[int, int]:
        scope = names.ensure_scope(txn, self._scope.app, self._scope.user)
        return scope, names.ensure_namespace(txn, scope, self._namespace)


def call_input(given: Any) -> dict[str, Any]:
    """Return the arguments of a call as Anthropic's format has them; a model may write any text."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {"arguments": given}
    return dict(given) if isinstance(given, Mapping) else {}


def first_legal(messages: Sequence[Message]) -> int:
    """Return where a window may start so that no result is without its call."""
    first, made = 0, dict[tuple[int, str], int]()
    for at, message in enumerate(messages):
        _, opens, closes, _ = classify(message)
        if any(made.get(key, -1) < first for key in closes):
            first = at + 1
        made.update((key, at) for key in opens)
    return first


# --- Names of sessions ----------------------------------------------------------------------------


def name_of(prefix: str, *parts: str) -> str:
    """Return the name of a session for the parts of a framework's key, whatever they contain."""
    return f"{prefix}:" + "/".join(quote(part, safe="", errors="surrogatepass") for part in parts)


def key_of(kind: str, *parts: str) -> str:
    """Return the key of a row for the parts of a framework's key; of long ones it has digests."""
    return f"{kind}:" + "/".join(_short(part) for part in parts)


def _short(part: str) -> str:
    told = quote(part, safe="", errors="surrogatepass")
    if len(told) <= _PART_CHARS:
        return told
    digest = blake2b(part.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"={digest.hexdigest()}"  # no quoted text has an equals sign


def parts_of(name: str) -> list[str]:
    """Return the parts that ``name_of`` made a name of."""
    told = name.partition(":")[2].split("/")
    return [unquote(part, errors="surrogatepass") for part in told]
