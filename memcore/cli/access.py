"""``memcore access``: show, give and take what roles of a server may reach."""

from __future__ import annotations

import dataclasses

import click

import memcore
from memcore.cli.options import ExitCode, json_option, store_option, verb
from memcore.cli.output import complain, emit_json, escape, print_table

__all__ = [
    "access_of_roles",
]


@verb("access")
@store_option
@click.argument("role", required=False, metavar="[ROLE]", help="The role; without: show all.")
@click.option("--user", metavar="USER", help="Give it this user.")
@click.option("--app", default="default", metavar="APP", help="The user's application.")
@click.option("--everyone", is_flag=True, help="Give it all users, and those to come.")
@click.option("--revoke", is_flag=True, help="Take its access to --user, or all of it.")
@json_option
def access_of_roles(
    store: str,
    role: str | None,
    *,
    user: str | None,
    app: str,
    everyone: bool,
    revoke: bool,
    as_json: bool,
) -> None:
    """Show or change which users a role of a server reaches, by PostgreSQL's row-level security.

    From the first time that a role is given a user, every role but the one that made the store
    reaches what it was given alone.
    """
    if role is None:
        if user is not None or everyone or revoke:
            complain("name the role whose access changes")
            raise SystemExit(ExitCode.USAGE)
        _show(store, as_json=as_json)
        return
    if (user is not None) + everyone + (revoke and user is None) != 1:
        complain("say --user USER, --everyone or --revoke")
        raise SystemExit(ExitCode.USAGE)
    if not revoke:
        memcore.give_access(store, role, user=user, app=app)
        told = "every user" if user is None else f"user {user!r} in application {app!r}"
        done = {"role": role, "given": True}
        print_ = f"role {role!r} reaches {told}"
    else:
        taken = memcore.take_access(store, role, user=user, app=app)
        if not taken:
            complain(f"role {role!r} had no such access; 'memcore access' shows all")
            raise SystemExit(ExitCode.NOT_FOUND)
        done = {"role": role, "given": False}
        print_ = f"role {role!r} no longer reaches " + (
            "anything" if user is None else f"user {user!r} in application {app!r}"
        )
    if as_json:
        emit_json("access", done)
    else:
        print(escape(print_))


def _show(store: str, *, as_json: bool) -> None:
    found = memcore.access_of_roles(store)
    if as_json:
        emit_json("access", {"roles": [dataclasses.asdict(each) for each in found]})
        return
    if not found:
        print("no role is kept to its users")
        return
    rows = [
        (each.role, each.app or "(all)", each.user or ("(shared state)" if each.app else "(all)"))
        for each in found
    ]
    print_table(("role", "app", "user"), rows)
