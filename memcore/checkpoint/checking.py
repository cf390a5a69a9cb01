"""Checking threads with the serialiser that wrote them: bodies, values, writes, and what they say.

``care.py`` checks what can be told without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from memcore import keys
from memcore.checkpoint import rows
from memcore.checkpoint.care import body_findings, clear_body
from memcore.checkpoint.coding import Coder, Opaque
from memcore.checkpoint.joining import MISSING
from memcore.checkpoint.listing import Listing
from memcore.checkpoint.reading import View
from memcore.store.base import ReadTxn

__all__ = ["Checking", "Judge"]

Judge = Callable[[Any], list[tuple[int, str]]]
"""Of a channel's value: positions in it, and what is wrong there."""


class Checking(Listing):
    """Reads everything of a scope's threads. Give it a cache of its own: it has to see the file."""

    def findings(self, coder: Coder, judge: Judge) -> Iterator[str]:
        """What is wrong, in words; what is wrong in several checkpoints is told of the oldest."""
        for thread in self._names(None):
            for namespace, number in self._namespaces(thread, None):
                seen: set[tuple[str, object]] = set()
                ids = self._read(partial(self._ids, thread=thread, number=number, coder=coder))
                for checkpoint in ids:
                    where = f"thread {thread!r:.60}, "
                    where += f"namespace {namespace!r:.60}, " if namespace else ""
                    look = partial(
                        self._checked,
                        thread=thread,
                        number=number,
                        checkpoint=checkpoint,
                        coder=coder,
                        judge=judge,
                        seen=seen,
                    )
                    for finding in self._read(look):
                        yield f"{where}checkpoint {checkpoint!r:.60}{finding}"

    def _ids(self, txn: ReadTxn, *, thread: str, number: int, coder: Coder) -> list[str]:
        view = self._view(txn, thread, coder)
        if view is None:
            return []
        prefix = rows.checkpoints_of(view.place, number)
        return [rows.id_in(key) for key, _ in txn.scan(prefix, keys.after(prefix))]

    def _checked(
        self,
        txn: ReadTxn,
        *,
        thread: str,
        number: int,
        checkpoint: str,
        coder: Coder,
        judge: Judge,
        seen: set[tuple[str, object]],
    ) -> list[str]:
        view = self._view(txn, thread, coder)
        row = None if view is None else self._row(view, number, checkpoint)
        if view is None or row is None:
            return []  # deleted since it was listed
        found: list[str] = []
        try:
            body = coder.decode(coder.open(row.body))
            coder.decode(coder.open(row.metadata))
        except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
            return [f": it cannot be decoded: {exc}"]
        if isinstance(clear_body(row), Opaque):  # else ``check_threads`` has told of it
            values = rows.values_of(view.place, number)
            found += body_findings(view.txn, values, row, body, set())
        for channel, version in rows.versions_in(body).items():
            if (channel, version) not in seen:
                seen.add((channel, version))
                for finding in _of_channel(view, number, channel, version, judge):
                    if (channel, finding[1]) not in seen:
                        seen.add((channel, finding[1]))
                        at = "" if finding[0] is None else f", position {finding[0]}"
                        found.append(f", channel {channel!r:.60}{at}: {finding[1]}")
        try:
            for write in self._writes(view, number, checkpoint):
                view.joiner.join(write.node)
        except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
            found.append(f": its pending writes cannot be read: {exc}")
        return found


def _of_channel(
    view: View, number: int, channel: str, version: rows.Version, judge: Judge
) -> list[tuple[int | None, str]]:
    key = rows.value_key(view.place, number, channel, version)
    try:
        node = rows.node_of(view.txn, key, view.coder)
        value = MISSING if node is None else view.joiner.join(node)
    except Exception as exc:  # noqa: BLE001 - whatever a serialiser raises
        return [(None, f"its version {version!r:.60} cannot be read: {exc}")]
    return [] if value is MISSING else [*judge(value)]
