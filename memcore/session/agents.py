"""Several agents: views of a shared history, calls that other agents answer, shared results.

An agent with a history of its own works in a child session; what it found reaches the parent once,
as a result of the call that started it or as a message. Filters by author are no access control.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from memcore import session as sessions
from memcore.codec.keys import blake2b
from memcore.errors import (
    DuplicateRequestError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    OrphanResultError,
)
from memcore.limits import CHILD
from memcore.log import Prepared, SessionTxn
from memcore.log.idempotency import IdempotentRequest, request_of
from memcore.model import (
    RESULT_TYPES,
    Context,
    Envelope,
    Item,
    ItemKind,
    Message,
    Receipt,
    checked_envelope,
)
from memcore.options import checked_optional_int, shown
from memcore.session import read
from memcore.session.append import (
    AnyEnvelope,
    Append,
    ItemOptions,
    encode_event,
    encode_items,
    store,
)
from memcore.session.change import Unchanged
from memcore.session.context import SHARES
from memcore.session.engine import SessionRef
from memcore.wire.render import result_message

__all__ = [
    "AgentView",
    "Delegation",
    "delegated",
    "share_result",
    "viewed",
]


Session: TypeAlias = Any
"""A ``Session``; its module names the classes of this one."""
_AUTHOR_CHARS: Final = 1024
_LOOK_PAGE: Final = 64
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_STARTED: Final = "delegated"
"""Type of the first event of a child session that answers a call."""


# --- A shared history as one agent sees it --------------------------------------------------------


class AgentView:
    """A session as one agent sees and writes it: made by ``session.as_agent``.

    Args:
        session: the shared session.
        name: the agent, author of all that is written through the view.
        share: what other agents show it, as for ``session.context``.
    """

    def __init__(self, session: Session, name: str, share: str) -> None:
        self.session = session
        self.name = name
        self.share = share

    def __repr__(self) -> str:
        return f"AgentView({self.session.id!r}, {self.name!r}, share={self.share!r})"

    def append(
        self, item: Mapping[str, Any], *, envelope: AnyEnvelope | None = None, **options: Any
    ) -> Receipt:
        """Append an item of this agent; options and errors as for ``session.append``."""
        found: Receipt = self.session.append(item, envelope=self._signed(envelope), **options)
        return found

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        envelope: AnyEnvelope | None = None,
        **options: Any,
    ) -> Receipt:
        """Append items of this agent in one commit; as ``session.extend``."""
        found: Receipt = self.session.extend(items, envelope=self._signed(envelope), **options)
        return found

    def record(
        self,
        type: str,  # noqa: A002 - the session's word
        payload: Any = None,
        *,
        envelope: AnyEnvelope | None = None,
        **options: Any,
    ) -> Receipt:
        """Append an event of this agent; options and errors as for ``session.record``."""
        signed = self._signed(envelope)
        found: Receipt = self.session.record(type, payload, envelope=signed, **options)
        return found

    def context(self, budget_tokens: int | None = None, **options: Any) -> Context:
        """Build the agent's context: its own items, the user's, and what others share.

        Options and errors as for ``session.context``, except ``authors`` and ``share``.
        """
        found: Context = self.session.context(
            budget_tokens, authors=[self.name], share=self.share, **options
        )
        return found

    def _signed(self, envelope: AnyEnvelope | None) -> Envelope:
        """Return an envelope with this agent as the author.

        Raises:
            InvalidOptionError: it names another author.
        """
        if envelope is None:
            return Envelope(author=self.name)
        given = checked_envelope(envelope) or Envelope()
        if given.author not in (None, self.name):
            msg = f"envelope: {self.name!r:.80} cannot write as {given.author!r:.80}"
            raise InvalidOptionError(msg)
        return replace(given, author=self.name)


def viewed(session: Session, name: str, share: str) -> AgentView:
    """Return a session as an agent sees it.

    Raises:
        InvalidOptionError: the name or ``share`` is invalid.
    """
    _need_agent(name)
    if share not in SHARES:
        known = ", ".join(map(repr, SHARES))
        msg = f"share: expected one of {known}, got {share!r:.80}"
        raise InvalidOptionError(msg)
    return AgentView(session, name, share)


def _need_agent(name: object) -> None:
    # What ``user`` says is shown to everybody, so no agent may write under that name.
    is_name = isinstance(name, str) and 0 < len(name) <= _AUTHOR_CHARS and name != "user"
    if not is_name or any("\ud800" <= char <= "\udfff" for char in str(name)):
        msg = (
            f"agent: expected a name of up to {_AUTHOR_CHARS} characters other than 'user', got "
            f"{shown(name)}"
        )
        raise InvalidOptionError(msg)


# --- Calls that other agents answer ---------------------------------------------------------------


class Delegation:
    """A call that another agent answers from a history of its own: ``session.delegate``.

    As a context manager it leaves no open call: an exception, or an end without a result, answers
    the call with an error.

    Args:
        session: the session with the call.
        call_id: the call.
        seq: the item that made it; a model may use an id again.
        agent: name of the agent.
        child: the agent's own session.
    """

    def __init__(
        self, session: Session, call_id: str, seq: int, *, agent: str, child: Session
    ) -> None:
        self.parent = session
        self.call_id = call_id
        self.seq = seq
        self.agent = agent
        self.session = child

    def __repr__(self) -> str:
        return f"Delegation({self.call_id!r}, {self.agent!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            self.fail("the agent ended without a result")
        else:
            # Only the type, as in logs: its text may hold content, and a model reads this.
            self.fail(f"the agent failed: {type(error).__name__}")

    @property
    def is_open(self) -> bool:
        """True if the call is in the live history without a result, and no later one has its id."""
        try:
            call = self.parent.find_call(self.call_id)
        except NotFoundError:  # it was taken back
            return False
        return bool(call.open and call.seq == self.seq)

    def finish(self, result: str, *, tokens: int | None = None) -> Receipt:
        """Answer the call with the agent's result, once; a repeat returns the first receipt.

        The result says in its ``meta`` which session it comes from; its author is the agent.

        Args:
            result: the agent's final text, all that the parent sees of its work.
            tokens: tokens that the provider billed for the work.

        Raises:
            InvalidItemError: the result is not a str.
            OrphanResultError: the call was answered by somebody else, or given up.
        """
        return self._answer(result, "ok", tokens)

    def fail(self, reason: str, *, tokens: int | None = None) -> Receipt:
        """Answer the call with an error, once: if it was answered, that receipt is returned.

        Args:
            reason: text that the parent's model sees.
            tokens: as for ``finish``.

        Raises:
            InvalidItemError: the reason is not a str.
            OrphanResultError: the call was answered by somebody else, or given up.
        """
        return self._answer(reason, "error", tokens)

    def _answer(self, text: str, status: str, tokens: int | None) -> Receipt:
        if not isinstance(text, str):
            msg = f"result: expected a str, got {type(text).__name__}"
            raise InvalidItemError(msg)
        checked_optional_int("tokens", tokens)
        try:
            call = self.parent.get(self.seq)
        except NotFoundError as error:
            msg = f"call {self.call_id[:80]!r} was taken back"
            raise OrphanResultError(msg, call_id=self.call_id, position=0) from error
        message = _answer_to(call.message, self.call_id, text, failed=status != "ok")
        ref = sessions.ref_of(self.parent)
        envelope = Envelope(author=self.agent, status=status, tokens=tokens)
        meta = {"delegated": {"session": self.session.id, "agent": self.agent}}
        prepared = encode_items(ref, [message], ItemOptions(meta, None, envelope))
        # The key is the call's alone and the content empty: whatever a repeat or a second outcome
        # says, the first answer stands and its receipt is returned.
        key = _key(self.call_id, self.seq)
        request = request_of(key, [b""], seed=ref.engine.seed, ttl_ms=None)
        return store(AnswerCall(ref, prepared, self.call_id, request))


class AnswerCall(Append):
    """Append the result of an open call that nobody else has answered or given up."""

    __slots__ = ("call_id",)
    # ``run`` refuses after the item was appended: the draft, which other calls of the batch go on
    # with, has to be taken back then.
    atomic = False

    def __init__(
        self, ref: SessionRef, items: Sequence[Prepared], call_id: str, request: IdempotentRequest
    ) -> None:
        super().__init__(ref, items, request=request, creates=False)
        self.call_id = call_id

    def run(self, session: SessionTxn) -> Unchanged | None:
        """Append the result, unless the request was already carried out.

        Raises:
            OrphanResultError: the call is no longer open.
        """
        # Only in the transaction is it known that nobody else has answered the call or given it up.
        before = session.open_calls
        found = super().run(session)
        if found is None and session.open_calls >= before:
            msg = f"call {self.call_id[:80]!r} was answered by somebody else, or given up"
            raise OrphanResultError(msg, call_id=self.call_id, position=0)
        return found


def _digest(call_id: str) -> str:
    return str(blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())


def _key(call_id: str, seq: int) -> str:
    return f"memcore:delegate:{seq}:{_digest(call_id)}"


def _answer_to(call: Message, call_id: str, text: str, *, failed: bool) -> Message:
    """Return a message that answers a call of another one.

    Raises:
        InvalidOptionError: it is a call that no text can answer.
    """
    message = result_message(call, call_id, text, failed=failed)
    if message is None:
        msg = f"call {call_id[:80]!r} is none of a function or a custom tool: no text answers it"
        raise InvalidOptionError(msg)
    return message


def delegated(session: Session, call_id: str, agent: str) -> Delegation:
    """Bind an agent's own session to an open call; a repeat, also after a crash, is the same.

    Raises:
        NotFoundError: no call of the live history has this id.
        InvalidOptionError: the agent's name is invalid; the call has a result already, was given to
            another agent, or is one that no text can answer.
    """
    _need_agent(agent)
    call = session.find_call(call_id)
    # Only tried: a call that no text can answer is refused before a child session exists.
    _answer_to(session.get(call.seq).message, call_id, "", failed=False)
    child = session.child(_child_name(call_id, call.seq))
    # If there is a child, the answer may be that of an earlier run, which is taken up again.
    if not call.open and not child.exists():
        msg = f"call {call_id[:80]!r} has a result already"
        raise InvalidOptionError(msg)
    ref = sessions.ref_of(child)
    started = {"call_id": call_id, "agent": agent, "session": session.id}
    prepared = encode_event(ref, _STARTED, started, ItemOptions(None, None, None))
    try:
        key = _key(call_id, call.seq)
        # The agent's name is the content: of two agents that take a call, the second gets an error.
        store(sessions.append_once(ref, key, [prepared], content=agent.encode()))
    except DuplicateRequestError as error:
        msg = f"call {call_id[:80]!r} was given to another agent than {agent[:80]!r}"
        raise InvalidOptionError(msg) from error
    return Delegation(session, call_id, call.seq, agent=agent, child=child)


def _child_name(call_id: str, seq: int) -> str:
    """Return the name of the session that answers a call: its seq and id, or the id's digest."""
    return f"{seq}-{call_id if _PLAIN_ID.fullmatch(call_id) else _digest(call_id)}"


# --- Results of other sessions --------------------------------------------------------------------


def share_result(ref: SessionRef, its: SessionRef, seq: int | None) -> Append:
    """Return the change that appends a result of another session of the scope, once.

    Raises:
        NotFoundError: it has no such item.
        InvalidOptionError: it is in another scope or the same session, or the item calls tools or
            answers a call.
    """
    checked_optional_int("seq", seq, least=1)
    place = (its.engine.store.path, its.app, its.user)
    if place != (ref.engine.store.path, ref.app, ref.user):
        msg = "share: expected a session of the same file, application and user"
        raise InvalidOptionError(msg)
    if its.name == ref.name:
        msg = "share: a session has its own results already"
        raise InvalidOptionError(msg)
    item = _newest_result(its) if seq is None else read.get_item(its, seq)
    # Half of a pair would be an orphan, or an open call, in the other history.
    if item.type in ("tool_call", "tool_result") or item.kind == ItemKind.EVENT:
        msg = f"share: item {item.seq} is a {item.type}: share a message that stands alone"
        raise InvalidOptionError(msg)
    known = item.envelope or Envelope()
    author = known.author or its.name.rpartition(CHILD)[2][:_AUTHOR_CHARS]
    kind = item.type if item.type in RESULT_TYPES else "final"
    meta = {**(item.meta or {}), "shared": {"session": its.name, "seq": item.seq}}
    envelope = replace(known, author=author, type=kind)
    options = ItemOptions(meta, item.request_id, envelope)
    prepared = encode_items(ref, [item.message], options)
    # By number: a session that is created again under the name has results of its own.
    number = 0 if its.log is None else its.log.session
    return sessions.append_once(ref, f"memcore:share:{number}:{item.seq}", prepared)


def _newest_result(ref: SessionRef) -> Item:
    """Return the newest item of type ``final`` or ``aggregate``.

    Raises:
        NotFoundError: there is none.
    """
    stop = None
    while True:
        found = read.items_before(ref, stop, _LOOK_PAGE)
        item: Item
        for item in reversed(found):
            if item.type in RESULT_TYPES and item.kind != ItemKind.EVENT:
                return item
        if not found:
            msg = f"session {ref.name!r} has no result to share"
            raise NotFoundError(msg)
        stop = found[0].seq
