"""Asynchronous long-term memory, and the worker that extracts it: all runs in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import date
from types import TracebackType
from typing import Any, Self

from memcore.memory import (
    Consolidation,
    ConsolidationPolicy,
    ExtractionJob,
    ExtractionReport,
    Extractor,
    Grants,
    Memories,
    MemoryWindow,
    MemoryWorker,
    Profile,
    Remembering,
    RollingSummary,
)
from memcore.memory.consolidate import Consolidator
from memcore.memory.memories import Named
from memcore.memory.statement import Sources
from memcore.model import Grant, Memory, MemoryHit, Message, Playbook, Summarize
from memcore.options import refuse_copies

__all__ = [
    "AsyncGrants",
    "AsyncMemories",
    "AsyncMemoryWorker",
    "AsyncProfile",
    "AsyncRollingSummary",
]


class AsyncMemories:
    """As ``Memories``."""

    __reduce__ = refuse_copies

    def __init__(self, memories: Memories) -> None:
        self._memories = memories

    def __repr__(self) -> str:
        return f"Async{self._memories!r}"

    @property
    def sync(self) -> Memories:
        """The synchronous handle of the same memory."""
        return self._memories

    @property
    def grants(self) -> AsyncGrants:
        """Views of this memory that other users have, and those that this user has of theirs."""
        return AsyncGrants(self._memories.grants)

    def profile(
        self, schema: type | Mapping[str, Any], *, consent: Mapping[str, bool] | None = None
    ) -> AsyncProfile:
        """Return the user's typed profile: each field of a schema is the value of a slot.

        Args:
            schema: a dataclass, a TypedDict, or a JSON schema of the type ``object``.
            consent: by field, True if the user consented to it, False if not: such a field is
                neither stored nor shown. One that the schema marks needs a True.

        Raises:
            InvalidOptionError: the schema holds an unknown construct, or consent names no field.
        """
        return AsyncProfile(self._memories.profile(schema, consent=consent))

    def summary(self, name: str = "sessions") -> AsyncRollingSummary:
        """Return a rolling summary over the user's sessions: extended with what is new.

        Args:
            name: the summary's name: 1 to 256 characters.

        Raises:
            InvalidOptionError, InvalidItemError, BlockedError: it is no name that may be stored.
        """
        return AsyncRollingSummary(self._memories.summary(name))

    # --- written by scripts/make_aio from Memories: not to be edited by hand ---

    async def remember(
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
        return await asyncio.to_thread(
            self._memories.remember,
            text,
            kind=kind,
            subject=subject,
            slot=slot,
            source=source,
            by=by,
            attributes=attributes,
            labels=labels,
            extractor=extractor,
            confidence=confidence,
            importance=importance,
            observed_at=observed_at,
            valid_from=valid_from,
            valid_to=valid_to,
            derived_from=derived_from,
            expires_at=expires_at,
            idempotency_key=idempotency_key,
        )

    async def update(
        self,
        id: int,  # noqa: A002 - as the synchronous one
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
        return await asyncio.to_thread(
            self._memories.update,
            id,
            text=text,
            source=source,
            by=by,
            attributes=attributes,
            labels=labels,
            confidence=confidence,
            importance=importance,
            valid_to=valid_to,
            expires_at=expires_at,
            expected_version=expected_version,
            idempotency_key=idempotency_key,
        )

    async def promote(
        self,
        id: int,  # noqa: A002 - as the synchronous one
        *,
        by: str,
    ) -> Memory:
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
        return await asyncio.to_thread(self._memories.promote, id, by=by)

    async def forget(
        self,
        id: int,  # noqa: A002 - as the synchronous one
        *,
        reason: str | None = None,
    ) -> Memory:
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
        return await asyncio.to_thread(self._memories.forget, id, reason=reason)

    async def record_outcome(
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
        return await asyncio.to_thread(
            self._memories.record_outcome,
            session,
            scenario=scenario,
            passed=passed,
            reason=reason,
            confidence=confidence,
        )

    async def consolidate(
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
        return await asyncio.to_thread(
            self._memories.consolidate, policy, consolidator=consolidator, dry_run=dry_run
        )

    async def apply(
        self,
        plan: Consolidation,
    ) -> Consolidation:
        """Carry out a plan, one commit a step; steps whose memories changed since are left out.

        Raises:
            InvalidOptionError, ReadOnlyError, OptedOutError
        """
        return await asyncio.to_thread(self._memories.apply, plan)

    async def clear(self) -> int:
        """Remove all memories with their tombstones; return how many were not forgotten.

        It takes several commits. If it is cut off, what is left is whole, and the next deletion,
        sweep or open goes on. Ids are not given out again. What is remembered meanwhile stays.

        Raises:
            HeldError: a legal hold covers the scope or a session of it.
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._memories.clear)

    async def extract(
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
        return await asyncio.to_thread(
            self._memories.extract, session, extractor, upto=upto, kinds=kinds
        )

    async def retry(
        self,
        job: ExtractionJob,
    ) -> ExtractionJob:
        """Let a dead or waiting job be done at once, with all its attempts; return it.

        Raises:
            NotFoundError: it was done, or its session is gone.
            InvalidOptionError, OptedOutError, ReadOnlyError
        """
        return await asyncio.to_thread(self._memories.retry, job)

    def tools(
        self,
        format: str,  # noqa: A002 - as the synchronous one
    ) -> list[dict[str, Any]]:
        """Return the schemas of the memory tools for a model.

        Args:
            format: ``openai_chat``, ``openai_responses``, ``anthropic``, ``gemini``, ``langchain``.

        Raises:
            InvalidOptionError: there is no such format.
        """
        return self._memories.tools(format)

    async def call(
        self,
        tool_call: Any,
    ) -> list[Message]:
        """Execute a model's calls of memory tools; return the messages that answer them.

        What a model remembers is quarantined, unless the last user item of this handle's session
        asks for it (docs/memory-tools.md). Errors are results; repeating a call changes nothing.

        Args:
            tool_call: a call as it stands in a message, an assistant message, or a list of items.

        Raises:
            InvalidOptionError: it is none of these.
            StorageError
        """
        return await asyncio.to_thread(self._memories.call, tool_call)

    async def jobs(self) -> list[ExtractionJob]:
        """List what extractors have still to read, or have given up, by session."""
        return await asyncio.to_thread(self._memories.jobs)

    async def get(
        self,
        id: int,  # noqa: A002 - as the synchronous one
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
        return await asyncio.to_thread(self._memories.get, id, as_of=as_of, version=version)

    async def history(
        self,
        id: int,  # noqa: A002 - as the synchronous one
    ) -> list[Memory]:
        """Return all versions of a memory, oldest first; of a forgotten one, its tombstone.

        Raises:
            NotFoundError: there is no such memory, it has expired, or the user opted out.
            CorruptValueError
        """
        return await asyncio.to_thread(self._memories.history, id)

    async def playbooks(
        self,
        scenario: str | None = None,
    ) -> list[Playbook]:
        """List the playbooks, the best first by the lower bound of their share of successes.

        Raises:
            InvalidOptionError, CorruptValueError
        """
        return await asyncio.to_thread(self._memories.playbooks, scenario)

    async def quarantined(self) -> list[Memory]:
        """List the memories that wait for ``promote`` or the user's confirmation."""
        return await asyncio.to_thread(self._memories.quarantined)

    async def search(
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
        return await asyncio.to_thread(
            self._memories.search,
            query,
            k=k,
            kinds=kinds,
            statuses=statuses,
            subject=subject,
            labels=labels,
            as_of=as_of,
            valid_at=valid_at,
            explain=explain,
            shared=shared,
            mode=mode,
        )

    async def list(
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
        return await asyncio.to_thread(
            self._memories.list,
            kind=kind,
            status=status,
            subject=subject,
            slot=slot,
            labels=labels,
            as_of=as_of,
            valid_at=valid_at,
            limit=limit,
            after=after,
            shared=shared,
        )

    # --- end of what scripts/make_aio writes ---


class AsyncProfile:
    """As ``Profile``."""

    __reduce__ = refuse_copies

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    # --- written by scripts/make_aio from Profile: not to be edited by hand ---

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields."""
        return self._profile.fields

    async def set(
        self,
        field: str,
        value: Any,
        *,
        source: Sources = None,
        by: str | None = None,
        confidence: float | None = None,
        observed_at: float | None = None,
        valid_from: float | None = None,
        valid_to: float | None = None,
        expires_at: float | None = None,
        idempotency_key: str | None = None,
    ) -> Memory:
        """Store the value of a field; return its memory as it is then known.

        Trust follows from the sources: what a model or a tool says waits in quarantine, and is not
        part of the profile until it is promoted. A value that was forgotten stays so: its tombstone
        is returned, unless an operator says it again.

        Args:
            field: the field.
            value: its value; the member or the value of an Enum.
            source: as for ``remember``, like all that follow.
            by: who says it, to lower the trust; ``operator`` and ``import`` need no source.
            confidence: of the extractor, 0 to 1.
            observed_at: time of the observation, seconds since 1970.
            valid_from: time from which it is true; None: from now on.
            valid_to: time until which it is true.
            expires_at: time from which it is hidden.
            idempotency_key: a repeat with the same content changes nothing.

        Raises:
            InvalidItemError: the value does not fit the schema, or would not once it is redacted.
            InvalidOptionError: there is no such field, or as for ``remember``.
            BlockedError: the user did not consent to this field; or a guard or the redaction policy
                refuses it.
            NotFoundError, OptedOutError, DuplicateRequestError, ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(
            self._profile.set,
            field,
            value,
            source=source,
            by=by,
            confidence=confidence,
            observed_at=observed_at,
            valid_from=valid_from,
            valid_to=valid_to,
            expires_at=expires_at,
            idempotency_key=idempotency_key,
        )

    async def values(self) -> dict[str, Any]:
        """Return the values that are known by field: in force, trusted, and fitting the schema.

        Fields without consent are left out, and so are those that ``misfits`` lists.

        Raises:
            CorruptValueError
        """
        return await asyncio.to_thread(self._profile.values)

    async def get(self) -> Any:
        """Return the profile: an instance of a dataclass, else a dict of the known values.

        Raises:
            NotFoundError: a field of the dataclass that has no default is not known.
            CorruptValueError
        """
        return await asyncio.to_thread(self._profile.get)

    async def misfits(self) -> list[Memory]:
        """Return the values in force that do not fit the schema, such as those of an older one.

        Raises:
            CorruptValueError
        """
        return await asyncio.to_thread(self._profile.misfits)

    async def history(
        self,
        field: str,
    ) -> list[Memory]:
        """Return all values of a field but forgotten ones, the oldest first, whatever their status.

        ``memory.history(id)`` has the versions of each.

        Raises:
            InvalidOptionError: there is no such field.
            CorruptValueError
        """
        return await asyncio.to_thread(self._profile.history, field)

    async def window(
        self,
        kind: str = "event",
        *,
        days: float = 30,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> MemoryWindow:
        """Return the active memories of a kind that are dated within the last days.

        The date of a memory is the time from which it is true, else that of its observation, else
        that of its recording. Values of fields without consent are left out. Reads all memories of
        the user.

        Args:
            kind: as of a memory.
            days: length of the window, up to 100,000 days.
            labels: only those with all of these labels, such as ``{"type": "mistake"}``.
            limit: most memories to return; all are counted.

        Raises:
            InvalidOptionError, InvalidItemError, CorruptValueError
        """
        return await asyncio.to_thread(
            self._profile.window, kind, days=days, labels=labels, limit=limit
        )

    # --- end of what scripts/make_aio writes ---


class AsyncRollingSummary:
    """As ``RollingSummary``."""

    __reduce__ = refuse_copies

    def __init__(self, summary: RollingSummary) -> None:
        self._summary = summary

    # --- written by scripts/make_aio from RollingSummary: not to be edited by hand ---

    async def get(self) -> Memory | None:
        """Return the summary as it is; None if there is none, or the user opted out.

        Raises:
            CorruptValueError
        """
        return await asyncio.to_thread(self._summary.get)

    async def extend(
        self,
        summarize: Summarize,
        *,
        sessions: Iterable[str] | None = None,
        users_only: bool = False,
        max_items: int = 100,
        max_tokens: int | None = None,
        instructions: str | None = None,
    ) -> Memory | None:
        """Let a model extend the summary with what it has not read; return the summary.

        The model is given the summary and the new items, as often as there are more than it gets
        at once; each extension is a commit of its own. Without new items it is not called. System
        prompts, events, tools of memory and recalled memories are left out, as are damaged items.

        Trust is that of the weakest item that the summary has read, so one of whole conversations
        waits in quarantine until somebody promotes it.

        Args:
            summarize: a summarizer as for compaction, such as ``OpenAISummarizer``: called with a
                ``SummaryRequest``; returns the new text, up to 16 KiB.
            sessions: names of the sessions to read, the oldest first; None: all of the user.
            users_only: read only what the user wrote, without what is pasted. If all numbers and
                names of the text and half of its words stand there, it is active at once.
            max_items: most items to give at once, up to 100.
            max_tokens: size that the summary is asked to have.
            instructions: more instructions for the model.

        Raises:
            NotFoundError: there is no such session.
            InvalidItemError: the text is empty, too long, or holds hidden characters.
            InvalidOptionError: an option is invalid, or the text was forgotten before.
            BlockedError: a guard or the redaction policy refuses the text.
            OutpacedError: others changed the summary or the items three times meanwhile.
            OptedOutError, ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(
            self._summary.extend,
            summarize,
            sessions=sessions,
            users_only=users_only,
            max_items=max_items,
            max_tokens=max_tokens,
            instructions=instructions,
        )

    # --- end of what scripts/make_aio writes ---


class AsyncGrants:
    """As ``Grants``."""

    __reduce__ = refuse_copies

    def __init__(self, grants: Grants) -> None:
        self._grants = grants

    # --- written by scripts/make_aio from Grants: not to be edited by hand ---

    async def give(
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
        return await asyncio.to_thread(
            self._grants.give, to=to, kinds=kinds, labels=labels, redact=redact, until=until
        )

    async def revoke(
        self,
        grant: Grant | int,
    ) -> bool:
        """End a grant on both sides at once; return True if there was one.

        Args:
            grant: one that this user gave, or its id; or one of ``received()``, to decline it.

        Raises:
            InvalidOptionError, AccessDeniedError, ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._grants.revoke, grant)

    async def received(self) -> list[Grant]:
        """List the grants that this user has and that have not ended, by giver and id."""
        return await asyncio.to_thread(self._grants.received)

    async def get(
        self,
        shared_from: tuple[str, str],
        id: int,  # noqa: A002 - as the synchronous one
    ) -> Memory | None:
        """Return one memory that a grant shows; None if none does.

        Args:
            shared_from: application and user whose memory it is, as ``Memory.shared_from`` has it.
            id: its id there.

        Raises:
            InvalidOptionError: one of both can be no memory's.
        """
        return await asyncio.to_thread(self._grants.get, shared_from, id)

    async def list(self) -> list[Grant]:
        """List the grants that this user gave and that have not ended, by id."""
        return await asyncio.to_thread(self._grants.list)

    # --- end of what scripts/make_aio writes ---


class AsyncMemoryWorker:
    """As ``memcore.MemoryWorker``, for a runtime with an event loop.

    The extractor is called in the worker's thread, never on the loop::

        async with memcore.aio.AsyncMemoryWorker(my_llm, turns=4) as worker:
            await session.append(item)
            worker.notify(session)      # never waits

    Args:
        extractor: a function with a name and a version; None: rules, which need no model.
        options: those of ``memcore.MemoryWorker``. ``on_report`` and ``on_error`` are called in
            the worker's thread.

    Raises:
        InvalidOptionError, InvalidItemError: an argument has the wrong type or is out of range.
    """

    def __init__(self, extractor: Extractor | None = None, **options: Any) -> None:
        self._worker = MemoryWorker(extractor, **options)

    @property
    def sync(self) -> MemoryWorker:
        """The worker behind this handle."""
        return self._worker

    @property
    def pending(self) -> int:
        """Number of sessions watched."""
        return self._worker.pending

    async def __aenter__(self) -> Self:
        self._worker.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(finish=kind is None)

    def notify(self, session: Remembering) -> bool:
        """Watch a session; call it after appends. Never waits; False if too many are watched."""
        return self._worker.notify(session)

    def end(self, session: Remembering) -> bool:
        """Have a session read soon, since it is over; as ``notify`` otherwise."""
        return self._worker.end(session)

    async def run(self) -> list[ExtractionReport]:
        """Do what is due now; return the reports."""
        return await asyncio.to_thread(self._worker.run)

    async def daily(self, memory: AsyncMemories, day: date | None = None) -> list[ExtractionReport]:
        """Read the sessions of a user that changed last on a day in UTC; None: yesterday.

        Raises:
            InvalidOptionError, OptedOutError, ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._worker.daily, memory.sync, day)

    async def drained(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all that was notified was looked at; False if time ran out."""
        return await asyncio.to_thread(self._worker.drained, timeout_seconds)

    async def close(self, *, finish: bool = True) -> None:
        """Stop; with ``finish``, watched sessions are read to their ends first."""
        await asyncio.to_thread(self._worker.close, finish=finish)
