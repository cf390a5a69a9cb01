"""``memcore mcp``: serve one user's memory and sessions to an MCP client."""

from __future__ import annotations

import os
from typing import Any

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    key_options,
    need_directory,
    reading,
    store_option,
    verb,
    warn_of_stranger,
    writing,
)
from memcore.cli.output import complain, warn
from memcore.files import put_private

__all__ = [
    "serve",
]


_VARIABLE = "MEMCORE_MCP_TOKEN"
_TOKEN_BYTES = 32


@verb("mcp")
@store_option
@click.option("--user", default="default", metavar="USER", help="Whose memory.")
@click.option("--app", default="default", metavar="APP", help="In which application.")
@click.option("--write", is_flag=True, help="Let clients remember, correct, append and log.")
@click.option("--allow-delete", is_flag=True, help="Let clients forget and delete.")
@click.option("--create", is_flag=True, help="Make the file if there is none; with --write.")
@click.option("--http", is_flag=True, help="Serve HTTP on this host, not stdin and stdout.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="With --http.")
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=8452,
    metavar="PORT",
    help="With --http; 0: a free one.",
)
@click.option(
    "--token-file",
    metavar="PATH",
    help=f"Holds the token of HTTP clients, made if missing; or {_VARIABLE} does.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Another name that clients call it by; repeatable.",
)
def serve(
    store: str,
    *,
    user: str,
    app: str,
    write: bool,
    allow_delete: bool,
    create: bool,
    http: bool,
    host: str,
    port: int,
    token_file: str | None,
    allow_host: tuple[str, ...],
) -> None:
    """Serve one user's memory and sessions to an MCP client: Claude, Cursor, VS Code, ...

    The client can read; --write and --allow-delete let it change. User and application are those
    given here, whatever a client asks for.
    """
    if create and not write:
        complain("--create makes a file to write to: say --write, too")
        raise SystemExit(ExitCode.USAGE)
    if not http:
        _refuse_alone("--host", "--port", "--token-file", "--allow-host")
    if create and not os.path.lexists(store):
        need_directory(store)
        memcore.open(store, **key_options()).close()
    token, is_new = _token(token_file) if http else ("", False)
    changes = write or allow_delete
    with writing(store) if changes else reading(store) as db:
        from memcore.mcp import build_server

        warn_of_stranger(db, user, app, may_be_new=True)
        server = build_server(db.scope(app=app, user=user), writes=write, deletes=allow_delete)
        if not http:
            _serve_stdio(server)
        else:
            _serve_http(server, (token, host, port, allow_host), tell=is_new)


def _refuse_alone(*options: str) -> None:
    """End the program if one of the options was given without --http."""
    context = click.get_current_context()
    for option in options:
        given = context.get_parameter_source(option.removeprefix("--").replace("-", "_"))
        if given is click.core.ParameterSource.COMMANDLINE:
            complain(f"{option} has a meaning with --http alone: say --http, too")
            raise SystemExit(ExitCode.USAGE)


def _serve_stdio(server: Any) -> None:
    import anyio

    from memcore.mcp import serve_stdio

    anyio.run(serve_stdio, server)


def _serve_http(server: Any, place: tuple[str, str, int, tuple[str, ...]], *, tell: bool) -> None:
    from memcore.mcp import HttpPlace, serve_http

    where = HttpPlace(*place)

    def ready(url: str) -> None:
        warn(f"MCP at {url} (stopped by Ctrl-C)")
        if tell:
            warn(f"clients send the header 'Authorization: Bearer {where.token}'")

    serve_http(server, where, ready=ready)


def _token(path: str | None) -> tuple[str, bool]:
    """Return the token of HTTP clients, and True if it is new and in no file.

    Raises:
        InvalidOptionError: others may read the file.
        OSError: it cannot be read or made.
    """
    import secrets

    told = os.environ.get(_VARIABLE)
    if path is None:
        return (told, False) if told else (secrets.token_urlsafe(_TOKEN_BYTES), True)
    if not os.path.lexists(path):
        made = secrets.token_urlsafe(_TOKEN_BYTES)
        put_private(os.path.abspath(path), made.encode() + b"\n", new=True)
        return made, False
    with open(path, encoding="utf-8", errors="replace") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            msg = f"--token-file: {path}: others may read it: chmod 600"
            raise memcore.InvalidOptionError(msg)
        return file.readline(4096).strip(), False
