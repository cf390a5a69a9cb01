"""MemcoreArtifactService: ADK's artifacts in a memcore file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import (
    ArtifactVersion,
    BaseArtifactService,
    ensure_part,
)
from google.genai import types
from typing_extensions import override

from memcore import blobs
from memcore.adapters.adk.admitting import admitted_part
from memcore.adapters.adk.handles import located, name_of
from memcore.adapters.adk.parts import checked_part, decode_part, encode_part, json_metadata
from memcore.adapters.adk.places import (
    VERSION_MAX,
    Place,
    Row,
    latest,
    names_of,
    place_of,
    row_of,
    session_of,
    versions_of,
)
from memcore.adapters.adk.staging import Content, commit_with, in_thread
from memcore.adapters.adk.telling import place_of as told_place
from memcore.aio.commit import settled
from memcore.aio.source import Opened, Source, database_of
from memcore.database.scope import passage_of, rows_of
from memcore.kv import KeyValue, KeyValueTxn, KeyValueView
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX as _SHORT_BYTES
from memcore.session.removal import resume_removals
from memcore.store.piece import Piece
from memcore.telemetry import adapting, adapts

__all__ = ["MemcoreArtifactService"]

_NAMESPACE: Final = "adk.artifacts"
_HANDLES_MAX: Final = 1024
_REFERENCES_MAX: Final = 5


@adapts(
    save_artifact="artifact.put . single",
    load_artifact="artifact.get",
    list_artifact_keys="artifact.list . count",
    list_versions="artifact.list . count",
    list_artifact_versions="artifact.list . count",
    get_artifact_version="artifact.list",
    delete_artifact="artifact.delete",
)
class MemcoreArtifactService(Opened, BaseArtifactService):
    """Versioned artifacts of ADK in a memcore file.

    A version is one commit: it is there with its content, or not at all, and versions that are
    saved at the same time by any threads and processes get consecutive numbers. Equal contents are
    stored once for all sessions and artifacts of a user. What is above 192 KiB is written and read
    in a thread, in short transactions.

    Args:
        source: an open Database or AsyncDatabase, or the path of a file (which ``close`` closes).
        durability: how a file that is opened by its path acknowledges (see ``memcore.open``).
        allow_unsafe: consent to ``durability="none"`` of a file, as in ``memcore.open``.
        uri: in place of ``source``: ``memcore:///path``, with options as its query; what ADK's
            ``services.yaml`` gives to a service.
        agents_dir: not used; ADK gives it to every service.

    Raises:
        InvalidOptionError: an option is of a wrong type or out of range.
    """

    def __init__(
        self,
        source: Source | None = None,
        *,
        durability: str | None = None,
        allow_unsafe: bool = False,
        uri: str | None = None,
        agents_dir: str | None = None,
    ) -> None:
        del agents_dir
        source, given = located(
            source, uri, {"durability": durability, "allow_unsafe": allow_unsafe}
        )
        self.database, self._owned = database_of(source, **given)
        self.observer = adapting(source, "adk", place_of=told_place)
        self._store = self.database.backing.store
        self._handles: dict[tuple[str, str], KeyValue] = {}

    # --- saving -----------------------------------------------------------------------------------

    @override
    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Store a new version; its number, from 0 on.

        Args:
            app_name: the application.
            user_id: the user.
            filename: any name; one that begins with ``user:`` is shared by the user's sessions.
            artifact: a Part or dict with data, text or a file's URI.
            session_id: the session; None: the artifact is the user's.
            custom_metadata: JSON that is stored with the version.
            idempotency_key: the same key saves the same artifact once, within a week, and returns
                the number that it was given; for who tries again.

        Raises:
            DuplicateRequestError: the key was used for another artifact.
            InputValidationError: a name, the artifact or the metadata is not legal.
        """
        place = place_of(session_id, filename, saving=True)
        given = ensure_part(artifact)
        kv = self._kv(app_name, user_id)
        part = checked_part(
            given, app_name=app_name, user_id=user_id, session_id=_stripped(session_id)
        )
        passage = passage_of(self.database.scope(app=app_name, user=user_id))
        if passage is not None:
            passage.name(filename, "name of an artifact")
            part = admitted_part(passage, part)
        row, content = encode_part(part)
        once_by = None
        if idempotency_key is not None:
            told = (place.start, row, json_metadata(custom_metadata))
            said = repr(told).encode("utf-8", "surrogatepass") + (content or b"")
            once_by = idempotency_key, blake2b(said, digest_size=32).digest()
        # As ADK's own services take the time, which tests of its users may hold.
        row["at"] = ArtifactVersion(version=0, canonical_uri="").create_time
        metadata = json_metadata(custom_metadata)
        row["metadata"] = (
            metadata if passage is None else passage.value(metadata, "artifact", name=filename)
        )
        if not place.is_told:
            row["name"] = place.name
        return await commit_with(
            kv,
            [content],
            lambda held: _saving(place, row, held[0]),
            is_choosy=once_by is not None,
            once_by=once_by,
        )

    # --- reading ----------------------------------------------------------------------------------

    @override
    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """The part of a version (None: the newest); None if there is none.

        A reference to another artifact is followed.

        Raises:
            InputValidationError: a name is not legal, or a reference leaves the scope or goes in a
                circle.
            CorruptValueError: the stored content is damaged.
        """
        for left in range(_REFERENCES_MAX, -1, -1):
            kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
            part = await self._load(kv, place, version)
            if part is None or not artifact_util.is_artifact_ref(part):
                return part
            found = artifact_util.resolve_artifact_reference(
                file_uri=(part.file_data and part.file_data.file_uri) or "",
                app_name=app_name,
                user_id=user_id,
                session_id=_stripped(session_id),
                remaining_depth=left,
            )
            filename, session_id, version = found.filename, found.session_id, found.version
        return None  # the last turn returned or raised

    async def _load(self, kv: KeyValue, place: Place, version: int | None) -> types.Part | None:
        found, content, is_large = kv.read(lambda view: _look(view, place, version, _SHORT_BYTES))
        if is_large:
            # In one snapshot again: a version may be deleted and come again with other content.
            found, content, _ = await asyncio.to_thread(
                kv.read, lambda view: _look(view, place, version, None)
            )
        return None if found is None else decode_part(found[1], content)

    @override
    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """The names of the session's artifacts and the user's, sorted.

        Those of the user begin with ``user:``, so each can be loaded by its name.

        Raises:
            InputValidationError: a name is not legal.
        """
        kv = self._kv(app_name, user_id)
        session = session_of(session_id)
        found: list[str] = []
        for owner in {session, None}:
            after: str | None = ""
            while after is not None:
                names, after = kv.read(
                    lambda view, owner=owner, after=after: names_of(view, owner, after)  # type: ignore[misc]
                )
                found += names
                if after is not None:
                    await asyncio.sleep(0)  # others may go on
        return sorted(found)

    @override
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """The numbers of the versions, ascending; empty if there is no such artifact.

        Raises:
            InputValidationError: a name is not legal.
        """
        kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
        return kv.read(lambda view: [number for number, _ in versions_of(view, place)])

    @override
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """What is known of each version, ascending.

        Raises:
            InputValidationError: a name is not legal.
        """
        kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
        found = kv.read(lambda view: list(versions_of(view, place)))
        return [_described(app_name, user_id, place, *version) for version in found]

    @override
    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """What is known of a version (None: the newest); None if there is none.

        Raises:
            InputValidationError: a name is not legal.
        """
        kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
        found = kv.read(lambda view: _version(view, place, version))
        return None if found is None else _described(app_name, user_id, place, *found)

    # --- deleting ---------------------------------------------------------------------------------

    @override
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions, and the contents that nothing else has; versions begin at 0 again.

        Some hundred versions go in one commit; of more, or large ones, the oldest go first.

        Raises:
            InputValidationError: a name is not legal.
        """
        kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
        newest = kv.read(lambda view: latest(view, place))
        if newest is None:
            return
        done = leaves_rows = False
        while not done:
            future = kv.submit(
                lambda txn: _delete(txn, place, newest[0]),
                asyncio.get_running_loop(),
                makes_room=True,
            )
            done, leaves = await settled(future)
            leaves_rows |= leaves
        if leaves_rows:
            await settled(in_thread(resume_removals, self._store))

    # --- handles ----------------------------------------------------------------------------------

    def _kv(self, app_name: str, user_id: str) -> KeyValue:
        found = self._handles.get((app_name, user_id))
        if found is None or self.database.backing.access is not None:
            artifact_util.validate_path_segment(app_name, "app_name")
            artifact_util.validate_path_segment(user_id, "user_id")
            if len(self._handles) >= _HANDLES_MAX:
                self._handles.clear()
            scope = self.database.scope(app=name_of(app_name), user=name_of(user_id))
            found = rows_of(scope, _NAMESPACE)
            self._handles[app_name, user_id] = found
        return found


def _stripped(session_id: str | None) -> str | None:
    """What references are compared with: of a user's artifact it may be any."""
    return session_id and session_id.strip()


def _saving(place: Place, row: Row, content: Content) -> Callable[[KeyValueTxn], int]:
    def closure(txn: KeyValueTxn) -> int:
        newest = latest(txn, place)
        version = 0 if newest is None else newest[0] + 1
        txn.put(place.key(version), row, content=content)
        return version

    return closure


def _version(view: KeyValueView, place: Place, version: int | None) -> tuple[int, Row] | None:
    if version is None:
        return latest(view, place)
    key = place.key(version) if 0 <= version <= VERSION_MAX else None
    row = None if key is None else view.get(key)
    return None if key is None or row is None else (version, row_of(key, row))


def _look(
    view: KeyValueView, place: Place, version: int | None, most: int | None
) -> tuple[tuple[int, Row] | None, bytes | None, bool]:
    """A version, its content, and whether that was left out because it has more bytes."""
    found = _version(view, place, version)
    if found is None:
        return None, None, False
    key = place.key(found[0])
    if most is not None and (view.content_size(key) or 0) > most:
        return found, None, True
    return found, view.content(key), False


def _delete(txn: KeyValueTxn, place: Place, newest: int) -> tuple[bool, bool]:
    """Delete a piece of the versions up to ``newest``; whether none is left, and rows of blobs."""
    piece = Piece()
    doomed: list[str] = []
    done = True
    for version, _ in versions_of(txn, place):
        key = place.key(version)
        pages = blobs.pages_of(txn.content_size(key) or 0)
        if version > newest:
            break
        if not piece.admits(0, more_pages=pages):
            done = False
            break
        doomed.append(key)
    for key in doomed:
        txn.delete(key)
    return done, txn.leaves_rows


def _described(
    app_name: str, user_id: str, place: Place, version: int, row: Row
) -> ArtifactVersion:
    session = "" if place.session_id is None else f"/sessions/{place.session_id}"
    uri = (
        f"memcore://apps/{app_name}/users/{user_id}{session}/artifacts/{place.filename}"
        f"/versions/{version}"
    )
    return ArtifactVersion(
        version=version,
        canonical_uri=uri,
        custom_metadata=row["metadata"],
        create_time=row["at"],
        mime_type=row["mime"],
    )
