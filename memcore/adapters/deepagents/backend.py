"""MemcoreBackend: DeepAgents' files in one memcore file."""

from __future__ import annotations

import asyncio
import os
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any, Final, Self, TypeAlias

from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import (
    InvalidGlobPatternError,
    _get_backend_read_file_type,
    compile_grep_include_glob,
    file_data_to_string,
    perform_string_replacement,
    slice_read_response,
)
from langgraph.runtime import get_runtime
from wcmatch import glob as wcglob

from memcore.adapters.deepagents.files import (
    Files,
    Listing,
    Once,
    Repeated,
    Upload,
    once_of,
    rooted,
)
from memcore.adapters.deepagents.rows import FileRow, encoding_of, need_form
from memcore.adapters.source import Opened, Source, scope_of
from memcore.database import open_database
from memcore.database.scope import rows_of, scope_filter_of
from memcore.errors import (
    BlockedError,
    InvalidItemError,
    InvalidOptionError,
    OptedOutError,
    ReadOnlyError,
    StorageError,
)
from memcore.options import checked_bool
from memcore.privacy.write_filter import ScopeFilter
from memcore.telemetry import adapting, adapts

__all__ = [
    "REFUSED",
    "MemcoreBackend",
    "Namespace",
    "lines_with",
    "matched",
    "named",
    "put_all",
    "relative",
]


# --- Search: paths that match a glob, and lines that contain a text -------------------------------

_PATTERNS: Final = 32
"""Globs whose results are cached."""
_PATHS_KEPT: Final = 10_000


def relative(path: str, root: str) -> str:
    """A path relative to a search root, which may be the file itself."""
    if root == "/":
        return path[1:]
    if path == root:
        return path.rpartition("/")[2]
    return path[len(root) + 1 :]


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], object]:
    # DeepAgents' matcher validates the pattern and raises its own errors. It is not used per path,
    # because its per-path overhead (an object, a PurePosixPath) dominates a search over many paths.
    compile_grep_include_glob(pattern)
    flags = wcglob.BRACE | wcglob.GLOBSTAR
    alternatives = [
        re.compile(text) for text in wcglob.translate(pattern.lstrip("/"), flags=flags)[0]
    ]
    if len(alternatives) == 1:
        matches: Callable[[str], object] = alternatives[0].fullmatch
    else:

        def matches(name: str) -> bool:
            return any(found.fullmatch(name) for found in alternatives)

    if "/" in pattern:
        return matches

    def matches_name(path: str) -> object:
        name = path[path.rfind("/") + 1 :]
        if name in {"", "."}:
            name = PurePosixPath(path).name
        return matches(name)

    return matches_name


class _Verdicts(dict[str, bool]):
    """A cache of which paths a glob includes; the matcher runs once per path."""

    def __init__(self, pattern: str, root: str) -> None:
        super().__init__()
        self._matches = _matcher(pattern)
        self._root = root

    def __missing__(self, path: str) -> bool:
        found = self[path] = bool(self._matches(relative(path, self._root)))
        return found


_verdicts = lru_cache(maxsize=_PATTERNS)(_Verdicts)


def matched(pattern: str, paths: list[str], root: str) -> list[str]:
    """The paths under ``root`` that a glob includes, according to DeepAgents' matcher.

    Raises:
        InvalidGlobPatternError: the matcher rejects the pattern.
    """
    verdicts = _verdicts(pattern, root)
    if len(verdicts) > 2 * len(paths) + _PATHS_KEPT:
        verdicts.clear()  # most of them belong to deleted files or other namespaces
    return [path for path in paths if verdicts[path]]


def lines_with(pattern: str, path: str, text: str) -> list[GrepMatch]:
    """The lines of a text that contain ``pattern``."""
    return [
        {"path": path, "line": number, "text": line}
        for number, line in enumerate(text.split("\n"), 1)
        if pattern in line
    ]


# --- The namespace of files of a call -------------------------------------------------------------

Namespace: TypeAlias = str | tuple[str, ...] | Callable[[Any], str | tuple[str, ...]]
"""A name, a tuple of names, or a function of the LangGraph runtime that returns either."""

_LEGAL: Final = re.compile(r"[A-Za-z0-9\-_.@+:~]+", re.ASCII)
_PREFIX: Final = "deepagents:"


def named(namespace: Namespace) -> str:
    """The key/value namespace for the current call.

    Raises:
        InvalidOptionError: it is empty, not of strings, or has characters that StoreBackend
            rejects.
        RuntimeError: the function reads the runtime, and the call is outside a graph.
    """
    given: Any = _called(namespace) if callable(namespace) else namespace
    parts = (given,) if isinstance(given, str) else given
    if not isinstance(parts, tuple) or not parts:
        msg = f"namespace: expected a str or a tuple of them that is not empty, got {given!r:.100}"
        raise InvalidOptionError(msg)
    for part in parts:
        if not isinstance(part, str) or not _LEGAL.fullmatch(part):
            msg = (
                f"namespace: expected letters, digits and - _ . @ + : ~ in each part, got "
                f"{part!r:.100}"
            )
            raise InvalidOptionError(msg)
    return _PREFIX + "/".join(parts)


def _called(namespace: Callable[[Any], Any]) -> Any:
    try:
        runtime: Any = get_runtime()
    except (RuntimeError, KeyError):
        runtime = None
    try:
        return namespace(runtime)
    except AttributeError as error:
        if runtime is not None:
            raise
        msg = (
            "the namespace function reads the runtime, which there is only inside a LangGraph "
            "graph: call the backend from an agent, or give a namespace that needs none"
        )
        raise RuntimeError(msg) from error


# --- Whole-file writes: many files in one commit, redacted where the scope redacts ----------------

REFUSED: Final = (
    BlockedError, InvalidItemError, OptedOutError, ReadOnlyError, StorageError, UnicodeEncodeError,
)  # fmt: skip
"""Errors reported to the model, as in DeepAgents; all others are bugs and propagate."""
_UPLOAD_BYTES: Final = 4 * 1024**2
"""Total size up to which files of one upload share a commit."""


def put_all(
    files: Files, scope_filter: ScopeFilter | None, uploads: Sequence[Upload]
) -> list[FileUploadResponse]:
    """Store whole files; return one response per file, with the error if it was refused."""
    responses: list[FileUploadResponse] = []
    at = 0
    if scope_filter is not None:
        uploads = [_admitted(scope_filter, upload) for upload in uploads]
    while at < len(uploads):
        stop, size = at + 1, len(uploads[at].payload)
        while stop < len(uploads) and size + len(uploads[stop].payload) <= _UPLOAD_BYTES:
            size += len(uploads[stop].payload)
            stop += 1
        batch, error = uploads[at:stop], None
        try:
            times = Counter(one.path for one in batch)
            # A path that occurs several times is written in order.
            whole = [
                one
                for one in batch
                if one.modified_at or times[one.path] > 1 or not files.grown(one)
            ]
            if whole:
                files.put(whole)
        except REFUSED as refused:
            error = "permission_denied" if isinstance(refused, ReadOnlyError) else str(refused)
        responses += [FileUploadResponse(path=one.path, error=error) for one in batch]
        at = stop
    return responses


def _admitted(scope_filter: ScopeFilter, upload: Upload) -> Upload:
    """Filter an entire file before it is stored."""
    scope_filter.name(upload.path, "path of a file")
    payload = scope_filter.bytes(upload.payload, "file")
    return upload if payload is upload.payload else replace(upload, payload=payload)


# --- MemcoreBackend: DeepAgents' files in one memcore file ----------------------------------------

_ATTEMPTS: Final = 100
_NAMESPACES: Final = 64
"""Namespaces whose file rows a backend keeps in memory."""


@adapts(
    ls="file.list",
    glob="file.list",
    grep="file.search",
    read="file.get",
    download_files="file.get . count",
    write="file.put . single",
    append="file.put . single",
    aappend="file.put . single",
    edit="file.put . single",
    delete="file.delete",
    upload_files="file.put . entries",
    import_files="file.put . entries",
)
class MemcoreBackend(Opened, BackendProtocol):
    """DeepAgents' files in one memcore file: durable, shared by threads and processes.

    Args:
        source: an open Database, a Scope, or the path of a file, which the backend opens and
            closes.
        namespace: the namespace of the files: a name, a tuple of names, or a function of the
            LangGraph runtime that returns either, called for each operation.
        app, user: the owner of the files, unless ``source`` is a Scope.
        memory: True for long-term memory: for a user who opted out (``opt_out_memory``), writes
            return an error and no files are found. False: working files.

    Raises:
        InvalidOptionError: ``source`` is none of these, or a Scope is combined with ``app`` or
            ``user``.
    """

    def __init__(
        self,
        source: Source,
        *,
        namespace: Namespace = "files",
        app: str | None = None,
        user: str | None = None,
        memory: bool = True,
    ) -> None:
        self._memory = checked_bool("memory", memory)
        self._name = None if callable(namespace) else named(namespace)
        self._scope, self._owned = scope_of(source, app=app, user=user)
        self._namespace = namespace
        self._spaces: dict[str, Files] = {}
        place = (self._scope.app, self._scope.user, None)
        self.observer = adapting(source, "deepagents", place)

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        *,
        namespace: Namespace = "files",
        app: str | None = None,
        user: str | None = None,
        memory: bool = True,
        **options: Any,
    ) -> Self:
        """A backend that owns the file at ``path``; ``options`` are those of ``memcore.open``.

        Raises:
            As ``memcore.open``.
        """
        db = open_database(path, **options)
        try:
            made = cls(db, namespace=namespace, app=app, user=user, memory=memory)
        except BaseException:
            db.close()
            raise
        made._owned = db
        return made

    def __repr__(self) -> str:
        return f"MemcoreBackend({self._scope!r}, namespace={self._namespace!r})"

    @property
    def _files(self) -> Files:
        name = self._name or named(self._namespace)
        found = self._spaces.get(name)
        if found is None:
            kv = rows_of(self._scope, name, memory=self._memory)
            found = self._spaces.setdefault(name, Files(kv))
            for other in list(self._spaces)[:-_NAMESPACES]:
                self._spaces.pop(other, None)
        return found

    def _admitted(self, text: str, path: str) -> str:
        """Filter a text before it is stored."""
        scope_filter = scope_filter_of(self._scope)
        if scope_filter is None:
            return text
        scope_filter.name(path, "path of a file")
        return scope_filter.text(text, "file")

    def _stored(self, text: str) -> str:
        """A text as it would appear in a redacted file."""
        scope_filter = scope_filter_of(self._scope)
        return text if scope_filter is None else scope_filter.again(text)

    # --- looking ----------------------------------------------------------------------------------

    def ls(self, path: str) -> LsResult:
        """List the files and directories directly in a directory; directories end in ``/``."""
        try:
            return LsResult(entries=self._files.look(lambda listing: listing.entries(path)))
        except StorageError as error:
            return LsResult(error=f"Error listing '{path}': {error}")

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """The files under ``path`` that match a pattern, most recently modified first."""
        root = rooted(path)
        if root is None:
            return GlobResult(matches=[])

        def found(listing: Listing) -> list[FileInfo]:
            return listing.told(matched(pattern, listing.found_under(root), root))

        try:
            matches = self._files.look(found)
        except InvalidGlobPatternError as error:
            return GlobResult(error=str(error))
        except StorageError as error:
            return GlobResult(error=f"Error globbing path '{root}': {error}")
        matches.sort(key=itemgetter("modified_at"), reverse=True)
        return GlobResult(matches=matches)

    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        max_count: int | None = None,
    ) -> GrepResult:
        """The lines that contain ``pattern``, with files in path order."""
        root = rooted(path)
        if root is None:
            return GrepResult(matches=[])
        files = self._files

        def searched(listing: Listing) -> list[tuple[str, FileRow]]:
            paths = listing.found_under(root)
            return listing.rows(matched(glob, paths, root) if glob else paths)

        matches: list[GrepMatch] = []
        try:
            for one, row in files.look(searched):
                text = _text_of(files, one, row)
                if text is None or pattern not in text:
                    continue
                matches += lines_with(pattern, one, text)
                if max_count is not None and len(matches) > max_count:
                    return GrepResult(matches=matches[:max_count], truncated=True)
        except InvalidGlobPatternError as error:
            return GrepResult(error=str(error))
        except StorageError as error:
            return GrepResult(error=f"Error searching path '{root}': {error}")
        return GrepResult(matches=matches)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Lines of a file, or the whole file if its name indicates that it is not text."""
        try:
            found = self._files.file(file_path)
        except StorageError as error:
            return ReadResult(error=f"Error reading file '{file_path}': {error}")
        if found is None:
            return ReadResult(error=f"File '{file_path}' not found")
        data = _file_data(*found)
        if _get_backend_read_file_type(file_path) != "text":
            return ReadResult(file_data=data)
        return slice_read_response(data, offset, limit)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Whole files as bytes, one response per path."""
        files, responses = self._files, []
        for path in paths:
            try:
                found = files.payload(path)
            except StorageError as error:
                responses.append(FileDownloadResponse(path=path, error=str(error)))
                continue
            if found is None:
                responses.append(FileDownloadResponse(path=path, error="file_not_found"))
            else:
                responses.append(FileDownloadResponse(path=path, content=found[1]))
        return responses

    # --- changing ---------------------------------------------------------------------------------

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or overwrite a file; if it only grew, only the new suffix is written."""
        files = self._files
        try:
            upload = Upload(file_path, self._admitted(content, file_path).encode("utf-8"), "utf-8")
            if not files.grown(upload):
                files.put([upload])
        except REFUSED as error:
            return WriteResult(error=f"Error writing file '{file_path}': {error}")
        return WriteResult(path=file_path)

    def append(
        self, file_path: str, content: str, *, idempotency_key: str | None = None
    ) -> WriteResult:
        """Append text to a file, creating it if missing; the cost depends only on the text's size.

        Within a week, a repeated ``idempotency_key`` with the same text has no further effect.
        """
        files, once = self._files, once_of(idempotency_key, "append", file_path, content)
        try:
            more = self._admitted(content, file_path).encode("utf-8")
            for _ in range(_ATTEMPTS):
                row = files.row(file_path)
                if row is None:
                    done = files.create(Upload(file_path, more, "utf-8"), once=once)
                elif row.encoding == "base64":
                    # A repeated request may find a file that others have replaced since.
                    told = once is not None and files.told(once) is not None
                    return WriteResult(path=file_path) if told else WriteResult(error=_BINARY)
                elif scope_filter_of(self._scope) is not None:
                    done = self._lengthen(files, file_path, content, once)
                else:
                    done = files.grow(file_path, row, more, once=once)
                if done:
                    return WriteResult(path=file_path)
        except Repeated:
            return WriteResult(path=file_path)
        except REFUSED as error:
            return WriteResult(error=f"Error writing file '{file_path}': {error}")
        return WriteResult(error=_contended(file_path))

    def _lengthen(self, files: Files, path: str, more: str, once: Once | None) -> bool:
        """Append text under a content filter, which is applied to the whole resulting text."""
        found = files.file(path)
        if found is None:
            return False
        row, text = found
        return files.turn(path, row, text, self._admitted(text + more, path), once=once)

    async def aappend(
        self, file_path: str, content: str, *, idempotency_key: str | None = None
    ) -> WriteResult:
        """As ``append``."""
        return await asyncio.to_thread(
            self.append, file_path, content, idempotency_key=idempotency_key
        )

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,
        *,
        idempotency_key: str | None = None,
    ) -> EditResult:
        """Replace text in a file by compare-and-set, retrying if the file changed meanwhile.

        Within a week, a repeated ``idempotency_key`` with the same edit has no further effect.
        """
        files = self._files
        once = once_of(idempotency_key, "edit", file_path, old_string, new_string, replace_all)
        try:
            if once is not None and (told := files.told(once)) is not None:
                raise Repeated(told)
            for _ in range(_ATTEMPTS):
                found = files.file(file_path)
                if found is None:
                    return EditResult(error=f"Error: File '{file_path}' not found")
                row, text = found
                if old_string not in text:
                    old_string = self._stored(old_string)
                made = (
                    _BINARY
                    if row.encoding == "base64"
                    else perform_string_replacement(text, old_string, new_string, replace_all)
                )
                if isinstance(made, str):
                    if once is not None and (told := files.told(once)) is not None:
                        raise Repeated(told)  # a concurrent request with the same key came first
                    return EditResult(error=made)
                noted = once and replace(once, result=int(made[1]))
                if files.turn(file_path, row, text, self._admitted(made[0], file_path), once=noted):
                    return EditResult(path=file_path, occurrences=int(made[1]))
        except Repeated as again:
            return EditResult(path=file_path, occurrences=again.result)
        except REFUSED as error:
            return EditResult(error=f"Error editing file '{file_path}': {error}")
        return EditResult(error=_contended(file_path))

    async def aedit(self, *args: Any, **options: Any) -> EditResult:
        """As ``edit``."""
        return await asyncio.to_thread(self.edit, *args, **options)

    def delete(self, file_path: str) -> DeleteResult:
        """Remove a file, or a directory recursively."""
        try:
            if not self._files.delete(file_path):
                return DeleteResult(error=f"Error: File '{file_path}' not found")
        except REFUSED as error:
            return DeleteResult(error=f"Error deleting '{file_path}': {error}")
        return DeleteResult(path=file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store whole files from bytes.

        Content that is not UTF-8 is stored as binary. Small files share a commit.
        """
        uploads = [Upload(path, payload, encoding_of(payload)) for path, payload in files]
        return put_all(self._files, scope_filter_of(self._scope), uploads)

    def import_files(self, files: Mapping[str, FileData]) -> list[FileUploadResponse]:
        """Store files in the format of StateBackend and StoreBackend, keeping their timestamps.

        The older format, with content as a list of lines, is accepted, too.
        """
        uploads, refused = [], {}
        for path, data in files.items():
            encoding = data.get("encoding") or "utf-8"
            times = data.get("created_at"), data.get("modified_at")
            try:
                need_form(encoding, *times)
                text = file_data_to_string(data)
                binary = encoding == "base64"
                payload = b64decode(text, validate=True) if binary else text.encode("utf-8")
            except (KeyError, TypeError, ValueError) as error:
                refused[path] = FileUploadResponse(path=path, error=str(error))
                continue
            uploads.append(Upload(path, payload, encoding, *times))
        done = {
            response.path: response
            for response in put_all(self._files, scope_filter_of(self._scope), uploads)
        }
        return [refused.get(path) or done[path] for path in files]


_BINARY: Final = "Error: Cannot edit binary files with text replacements."


def _contended(path: str) -> str:
    return f"Error: File '{path}' was changed by others {_ATTEMPTS} times meanwhile; try again."


def _text_of(files: Files, path: str, row: FileRow) -> str | None:
    """The text of a file that was just at ``row``; None if it is binary or was deleted."""
    if row.encoding == "base64":
        return None
    text = files.kept(row)
    if text is None:
        found = files.file(path)
        text = found[1] if found is not None and found[0].encoding != "base64" else None
    return text


def _file_data(row: FileRow, text: str) -> FileData:
    data = FileData(content=text, encoding=row.encoding)
    if row.created_at is not None:
        data["created_at"] = row.created_at
    if row.modified_at is not None:
        data["modified_at"] = row.modified_at
    return data
