"""Memories: the user's handle for the long-term memory of one scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from memcore import memory
from memcore.codec.values import encode_json
from memcore.errors import CorruptValueError, InvalidOptionError, NotFoundError, ReadOnlyError
from memcore.kv import Requests
from memcore.log import SessionTxns
from memcore.memory.basis import SOURCES_MAX
from memcore.memory.clearing import begin_clear, clear_step
from memcore.memory.consolidate import (
    Consolidation,
    ConsolidationPolicy,
    ConsolidationStep,
    Consolidator,
    carry_out,
    check_plan,
    plan_consolidation,
)
from memcore.memory.coverage import RESERVED
from memcore.memory.extract import ExtractionReport, MemoryPlace, extract, list_jobs, retry_job
from memcore.memory.jobs import ExtractionJob
from memcore.memory.judge import Extractor
from memcore.memory.playbook import (
    Outcome,
    SessionPath,
    path_of,
    playbooks_in,
    put_outcome,
)
from memcore.memory.rows import (
    DERIVED_MAX,
    NUMBER_END,
    TIME_END_MS,
    Book,
    MemoryVersion,
    entries,
    known_at,
    memory_of,
    read_entry,
    scenario_digest,
    versions_of,
)
from memcore.memory.search import (
    MemoryQuery,
    best_hits,
    bring_up_to_date,
    checked_query,
    drop_damaged,
    embedded_recall,
    find_memories,
    index_wanted,
    is_up_to_date,
)
from memcore.memory.statement import (
    Sources,
    Statement,
    forget_entry,
    promote,
    remember,
    revise,
)
from memcore.memory.trust import (
    BY,
    KINDS,
    STATUSES,
    checked_attributes,
    checked_labels,
    checked_name,
    checked_text,
)
from memcore.model import Memory, MemoryHit, Message, Playbook, Source
from memcore.options import (
    checked_bool,
    checked_callable,
    checked_choice,
    checked_int,
    checked_optional_int,
    checked_several,
    checked_share,
    refuse_copies,
)
from memcore.privacy.write_filter import ScopeFilter
from memcore.rows import names
from memcore.rows.lifecycle import is_opted_out, need_wanted
from memcore.search import EmbeddedQuery, Embedding, IndexCache, embedded_query
from memcore.store.interface import ReadTxn, Store, Txn

if TYPE_CHECKING:
    from memcore.memory.grants import Grants
    from memcore.memory.profile import Profile
    from memcore.memory.summary import RollingSummary
    from memcore.memory.tools import ToolHandle

__all__ = [
    "Memories",
    "Sources",
    "place_of",
    "tool_handle",
]


T = TypeVar("T")


class Named(Protocol):
    """Session, as far as memory is concerned: it has a name and a place."""

    @property
    def id(self) -> str:
        """Return the session's name."""

    @property
    def app(self) -> str:
        """Return the application."""

    @property
    def user(self) -> str:
        """Return the user."""


class Memories:
    """Long-term memory of one user: ``scope.memory``, or ``session.memory``.

    A memory is a statement with its sources. Who made the statement decides whether it is active at
    once, or waits in quarantine until somebody promotes it or the user confirms it.

    Args:
        store: the open store.
        find: returns the number of the scope, if anything is stored in it.
        ensure: returns the same number, allocating it if needed.
        now_ms: the clock.
        seed: key of the digests in keys.
        drafts: the sessions inside a write transaction.
        requests: idempotent requests about this memory.
        scope_filter: guards and redaction; None: nothing is filtered.
        indexes: tables of search indexes in memory.
        session: name of the session that plain seqs refer to; None: none.
        read_only: True if the file may not be written.
        uses: uses by scope and id that are not written yet.
        owner: application and user; None: sessions of any are taken by their names.
        embedding: embedding of memories; None: there is no embedder.
        grants: makes the handle of the user's grants.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        store: Store,
        find: Callable[[ReadTxn], int | None],
        ensure: Callable[[Txn], int],
        *,
        now_ms: Callable[[], int],
        seed: bytes,
        drafts: SessionTxns,
        requests: Requests,
        scope_filter: ScopeFilter | None,
        indexes: IndexCache,
        session: str | None = None,
        read_only: bool = False,
        uses: dict[tuple[int, int], int] | None = None,
        owner: tuple[str, str] | None = None,
        embedding: Embedding | None = None,
        grants: Callable[[], Grants],
    ) -> None:
        self._store = store
        self._find = find
        self._ensure = ensure
        self._now_ms = now_ms
        self._seed = seed
        self._drafts = drafts
        self._requests = requests
        self._filter = scope_filter
        self._indexes = indexes
        self._session = session
        self._read_only = read_only
        self._uses = uses
        self._owner = owner
        self._embedding = embedding
        self._grants = grants

    def __repr__(self) -> str:
        app, user = self._owner or ("", "")
        return f"Memories(user {user!r} in app {app!r})" if user else "Memories()"

    # --- writing ----------------------------------------------------------------------------------

    def remember(
        self,
        text: str,
        *,
        kind: str = "fact",
        subject: str | None = None,
        slot: str | None = None,
        source: Sources = None,
        by: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        extractor: str | None = None,
        confidence: float | None = None,
        importance: float | None = None,
        observed_at: float | None = None,
        valid_from: float | None = None,
        valid_to: float | None = None,
        derived_from: Iterable[int] = (),
        expires_at: float | None = None,
        idempotency_key: str | None = None,
    ) -> Memory:
        """Store a statement; return it as it is then known.

        A statement of the same wording, kind, subject and slot is not stored twice: the known one
        gets one more source, and says what the stronger of the two says. What was forgotten stays
        so: its tombstone is returned, unless an operator says it again. In a slot the newer
        statement supersedes the older one, if it is not weaker; a weaker one waits in quarantine.

        Args:
            text: the statement, up to 16 KiB of UTF-8.
            kind: ``fact``, ``preference``, ``event``, ``procedure`` or ``note``.
            subject: whom or what it is about: 1 to 256 characters.
            slot: the property of the subject that has one value at a time.
            source: the items that it rests on. Trust follows from them: the weakest counts.
            by: who says it, to lower the trust; ``operator`` and ``import`` need no source.
            attributes: a JSON object, up to 16 KiB.
            labels: up to 32 short texts by name.
            extractor: name and version of the program that made the statement.
            confidence: of the extractor, 0 to 1.
            importance: 0 to 1.
            observed_at: time of the observation, seconds since 1970; None: that of the newest item.
            valid_from: time from which it is true; None: unknown (in a slot: from now on).
            valid_to: time until which it is true.
            derived_from: ids of the memories that it was made from, up to 256.
            expires_at: time from which it is hidden; the next sweep removes it.
            idempotency_key: a repeat with the same content changes nothing.

        Raises:
            InvalidItemError: the text or the attributes are invalid, too large, or hold hidden
                characters.
            InvalidOptionError: an option is invalid, there is no source, or ``by`` states more
                trust than the sources have.
            NotFoundError: a session or an item of the sources does not exist in this scope; or what
                the first request stored was removed or has expired.
            OptedOutError: the user opted out of memory.
            BlockedError: a guard or the redaction policy refuses it.
            DuplicateRequestError, ReadOnlyError, StorageError
        """
        said = self._statement(
            text, kind=kind, subject=subject, slot=slot, source=source, by=by,
            attributes=attributes, labels=labels, extractor=extractor, confidence=confidence,
            importance=importance, observed_at=observed_at, valid_from=valid_from,
            valid_to=valid_to, derived_from=derived_from, expires_at=expires_at,
        )  # fmt: skip
        found = self._change(
            lambda book: remember(book, self._drafts, said, self._now_ms()),
            idempotency_key,
            (said.text, said.sources, said.by, said.values),
            ensure=True,
        )
        index_wanted(self._store, self._find, self._indexes)
        return found

    def update(
        self,
        id: int,  # noqa: A002 - the name of the field
        *,
        text: str | None = None,
        source: Sources = None,
        by: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        confidence: float | None = None,
        importance: float | None = None,
        valid_to: float | None = None,
        expires_at: float | None = None,
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> Memory:
        """Store a new version of a memory, with the given fields changed; the old versions stay.

        A new text, attributes or labels need a source of their own, or ``by="operator"``, and must
        not be weaker than what they replace. None leaves a field as it is; of a memory in
        quarantine, a stronger text leaves nothing that it does not say itself.

        Args:
            id: the memory.
            text: as for ``remember``, like all options that it has as well.
            source: the items that the new text, attributes or labels rest on.
            by: who says it.
            attributes: replaces all attributes.
            labels: replaces all labels.
            confidence: of the extractor, 0 to 1.
            importance: 0 to 1.
            valid_to: time until which it is true.
            expires_at: time from which it is hidden.
            expected_version: change it only if it is at this version.
            idempotency_key: a repeat with the same content changes nothing.

        Raises:
            RevisionConflict: it is at another version; ``current`` is its version.
            NotFoundError: there is no such memory, it was forgotten, or it has expired; or there is
                no such source.
            InvalidOptionError: it is superseded; the text was forgotten, or another memory says the
                same; or as for ``remember``.
            InvalidItemError, OptedOutError, BlockedError, DuplicateRequestError, ReadOnlyError,
            StorageError
        """
        number = _checked_id("id", id)
        checked_optional_int("expected_version", expected_version, least=1)
        told_anew = text is not None or attributes is not None or labels is not None
        if not told_anew and (source is not None or by is not None):
            msg = "text: source and by belong to a new text, attributes or labels"
            raise InvalidOptionError(msg)
        given: dict[str, Any] = {}
        if text is not None:
            given["text"] = checked_text(text)
        if attributes is not None:
            given["attributes"] = checked_attributes(attributes)
        if labels is not None:
            given["labels"] = checked_labels(labels)
        values = dict(self._admitted(given))
        told = values.pop("text", None)
        values |= self._described(confidence=confidence, importance=importance)
        values |= _times(valid_to=valid_to)
        if expires_at is not None:
            values["expires_ms"] = _ms("expires_at", expires_at)
        trust = None if by is None else checked_choice("by", by, BY)
        said = Statement(told, self._cited(source), trust, values)
        return self._change(
            lambda book: revise(
                book, self._drafts, number, said, self._now_ms(), expected=expected_version
            ),
            idempotency_key,
            ("update", number, told, said.sources, trust, values, expected_version),
        )

    def promote(self, id: int, *, by: str) -> Memory:  # noqa: A002
        """Release a memory from quarantine on somebody's word; return it. The audit records it.

        In a slot it becomes the value, whatever was there, unless it has ended.

        Args:
            id: the memory.
            by: who decides: 1 to 256 characters.

        Raises:
            NotFoundError: there is no such memory, it was forgotten, or it has expired.
            InvalidOptionError: it is superseded.
            OptedOutError, ReadOnlyError, StorageError
        """
        number, who = _checked_id("id", id), checked_name("by", by)
        who = str(self._admitted({"promoted_by": who})["promoted_by"])
        return self._change(lambda book: promote(book, number, who, self._now_ms()))

    def forget(self, id: int, *, reason: str | None = None) -> Memory:  # noqa: A002
        """Remove a memory's text from all its versions; return the tombstone that is left.

        The tombstone holds the id and a keyed digest of the text, so that the same statement is not
        learned again. ``db.copy_compact()`` removes the bytes from free pages.

        Raises:
            NotFoundError: there never was such a memory.
            InvalidOptionError: it is a directory, and a model's files are in it; or it was united
                with others: the united memory takes it along.
            HeldError: a legal hold covers it.
            ReadOnlyError, StorageError
        """
        number = _checked_id("id", id)
        why = None if reason is None else checked_name("reason", reason)
        if why is not None:
            why = str(self._admitted({"reason": why})["reason"])
        return self._change(
            lambda book: forget_entry(book, number, why, self._now_ms()), makes_room=True
        )

    def record_outcome(
        self,
        session: Named | str | None = None,
        *,
        scenario: str,
        passed: bool,
        reason: str | None = None,
        confidence: float | None = None,
    ) -> Playbook:
        """Record how a session ended; return the playbook of its scenario.

        The tools that the session called, which of them failed and what was called instead are read
        from its log: names and counts, no arguments and no results. The same session counts once:
        what is said last replaces what was said before.

        Args:
            session: a session of this user or its name; None: the session whose handle this is.
            scenario: the kind of task: 1 to 256 characters.
            passed: True if it succeeded.
            reason: of a failure, in a few words that are the same for the same reason.
            confidence: of the judgement, 0 to 1.

        Raises:
            NotFoundError: this user has no such session.
            InvalidOptionError, InvalidItemError, OptedOutError, BlockedError, ReadOnlyError,
            StorageError
        """
        name = self._session if session is None else self._name_of(session)
        told = self._described(confidence=confidence)
        if reason is not None:
            told["reason"] = self._admitted({"reason": checked_name("reason", reason)})["reason"]
        checked_bool("passed", passed)
        kind = self._named("scenario", scenario)
        names.check_name(name, "session")
        self._need_writable()
        path = self._store.read(lambda txn: self._path(txn, str(name)))
        now_ms = self._now_ms()
        outcome = Outcome(
            kind, path.session, str(name), path.root, now_ms, passed, steps=path.steps,
            failed=path.failed, instead=path.instead, iterations=path.iterations, **told,
        )  # fmt: skip

        def closure(txn: Txn) -> Playbook:
            scope = self._find(txn)
            if scope is None or names.session_of(txn, scope, str(name)) != path.session:
                msg = f"session {str(name)[:80]!r} was deleted meanwhile"
                raise NotFoundError(msg)
            need_wanted(txn, scope)
            return put_outcome(Book(txn, scope, self._seed), outcome, now_ms)

        return self._store.transact(closure)

    def _name_of(self, session: Named | str) -> str:
        """Return the name of a session of this user.

        Raises:
            NotFoundError: it is a session of another user or application.
        """
        name, app, user = (getattr(session, each, None) for each in ("id", "app", "user"))
        if name is None:
            return str(session)
        if self._owner is not None and (app, user) != self._owner:
            msg = f"session {name[:80]!r} is one of user {user!r} in app {app!r}, not of this user"
            raise NotFoundError(msg)
        return str(name)

    def _path(self, txn: ReadTxn, name: str) -> SessionPath:
        scope = self._find(txn)
        if scope is None:
            msg = f"there is no session {name[:80]!r}"
            raise NotFoundError(msg)
        need_wanted(txn, scope)
        return path_of(txn, scope, name)

    def consolidate(
        self,
        policy: ConsolidationPolicy | None = None,
        *,
        consolidator: Consolidator | None = None,
        dry_run: bool = False,
    ) -> Consolidation:
        """Unite memories that say the same, settle contradictions, archive what has faded.

        Texts are the same if all their words and signs are, apart from inflection and articles.
        What is united, superseded or archived stays, and names what took its place. Values of slots
        are left alone: they settle when they are written.

        Args:
            policy: rules for attributes and for archiving; None: the defaults, which archive
                nothing.
            consolidator: judge of pairs that share a rare word: returns "same", "contradicts" or
                None. What it calls the same must have equal numbers, symbols, names and negations.
            dry_run: change nothing; ``apply`` carries the plan out.

        Returns:
            The plan; unless ``dry_run``, with the outcome of each step.

        Raises:
            InvalidOptionError, ReadOnlyError, OptedOutError
        """
        checked_callable("consolidator", consolidator)
        if not checked_bool("dry_run", dry_run):
            self._need_writable()
        nothing: tuple[MemoryVersion, ...] = ()
        records = self._read(self._counted, nothing)
        plan = plan_consolidation(records, policy, consolidator, self._now_ms())
        return plan if dry_run else self.apply(plan)

    def _counted(self, txn: ReadTxn, scope: int) -> tuple[MemoryVersion, ...]:
        """All entries, with the uses that are not written yet."""
        uses = self._uses or {}
        return tuple(
            each._replace(uses=each.uses + uses.get((scope, each.id), 0))
            for each in entries(txn, scope)
        )

    def apply(self, plan: Consolidation) -> Consolidation:
        """Carry out a plan, one commit a step; steps whose memories changed since are left out.

        Raises:
            InvalidOptionError, ReadOnlyError, OptedOutError
        """
        self._need_writable()
        check_plan(plan)
        steps = [self._carried_out(step, plan.policy) for step in plan.steps]
        return Consolidation(plan.policy, tuple(steps))

    def _carried_out(
        self, step: ConsolidationStep, policy: ConsolidationPolicy
    ) -> ConsolidationStep:
        if step.outcome != "planned":
            return step

        def closure(txn: Txn) -> ConsolidationStep:
            scope = self._find(txn)
            if scope is None:
                return replace(step, outcome="changed")
            book = Book(txn, scope, self._seed, self._uses)
            return carry_out(book, step, policy, self._now_ms())

        return self._store.transact(closure)

    def clear(self) -> int:
        """Remove all memories with their tombstones; return how many were not forgotten.

        It takes several commits. If it is cut off, what is left is whole, and the next deletion,
        sweep or open goes on. Ids are not given out again. What is remembered meanwhile stays.

        Raises:
            HeldError: a legal hold covers the scope or a session of it.
            ReadOnlyError, StorageError
        """
        self._need_writable()

        def begin(txn: Txn) -> int | None:
            # The number is that of this transaction: an erasure may have given the names a new one.
            scope = self._find(txn)
            if scope is not None:
                begin_clear(Book(txn, scope, self._seed), self._now_ms())
            return scope

        scope = self._store.transact(begin, makes_room=True)
        if scope is None:
            return 0
        book = partial(Book, scope=scope, seed=self._seed)
        count, done = 0, False
        while not done:
            gone, done = self._store.transact(lambda txn: clear_step(book(txn)), makes_room=True)
            count += gone
        return count

    def extract(
        self,
        session: Named | str | None = None,
        extractor: Extractor | None = None,
        *,
        upto: int | None = None,
        kinds: Iterable[str] | None = None,
    ) -> ExtractionReport:
        """Read what an extractor has not read of a session, and remember what the engine believes.

        Args:
            session: a session of this user or its name; None: the session whose handle this is.
            extractor: None: rules, which need no model.
            upto: the last seq to read; None: that of the last item.
            kinds: kinds of statements that the user consents to; None: all.

        Raises:
            NotFoundError, InvalidOptionError, InvalidItemError, OptedOutError, ReadOnlyError
        """
        self._need_writable()
        name = self._session if session is None else self._name_of(session)
        names.check_name(name, "session")
        checked_optional_int("upto", upto, least=1)
        return extract(place_of(self), str(name), extractor, upto=upto, kinds=kinds)

    def retry(self, job: ExtractionJob) -> ExtractionJob:
        """Let a dead or waiting job be done at once, with all its attempts; return it.

        Raises:
            NotFoundError: it was done, or its session is gone.
            InvalidOptionError, OptedOutError, ReadOnlyError
        """
        self._need_writable()
        return retry_job(place_of(self), job)

    def profile(
        self, schema: type | Mapping[str, Any], *, consent: Mapping[str, bool] | None = None
    ) -> Profile:
        """Return the user's typed profile: each field of a schema is the value of a slot.

        Args:
            schema: a dataclass, a TypedDict, or a JSON schema of the type ``object``.
            consent: by field, True if the user consented to it, False if not: such a field is
                neither stored nor shown. One that the schema marks needs a True.

        Raises:
            InvalidOptionError: the schema holds an unknown construct, or consent names no field.
        """
        return memory.Profile(tool_handle(self), self._statement, schema, consent or {})

    def summary(self, name: str = "sessions") -> RollingSummary:
        """Return a rolling summary over the user's sessions: extended with what is new.

        Args:
            name: the summary's name: 1 to 256 characters.

        Raises:
            InvalidOptionError, InvalidItemError, BlockedError: it is no name that may be stored.
        """
        checked = self._named("name", name)
        return memory.RollingSummary(place_of(self), checked, read_only=self._read_only)

    # --- tools of a model -------------------------------------------------------------------------

    def tools(self, format: str) -> list[dict[str, Any]]:  # noqa: A002 - the term for it
        """Return the schemas of the memory tools for a model.

        Args:
            format: ``openai_chat``, ``openai_responses``, ``anthropic``, ``gemini``, ``langchain``.

        Raises:
            InvalidOptionError: there is no such format.
        """
        return memory.tool_schemas(format)

    def call(self, tool_call: Any) -> list[Message]:
        """Execute a model's calls of memory tools; return the messages that answer them.

        What a model remembers is quarantined, unless the last user item of this handle's session
        asks for it (docs/memory-tools.md). Errors are results; repeating a call changes nothing.

        Args:
            tool_call: a call as it stands in a message, an assistant message, or a list of items.

        Raises:
            InvalidOptionError: it is none of these.
            StorageError
        """
        return memory.answer_calls(tool_call, tool_handle(self))

    @property
    def grants(self) -> Grants:
        """Views of this memory that other users have, and those that this user has of theirs."""
        return self._grants()

    # --- reading ----------------------------------------------------------------------------------

    def jobs(self) -> list[ExtractionJob]:
        """List what extractors have still to read, or have given up, by session."""
        return list_jobs(place_of(self))

    def get(
        self,
        id: int,  # noqa: A002
        *,
        as_of: float | None = None,
        version: int | None = None,
    ) -> Memory | None:
        """Return a memory; None if there is none, it has expired, or the user opted out.

        Args:
            id: the memory.
            as_of: return what was known at this time, seconds since 1970.
            version: return this version.

        Raises:
            InvalidOptionError: an option is invalid, or both are given.
            CorruptValueError
        """
        number = _checked_id("id", id)
        at_ms = _ms("as_of", as_of)
        checked_optional_int("version", version, least=1)
        if version is not None and at_ms is not None:
            msg = "version: give either a version or as_of"
            raise InvalidOptionError(msg)

        def look(txn: ReadTxn, scope: int) -> MemoryVersion | None:
            record = read_entry(txn, scope, number)
            if record is None or not record.is_visible(self._now_ms()):
                return None
            if version is not None and record.version != version:
                return next(
                    (v for v in versions_of(txn, scope, number) if v.version == version), None
                )
            return record if at_ms is None else known_at(txn, scope, record, at_ms)

        found = self._read(look, None)
        return None if found is None else memory_of(found)

    def history(self, id: int) -> list[Memory]:  # noqa: A002
        """Return all versions of a memory, oldest first; of a forgotten one, its tombstone.

        Raises:
            NotFoundError: there is no such memory, it has expired, or the user opted out.
            CorruptValueError
        """
        number = _checked_id("id", id)

        def look(txn: ReadTxn, scope: int) -> list[MemoryVersion]:
            record = read_entry(txn, scope, number)
            if record is None or not record.is_visible(self._now_ms()):
                return []
            return [*versions_of(txn, scope, number), record]

        nothing: list[MemoryVersion] = []
        found = self._read(look, nothing)
        if not found:
            msg = f"there is no memory {number}"
            raise NotFoundError(msg)
        return [memory_of(each) for each in found]

    def playbooks(self, scenario: str | None = None) -> list[Playbook]:
        """List the playbooks, the best first by the lower bound of their share of successes.

        Raises:
            InvalidOptionError, CorruptValueError
        """
        name = None if scenario is None else checked_name("scenario", scenario)

        def look(txn: ReadTxn, scope: int) -> list[Playbook]:
            veil = b"" if name is None else scenario_digest(self._seed, scope, name)
            return playbooks_in(txn, scope, veil)

        nothing: list[Playbook] = []
        return self._read(look, nothing)

    def quarantined(self) -> list[Memory]:
        """List the memories that wait for ``promote`` or the user's confirmation."""
        return self.list(status="quarantined")

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        kinds: Iterable[str] | None = None,
        statuses: Iterable[str] | None = ("active",),
        subject: str | None = None,
        labels: Mapping[str, str] | None = None,
        as_of: float | None = None,
        valid_at: float | None = None,
        explain: bool = False,
        shared: bool = False,
        mode: str = "auto",
    ) -> list[MemoryHit]:
        """Return the memories that best match a query, the best first.

        Ranked by BM25 over the scope, and with an embedder also by the similarity of their vectors
        (docs/search.md); trust and confidence move a score by at most 15 %. Age does not: what is
        no longer true is superseded when it is written.

        Args:
            query: words in any order; the first 256 distinct ones count.
            k: the most hits, up to 1,000.
            kinds: only of these kinds.
            statuses: only of these statuses; None: of any.
            subject: only about this subject.
            labels: only those with all of these labels.
            as_of: as they were known at this time, seconds since 1970. Reads all memories, and
                searches their words: the past has no vectors.
            valid_at: only those that were true at this time.
            explain: tell what the scores are made of.
            shared: also what the user's grants show, ranked among itself.
            mode: ``"lexical"``, ``"vector"`` or ``"hybrid"``; ``"auto"``: hybrid with an embedder.

        Raises:
            InvalidOptionError, StorageError
            EmbedderError: the embedder failed.
            CorruptValueError: a memory is damaged, or the index is, in a read-only database.
        """
        asked = checked_query(query, k=k, kinds=kinds, statuses=statuses, explain=explain)
        asked = asked._replace(text=self._redacted(asked.text))
        with_labels = checked_labels({} if labels is None else labels)
        valid_ms = _ms("valid_at", valid_at)

        def fits(record: MemoryVersion) -> bool:
            if valid_ms is not None and not record.was_true_at(valid_ms):
                return False
            same = subject is None or record.subject == subject
            return same and (not with_labels or with_labels.items() <= record.labels.items())

        asked = asked._replace(fits=fits, as_of_ms=_ms("as_of", as_of))
        asked = asked._replace(like=self._like(asked, mode))
        beside = self.grants.hits(asked) if checked_bool("shared", shared) else []
        try:
            return best_hits(self._find_hits(asked), beside, asked.k)
        except CorruptValueError as error:
            if self._read_only:
                raise
            drop_damaged(self._store, self._find, error)
            return best_hits(self._find_hits(asked), beside, asked.k)

    def _like(self, asked: MemoryQuery, mode: str) -> EmbeddedQuery | None:
        """Embed a query; None if words alone count."""
        embedder = None if self._embedding is None else self._embedding.embedder
        if asked.as_of_ms is not None:
            if mode not in ("auto", "lexical"):
                msg = f"mode: {mode!r:.80} is of now: the past has no vectors; leave out as_of"
                raise InvalidOptionError(msg)
            mode = "lexical"
        return embedded_query(asked.text, mode, embedder)

    def _embedded_recall(self, text: str) -> EmbeddedQuery | None:
        """Embed what recalls memories, redacted; None if words alone count."""
        return embedded_recall(self._store, self._find, self._embedding, text)

    def _find_hits(self, asked: MemoryQuery) -> list[MemoryHit]:
        embedding = None if asked.like is None else self._embedding
        nothing: list[MemoryHit] = []

        def look(txn: ReadTxn, scope: int) -> list[MemoryHit]:
            return find_memories(txn, scope, self._indexes, asked, self._now_ms())

        def look_if_current(txn: ReadTxn, scope: int) -> list[MemoryHit] | None:
            return look(txn, scope) if is_up_to_date(txn, scope, embedding) else None

        if asked.as_of_ms is None and not self._read_only:
            missing: list[MemoryHit] | None = nothing
            found = self._read(look_if_current, missing)
            if found is not None:  # as a rule
                return found
            bring_up_to_date(self._store, self._find, embedding)
        return self._read(look, nothing)

    def list(
        self,
        *,
        kind: str | None = None,
        status: str | None = None,
        subject: str | None = None,
        slot: str | None = None,
        labels: Mapping[str, str] | None = None,
        as_of: float | None = None,
        valid_at: float | None = None,
        limit: int | None = None,
        after: int = 0,
        shared: bool = False,
    ) -> list[Memory]:
        """List memories by id.

        Args:
            kind: only of this kind.
            status: only of this status; None: all but forgotten ones.
            subject: only about this subject.
            slot: only values of this slot.
            labels: only those with all of these labels.
            as_of: as they were known at this time, seconds since 1970.
            valid_at: only those that were true at this time: active and superseded ones.
            limit: most memories to return; None: all.
            after: only those with larger ids; not with ``shared``.
            shared: also what the user's grants show, behind the last of the user's own.

        Raises:
            InvalidOptionError, CorruptValueError
        """
        if kind is not None:
            checked_choice("kind", kind, KINDS)
        if status is not None:
            checked_choice("status", status, STATUSES)
        wanted = {"kind": kind, "status": status, "subject": subject, "slot": slot}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        with_labels = checked_labels({} if labels is None else labels)
        as_of_ms, valid_ms = _ms("as_of", as_of), _ms("valid_at", valid_at)
        checked_optional_int("limit", limit)
        is_shared = checked_bool("shared", shared)
        _check_after(after, shared=is_shared)
        now_ms = self._now_ms()

        def fits(record: MemoryVersion) -> bool:
            if status is None and record.is_gone:
                return False
            if valid_ms is not None and not record.was_true_at(valid_ms):
                return False
            same = all(getattr(record, name) == value for name, value in wanted.items())
            return same and with_labels.items() <= dict(record.labels).items()

        def look(txn: ReadTxn, scope: int) -> list[Memory]:
            found: list[Memory] = []
            for current in entries(txn, scope, after):
                if len(found) == limit:
                    break
                if not current.is_visible(now_ms):
                    continue
                record: MemoryVersion | None = current
                if as_of_ms is not None:
                    record = known_at(txn, scope, current, as_of_ms)
                if record is not None and fits(record):
                    found.append(memory_of(record))
            return found

        nothing: list[Memory] = []
        found = self._read(look, nothing)
        beside = self.grants.memories(fits, as_of_ms=as_of_ms) if is_shared else []
        return [*found, *beside][:limit]

    # --- arguments --------------------------------------------------------------------------------

    def _statement(
        self,
        text: str,
        *,
        kind: str,
        subject: str | None = None,
        slot: str | None = None,
        source: Sources = None,
        by: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        derived_from: Iterable[int] = (),
        **described: Any,
    ) -> Statement:
        """Return a statement to ``remember``, checked and redacted.

        Raises:
            InvalidItemError, InvalidOptionError, BlockedError
        """
        times = {each: at for each in _TIMES if (at := described.pop(each, None)) is not None}
        values: dict[str, Any] = {"kind": checked_choice("kind", kind, KINDS)}
        if times:
            values |= _times(**times)
        if slot is not None and "valid_to" in times and "valid_from" not in times:
            msg = "valid_from: a value of a slot that ends needs the time from which it is true"
            raise InvalidOptionError(msg)
        values |= self._described(subject=subject, slot=slot, **described)
        if expires_at is not None:
            values["expires_ms"] = _ms("expires_at", expires_at)
        values["derived_from"] = (
            () if derived_from == () else _checked_ids("derived_from", derived_from)
        )
        told = self._admitted(
            {
                "text": checked_text(text),
                "attributes": {} if attributes is None else checked_attributes(attributes),
                "labels": {} if labels is None else checked_labels(labels),
            }
        )
        values |= {"attributes": told["attributes"], "labels": told["labels"]}
        trust = None if by is None else checked_choice("by", by, BY)
        return Statement(told["text"], self._cited(source), trust, values)

    def _cited(self, source: Sources) -> tuple[Source, ...]:
        """Return the sources, checked, each session once.

        Raises:
            InvalidOptionError: they are no sources, too many, or plain seqs without a session.
        """
        if source is None:
            return ()
        if not isinstance(source, Source | int | Iterable):
            msg = f"source: expected Source(session, seqs) or seqs, got {source!r:.80}"
            raise InvalidOptionError(msg)
        listed = [source] if isinstance(source, Source | int) else list(source)
        found: dict[str, list[int]] = {}
        for each in listed:
            session, seqs = each if isinstance(each, Source) else (self._session, (each,))
            if session is None:
                msg = "source: plain seqs need a session's handle; give Source(session, seqs)"
                raise InvalidOptionError(msg)
            if not isinstance(session, str) or not isinstance(seqs, Iterable):
                msg = f"source: expected Source(session, seqs), got {each!r:.80}"
                raise InvalidOptionError(msg)
            seen = [checked_int("source", seq, least=1) for seq in seqs]
            if not seen:
                msg = f"source: no item of session {session[:80]!r} is named"
                raise InvalidOptionError(msg)
            found.setdefault(session, []).extend(seen)
        total = sum(map(len, found.values()))
        if total > SOURCES_MAX:
            msg = f"source: expected at most {SOURCES_MAX} items, got {total}"
            raise InvalidOptionError(msg)
        return tuple([Source(name, tuple(sorted(set(seqs)))) for name, seqs in found.items()])

    def _described(
        self,
        *,
        subject: str | None = None,
        slot: str | None = None,
        extractor: str | None = None,
        confidence: float | None = None,
        importance: float | None = None,
    ) -> dict[str, Any]:
        """Return the fields that were given, checked."""
        values: dict[str, Any] = {}
        for name, text in (("subject", subject), ("slot", slot), ("extractor", extractor)):
            if text is not None:
                values[name] = self._named(name, text)
        if str(extractor).startswith(RESERVED):
            msg = f"extractor: {extractor!r:.40} is one of memcore's own names"
            raise InvalidOptionError(msg)
        for name, share in (("confidence", confidence), ("importance", importance)):
            if share is not None:
                values[name] = checked_share(name, share)
        return values

    def _named(self, name: str, text: str) -> str:
        """Return a text that is looked up as it is, checked; a finding in it is refused."""
        checked_name(name, text)
        if self._filter is not None:
            self._filter.name(text, f"{name} of a memory")
        return text

    def _admitted(self, given: dict[str, Any]) -> Mapping[str, Any]:
        """Return contents as they may be stored: judged by the guards, and redacted."""
        if self._filter is None or not any(given.values()):
            return given
        admitted: Mapping[str, Any] = self._filter.value(given, "memory")
        return admitted

    def _redacted(self, query: str) -> str:
        """Return a query redacted, since what is stored was."""
        return query if self._filter is None else str(self._filter.again(query))

    def _need_writable(self) -> None:
        if self._read_only:
            msg = "the database is open read-only; open it for writing to change memories"
            raise ReadOnlyError(msg)

    # --- transactions -----------------------------------------------------------------------------

    def _read(self, look: Callable[[ReadTxn, int], T], nothing: T) -> T:
        """Run ``look`` on a snapshot; ``nothing`` without a scope, or if the user opted out."""

        def closure(txn: ReadTxn) -> T:
            scope = self._find(txn)
            if scope is None or is_opted_out(txn, scope):
                return nothing
            return look(txn, scope)

        return self._store.read(closure)

    def _change(
        self,
        change: Callable[[Book], MemoryVersion],
        key: str | None = None,
        content: object = None,
        *,
        ensure: bool = False,
        makes_room: bool = False,
    ) -> Memory:
        """Commit a change; with a key, a repeat returns the first result.

        ``ensure``: it creates the scope if there is none.
        """
        self._need_writable()

        def closure(txn: Txn) -> MemoryVersion:
            scope = self._ensure(txn) if ensure else self._find(txn)
            if scope is None:
                msg = "there is no such memory: nothing is stored of this user"
                raise NotFoundError(msg)
            return change(Book(txn, scope, self._seed, self._uses))

        if key is None:
            return memory_of(self._store.transact(closure, makes_room=makes_room))
        request = self._requests.request(key, (encode_json(_plain(content))[0],))

        def once(txn: Txn) -> MemoryVersion:
            told = self._requests.recall(txn, request)
            if told is None:
                record = closure(txn)
                self._requests.remember(txn, request, [record.id, record.version])
                return record
            return self._first_result(txn, *told[0])

        return memory_of(self._store.transact(once, makes_room=makes_room))

    def _first_result(self, txn: ReadTxn, number: int, version: int) -> MemoryVersion:
        """Return the version of a memory that a request stored.

        Raises:
            NotFoundError: the memory was removed since, or has expired.
            OptedOutError
        """
        scope = self._find(txn)
        found = None if scope is None else read_entry(txn, scope, number)
        if scope is None or found is None:
            msg = f"memory {number}, which this request stored, was removed since"
            raise NotFoundError(msg)
        need_wanted(txn, scope)
        if not found.is_visible(self._now_ms()):
            msg = f"memory {number}, which this request stored, has expired"
            raise NotFoundError(msg)
        if found.version == version or found.is_gone:
            return found
        return next((v for v in versions_of(txn, scope, number) if v.version == version), found)


def place_of(of: Memories) -> MemoryPlace:
    """Return a memory as extractions need it; for this package."""
    store, owner = of._store, of._owner or ("", "")  # noqa: SLF001 - this module's
    tools = of._admitted, of._named, of.search  # noqa: SLF001
    rest = of._seed, of._drafts, of._uses  # noqa: SLF001
    return MemoryPlace(store, of._find, of._now_ms, *rest, owner, *tools)  # noqa: SLF001


def tool_handle(of: Memories) -> ToolHandle:
    """Return the operations of a memory that tools, files and profiles use; for this package."""
    reads = of.search, of._change, of._admitted, of._named, of._redacted  # noqa: SLF001 - as above
    times = of._drafts, of._now_ms, of._read, of._seed  # noqa: SLF001
    finds = of._indexes, of._embedded_recall, of._uses  # noqa: SLF001
    rest = of._grants, of._session  # noqa: SLF001
    return memory.ToolHandle(*reads, *times, *finds, *rest)


_TIMES: Final = ("observed_at", "valid_from", "valid_to")


def _plain(content: Any) -> Any:
    """Return the content of a request as JSON."""
    if isinstance(content, Mapping):
        return {str(name): _plain(value) for name, value in content.items()}
    return [_plain(each) for each in content] if isinstance(content, list | tuple) else content


def _ms(name: str, seconds: object) -> int | None:
    """Return a time in milliseconds; None stays None.

    Raises:
        InvalidOptionError: it is not a finite number of seconds.
    """
    if seconds is None:
        return None
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not abs(seconds) < TIME_END_MS // 1000  # nor NaN
    ):
        msg = f"{name}: expected seconds since 1970, got {seconds!r:.80}"
        raise InvalidOptionError(msg)
    return round(seconds * 1000)


def _checked_id(name: str, value: object, *, least: int = 1) -> int:
    """Return the id of a memory, checked.

    Raises:
        InvalidOptionError: it is not an int, or no memory can have it.
    """
    number = checked_int(name, value, least=least)
    if number >= NUMBER_END:
        msg = f"{name}: expected an id below 2**48, got a larger one"
        raise InvalidOptionError(msg)
    return number


def _check_after(after: object, *, shared: bool) -> None:
    """Check the id after which a list begins.

    Raises:
        InvalidOptionError: it is no id; or the list is of several users' memories.
    """
    if _checked_id("after", after, least=0) and shared:  # the ids of others are those of others
        msg = "after: no id says where memories of several users go on; leave out shared"
        raise InvalidOptionError(msg)


def _checked_ids(name: str, value: object) -> tuple[int, ...]:
    """Return ids of memories, checked.

    Raises:
        InvalidOptionError: they are not ids, or too many.
    """
    given = checked_several(name, value, "ids of memories")
    found = tuple(_checked_id(name, each) for each in islice(given, DERIVED_MAX + 1))
    if len(found) > DERIVED_MAX:
        msg = f"{name}: expected at most {DERIVED_MAX} ids"
        raise InvalidOptionError(msg)
    return found


def _times(**given: float | None) -> dict[str, Any]:
    """Return the times that were given, in milliseconds, by the names of the record's fields.

    Raises:
        InvalidOptionError: one is no time, or they contradict each other.
    """
    found = {f"{name.removesuffix('_at')}_ms": _ms(name, at) for name, at in given.items()}
    start, stop = found.get("valid_from_ms"), found.get("valid_to_ms")
    if start is not None and stop is not None and stop <= start:
        msg = f"valid_to: expected a time after valid_from, got {given['valid_to']!r}"
        raise InvalidOptionError(msg)
    return {name: at for name, at in found.items() if at is not None}
