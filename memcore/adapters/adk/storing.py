"""What is to be known of the log before an event is stored, and of it when it is shown."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.session import Session as AdkSession

from memcore.adapters.adk.appending import Appended, Appending, View
from memcore.adapters.adk.cache import Entry, EventCache, lacks_ids, size_of
from memcore.adapters.adk.copies import Copies
from memcore.adapters.adk.events import COVERS, encode_event
from memcore.adapters.adk.history import History
from memcore.adapters.adk.labels import state_of
from memcore.adapters.adk.ranges import Span, covered_once
from memcore.adapters.adk.rewinding import rewound
from memcore.adapters.adk.showing import present
from memcore.adapters.adk.staging import in_thread
from memcore.aio.commit import commit_to, settled
from memcore.blobs import StagedBlobLost
from memcore.codec import FLAG_PLAIN_JSON, encode_json
from memcore.errors import InvalidItemError, StorageError
from memcore.log import Prepared
from memcore.session import Session
from memcore.session.appending import STAGE_ATTEMPTS
from memcore.session.changes import Closure
from memcore.session.handle import store_of

__all__ = ["Storing"]


class Storing:
    """One event on its way into the log."""

    __slots__ = (
        "closure", "covered", "delta", "done", "encoded", "event", "is_stale", "merges", "rows",
        "session",
    )  # fmt: skip

    def __init__(self, session: Session, event: Event, *, merges: bool = False) -> None:
        if not math.isfinite(event.timestamp):
            msg = f"the timestamp of event {event.id} is {event.timestamp}: expected a finite one"
            raise InvalidItemError(msg)
        self.session = session
        self.event = event
        self.encoded = encode_event(event)
        self.merges = merges and self.encoded.is_state_only
        """Whether a writer may store it who does not know the whole log."""
        self.is_stale = False
        """Whether its writer did not."""
        self.covered: Span | None = None
        """Of a compaction the indexes of the events of the writer's object that it covers."""
        self.delta: dict[str, Any] | None = None
        """What of the state a rewind changes, in place of what its event says."""
        self.done: Appended | None = None
        """What becomes of it, if the commit succeeds in which it stands."""
        self.rows: list[Prepared] = []
        self.closure: Closure[Appended]

    @property
    def needs_history(self) -> bool:
        """Whether what is stored depends on what the log holds."""
        actions = self.event.actions
        return actions.compaction is not None or bool(actions.rewind_before_invocation_id)

    @property
    def is_large(self) -> bool:
        """Whether content of it may have to be staged ahead."""
        return any(row.payload for row in self.rows)

    async def look(self, shown: AdkSession, cache: EventCache) -> None:
        """Find in the log what a compaction covers, and what a rewind leads back to."""
        history = History(self.session, cache)
        if self.event.actions.compaction is not None:
            await self._cover(shown, history)
        if self.event.actions.rewind_before_invocation_id:
            await self._rewind(history)

    def plan(self, shown: AdkSession) -> None:
        """Make the closure that stores it; ``shown`` is the writer's object."""
        appending = Appending(self.session)
        self.rows = appending.prepare(self.encoded)
        self.closure = appending.closure(self, View.of(shown))

    async def _cover(self, shown: AdkSession, history: History) -> None:
        """Say with a compaction which seqs it covers."""
        self.covered = covered_once(shown.events, self.event)
        found = history.look(len(shown.events)) if self.covered else None
        if found is None or self.covered is None:
            return
        entries = await history.entries(found)
        seqs = {entry.event.id: entry.seq for entry in entries if entry.event is not None}
        first, last = self.covered
        covered = (seqs.get(event.id) for event in shown.events[first : last + 1])
        lo = next((seq for seq in covered if seq is not None), None)  # a window may have gaps
        hi = seqs.get(shown.events[last].id)
        chain = None if hi is None else history.chain_at(hi)
        if lo is not None and chain is not None:
            self._identify(self.encoded.rest)
            self.encoded.rest[COVERS] = [lo, hi, f"{chain:016x}"]

    async def _rewind(self, history: History) -> None:
        """Put in the values that ADK did not find."""
        found = history.look(None)
        if found is None:
            return
        entries = await history.entries(found)
        events = [(entry.seq, entry.event) for entry in entries if entry.event is not None]
        goal = self.event.actions.rewind_before_invocation_id
        at = next((seq for seq, event in events if event.invocation_id == goal), None)
        actions = dict(self.encoded.rest["actions"])
        self._identify({**self.encoded.rest, "actions": {**actions, "stateDelta": {}}})
        if at is None:
            return
        before = state_of(self.session.state.before(at))
        self.delta = rewound(self.encoded.delta, before, found.state)
        actions["stateDelta"] = self.delta
        self.encoded = self.encoded._replace(
            rest={**self.encoded.rest, "actions": actions}, delta=self.delta
        )

    def _identify(self, rest: dict[str, Any]) -> None:
        """What memcore adds or corrects is no part of what the event is known by."""
        if not self.encoded.identity:
            identity = encode_json([self.encoded.content, rest])[0]
            self.encoded = self.encoded._replace(identity=identity)

    async def commit_large(self) -> Appended:
        """Store it; what is very large is staged ahead in a thread."""
        for _ in range(STAGE_ATTEMPTS):
            await settled(in_thread(self.session.appending.stage, self.rows))
            with suppress(StagedBlobLost):
                return await commit_to(store_of(self.session), self.closure, large=True)
        msg = "large content was collected again and again before it could be referred to"
        raise StorageError(msg)

    async def is_last(self, cache: EventCache) -> bool:
        """Whether it is what the log ends with."""
        history = History(self.session, cache)
        found = history.look(1)
        if found is None or self.done is None or found.marker != self.done.marker:
            return False
        events = [entry.event for entry in await history.entries(found) if entry.event is not None]
        return bool(events) and events[-1].id == self.event.id

    async def is_stored(self, cache: EventCache) -> bool:
        """Whether the event of this id that is stored says the same, or is shown so."""
        history = History(self.session, cache)
        found = history.look(None)
        read = [] if found is None else await history.entries(found)
        entries = [entry for entry in read if entry.event is not None]
        events = [entry.event for entry in entries if entry.event is not None]
        given = self.encoded.event()
        if given in events:
            return True
        present(events, entries, mend=True)
        return given in events

    def remember(self, copies: Copies, cache: EventCache) -> None:
        """Keep a copy of the event for the next reader, if it is sure what that would read."""
        done = self.done
        if done is None or len(self.rows) != 1 or self.event.actions.compaction is not None:
            return
        if self.session.is_admitting:  # what a reader gets may say less than the event
            return
        row = self.rows[0]
        if row.flags & FLAG_PLAIN_JSON:  # half of a surrogate pair is read otherwise
            return
        copied = copies.as_stored(self.event, self.encoded)
        if copied is not None:
            size = size_of(copied, len(row.body) + len(row.payload or b""))
            entry = Entry(done.seq, copied, copied.timestamp, size, None, lacks_ids(copied))
            cache.add(done.place, done.epoch, done.items - 1, entry)
