"""What all handles of one open database share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from memcore import names
from memcore.access import Access
from memcore.audit import Audit
from memcore.checkpoint import Cache
from memcore.codec import clock_us
from memcore.compaction import CompactionPolicy, compaction_policy
from memcore.compaction.reducer import Embed
from memcore.errors import (
    CounterUnavailableError,
    InvalidOptionError,
)
from memcore.log import Drafts, Logs, SessionLog
from memcore.privacy.border import Border, RedactsPlaces
from memcore.session.sizes import SizeGuard
from memcore.session.uses import Uses
from memcore.store import LmdbStore, MapMovedError
from memcore.store.base import ReadTxn, Txn
from memcore.tokens import TokenCounter, get_counter

__all__ = ["Backing"]

T = TypeVar("T")


@dataclass(slots=True)
class Backing:
    """Everything that the handles of one open database share."""

    store: LmdbStore
    counter: TokenCounter
    """What new sessions count with."""
    policy: str
    """What new sessions are held to."""
    recount: bool = False
    """Whether handles of sessions recount what another counter counted, unless they say not to."""
    compaction: CompactionPolicy = field(default_factory=compaction_policy)
    """How sessions are compacted, unless their handle or a call says otherwise."""
    embed: Embed | None = None
    """What semantic de-duplication compares texts by."""
    audit: Audit | None = None
    """The key of the audit, and how it is anchored."""
    access: Access | None = None
    """Who is asked whether a handle may be opened; None: nobody."""
    border: Border | None = None
    """What everything passes before it is stored; None: nobody judges or redacts it."""
    size_guard: SizeGuard | None = None
    """How large items may be; None: as large as the file can hold."""
    access_counts: bool = False
    """Whether reading is counted, unless a session's handle says otherwise."""
    uses: WeakValueDictionary[tuple[str, str, str], Uses] = field(
        default_factory=WeakValueDictionary
    )
    """By application, user and session what its handles count."""
    unwritten: set[Uses] = field(default_factory=set)
    """Of these the ones with something to write."""
    now_us: Callable[[], int] = clock_us
    counters: dict[str, TokenCounter] = field(default_factory=dict)
    graphs: Cache = field(default_factory=Cache)
    """What is remembered of the values of graph checkpoints."""
    seed: bytes = field(init=False)
    """The store's random 16 bytes: keys the hashes of call ids and requests."""
    logs: Logs = field(init=False)
    drafts: Drafts = field(init=False)

    def __post_init__(self) -> None:
        self.counters[self.counter.id] = self.counter
        self.logs = Logs(partial(_counter_named, self.counters))  # not of ours: that were a cycle
        self.seed = self.store.seed
        self.drafts = Drafts(self.logs, self.seed)

    @property
    def redaction(self) -> RedactsPlaces | None:
        """What redacts what is stored; None if nothing does."""
        return None if self.border is None else self.border.redaction

    def counter_named(self, name: str) -> TokenCounter:
        """The counter of that id: one that the caller gave, else a built-in one."""
        return _counter_named(self.counters, name)

    def read_locked(self, log: SessionLog, fn: Callable[[ReadTxn], T]) -> T:
        """Run ``fn`` on a snapshot under the log's lock.

        The leader takes that lock inside its transaction, so whoever holds it must not wait for
        the lead, as a read does when another process grew the map.
        """
        while True:
            with suppress(MapMovedError), log.lock:
                return self.store.read(fn, patient=False)
            self.store.read(lambda _: None)

    def write_uses(self) -> None:
        """Write what was counted of readings and waits for a commit of its session."""
        waiting = list(self.unwritten)

        def write(txn: Txn) -> None:
            for uses in waiting:
                app, user, name = uses.name
                scope = names.scope_of(txn, app, user)
                session = None if scope is None else names.session_of(txn, scope, name)
                if scope is not None and session is not None:
                    uses.write(txn, (scope, session), all_pages=True)

        if waiting:
            self.store.transact(write)

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.now_us() // 1000


def _counter_named(counters: dict[str, TokenCounter], name: str) -> TokenCounter:
    """The counter of that id among those that are known, or a built-in one, known from now on."""
    found = counters.get(name)
    if found is None:
        try:
            found = counters[name] = get_counter(name)
        except InvalidOptionError as exc:
            msg = (
                f"the session is counted by {name!r}, which is none of memcore's counters: "
                "pass it as counter= when opening the database or the session, or open the "
                "session with another one and recount=True"
            )
            raise CounterUnavailableError(msg) from exc
    return found
