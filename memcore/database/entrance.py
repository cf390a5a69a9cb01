"""What leads into an open database: the scopes of its users, for whom the authorizer lets in."""

from __future__ import annotations

from memcore import names
from memcore.access import Access, checked_actor
from memcore.database.permitted import Permitted
from memcore.database.scope import Scope
from memcore.session import Backing

__all__ = ["Entrance"]


class Entrance(Permitted):
    """Opens scopes, and asks the authorizer before whatever is the administrator's."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def as_user(self, user: str, *, app: str = "default", actor: str | None = None) -> Scope:
        """As ``scope``; whatever is opened through it is asked about this actor.

        Args:
            user: the user whose data it is.
            app: the application.
            actor: who works with it: a person, a service, an agent; None: the user.

        Raises:
            InvalidOptionError: a name is not legal, or the actor is no str.
            AccessDeniedError: the authorizer refused it.
        """
        who = checked_actor(actor)
        access = self._backing.access
        return self._scope(app, user, None if access is None else access.of(who or user))

    def _scope(self, app: str, user: str, access: Access | None) -> Scope:
        names.check_name(app, "app")
        names.check_name(user, "user")
        if access is not None:
            access.need("scope", app=app, user=user)
        return Scope(self._backing, app, user, access=access)

    def _pairs(self) -> list[tuple[str, str]]:
        return self._backing.store.read(
            lambda txn: [(app, user) for _, app, user in names.scopes(txn)]
        )
