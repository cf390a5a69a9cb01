"""``memcore bundle``: a minimal, redacted reproduction of a failure in a session."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Annotated

import typer

from memcore.cli.options import App, AsJson, SessionName, StorePath, User, find_session, reading
from memcore.cli.output import emit_json
from memcore.limits import BUNDLE_BYTES
from memcore.session.retry import BUNDLE_BYTES_LEAST
from memcore.store.copy import beside
from memcore.store.datafile import publish

__all__ = [
    "bundle_session",
]


def bundle_session(
    session_id: SessionName,
    *,
    store: StorePath,
    user: User = None,
    app: App = None,
    seq: Annotated[
        int | None, typer.Option(min=1, help="The item that it is about; else the newest failure.")
    ] = None,
    most_bytes: Annotated[
        int, typer.Option("--bytes", min=BUNDLE_BYTES_LEAST, help="How large it may be.")
    ] = BUNDLE_BYTES,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write it to a new file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a minimal reproduction of a failure: few items, redacted, without names or paths.

    The bundle is one JSON object; --json wraps it like the output of other verbs.
    """
    with reading(store) as db:
        found = find_session(db, session_id, user=user, app=app).bundle(seq, most_bytes=most_bytes)
    if out is not None:
        if os.path.lexists(out):  # an existing file is kept
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), out)
        with beside(out) as (temporary, fd):
            with open(fd, "wb", closefd=False) as file:
                file.write(found + b"\n")
            os.fsync(fd)  # before publishing, so that a power failure leaves no partial file
            publish(temporary, out)
    if as_json:
        emit_json("bundle", {"bytes": len(found), "out": out, "bundle": json.loads(found)})
    elif out is None:
        sys.stdout.write(found.decode("ascii") + "\n")
