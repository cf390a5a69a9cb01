"""What a session's handle does for those who share it: agents, people who decide or reproduce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self

from memcore.envelope import RESULT_TYPES, Envelope
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.model import Item, ItemKind, Receipt
from memcore.options import checked_optional_int
from memcore.privacy import RedactionPolicy
from memcore.session.address import Address
from memcore.session.appending import Appending, ItemOptions
from memcore.session.branched import Branched
from memcore.session.bundle import BUNDLE_BYTES, make_bundle
from memcore.session.changes import Closure
from memcore.session.escalation import Escalation, Escalations, once
from memcore.session.ladder import Ladder
from memcore.session.rules import LadderRules, checked_rules
from memcore.session.uses import Accessed, read_uses

__all__ = ["Joined"]

CHILD: Final = "::"
"""Between the name of a session and that of its child."""
_LOOK_PAGE: Final = 64


class Joined(Branched):
    """A session among several who work with it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.appending = Appending(address)  # the asynchronous facade commits what it plans, too
        self.escalations = Escalations(address)

    # --- agents -----------------------------------------------------------------------------------

    def child(self, name: str) -> Self:
        """A history of its own for an agent: the session ``THIS::name`` of the same scope.

        It shares nothing by itself: ``share`` brings its results here. The same name gives the same
        session again; options are those of this handle.

        Raises:
            InvalidOptionError: the name is no non-empty str, or holds ``::`` or a colon at an end.
        """
        odd = not isinstance(name, str) or not name or CHILD in name
        if odd or name.startswith(":") or name.endswith(":"):
            msg = f"child: expected a non-empty name without {CHILD!r}, got {name!r:.80}"
            raise InvalidOptionError(msg)
        address = self._address
        beside = address.beside(f"{address.name}{CHILD}{name}", policy=None)
        beside.options = replace(beside.options, counter=address.options.counter)
        return type(self)(beside)

    def share(self, child: Joined, seq: int | None = None) -> Receipt:
        """Append a result of another session of this scope: the same message, its author's name.

        Each result is shared once; a second call gives the first receipt.

        Args:
            child: mostly one of ``child``; its author is the last part of its name if the item
                names none.
            seq: a live item of it; None: its newest of type ``final`` or ``aggregate``.

        Raises:
            NotFoundError: it has no such item.
            InvalidOptionError: ``child`` is a session of another scope, or this one, or the item
                calls tools or answers a call.
        """
        prepared, closure = self.plan_share(child, seq)
        return self.appending.store(prepared, closure)

    def plan_share(self, child: Joined, seq: int | None) -> tuple[list[Any], Closure[Receipt]]:
        """What ``share`` stores."""
        checked_optional_int("seq", seq, least=1)
        address, its = self._address, child._address
        place = (its.backing.store.path, its.app, its.user)
        if place != (address.backing.store.path, address.app, address.user):
            msg = "share: expected a session of the same file, application and user"
            raise InvalidOptionError(msg)
        if its.name == address.name:
            msg = "share: a session has its own results already"
            raise InvalidOptionError(msg)
        item: Item = child._newest_result() if seq is None else child._reading.get(seq)
        if item.type in ("tool_call", "tool_result") or item.kind == ItemKind.EVENT:
            msg = f"share: item {item.seq} is a {item.type}: share a message that stands alone"
            raise InvalidOptionError(msg)
        told = item.envelope or Envelope()
        author = told.author or its.name.rpartition(CHILD)[2][:1024]
        kind = item.type if item.type in RESULT_TYPES else "final"
        meta = {**(item.meta or {}), "shared": {"session": its.name, "seq": item.seq}}
        envelope = replace(told, author=author, type=kind)
        options = ItemOptions(meta, item.request_id, envelope)
        prepared = self.appending.prepare([item.message], options)
        number = 0 if its.log is None else its.log.session
        key = f"memcore:share:{number}:{item.seq}"
        return prepared, once(address, self.changes, key, prepared)

    def _newest_result(self) -> Item:
        stop = None
        while True:
            found = self._reading.before(stop, _LOOK_PAGE)
            item: Item
            for item in reversed(found):
                if item.type in RESULT_TYPES and item.kind != ItemKind.EVENT:
                    return item
            if not found:
                msg = f"session {self._address.name!r} has no result to share"
                raise NotFoundError(msg)
            stop = found[0].seq

    # --- failures ---------------------------------------------------------------------------------

    def ladder(self, rules: LadderRules | Mapping[str, Any] | None = None) -> Ladder:
        """Runs steps that degrade, are retried, and in the end are left to a person.

        Raises:
            InvalidOptionError: a rule is unknown or out of range.
        """
        return Ladder(self._address, checked_rules(rules))

    def pending_hitl(self) -> list[Escalation]:
        """The ``hitl`` events of the live history without a decision, oldest first.

        Raises:
            CorruptValueError: one of them is damaged.
        """
        return self.escalations.pending()

    def resolve_hitl(
        self,
        seq: int,
        decision: Any,
        *,
        by: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Record what was decided about a ``hitl`` event, by an event that names it.

        Args:
            seq: of the event.
            decision: any JSON value.
            by: who decided.
            meta: a JSON object kept beside the event.

        Raises:
            NotFoundError: no live item ``seq`` waits for a decision.
            DuplicateRequestError: it was decided otherwise before.
            InvalidItemError, InvalidOptionError, ReadOnlyError, StorageError
        """
        return self.appending.store(*self.escalations.resolve(seq, decision, by=by, meta=meta))

    def bundle(
        self,
        seq: int | None = None,
        *,
        most_bytes: int = BUNDLE_BYTES,
        policy: RedactionPolicy | None = None,
    ) -> bytes:
        """A minimal reproduction as JSON: a legal slice around a failure, always redacted.

        It names no user, session, application, owner or file. Equal histories give equal bytes.

        Args:
            seq: the item that it is about; None: the newest failure (a failed status, an ``error``
                or a ``hitl`` event) of the last 256 items, else the last item.
            most_bytes: at least 2,048; texts are cut until it fits.
            policy: what to redact; None: memcore's default.

        Raises:
            NotFoundError, InvalidOptionError, CorruptValueError
        """
        return make_bundle(
            self._address, self._reading, seq=seq, most_bytes=most_bytes, policy=policy
        )

    # --- readers ----------------------------------------------------------------------------------

    def accessed(self, seq: int | None = None) -> Accessed:
        """How often the session (or one item) was read and when last, if that is counted.

        Counted are ``context``, ``items``, ``tail`` and ``get`` of handles with ``access_counts``;
        an item counts when it is read, or shown behind the cut of a context.

        Raises:
            CorruptValueError: the counts are damaged.
        """
        checked_optional_int("seq", seq, least=1)
        uses = self._address.uses
        return self._reading.run(lambda log, txn: read_uses(txn, log.place, seq, uses), Accessed())
