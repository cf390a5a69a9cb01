"""Storing an event: one commit with what it changes of the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.session import Session as AdkSession

from memcore import codec
from memcore.adapters.adk.events import EVENT, REST, Encoded, Stored
from memcore.adapters.adk.labels import fields_of
from memcore.adapters.adk.markers import marker_in, marker_of
from memcore.envelope import Envelope
from memcore.errors import InvalidItemError
from memcore.limits import ENVELOPE_TEXT_CHARS_MAX, META_BYTES_MAX
from memcore.log import Draft, Prepared, find_request, record_request, request_of
from memcore.log.item import split_body
from memcore.session import Session
from memcore.session.appending import ItemOptions
from memcore.session.changes import Closure, Settled
from memcore.session.handle import store_of

if TYPE_CHECKING:
    from memcore.adapters.adk.storing import Storing

__all__ = ["Appended", "Appending", "View"]

_STALE: Final = (
    "The session has been modified in storage since it was loaded: reload it before appending more "
    "events."
)


class Appended(NamedTuple):
    """What became of an event."""

    place: tuple[int, int]
    epoch: int
    revision: int
    """Where the session is at now."""
    seq: int
    items: int
    """Live items, this one included."""
    is_new: bool
    """Whether the writer's object is to show it now; False: it was stored before."""

    @property
    def marker(self) -> str:
        """What the writer's object is to remember."""
        return marker_of(self.place, self.revision)


class View(NamedTuple):
    """What a Session object shows of the log: it says whose changes its writer knows."""

    marker: str | None
    last_event_id: str | None

    @classmethod
    def of(cls, session: AdkSession) -> View:
        """The view of an object now."""
        marker = marker_in(session)
        return cls(marker, session.events[-1].id if marker is None and session.events else None)

    def again(self, draft: Draft, revision: int) -> Appended:
        """What became of an event that was stored as that revision.

        Whoever tries again after an outcome that was never told still shows the log before it.
        """
        before = marker_of(draft.log.place, revision - 1)
        return _done(draft, is_new=revision == draft.head.revision and self.marker == before)

    def is_current(self, draft: Draft) -> bool:
        """Whether its writer knows the whole log: nobody wrote since, and it is this session's."""
        if self.marker is not None:
            return self.marker == marker_of(draft.log.place, draft.head.revision)
        return self.last_event_id == _last_event_id(draft)

    def is_of(self, draft: Draft) -> bool:
        """Whether it is this session's, and not that of another one of the same name."""
        return self.marker is None or self.marker.startswith(marker_of(draft.log.place, 0)[:-1])


class Appending:
    """Makes the closures that store events in one session."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def prepare(self, encoded: Encoded) -> list[Prepared]:
        """The rows of an event.

        Raises:
            InvalidItemError: it is too large.
        """
        appending = self._session.appending
        content, rest = encoded.content, encoded.rest
        told = _told(rest)
        if content is None:
            return [appending.prepare_event(EVENT, rest, ItemOptions(None, *told))]
        try:
            return appending.prepare([content], ItemOptions({"adk": rest}, *told))
        except InvalidItemError:
            if len(codec.encode_json(rest)[0]) < META_BYTES_MAX // 2:
                raise
        first = appending.prepare_event(REST, rest, ItemOptions())
        *before, item = appending.prepare([content], ItemOptions({"adk": None}, *told))
        return [*before, first, item]

    def closure(self, storing: Storing, view: View) -> Closure[Appended]:
        """What stores the rows and the changes of the state, if the writer's view is current.

        Raises (when it runs):
            SessionNotFoundError, StaleSessionError
            DuplicateRequestError: another event has this id.
        """
        session, rows, encoded = self._session, storing.rows, storing.encoded
        content = [encoded.identity] if encoded.identity else _content(rows)
        request = request_of(storing.event.id, content, seed=store_of(session).seed, ttl_ms=None)
        change = session.state.plan() if encoded.delta else None
        if change is not None:
            change.update(fields_of(encoded.delta))

        def work(draft: Draft) -> Any:
            first = find_request(draft, request, now_ms=0)
            if first is not None:
                return Settled(view.again(draft, first.revision))
            storing.is_stale = not view.is_current(draft)
            if storing.is_stale and not (storing.merges and view.is_of(draft)):
                raise StaleSessionError(_STALE)
            if change is not None:
                session.state.write(change, draft, ahead=len(rows))
            draft.append(rows, orphans="keep")
            return None

        def after(draft: Draft) -> Appended:
            record_request(draft, request, draft.receipt(len(rows)), now_ms=0)
            storing.done = _done(draft, is_new=True)
            return storing.done

        return session.changes.change(
            work, create=False, missing=self._missing, after=after, atomic=True
        )

    def _missing(self) -> Any:
        msg = f"Session {self._session.id} not found."
        raise SessionNotFoundError(msg)


def _told(rest: dict[str, Any]) -> tuple[str | None, Envelope | None]:
    """The request id and the envelope of an event; nothing if its names do not fit one."""
    author, invocation = rest.get("author"), rest.get("invocationId")
    if not (author and invocation) or len(author) > ENVELOPE_TEXT_CHARS_MAX:
        return None, None
    return invocation, Envelope(author=author)


def _done(draft: Draft, *, is_new: bool) -> Appended:
    head = draft.head
    return Appended(
        draft.log.place, head.epoch, head.revision, draft.last_seq, head.count, is_new=is_new
    )


def _content(rows: list[Prepared]) -> list[bytes]:
    """What of an event must be the same when it comes again."""
    content: list[bytes] = []
    for row in rows:
        _, _, envelope, rest = split_body(row.body)
        content += (envelope, rest if row.payload is None else row.payload)
    return content


def _last_event_id(draft: Draft) -> str | None:
    """The id of the last event that is stored, None if there is none."""
    count = 2
    while True:
        found = draft.last_rows(min(count, draft.count))
        rows = [Stored.of(draft.txn, draft.log.scope, row) for row in found]
        for at in range(len(rows) - 1, -1, -1):
            if rows[at].is_event and (at or not rows[at].is_split):
                rest = rows[at - 1].rest() if at else None
                return str(rows[at].said(rest).get("id"))
        if count >= draft.count:
            return None
        count *= 8
