"""What handles offer for forgetting: erasures and holds of a database, those of one scope."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memcore import retention
from memcore.database.copies import Progress, judge_for
from memcore.database.permitted import Permitted
from memcore.kv import KeyValue
from memcore.options import checked_bool
from memcore.retention import ErasureReceipt, Hold
from memcore.retention.compacting import Judge
from memcore.session import Backing
from memcore.store.lmdb import verify as structure_of

__all__ = ["Forgetting", "ScopedForgetting"]


class Forgetting(Permitted):
    """The part of ``Database`` that forgets."""

    def erase(
        self,
        user: str,
        *,
        app: str | None = None,
        compact: bool = True,
        verify: bool = True,
        override_hold: bool = False,
        probes: Iterable[str | bytes] = (),
        key: bytes | None = None,
        name_in_receipt: bool = False,
        progress: Progress | None = None,
    ) -> ErasureReceipt:
        """Remove all that a user has, so that no byte of it is left in the file.

        One commit makes the user unreachable for every handle of every process; then data keys are
        shredded (in an encrypted file), rows leave piece by piece, and the file is swapped for a
        compact copy, which is scanned. The application's own state stays. Nobody else may have the
        file open for the last step: the receipt says ``bytes_gone=False`` then, and
        ``finish_erasures`` does the rest. What is written for the user from now on stays.

        Args:
            user: whom to erase; nothing happens if they have nothing.
            app: only in this application; None: in all of them.
            compact: False leaves the last step to ``finish_erasures``, for many users at once.
            verify: run the whole ``check`` on the copy; False walks its structure only.
            override_hold: erase what is under a legal hold; the receipt says so.
            probes: texts or bytes of the user's that the copy is scanned for, beside the name.
            key: what the receipt is signed with; None: a key of the database's own.
            name_in_receipt: say in the receipt who was erased, not only a keyed digest.
            progress: called with (sessions checked, sessions in all) while the copy is checked.

        Raises:
            HeldError: something is under a legal hold; nothing was changed.
            InvalidOptionError, ReadOnlyError, CorruptValueError: nothing was changed.
            StorageError: nothing was changed, or the outcome of the first commit is unknown.
        """
        self._need("erase", app=app, user=user)
        if override_hold:
            self._need("override_hold", app=app, user=user)
        flags = {"compact": compact, "override_hold": override_hold, "named": name_in_receipt}
        for name, value in flags.items():
            checked_bool(name, value)
        texts = (probes,) if isinstance(probes, str | bytes) else tuple(probes)
        asked = retention.Asked(user, app, probes=texts, key=key, **flags)
        judge = self._judge(progress) if checked_bool("verify", verify) else structure_of
        return retention.erase(self._backing, asked, judge)

    def finish_erasures(
        self, *, verify: bool = True, key: bytes | None = None, progress: Progress | None = None
    ) -> list[ErasureReceipt]:
        """Do what earlier erasures left undone, with one compaction; a receipt for each.

        The arguments and errors are those of ``erase``.
        """
        self._need("finish_erasures")
        judge = self._judge(progress) if checked_bool("verify", verify) else structure_of
        return retention.finish_erasures(self._backing, judge, key=key)

    def would_erase(self, user: str, *, app: str | None = None) -> dict[str, int]:
        """What ``erase`` would remove: ``scopes``, ``rows`` and, by what they are, some of these.

        Raises:
            InvalidOptionError, CorruptValueError
        """
        self._need("would_erase", app=app, user=user)
        return retention.would_erase(self._backing, user, app)

    def pending_erasures(self) -> int:
        """How many erasures are not finished."""
        self._need("pending_erasures")
        return retention.count_pending(self._backing)

    def holds(self, *, user: str | None = None, app: str | None = None) -> list[Hold]:
        """All legal holds, or those of one user or application."""
        self._need("holds", app=app, user=user)
        return retention.holds(self._backing, app, user)

    def hold(
        self, user: str, *, reason: str, app: str | None = None, session: str | None = None
    ) -> list[str]:
        """Put what a user has under a legal hold; the applications that it covers now.

        It reaches as far as ``erase``: an application that the user comes to later is not covered.

        Args:
            user: whose.
            reason: a text of 1 to 1,000 characters.
            app: only in this application; None: in all of them.
            session: only sessions of this name; None: all that the user has.

        Raises:
            InvalidOptionError, NotFoundError, ReadOnlyError, StorageError: nothing was changed.
        """
        self._need("hold", app=app, user=user, name=session)
        done = retention.hold_user(self._backing, user, app, session, reason=reason)
        return [own for own, _ in done]

    def release(
        self, user: str, *, app: str | None = None, session: str | None = None
    ) -> list[str]:
        """End holds as ``hold`` sets them; the applications in which there was one."""
        self._need("release", app=app, user=user, name=session)
        return retention.release_user(self._backing, user, app, session)

    def opt_out_memory(
        self, user: str, *, app: str | None = None, remove: bool = False
    ) -> list[str]:
        """Neither write nor search memories of a user from now on; the applications it covers now.

        It reaches as far as ``erase``: an application that the user comes to later is not covered.
        What it does in each of them says ``Scope.opt_out_memory``.

        Args:
            user: whose.
            app: only in this application; None: in all of them.
            remove: remove the memories that there are.

        Raises:
            HeldError: they are to be removed, and a legal hold covers some; nothing was changed.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        checked_bool("remove", remove)
        self._need("opt_out_memory", app=app, user=user)
        covered = retention.opt_out(self._backing, user, app, remove=remove)
        for own in covered if remove else ():
            self.scope(app=own, user=user).opt_out_memory(remove=True)
        return covered

    def opt_in_memory(self, user: str, *, app: str | None = None) -> list[str]:
        """The user wants memory again; the applications in which they had opted out."""
        self._need("opt_in_memory", app=app, user=user)
        return retention.opt_in(self._backing, user, app)

    def scope(self, *, user: str = "default", app: str = "default") -> ScopedForgetting:
        """What belongs to a user in an application."""
        raise NotImplementedError

    @property
    def receipt_key(self) -> bytes:
        """What receipts are signed with if the caller gives no key. Keep it secret."""
        self._need("receipt_key")
        return retention.receipt_key(self._backing.store)

    def _judge(self, progress: Progress | None) -> Judge:
        return judge_for(self._backing, progress)


class ScopedForgetting:
    """The part of ``Scope`` that forgets."""

    _backing: Backing
    _app: str
    _user: str

    def erase(
        self,
        *,
        compact: bool = True,
        verify: bool = True,
        override_hold: bool = False,
        probes: Iterable[str | bytes] = (),
        key: bytes | None = None,
        name_in_receipt: bool = False,
    ) -> ErasureReceipt:
        """Erase the user in this application: ``db.erase(user, app=app, ...)``."""
        self._need("erase")
        if override_hold:
            self._need("override_hold")
        return _Whole(self._backing).erase(
            self._user,
            app=self._app,
            compact=compact,
            verify=verify,
            override_hold=override_hold,
            probes=probes,
            key=key,
            name_in_receipt=name_in_receipt,
        )

    def hold(self, *, reason: str) -> bool:
        """Put all that the user has here under a legal hold; whether it was under none.

        Until ``release``, erasing the user and deleting a session or thread are refused with
        HeldError, and sweeps and rules of retention pass it over.

        Raises:
            InvalidOptionError: the reason is no text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        self._need("hold")
        return retention.hold(self._backing, self._app, self._user, None, reason=reason)

    def release(self) -> bool:
        """End the hold on the scope; whether there was one. Those on sessions stay."""
        self._need("release")
        return retention.release(self._backing, self._app, self._user, None)

    def holds(self) -> list[Hold]:
        """The holds on the scope and on its sessions."""
        self._need("holds")
        return retention.holds(self._backing, self._app, self._user)

    @property
    def memory_opt_out(self) -> bool:
        """Whether the user wants no long-term memory."""
        self._need("memory_opt_out")
        return retention.opted_out(self._backing, self._app, self._user)

    def opt_out_memory(self, *, remove: bool = False) -> int:
        """Neither write nor search memories of the user from now on; how many rows went.

        Memory services, stores of graphs and files of agents then take nothing and find nothing.
        Sessions, states and ``kv`` go on.

        Args:
            remove: remove the memories that there are.

        Raises:
            HeldError: they are to be removed, and a legal hold covers them; nothing was changed.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        checked_bool("remove", remove)
        self._need("opt_out_memory")
        retention.opt_out(self._backing, self._user, self._app, remove=remove)
        if not remove:
            return 0
        found = retention.memories(self._backing, self._app, self._user)
        return sum(self.kv(namespace).clear() for namespace in found)

    def opt_in_memory(self) -> bool:
        """The user wants memory again; whether they had opted out."""
        self._need("opt_in_memory")
        return bool(retention.opt_in(self._backing, self._user, self._app))

    def kv(self, namespace: str) -> KeyValue:
        """Ordered key/value storage of the scope."""
        raise NotImplementedError

    def _need(self, action: str, name: str | None = None) -> None:
        """Ask the authorizer, if there is one."""
        raise NotImplementedError


class _Whole(Forgetting):
    """A database as far as erasing goes; the scope has asked for its own actor."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def _need(
        self, action: str, *, app: str | None = None, user: str | None = None, name: Any = None
    ) -> None:
        pass
