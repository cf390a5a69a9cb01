"""MemcoreArtifactService: ADK's artifacts in a memcore file."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import (
    ArtifactVersion,
    BaseArtifactService,
    ensure_part,
)
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import override

from memcore import blobs
from memcore.adapters.adk.commit import Content, admitted_part, commit_with, in_thread
from memcore.adapters.adk.events import read_known
from memcore.adapters.adk.names import END, is_name, label, located, name_of
from memcore.adapters.adk.names import place_of as told_place
from memcore.adapters.source import Opened, Source, database_of
from memcore.aio.commit import settled
from memcore.codec.values import check_json, encode_json
from memcore.database.scope import rows_of, scope_filter_of
from memcore.errors import CorruptValueError
from memcore.kv import KeyValue, KeyValueTxn, KeyValueView
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX as _SHORT_BYTES
from memcore.records import record
from memcore.session.delete import resume_removals
from memcore.store.interface import DeleteBudget
from memcore.telemetry import adapting, adapts

__all__ = [
    "KINDS",
    "VERSION_MAX",
    "Encoded",
    "MemcoreArtifactService",
    "Place",
    "checked_part",
    "decode_part",
    "encode_part",
    "json_metadata",
    "latest",
    "names_of",
    "place_of",
    "row_of",
    "session_of",
    "versions_of",
]


# --- ADK parts as artifact rows and contents, and back --------------------------------------------

_INLINE_BYTES_MAX: Final = 256
"""Content up to this size stays in the row, since the blob's own rows would be as large."""
_REST_BYTES_MAX: Final = 8 * 1024
"""Maximum size of a part in its row, excluding content; a larger part is content as a whole."""
KINDS: Final = ("data", "text", "part", None)
"""The content of a part: its data, its text, the whole part, or nothing."""
_TOMBSTONE: Final = types.Part(
    inline_data=types.Blob(mime_type="application/octet-stream", data=b"")
)


class Encoded(NamedTuple):
    """A part in its stored form."""

    row: dict[str, Any]
    """``part``: JSON of everything except the content. ``kind``: the kind of content. ``content``:
    the content, if small. ``mime``: the artifact's MIME type."""
    content: bytes | None


def checked_part(
    part: object, *, app_name: str, user_id: str, session_id: str | None
) -> types.Part:
    """Check that a part can be stored, and return it.

    Raises:
        InputValidationError: it has no data, text or file, or its reference leaves the scope.
    """
    if not isinstance(part, types.Part):
        msg = f"Not supported artifact type: expected a Part or a dict, got {type(part).__name__}."
        raise InputValidationError(msg)
    if part.inline_data is None and part.text is None:
        if part.file_data is None:
            msg = "Not supported artifact type: expected inline_data, text or file_data."
            raise InputValidationError(msg)
        if artifact_util.is_artifact_ref(part):
            uri = part.file_data.file_uri or ""
            parsed = artifact_util.parse_artifact_uri(uri)
            if parsed is None:
                msg = f"Invalid artifact reference URI: {uri}"
                raise InputValidationError(msg)
            artifact_util.validate_artifact_reference_scope(
                app_name=app_name, user_id=user_id, session_id=session_id, parsed_uri=parsed
            )
    return part


def encode_part(part: types.Part) -> Encoded:
    """Encode a part as a row and its content.

    Raises:
        InputValidationError: a field is not JSON-serializable.
    """
    kind, content = _content(part)
    beside: dict[str, Any] = {"text": True} if kind == "text" else {"inline_data": {"data"}}
    try:
        rest = part.model_dump(mode="json", exclude_none=True, exclude=beside if kind else None)
        json.dumps(rest, ensure_ascii=False).encode()  # reject unpaired surrogates
        if kind is None or len(encode_json(rest)[0]) > _REST_BYTES_MAX:
            kind, content, rest = "part", part.model_dump_json(exclude_none=True).encode(), {}
    except (PydanticSerializationError, TypeError, ValueError) as error:
        msg = f"Not supported artifact type: a field of the part is no JSON: {error}"
        raise InputValidationError(msg) from error
    row: dict[str, Any] = {"part": rest, "kind": kind, "mime": _mime_type(part)}
    if content is not None and len(content) <= _INLINE_BYTES_MAX:
        row["content"] = b64encode(content).decode()
        content = None
    return Encoded(row, content)


def _content(part: types.Part) -> tuple[str | None, bytes | None]:
    if part.inline_data is not None and part.inline_data.data is not None:
        return "data", part.inline_data.data
    if part.text is not None:
        return "text", part.text.encode("utf-8", "surrogatepass")
    return None, None


def _mime_type(part: types.Part) -> str | None:
    if part.inline_data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    if part.file_data is not None and not artifact_util.is_artifact_ref(part):
        return part.file_data.mime_type
    return None  # that of its target


def decode_part(row: Mapping[str, Any], content: bytes | None) -> types.Part | None:
    """The part that ``encode_part`` encoded; None for the tombstone left by a rewind.

    Raises:
        CorruptValueError: the row or the content is incomplete.
    """
    try:
        payload = b64decode(row["content"]) if content is None else content
        if row["kind"] == "part":
            part = read_known(types.Part.model_validate, json.loads(payload), "an artifact")
        else:
            part = read_known(types.Part.model_validate, row["part"], "an artifact")
            if row["kind"] == "text":
                part.text = payload.decode("utf-8", "surrogatepass")
            elif part.inline_data is not None:
                part.inline_data.data = payload
    except (LookupError, ValueError, TypeError) as error:
        msg = f"the artifact under {row.get('name')!r} cannot be decoded: {error}; run check"
        raise CorruptValueError(msg, key=b"") from error
    return None if part == _TOMBSTONE else part


def json_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Convert custom metadata to JSON values, as they will be read back.

    Raises:
        InputValidationError: it is not a mapping, or not JSON-serializable.
    """
    if metadata is None:
        return {}
    try:
        found = to_jsonable_python(dict(metadata))
        check_json(found)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"custom_metadata must be JSON: {error}"
        raise InputValidationError(msg) from error
    return dict(found)


# --- Keys of the versions of an artifact: one entry each, in the order of their numbers -----------
# A key is the artifact's place, a NUL and the version in eight hex digits. The place of a user's
# artifact is ``u`` and the file; that of a session's is ``s``, the session, a NUL and the file.
# Session and file are encoded as labels, so no name can be mistaken for part of another, whatever
# characters it contains.

USER: Final = "user:"
_BEHIND: Final = "\x01"
_VERSION_CHARS: Final = 8
_HEX: Final = frozenset("0123456789abcdef")
VERSION_MAX: Final = 16**_VERSION_CHARS - 1
_SESSION_BYTES_MAX: Final = 150
_FILE_BYTES_MAX: Final = 300
"""Both, together with the separators, fit in a key."""
_PAGE: Final = 256

Row = dict[str, Any]


@record(frozen=True, slots=True)
class Place:
    """The address of an artifact: its session (None: the user's) and name without ``user:``."""

    session_id: str | None
    name: str

    @property
    def filename(self) -> str:
        """The name that refers to it from every session."""
        return self.name if self.session_id is not None else USER + self.name

    @property
    def start(self) -> str:
        """The key prefix of its versions."""
        return _beginning(self.session_id) + label(self.name, _FILE_BYTES_MAX) + END

    @property
    def is_told(self) -> bool:
        """True if the key contains the name itself rather than its digest."""
        return is_name(label(self.name, _FILE_BYTES_MAX))

    def key(self, version: int) -> str:
        """The key of a version."""
        return f"{self.start}{version:0{_VERSION_CHARS}x}"


def place_of(session_id: str | None, filename: str, *, saving: bool = False) -> Place:
    """The place of an artifact; it is the user's if named ``user:...`` or given no session.

    Raises:
        InputValidationError: the file name or the session id is invalid.
    """
    if not isinstance(filename, str):
        msg = f"filename must be a string, got {type(filename).__name__}."
        raise InputValidationError(msg)
    if filename.startswith(USER):
        return Place(None, filename[len(USER) :])
    found = session_of(session_id)
    if saving and found is not None and found.replace("\\", "/").split("/")[0] == "user":
        msg = "session_id must not be or start with the reserved value 'user'."
        raise InputValidationError(msg)
    return Place(found, filename)


def session_of(session_id: str | None) -> str | None:
    """Strip a session id.

    Raises:
        InputValidationError: it is invalid.
    """
    if session_id is None:
        return None
    artifact_util.validate_path_segment(session_id, "session_id")
    return session_id.strip()


def _beginning(session_id: str | None) -> str:
    return "u" if session_id is None else "s" + label(session_id, _SESSION_BYTES_MAX) + END


def row_of(key: str, found: Any) -> Row:
    """Validate the stored row of a version.

    Raises:
        CorruptValueError: it is malformed.
    """
    told = found if isinstance(found, dict) else {}
    at = told.get("at")
    is_sound = (
        told.get("kind", "") in KINDS
        and isinstance(told.get("part"), dict)
        and isinstance(told.get("metadata"), dict)
        and isinstance(told.get("mime", ()), str | None)
        and isinstance(told.get("content", ""), str)
        and isinstance(at, int | float)
        and not isinstance(at, bool)
        and isinstance(told.get("name", ""), str)
        and (is_name(_label_in(key)) or "name" in told)
    )
    if not is_sound:
        raise _damaged(key)
    return told


def _damaged(key: str) -> CorruptValueError:
    msg = f"the row of the artifact at {key!r:.200} is damaged; run 'memcore check'"
    return CorruptValueError(msg, key=b"")


def latest(view: KeyValueView, place: Place) -> tuple[int, Row] | None:
    """The number and row of the newest version; None if the artifact does not exist."""
    for key, row in view.scan(prefix=place.start, reverse=True, limit=1):
        return _version_in(key), row_of(key, row)
    return None


def versions_of(view: KeyValueView, place: Place) -> Iterator[tuple[int, Row]]:
    """The versions in ascending order."""
    for key, row in view.scan(prefix=place.start):
        yield _version_in(key), row_of(key, row)


def _version_in(key: str) -> int:
    told = key[-_VERSION_CHARS:]
    if len(told) != _VERSION_CHARS or not set(told) <= _HEX:
        raise _damaged(key)
    return int(told, 16)


def _label_in(key: str) -> str:
    """The file's label in a key."""
    return key[: -_VERSION_CHARS - 1].rpartition(END)[2].removeprefix("u")


def names_of(
    view: KeyValueView, session_id: str | None, after: str | None
) -> tuple[list[str], str | None]:
    """Up to 256 artifact names of a session or the user, and the key to resume from.

    Each name costs one lookup of its first version, regardless of how many versions exist.
    """
    start = _beginning(session_id)
    found: list[str] = []
    while len(found) < _PAGE:
        first = next(view.scan(after or "", prefix=start, limit=1), None)
        if first is None:
            return found, None
        key, row = first
        _version_in(key)
        name = key[len(start) : -_VERSION_CHARS - 1]
        told = name[1:] if is_name(name) else row_of(key, row)["name"]
        found.append(Place(session_id, told).filename)
        after = key[: -_VERSION_CHARS - 1] + _BEHIND
    return found, after


# --- MemcoreArtifactService: ADK's artifacts in a memcore file ------------------------------------

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
    """Versioned ADK artifacts in a memcore file.

    A version is committed together with its content, and versions saved concurrently by any threads
    and processes get consecutive numbers. Equal contents are stored once across all sessions and
    artifacts of a user. Contents above 192 KiB are written and read in a thread, in short
    transactions.

    Args:
        source: an open Database or AsyncDatabase, or the path of a file (which ``close`` closes).
        durability: the durability of a file that is opened by its path (see ``memcore.open``).
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.
        uri: in place of ``source``: ``memcore:///path``, with options in its query, as ADK's
            ``services.yaml`` passes it.
        agents_dir: ignored; ADK passes it to every service.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
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
        self._store = self.database.engine.store
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
        """Store a new version; return its number, starting from 0.

        Args:
            app_name: the application.
            user_id: the user.
            filename: any name; one that begins with ``user:`` is shared by the user's sessions.
            artifact: a Part or dict with data, text or a file's URI.
            session_id: the session; None: the artifact is the user's.
            custom_metadata: JSON to store with the version.
            idempotency_key: within a week, the same key saves the same artifact only once; a retry
                returns the number of the first call.

        Raises:
            DuplicateRequestError: the key was used for another artifact.
            InputValidationError: a name, the artifact or the metadata is invalid.
        """
        place = place_of(session_id, filename, saving=True)
        given = ensure_part(artifact)
        kv = self._kv(app_name, user_id)
        part = checked_part(
            given, app_name=app_name, user_id=user_id, session_id=_stripped(session_id)
        )
        scope_filter = scope_filter_of(self.database.scope(app=app_name, user=user_id))
        if scope_filter is not None:
            scope_filter.name(filename, "name of an artifact")
            part = admitted_part(scope_filter, part)
        row, content = encode_part(part)
        once_by = None
        if idempotency_key is not None:
            told = (place.start, row, json_metadata(custom_metadata))
            said = repr(told).encode("utf-8", "surrogatepass") + (content or b"")
            once_by = idempotency_key, blake2b(said, digest_size=32).digest()
        # Take the time as ADK's own services do, so that users' tests can freeze it.
        row["at"] = ArtifactVersion(version=0, canonical_uri="").create_time
        metadata = json_metadata(custom_metadata)
        row["metadata"] = (
            metadata
            if scope_filter is None
            else scope_filter.value(metadata, "artifact", name=filename)
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

        References to other artifacts are followed.

        Raises:
            InputValidationError: a name is invalid, or a reference leaves the scope or is circular.
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
        return None  # unreachable: the last iteration returned or raised

    async def _load(self, kv: KeyValue, place: Place, version: int | None) -> types.Part | None:
        found, content, is_large = kv.read(lambda view: _look(view, place, version, _SHORT_BYTES))
        if is_large:
            # Read both again in one snapshot: a version may be deleted and recreated with other
            # content.
            found, content, _ = await asyncio.to_thread(
                kv.read, lambda view: _look(view, place, version, None)
            )
        return None if found is None else decode_part(found[1], content)

    @override
    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """The names of the session's artifacts and the user's, sorted.

        Those of the user begin with ``user:``, so each artifact can be loaded by its name.

        Raises:
            InputValidationError: a name is invalid.
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
                    await asyncio.sleep(0)  # yield to other tasks
        return sorted(found)

    @override
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """The version numbers, ascending; empty if the artifact does not exist.

        Raises:
            InputValidationError: a name is invalid.
        """
        kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
        return kv.read(lambda view: [number for number, _ in versions_of(view, place)])

    @override
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """List the metadata of each version, ascending.

        Raises:
            InputValidationError: a name is invalid.
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
        """The metadata of a version (None: the newest); None if there is none.

        Raises:
            InputValidationError: a name is invalid.
        """
        kv, place = self._kv(app_name, user_id), place_of(session_id, filename)
        found = kv.read(lambda view: _version(view, place, version))
        return None if found is None else _described(app_name, user_id, place, *found)

    # --- deleting ---------------------------------------------------------------------------------

    @override
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions, and contents not used elsewhere; numbering restarts at 0.

        A few hundred versions are deleted per commit; more, or large ones, take several, oldest
        first.

        Raises:
            InputValidationError: a name is invalid.
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
        if found is None or self.database.engine.access is not None:
            artifact_util.validate_path_segment(app_name, "app_name")
            artifact_util.validate_path_segment(user_id, "user_id")
            if len(self._handles) >= _HANDLES_MAX:
                self._handles.clear()
            scope = self.database.scope(app=name_of(app_name), user=name_of(user_id))
            found = rows_of(scope, _NAMESPACE)
            self._handles[app_name, user_id] = found
        return found


def _stripped(session_id: str | None) -> str | None:
    """The session id as compared with references; for a user's artifact any id is valid."""
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
    """A version, its content, and whether the content was omitted as larger than ``most`` bytes."""
    found = _version(view, place, version)
    if found is None:
        return None, None, False
    key = place.key(found[0])
    if most is not None and (view.content_size(key) or 0) > most:
        return found, None, True
    return found, view.content(key), False


def _delete(txn: KeyValueTxn, place: Place, newest: int) -> tuple[bool, bool]:
    """Delete a batch of versions up to ``newest``; return ``(done, leaves_blob_rows)``."""
    piece = DeleteBudget()
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
