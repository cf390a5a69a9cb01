"""Grants: views of one user's memory that another user has.

A grant is two rows, written and deleted in one transaction: one of the giver with its terms, and a
mark of the receiver. Both keys hold both scopes' numbers and no names, so either side leads to the
other without decoding. Nothing is copied: what a view shows is read from the giver's memory each
time, so a grant that was revoked shows nothing from the next snapshot on. A view is of the giver's
own entries, so it can never be handed on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from memcore import privacy, search
from memcore.access import Access
from memcore.audit import record_event
from memcore.codec import keys
from memcore.codec.keys import Kind, MemoryRow
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import (
    AccessDeniedError,
    CorruptValueError,
    InvalidOptionError,
    MemcoreError,
    ReadOnlyError,
)
from memcore.faces import logger
from memcore.memory.rows import (
    MALFORMED,
    NUMBER_END,
    RECORDED_END_MS,
    TIME_END_MS,
    MemoryVersion,
    document_of,
    memory_of,
    read_head,
    sound_entries,
    sound_rows,
    write_head,
)
from memcore.memory.search import MemoryQuery
from memcore.memory.trust import ACTIVE_BY, KINDS, checked_labels, normalised, weakest
from memcore.model import Grant, Memory, MemoryHit
from memcore.options import checked_choice, checked_choices, checked_int, refuse_copies
from memcore.rows import names
from memcore.rows.lifecycle import is_erased, is_opted_out, need_wanted
from memcore.store.interface import ReadTxn, Store, Txn

__all__ = [
    "GRANT_ROWS",
    "Grants",
    "check_grants",
    "drop_grants",
]


GRANT_ROWS: Final = (MemoryRow.GRANT, MemoryRow.RECEIVED)
GRANTS_MAX: Final = 256
"""Most grants that a user gives, and that one has: each costs every shared read a look."""
_KEY_BYTES: Final = len(keys.memory_rows(0, MemoryRow.GRANT, keys.u64(0), keys.u64(0)))
_TRUST: Final = "agent"
"""Most trust of what somebody else's memory says; it is never the reader's own word."""


# --- Rows -----------------------------------------------------------------------------------------


class GrantRow(NamedTuple):
    """Terms of a grant, as the giver's row has them."""

    giver: int
    receiver: int
    number: int
    kinds: tuple[str, ...] | None
    labels: Mapping[str, str]
    redact: str | None
    until_ms: int | None
    given_ms: int

    def admits(self, record: MemoryVersion, now_ms: int) -> bool:
        """Return True if the view shows an entry: active, true now, of its kinds and labels."""
        return (
            record.by in ACTIVE_BY
            and not record.is_file
            and record.is_visible(now_ms)
            and record.is_in_force(now_ms)
            and (self.kinds is None or record.kind in self.kinds)
            and self.labels.items() <= record.labels.items()
        )


def _grant_at(giver: int, receiver: int, number: int) -> bytes:
    return keys.memory_rows(giver, MemoryRow.GRANT, keys.u64(receiver), keys.u64(number))


def _mark_at(giver: int, receiver: int, number: int) -> bytes:
    return keys.memory_rows(receiver, MemoryRow.RECEIVED, keys.u64(giver), keys.u64(number))


def _keys_of(txn: ReadTxn, scope: int, row: int) -> list[bytes]:
    prefix = keys.memory_rows(scope, row)
    return [key for key, _ in txn.scan(prefix, keys.after(prefix))]


def _places(txn: ReadTxn, scope: int, row: int) -> list[tuple[int, int]]:
    """Return ``(scope of the other side, number)`` of the grant rows of a scope, from the keys."""
    found = (key for key in _keys_of(txn, scope, row) if len(key) == _KEY_BYTES)
    return [(keys.number_of(key[:-8]), keys.number_of(key)) for key in found]


def _read(txn: ReadTxn, giver: int, receiver: int, number: int) -> GrantRow | None:
    """Read a grant; None if there is none.

    Raises:
        CorruptValueError: its row is damaged.
    """
    key = _grant_at(giver, receiver, number)
    value = txn.get(key)
    if value is None:
        return None
    flags, body = open_value(key, value)
    with decoding(key, "grant"):
        if giver == receiver or not 0 < number < NUMBER_END:
            raise ValueError(number)
        said = decode_json(body, flags)
        kinds, until, given = said.get("kinds"), said.get("until"), said["at"]
        for at, end in ((given, RECORDED_END_MS), (0 if until is None else until, TIME_END_MS)):
            if type(at) is not int or not 0 <= at < end:
                raise ValueError(number)
        if kinds is not None and not (isinstance(kinds, list) and all(k in KINDS for k in kinds)):
            raise ValueError(kinds)
        redact = said.get("redact")
        if redact is not None and redact not in privacy.POLICY_PRESETS:
            raise ValueError(redact)
        labels = said.get("labels", {})
        if not all(isinstance(text, str) for text in labels.values()):
            raise TypeError(labels)
        return GrantRow(
            giver, receiver, number, None if kinds is None else tuple(kinds), labels,
            redact, until, given,
        )  # fmt: skip


def _in_force(txn: ReadTxn, giver: int, receiver: int, number: int, now_ms: int) -> GrantRow | None:
    """Return a grant that holds: both rows are whole, and neither side has ended it; else None.

    A damaged one shows nothing; check() reports it.
    """
    with suppress(CorruptValueError):
        row, mark = _read(txn, giver, receiver, number), _mark_at(giver, receiver, number)
        value = None if row is None else txn.get(mark)
        if row is None or value is None:
            return None
        open_value(mark, value)
        has_ended = row.until_ms is not None and now_ms >= row.until_ms
        if not has_ended and all(_may_share(txn, scope) for scope in (giver, receiver)):
            return row
    return None


def _may_share(txn: ReadTxn, scope: int) -> bool:
    """Return True if a scope is somebody's who was not erased and did not opt out.

    Raises:
        CorruptValueError: a row that tells is damaged.
    """
    if txn.get(keys.scoped(Kind.SCOPE, scope)) is None:
        return False
    names.scope_names(txn, scope)  # a damaged name must be found here, where it ends no read
    return not is_erased(txn, scope) and not is_opted_out(txn, scope)


def _put(txn: Txn, row: GrantRow) -> None:
    key = _grant_at(row.giver, row.receiver, row.number)
    said = {
        "at": row.given_ms, "kinds": None if row.kinds is None else list(row.kinds),
        "labels": dict(row.labels), "redact": row.redact, "until": row.until_ms,
    }  # fmt: skip
    body, flags = encode_json({name: value for name, value in said.items() if value is not None})
    txn.put(key, seal_value(key, body, flags))
    mark = _mark_at(row.giver, row.receiver, row.number)
    txn.put(mark, seal_value(mark, b""))
    record_event(txn, row.giver, "give grant", {"grant": row.number, "to": row.receiver})
    record_event(txn, row.receiver, "receive grant", {"grant": row.number, "from": row.giver})


def _end(txn: Txn, giver: int, receiver: int, number: int) -> bool:
    """Delete both rows of a grant, and record it on both sides; return True if there was one."""
    rows = _grant_at(giver, receiver, number), _mark_at(giver, receiver, number)
    found = [key for key in rows if txn.get(key) is not None]
    for key in found:
        txn.delete(key)
    for scope in (giver, receiver) if found else ():
        if not is_erased(txn, scope):
            told = {"grant": number, "giver": giver, "receiver": receiver}
            record_event(txn, scope, "end grant", told)
    return bool(found)


def drop_grants(txn: Txn, scope: int) -> int:
    """End all grants that a user gave and was given, on both sides; return their number.

    Whatever ends a user's memory calls it in its own transaction: an erasure, an opt-out.
    """
    given = [(scope, other, number) for other, number in _places(txn, scope, MemoryRow.GRANT)]
    had = [(other, scope, number) for other, number in _places(txn, scope, MemoryRow.RECEIVED)]
    count = sum(_end(txn, *place) for place in (*given, *had))
    for key in [key for row in GRANT_ROWS for key in _keys_of(txn, scope, row)]:
        txn.delete(key)  # a key that leads to no other side
    return count


def check_grants(txn: ReadTxn, scope: int, _: bytes) -> Iterator[str]:
    """Verify that each grant of a scope has both its rows, and terms; yield findings as text."""
    for key in (key for row in GRANT_ROWS for key in _keys_of(txn, scope, row)):
        if len(key) != _KEY_BYTES:
            yield f"the row {key.hex()} is of no grant"
    for other, number in _places(txn, scope, MemoryRow.GRANT):
        name, key = f"grant {number} to scope {other}", _grant_at(scope, other, number)
        wrong = list(_wrong_sides(txn, scope, other, number))
        yield from (f"{name}: {what}" for what in wrong)
        try:
            _read(txn, scope, other, number)
        except CorruptValueError:
            if not wrong and any(sound_rows(txn, [key])):  # else the check of all rows reports it
                yield f"{name}: {MALFORMED}"
        if txn.get(_mark_at(scope, other, number)) is None:
            yield f"{name} is not marked there"
    for other, number in _places(txn, scope, MemoryRow.RECEIVED):
        name = f"grant {number} of scope {other}"
        yield from (f"{name}: {what}" for what in _wrong_sides(txn, scope, other, number))
        if txn.get(_grant_at(other, scope, number)) is None:
            yield f"{name} is marked here, and was not given"


def _wrong_sides(txn: ReadTxn, scope: int, other: int, number: int) -> Iterator[str]:
    """Yield what is wrong with the key of one side of a grant."""
    if other == scope:
        yield "its giver is its receiver"
    if not 0 < number < NUMBER_END:
        yield "no grant has this number"
    if txn.get(keys.scoped(Kind.SCOPE, other)) is None:
        yield f"it names scope {other}, which nobody has"


# --- The handle -----------------------------------------------------------------------------------

Redactor = Callable[[str, tuple[str, str]], Callable[[Any], Any]]
"""Returns what redacts JSON by a named policy, as data of an application and user."""


class _View(NamedTuple):
    """A grant that holds, and the names of its giver."""

    row: GrantRow
    app: str
    user: str


class Grants:
    """Grants of one user's memory: ``memory.grants``.

    Args:
        store: the open store.
        find: returns the number of the scope, if anything is stored in it.
        now_ms: the clock.
        owner: application and user.
        access: the authorizer; None: everything is allowed.
        redactor: makes the redaction of what leaves a memory.
        read_only: True if the file may not be written.
        indexes: vectors of texts in memory.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        store: Store,
        find: Callable[[ReadTxn], int | None],
        *,
        now_ms: Callable[[], int],
        owner: tuple[str, str],
        access: Access | None,
        redactor: Redactor,
        read_only: bool,
        indexes: search.IndexCache,
    ) -> None:
        self._store = store
        self._find = find
        self._now_ms = now_ms
        self._owner = owner
        self._access = access
        self._redactor = redactor
        self._read_only = read_only
        self._indexes = indexes

    def __repr__(self) -> str:
        app, user = self._owner
        return f"Grants(user {user!r} in app {app!r})"

    def give(
        self,
        *,
        to: Any,
        kinds: Iterable[str] | None = None,
        labels: Mapping[str, str] | None = None,
        redact: str | None = "default",
        until: float | None = None,
    ) -> Grant:
        """Let another user read this user's active memories; return the grant.

        The other sees them where a read says ``shared=True``, with trust ``agent`` and without
        their sources. The authorizer is asked for ``grant`` here and ``receive_grant`` there.

        Args:
            to: the other user's Scope, or ``(app, user)``: both are named.
            kinds: only memories of these kinds; None: of all.
            labels: only those with all of these labels.
            redact: preset of the redaction by which they are shown, such as ``strict``; None: as
                they are.
            until: time at which it ends, seconds since 1970; None: when it is revoked.

        Raises:
            InvalidOptionError: an option is invalid, it is the same user, or one of both has 256
                grants.
            OptedOutError: one of both opted out of memory.
            AccessDeniedError, ReadOnlyError, StorageError
        """
        self._need_writable()
        app, user = self._receiver(to)
        of_kinds = None if kinds is None else checked_choices("kinds", kinds, KINDS)
        with_labels = checked_labels({} if labels is None else labels)
        until_ms = None if until is None else self._until_ms(until)
        if redact is not None:  # a name alone: the row of a grant has no other policy
            checked_choice("redact", redact, privacy.POLICY_PRESETS)
            self._redactor(redact, self._owner)  # its secret exists now
        self._ask("grant", *self._owner, name=f"{app}/{user}")
        self._ask("receive_grant", app, user, name="/".join(self._owner))
        now_ms = self._now_ms()

        def closure(txn: Txn) -> GrantRow:
            for place in (self._owner, (app, user)):  # before the first write
                known = names.scope_of(txn, *place)
                if known is not None:
                    need_wanted(txn, known)
            giver = names.ensure_scope(txn, *self._owner)
            receiver = names.ensure_scope(txn, app, user)
            self._make_room(txn, giver, receiver, now_ms)
            head = read_head(txn, giver)  # grants and memories share their numbers
            row = GrantRow(
                giver, receiver, head.next_id, of_kinds, with_labels, redact, until_ms, now_ms
            )
            write_head(txn, giver, head._replace(next_id=head.next_id + 1))
            _put(txn, row)
            return row

        return self._shown(self._store.transact(closure), self._owner, (app, user))

    def revoke(self, grant: Grant | int) -> bool:
        """End a grant on both sides at once; return True if there was one.

        Args:
            grant: one that this user gave, or its id; or one of ``received()``, to decline it.

        Raises:
            InvalidOptionError, AccessDeniedError, ReadOnlyError, StorageError
        """
        self._need_writable()
        number, giver = grant, self._owner
        if isinstance(grant, Grant):
            number, giver = grant.id, (grant.app, grant.user)
            if self._owner not in (giver, (grant.to_app, grant.to_user)):
                msg = "grant: it was neither given by this user nor to this user"
                raise InvalidOptionError(msg)
        if type(number) is not int or not 0 < number < NUMBER_END:
            msg = f"grant: expected a Grant or its id, got {number!r:.80}"
            raise InvalidOptionError(msg)
        self._ask("revoke_grant", *self._owner, name=str(number))

        def closure(txn: Txn) -> bool:
            own, other = self._find(txn), names.scope_of(txn, *giver)
            if own is None or other is None:
                return False
            if giver != self._owner:
                return _end(txn, other, own, number)
            found = [at for at, each in _places(txn, own, MemoryRow.GRANT) if each == number]
            return sum(_end(txn, own, at, number) for at in found) > 0

        return self._store.transact(closure, makes_room=True)

    def received(self) -> list[Grant]:
        """List the grants that this user has and that have not ended, by giver and id."""
        return [self._shown(view.row, (view.app, view.user), self._owner) for view in self._views()]

    # --- reading through grants -------------------------------------------------------------------

    def memories(
        self,
        fits: Callable[[MemoryVersion], bool] | None = None,
        *,
        as_of_ms: int | None = None,
    ) -> list[Memory]:
        """Return what the grants of this user show now, by giver and id.

        Costs a read of all memories of each giver. A giver whose memory the authorizer does not let
        the actor read (``read_grant``) is left out. So is, with a warning in the log, what is
        damaged, and a grant by whose policy nothing can be redacted here: no giver can take from
        the user what others share. What two grants of one giver show is there once, as the older
        grant shows it.

        Args:
            fits: returns True for a version that is wanted, as it is shown; None: all.
            as_of_ms: None; what others show has no past.

        Raises:
            InvalidOptionError: a time is given.
        """
        _need_now(as_of_ms)
        return [memory for memory, _ in self._shared(fits)]

    def get(self, shared_from: tuple[str, str], id: int) -> Memory | None:  # noqa: A002
        """Return one memory that a grant shows; None if none does.

        Args:
            shared_from: application and user whose memory it is, as ``Memory.shared_from`` has it.
            id: its id there.

        Raises:
            InvalidOptionError: one of both can be no memory's.
        """
        place, number = _checked_place("shared_from", shared_from), checked_int("id", id, least=1)
        found = self.memories(lambda record: record.id == number)
        return next((each for each in found if each.shared_from == place), None)

    def hits(self, asked: MemoryQuery) -> list[MemoryHit]:
        """Return what the grants of this user show and a query finds, the best first.

        Ranked among what is shown, and by what is shown: no score depends on anything else in the
        givers' memories, and nothing that is redacted can be found. So vectors are made of the
        texts that are shown, not taken from the givers' indexes.

        Raises:
            InvalidOptionError: the query is about the past.
            EmbedderError: the embedder failed.
        """
        _need_now(asked.as_of_ms)
        shown = self._shared(
            lambda record: (
                record.kind in asked.kinds and "active" in asked.statuses and asked.fits(record)
            )
        )
        head = search.IndexHead(os.urandom(16))
        made = [document_of(record._replace(id=at)) for at, (_, record) in enumerate(shown)]
        documents = [document for document in made if document is not None]
        beside = [document.prepared(head.key) for document in documents]
        vectors = None
        if asked.like is not None:
            texts = [document.text.rpartition("\n")[0] for document in documents]
            vectors = self._indexes.of_texts(asked.like.embedder, texts)
        query = search.Query(asked.text, kinds=(search.DocumentKind.MEMORY,))

        def rank(txn: ReadTxn, scope: int) -> list[MemoryHit]:
            ranking = search.rank(
                txn, scope, head, None, query, k=asked.k, beside=beside, like=asked.like,
                vectors=vectors,
            )  # fmt: skip
            found: list[MemoryHit] = []
            for match in ranking.matches:
                memory, record = shown[int.from_bytes(match.id, "big")]
                snippet, marks = search.snippet_of(record.text, head.key, ranking.terms)
                why = search.parts_of_score(txn, scope, ranking, match) if asked.explain else ()
                near = ranking.similarity(match) if asked.explain else 0.0
                found.append(MemoryHit(memory, match.score, snippet, marks, why, near))
            return found

        return self._look(rank) if beside else []

    def _shared(
        self, fits: Callable[[MemoryVersion], bool] | None
    ) -> list[tuple[Memory, MemoryVersion]]:
        """Return the memories that grants show, with the versions as they are shown."""
        views = [(view, redact) for view in self._views() for redact in self._redactors(view)]
        now_ms = self._now_ms()

        def look(txn: ReadTxn, scope: int) -> list[tuple[int, MemoryVersion]]:
            found: dict[tuple[int, int], tuple[int, MemoryVersion]] = {}
            for at, (view, _) in enumerate(views):
                row = _in_force(txn, view.row.giver, scope, view.row.number, now_ms)
                if row is None or row != view.row:
                    continue  # it ended meanwhile
                for record in sound_entries(txn, row.giver):
                    if row.admits(record, now_ms):
                        found.setdefault((row.giver, record.id), (at, record))
            return list(found.values())

        shown: list[tuple[Memory, MemoryVersion]] = []
        for at, record in self._look(look):
            view, redact = views[at]
            made = _as_shown(record, redact)
            if normalised(made.text) and (fits is None or fits(made)):
                memory = replace(memory_of(made), shared_from=(view.app, view.user))
                shown.append((memory, made))
        return shown

    def _views(self) -> list[_View]:
        """Return the grants of this user that hold and that the authorizer admits."""

        def look(txn: ReadTxn, scope: int) -> list[_View]:
            found: list[_View] = []
            for giver, number in _places(txn, scope, MemoryRow.RECEIVED)[:GRANTS_MAX]:
                row = _in_force(txn, giver, scope, number, self._now_ms())
                if row is not None:
                    found.append(_View(row, *names.scope_names(txn, giver)))
            return found

        return [view for view in self._look(look) if self._may_read(view)]

    def _redactors(self, view: _View) -> list[Callable[[Any], Any] | None]:
        """Return what redacts a view, None if it is shown as it is; nothing if none can be made.

        Called outside of a snapshot: a secret may have to be read.
        """
        row = view.row
        if row.redact is None:
            return [None]
        try:
            return [self._redactor(row.redact, (view.app, view.user))]
        except MemcoreError as error:  # such as a copy of the file without its secret
            logger("memcore.memory").warning(
                "grant %d of scope %d cannot be redacted and is left out: %s",
                row.number, row.giver, error,
            )  # fmt: skip
            return []

    def _may_read(self, view: _View) -> bool:
        try:
            self._ask("read_grant", view.app, view.user, name=str(view.row.number))
        except AccessDeniedError:  # logged and audited by the authorizer's side
            return False
        return True

    # --- arguments, transactions ------------------------------------------------------------------

    def _look(self, look: Callable[[ReadTxn, int], list[Any]]) -> list[Any]:
        """Run ``look`` on a snapshot; nothing without a scope, or if the user opted out."""

        def closure(txn: ReadTxn) -> list[Any]:
            scope = self._find(txn)
            return [] if scope is None or is_opted_out(txn, scope) else look(txn, scope)

        return self._store.read(closure)

    def _receiver(self, to: Any) -> tuple[str, str]:
        """Return application and user of the receiver.

        Raises:
            InvalidOptionError: it does not name both, or is the giver.
        """
        found = _checked_place("to", to)
        if found == self._owner:
            msg = "to: it is the user whose memory this is"
            raise InvalidOptionError(msg)
        return found

    def _until_ms(self, until: Any) -> int:
        if isinstance(until, bool) or not isinstance(until, int | float):
            msg = f"until: expected seconds since 1970, got {until!r:.80}"
            raise InvalidOptionError(msg)
        if not self._now_ms() < until * 1000 < TIME_END_MS:
            msg = f"until: expected a time in the future, got {until!r:.80}"
            raise InvalidOptionError(msg)
        return round(until * 1000)

    def _make_room(self, txn: Txn, giver: int, receiver: int, now_ms: int) -> None:
        """Delete what has ended by time; refuse more grants than a read can look at.

        Raises:
            InvalidOptionError: one of both has too many.
        """
        sides = ((giver, MemoryRow.GRANT), (receiver, MemoryRow.RECEIVED))
        for scope, which in sides:
            places = _places(txn, scope, which)
            if len(places) < GRANTS_MAX:
                continue
            for other, number in places:
                one, two = (scope, other) if which == MemoryRow.GRANT else (other, scope)
                if _in_force(txn, one, two, number, now_ms) is None:
                    _end(txn, one, two, number)
            if len(_places(txn, scope, which)) >= GRANTS_MAX:
                msg = f"to: one of both users has {GRANTS_MAX} grants; revoke one"
                raise InvalidOptionError(msg)

    def _ask(self, action: str, app: str, user: str, *, name: str) -> None:
        if self._access is not None:
            self._access.need(action, app=app, user=user, name=name)

    def _need_writable(self) -> None:
        if self._read_only:
            msg = "the database is open read-only; open it for writing to change grants"
            raise ReadOnlyError(msg)

    def _shown(self, row: GrantRow, giver: tuple[str, str], receiver: tuple[str, str]) -> Grant:
        until = None if row.until_ms is None else row.until_ms / 1000
        return Grant(
            row.number, *giver, *receiver, row.kinds, dict(row.labels), row.redact, until,
            row.given_ms / 1000,
        )  # fmt: skip

    def list(self) -> list[Grant]:
        """List the grants that this user gave and that have not ended, by id."""

        def look(txn: ReadTxn, scope: int) -> list[Grant]:
            found: list[Grant] = []
            for other, number in _places(txn, scope, MemoryRow.GRANT):
                row = _in_force(txn, scope, other, number, self._now_ms())
                if row is not None:
                    found.append(self._shown(row, self._owner, names.scope_names(txn, other)))
            return sorted(found, key=lambda grant: grant.id)

        return self._look(look)


def _checked_place(name: str, value: Any) -> tuple[str, str]:
    """Return application and user of a Scope or a pair.

    Raises:
        InvalidOptionError: it does not name both.
    """
    if isinstance(value, tuple | list):
        found = tuple(value)
    else:
        found = (getattr(value, "app", None), getattr(value, "user", None))
    if len(found) != 2 or not all(isinstance(each, str) for each in found):  # noqa: PLR2004
        msg = f"{name}: expected a Scope or (app, user), got {value!r:.80}"
        raise InvalidOptionError(msg)
    app, user = found
    names.check_name(app, "app")
    names.check_name(user, "user")
    return app, user


def _need_now(as_of_ms: int | None) -> None:
    if as_of_ms is not None:
        msg = "shared: what others show is as it is now; leave out as_of"
        raise InvalidOptionError(msg)


_HIDDEN: Final[Mapping[str, Any]] = {
    "sources": (), "derived_from": (), "superseded_by": None, "promoted_by": None,
    "unsourced": None, "extractor": None, "uses": 0, "expires_ms": None,
}  # fmt: skip
"""Fields of an entry that a view does not show: they name the giver's sessions and people."""
_TOLD: Final = ("text", "attributes", "labels", "subject", "slot")


def _as_shown(record: MemoryVersion, redact: Callable[[Any], Any] | None) -> MemoryVersion:
    """Return an entry as a view shows it: redacted, of little trust, without its sources."""
    told = {name: getattr(record, name) for name in _TOLD}
    if redact is not None:
        told = redact({name: value for name, value in told.items() if value})
    return record._replace(by=weakest((record.by, _TRUST)), **{**_HIDDEN, **told})
