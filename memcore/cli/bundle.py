"""``memcore bundle``: a minimal, redacted reproduction of a failure in a session."""

from __future__ import annotations

import json
import os
import sys

import click

from memcore.cli.options import (
    app_option,
    find_session,
    json_option,
    need_apart,
    need_new,
    reading,
    session_argument,
    store_option,
    user_option,
    verb,
)
from memcore.cli.output import emit_json, warn
from memcore.limits import BUNDLE_BYTES
from memcore.options import checked_file, counted
from memcore.session.retry import BUNDLE_BYTES_LEAST
from memcore.store.copy import beside
from memcore.store.datafile import publish

__all__ = [
    "bundle_session",
]


@verb("bundle")
@session_argument
@store_option
@user_option
@app_option
@click.option(
    "--seq", type=click.IntRange(min=1), help="The item that it is about; else the newest failure."
)
@click.option(
    "--bytes",
    "most_bytes",
    type=click.IntRange(min=BUNDLE_BYTES_LEAST),
    default=BUNDLE_BYTES,
    help="How large it may be.",
)
@click.option("--out", metavar="FILE", help="Write it to a new file.")
@json_option
def bundle_session(
    session_id: str,
    *,
    store: str,
    user: str | None,
    app: str | None,
    seq: int | None,
    most_bytes: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Write a minimal reproduction of a failure: few items, redacted, without names or paths.

    The bundle is one JSON object; --json wraps it like the output of other verbs.
    """
    if out is not None:
        out = checked_file("--out", out)
        need_new(out)
        need_apart(out, store)
    with reading(store) as db:
        found = find_session(db, session_id, user=user, app=app).bundle(seq, most_bytes=most_bytes)
    if out is not None:
        with beside(out) as (temporary, fd):
            with open(fd, "wb", closefd=False) as file:
                file.write(found + b"\n")
            os.fsync(fd)  # before publishing, so that a power failure leaves no partial file
            publish(temporary, out)
    if as_json:
        emit_json("bundle", {"bytes": len(found), "out": out, "bundle": json.loads(found)})
    elif out is not None:
        warn(f"{out}: {counted(len(found), 'byte')}")
    else:
        sys.stdout.write(found.decode("ascii") + "\n")
