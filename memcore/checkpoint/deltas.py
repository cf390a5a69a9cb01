"""What channels that are stored as deltas are rebuilt from: writes along the parents."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.checkpoint import rows, threads
from memcore.checkpoint.coding import Coder
from memcore.checkpoint.joining import MISSING
from memcore.checkpoint.reading import Delta, Reading, View
from memcore.store.base import ReadTxn

__all__ = ["Deltas"]


class Deltas(Reading):
    """Histories of channels along the ancestors of a checkpoint."""

    def deltas(
        self,
        thread: str,
        namespace: str,
        checkpoint: str | None,
        channels: Sequence[str],
        coder: Coder,
    ) -> dict[str, Delta]:
        """What the ancestors of a checkpoint (None: the newest) wrote to these channels.

        For each channel the walk ends at the nearest ancestor that holds a value of it, whose own
        writes belong to it; those of the checkpoint itself do not. A chain that runs into itself
        ends there.
        """

        def look(txn: ReadTxn) -> dict[str, Delta]:
            view = self._view(txn, thread, coder)
            number = None if view is None else threads.namespace_of(txn, view.place, namespace)
            if view is None or number is None:
                return {channel: Delta() for channel in channels}
            wanted = checkpoint or self._newest(view, number)
            return self._walk(view, namespace, number, wanted, channels)

        return self._read(look)  # type: ignore[no-any-return]

    def _walk(
        self,
        view: View,
        namespace: str,
        number: int,
        wanted: str | None,
        channels: Sequence[str],
    ) -> dict[str, Delta]:
        found = {channel: Delta() for channel in channels}
        row = None if wanted is None else self._row(view, number, wanted)
        seen = {wanted}
        missing = set(channels)
        steps: dict[str, list[list[tuple[str, str, object]]]] = {name: [] for name in channels}
        while missing and row is not None and row.parent is not None and row.parent not in seen:
            seen.add(row.parent)
            at = row.parent
            row = self._row(view, number, at)
            if row is None:
                break
            pending = [w for w in self._writes(view, number, at) if w.channel in missing]
            for channel in missing:
                steps[channel].append(
                    [
                        (write.task, channel, view.joiner.join(write.node))
                        for write in pending
                        if write.channel == channel
                    ]
                )
            versions = rows.versions_in(row.body_by(view.coder))
            for channel in [name for name in missing if name in versions]:
                named = channel, versions[channel]
                value = self._value(view, namespace, number, row, named)
                if value is not MISSING:
                    found[channel].seed = value
                    missing.discard(channel)
        for channel, pages in steps.items():
            found[channel].writes = [write for page in reversed(pages) for write in page]
        return found
