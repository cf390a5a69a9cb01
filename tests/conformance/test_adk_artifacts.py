"""MemcoreArtifactService: the contract of ADK's artifacts, held against its own services."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.adk.artifacts import FileArtifactService, InMemoryArtifactService
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import memcore
from memcore.adapters.adk import MemcoreArtifactService
from memcore.codec.keys import Kind
from memcore.errors import CorruptValueError
from raw import rows

EXAMPLES = int(os.environ.get("MEMCORE_ADK_EXAMPLES", "25"))
AT = {"app_name": "app", "user_id": "u", "session_id": "s", "filename": "f"}
MEGABYTES = 20 * 1024**2


def text(content: str) -> types.Part:
    return types.Part(text=content)


def blob(content: bytes, mime: str = "image/png", **fields: Any) -> types.Part:
    return types.Part(inline_data=types.Blob(mime_type=mime, data=content, **fields))


def reference(uri: str) -> types.Part:
    return types.Part(file_data=types.FileData(file_uri=uri))


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


@pytest.fixture
def durability() -> str:
    return "none"


@pytest.fixture
def service(db) -> MemcoreArtifactService:
    return MemcoreArtifactService(db)


def save(service: BaseArtifactService, part: Any, **at: Any) -> int:
    return run(service.save_artifact(**{**AT, **at}, artifact=part))


def load(service: BaseArtifactService, **at: Any) -> types.Part | None:
    return run(service.load_artifact(**{**AT, **at}))


def blob_rows(db: memcore.Database, *kinds: int) -> list[bytes]:
    return [key for key in rows(db.engine.store) if key[0] in (kinds or (Kind.BLOB,))]


# --- against ADK's own ----------------------------------------------------------------------------

NAMES = ["f", "f/g", "user:f", "user:user:f", "user:", "", " f", "文件.txt", "f\x00g", "n" * 400]
NAMES += ["a=b", "#f", "u", "f\x01", "..", "a\\b"]
SESSIONS = ["s", "sessions2", "会話", "s" * 300, "=", "a=b"]
PARTS = [
    text("hello"),
    text(""),
    text("x" * 1000),
    text("\ud800 half a pair"),
    types.Part(text="thought", thought=True, thought_signature=bytes(range(256))),
    blob(b"\x89PNG\r\n"),
    blob(b"\x00" * 1000, display_name="Zeros (final).bin"),
    blob(b"", "image/png"),
    blob(b"", "application/octet-stream"),  # what a rewind leaves of a new artifact
    types.Part(inline_data=types.Blob(mime_type="image/png")),
    types.Part(inline_data=types.Blob(data=b"no type")),
    types.Part(text="both", inline_data=types.Blob(mime_type="a/b", data=b"x" * 300)),
    types.Part(text="large beside", thought_signature=bytes(20_000)),
    types.Part(
        inline_data=types.Blob(mime_type="video/mp4", data=b"v"),
        video_metadata=types.VideoMetadata(fps=2.5, start_offset="1.5s"),
    ),
    types.Part(file_data=types.FileData(file_uri="gs://bucket/f", mime_type="text/html")),
    types.Part(file_data=types.FileData(file_uri="")),
    {"inlineData": {"mimeType": "image/png", "data": "dGVzdF9pbWFnZV9kYXRh"}},
    {"inline_data": {"mime_type": "image/png", "data": b"\x89PNG"}},
    {"text": "from a dict"},
    {"unknown": 1},
    types.Part(),
    types.Part(function_call=types.FunctionCall(name="f")),
    reference("artifact://apps/app/users/u/sessions/s/artifacts/f/versions/0"),
    reference("artifact://apps/app/users/u/artifacts/user:f/versions/1"),
    reference("artifact://apps/app/users/other/artifacts/user:f/versions/0"),
    reference("artifact://apps/other/users/u/artifacts/user:f/versions/0"),
    reference("artifact://apps/app/nonsense"),
]
METADATA = [None, {}, {"k": "v", "n": [1, 2.5, None, {"deep": True}]}, {"": 2**70}]
ODD_IDS = ["", " ", "..", "a/../b", "/abs", "\\abs", "C:x", "a\x00b", "x/users/y", "user", "user/x"]
ODD_IDS += ["group/user1", "."]

ids = st.sampled_from(["app", "app2"]), st.sampled_from(["u", "u2"])
place = st.fixed_dictionaries(
    {
        "app_name": ids[0] | st.sampled_from(ODD_IDS),
        "user_id": ids[1] | st.sampled_from(ODD_IDS),
        "session_id": st.sampled_from(SESSIONS) | st.sampled_from(ODD_IDS),
        "filename": st.sampled_from(NAMES),
    }
) | st.fixed_dictionaries(
    {
        "app_name": st.just("app"),
        "user_id": st.just("u"),
        "session_id": st.just("s"),
        "filename": st.sampled_from(["f", "user:f"]),
    }
)
versions = st.none() | st.integers(-1, 4)
operation = (
    st.tuples(
        st.just("save_artifact"),
        place,
        st.fixed_dictionaries(
            {"artifact": st.sampled_from(PARTS), "custom_metadata": st.sampled_from(METADATA)}
        ),
    )
    | st.tuples(
        st.sampled_from(["load_artifact", "get_artifact_version"]),
        place,
        st.fixed_dictionaries({"version": versions}),
    )
    | st.tuples(
        st.sampled_from(["delete_artifact", "list_versions", "list_artifact_versions"]),
        place,
        st.just({}),
    )
    | st.tuples(st.just("list_artifact_keys"), place, st.just({}))
)


async def outcome(service: BaseArtifactService, name: str, at: dict, more: dict) -> Any:
    """What a call returned or raised, without what differs on purpose."""
    given = {**at, **more}
    if name == "list_artifact_keys":
        del given["filename"]
    try:
        found = await getattr(service, name)(**given)
    except (InputValidationError, ValidationError) as error:
        message = str(error)
        return type(error).__name__, message if "must not" in message or "scope" in message else ""
    if name == "list_artifact_versions":
        return [described(version) for version in found]
    return described(found) if name == "get_artifact_version" and found else found


def described(version: Any) -> dict[str, Any]:
    fields = version.model_dump(exclude={"create_time"})
    scheme, _, rest = fields.pop("canonical_uri").partition("://")
    assert scheme in ("memory", "memcore")
    return {**fields, "uri": rest}


@settings(max_examples=EXAMPLES, deadline=None)
@example([("save_artifact", {**AT, "user_id": ""}, {"artifact": {"unknown": 1}})])
@given(st.lists(operation, min_size=1, max_size=30))
def test_every_call_is_answered_as_by_the_service_in_memory(operations) -> None:
    async def main() -> None:
        theirs = InMemoryArtifactService()
        with memcore.open(":memory:") as db:
            ours = MemcoreArtifactService(db)
            for name, at, more in operations:
                expected = await outcome(theirs, name, at, more)
                assert await outcome(ours, name, at, more) == expected, (name, at, more)
            assert db.check() == []

    run(main())


def test_names_that_run_together_elsewhere_are_apart_here(service) -> None:
    """In memory the session and the file are joined with a slash, so these are one artifact."""
    save(service, text("one"), session_id="a/b", filename="c")
    save(service, text("two"), session_id="a", filename="b/c")
    assert load(service, session_id="a/b", filename="c") == text("one")
    assert load(service, session_id="a", filename="b/c") == text("two")


def test_without_a_session_an_artifact_is_the_users(service, tmp_path) -> None:
    """As the base class says and the service over files does; that in memory refuses it."""
    theirs = FileArtifactService(tmp_path / "files")
    for one in (service, theirs):
        assert save(one, text("mine"), session_id=None) == 0
        assert save(one, text("mine, too"), filename="user:f") == 1
        assert load(one, filename="user:f", version=0) == text("mine")
        assert load(one, session_id=None) == text("mine, too")
        assert load(one) is None
    at = {"app_name": "app", "user_id": "u"}
    # Over files the last name that it was saved under is told: from a session not all load.
    assert run(service.list_artifact_keys(**at, session_id="s")) == ["user:f"]
    assert run(service.list_artifact_keys(**at)) == ["user:f"]
    assert run(theirs.list_artifact_keys(**at)) == ["user:f"]


def test_session_ids_are_stripped(service) -> None:
    save(service, text("x"), session_id=" s\t")
    assert load(service, session_id="s") == text("x")
    with pytest.raises(InputValidationError, match="reserved value 'user'"):
        save(service, text("x"), session_id=" user ")


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2**32, 2**64, 10**600, -1])
def test_a_version_that_cannot_be_is_not_there(service, version) -> None:
    save(service, text("x"))
    assert load(service, version=version) is None
    assert run(service.get_artifact_version(**AT, version=version)) is None


def test_what_was_handed_out_or_in_is_nobody_elses(service) -> None:
    part, metadata = text("first"), {"list": [1]}
    run(service.save_artifact(**AT, artifact=part, custom_metadata=metadata))
    part.text = "changed"
    metadata["list"].append(2)
    found = load(service)
    assert found == text("first")
    found.text = "changed"
    assert load(service) == text("first")
    version = run(service.get_artifact_version(**AT))
    assert version.custom_metadata == {"list": [1]}
    version.custom_metadata["list"].append(2)
    assert run(service.get_artifact_version(**AT)).custom_metadata == {"list": [1]}


def test_the_time_of_a_version_comes_back_exactly(service, monkeypatch) -> None:
    from google.adk.artifacts import base_artifact_service

    times = iter([1_700_000_000.123456, 1_600_000_000.1])  # clocks may go backwards
    monkeypatch.setattr(base_artifact_service.platform_time, "get_time", lambda: next(times))
    save(service, text("a"))
    save(service, text("b"))
    monkeypatch.undo()
    found = run(service.list_artifact_versions(**AT))
    assert [(one.version, one.create_time) for one in found] == [
        (0, 1_700_000_000.123456),
        (1, 1_600_000_000.1),
    ]


def test_versions_begin_at_0_again_after_a_deletion(service, db) -> None:
    for number in range(300):
        assert save(service, text(f"version {number} " + "x" * 300)) == number
    save(service, text("of another"), filename="f/g")
    run(service.delete_artifact(**AT))
    assert run(service.list_versions(**AT)) == []
    assert save(service, text("anew")) == 0
    assert load(service, filename="f/g") == text("of another")
    assert len(blob_rows(db)) == 0


def test_many_names_are_listed_completely(service) -> None:
    names = sorted([f"file {number:04}" for number in range(600)] + ["long " * 100 + "name"])

    async def main() -> list[str]:
        await asyncio.gather(
            *(
                service.save_artifact(**{**AT, "filename": name}, artifact=text("x"))
                for name in names
            )
        )
        await service.save_artifact(**{**AT, "session_id": "s2"}, artifact=text("x"))
        return await service.list_artifact_keys(app_name="app", user_id="u", session_id="s")

    assert run(main()) == names


def test_a_reference_in_a_circle_is_refused(service) -> None:
    here = "artifact://apps/app/users/u/sessions/s/artifacts/f/versions/0"
    save(service, reference(here))
    with pytest.raises(InputValidationError, match="maximum recursion depth"):
        load(service)


def test_a_chain_of_references_is_followed_as_far_as_in_memory(service) -> None:
    theirs = InMemoryArtifactService()
    for one in (service, theirs):
        save(one, text("target"), filename="0")
        for number in range(6):
            uri = f"artifact://apps/app/users/u/sessions/s/artifacts/{number}/versions/0"
            save(one, reference(uri), filename=str(number + 1))
        assert load(one, filename="5") == text("target")
        with pytest.raises(InputValidationError, match="maximum recursion depth"):
            load(one, filename="6")


@pytest.mark.parametrize(
    "metadata", [{"k": object()}, {"k": float("nan")}, {1: 2}, 5, {"k": "\ud800"}]
)
def test_metadata_that_is_no_json_is_refused_and_nothing_stored(service, metadata) -> None:
    if metadata in ({1: 2}, {"k": "\ud800"}):
        run(service.save_artifact(**AT, artifact=text("x"), custom_metadata=metadata))
        found = run(service.get_artifact_version(**AT)).custom_metadata
        assert found == {str(key): value for key, value in metadata.items()}
        return
    with pytest.raises(InputValidationError, match="custom_metadata"):
        run(service.save_artifact(**AT, artifact=text("x"), custom_metadata=metadata))
    assert run(service.list_versions(**AT)) == []


@pytest.mark.parametrize("artifact", ["text", 5, None, [text("x")]])
def test_what_is_no_artifact_is_refused(service, artifact) -> None:
    with pytest.raises(InputValidationError, match="Not supported artifact type"):
        save(service, artifact)
    with pytest.raises(InputValidationError, match="filename"):
        save(service, text("x"), filename=5)


# --- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 300_000])
def test_equal_contents_are_stored_once_and_leave_with_the_last(service, db, size) -> None:
    content = os.urandom(size)
    for filename in ("f", "user:f"):
        for session in ("s", "t"):
            save(service, blob(content), filename=filename, session_id=session)
    save(service, blob(content), filename="f")
    assert len(blob_rows(db)) == 1
    save(service, blob(content), user_id="other")
    assert len(blob_rows(db)) == 2  # nobody learns what another user has
    run(service.delete_artifact(**{**AT, "user_id": "other"}))
    assert len(blob_rows(db)) == 1
    db.scope(app="app", user="u").blobs.collect()
    run(service.delete_artifact(**AT))
    run(service.delete_artifact(**{**AT, "session_id": "t"}))
    assert load(service, filename="user:f", version=1) == blob(content)
    run(service.delete_artifact(**{**AT, "filename": "user:f"}))
    assert blob_rows(db, Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS, Kind.REMOVAL) == []


def test_a_large_artifact_lets_the_loop_and_other_writers_go_on(service, db) -> None:
    content = os.urandom(MEGABYTES)

    async def others(stop: asyncio.Event) -> int:
        turns = 0
        while not stop.is_set():
            await service.save_artifact(**{**AT, "filename": "small"}, artifact=text("x"))
            turns += 1
        return turns

    async def main() -> tuple[int, types.Part | None]:
        stop = asyncio.Event()
        going = asyncio.ensure_future(others(stop))
        await service.save_artifact(**AT, artifact=blob(content))
        saved = len(await service.list_versions(**{**AT, "filename": "small"}))
        found = await service.load_artifact(**AT)
        stop.set()
        await going
        return saved, found

    saved, found = run(main())
    assert saved > 5  # one transaction would have kept them waiting
    assert found == blob(content)


def test_a_cancelled_save_is_stored_or_leaves_nothing(service, db) -> None:
    content = os.urandom(MEGABYTES // 4)
    save(service, text("before"))

    async def main() -> None:
        for turns in (0, 1, 2, 3, 5, 8):
            task = asyncio.ensure_future(service.save_artifact(**AT, artifact=blob(content)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main())
    versions = run(service.list_versions(**AT))
    assert versions == list(range(len(versions)))
    for version in versions[1:]:
        assert load(service, version=version) == blob(content)
    if len(versions) == 1:
        assert blob_rows(db, Kind.BLOB, Kind.BLOB_CHUNK) == []
    assert db.scope(app="app", user="u").blobs.collect() == 0


def test_a_staged_content_that_is_collected_is_staged_again(service, db, monkeypatch) -> None:
    content = os.urandom(500_000)
    kv = service._kv("app", "u")
    stage, collected = kv.stage, []

    def meddled(payload):
        ref = stage(payload)
        if len(collected) < 2:
            collected.append(db.scope(app="app", user="u").blobs.collect())
        return ref

    monkeypatch.setattr(kv, "stage", meddled)
    assert save(service, blob(content)) == 0
    assert collected == [1, 1]
    assert load(service) == blob(content)


def test_a_damaged_content_is_told_and_other_versions_stay(open_db, path) -> None:
    db = open_db(durability="none")
    service = MemcoreArtifactService(db)
    save(service, text("good " * 100))
    save(service, text("to be damaged " * 100))
    key = blob_rows(db, Kind.BLOB_CHUNK)
    store = db.engine.store
    damaged = next(k for k in key if b"to be damaged" in rows(store)[k])
    sound = rows(store)[damaged]
    store.transact(lambda txn: txn.put(damaged, sound[:-1] + b"?"))
    with pytest.raises(CorruptValueError):
        load(service)
    assert load(service, version=0) == text("good " * 100)
    store.transact(lambda txn: txn.put(damaged, sound))


# --- many writers ---------------------------------------------------------------------------------


def test_threads_get_consecutive_versions(db) -> None:
    def work(number: int) -> list[int]:
        service = MemcoreArtifactService(db)
        return [save(service, text(f"{number}.{turn} " + "x" * 400)) for turn in range(10)]

    with ThreadPoolExecutor(4) as pool:
        found = sorted(version for got in pool.map(work, range(4)) for version in got)
    assert found == list(range(40))


def _save_many(path: str, number: int) -> list[tuple[int, bytes]]:
    found = []
    with MemcoreArtifactService(path) as service:
        for turn in range(12):
            content = f"{number}.{turn} ".encode() * 40_000 if turn % 3 == 0 else b"small"
            found.append((save(service, blob(content)), content[:10]))
    return found


def _other_process(path: str, ready: Any, results: Any) -> None:
    ready.set()
    results.put(_save_many(path, 1))


def test_processes_get_consecutive_versions(path) -> None:
    MemcoreArtifactService(path, durability="none", allow_unsafe=True).close()
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Event(), spawn.SimpleQueue()
    other = spawn.Process(target=_other_process, args=(str(path), ready, results))
    other.start()
    ready.wait()
    found = dict(_save_many(str(path), 0) + results.get())
    other.join()
    assert other.exitcode == 0
    assert sorted(found) == list(range(24))
    with MemcoreArtifactService(path) as service:
        for version, content in found.items():
            part = load(service, version=version)
            assert part.inline_data.data[:10] == content
        assert service.database.check() == []


def test_a_fresh_process_finds_what_was_saved(path) -> None:
    with MemcoreArtifactService(path, durability="none", allow_unsafe=True) as service:
        save(service, blob(b"x" * 500_000))
        save(service, text("second"))
    with MemcoreArtifactService(path) as service:
        assert run(service.list_versions(**AT)) == [0, 1]
        assert load(service) == text("second")
        assert load(service, version=0) == blob(b"x" * 500_000)


def test_salvage_keeps_artifacts(path, tmp_path) -> None:
    with MemcoreArtifactService(path) as service:
        save(service, blob(b"kept " * 1000))
        save(service, blob(b"lost " * 1000))
        save(service, blob(b"kept " * 1000))
    broken = tmp_path / "broken"
    broken.write_bytes(path.read_bytes().replace(b"lost lost", b"lost last"))
    memcore.salvage(broken, tmp_path / "saved")
    with MemcoreArtifactService(tmp_path / "saved") as service:
        assert run(service.list_versions(**AT)) == [0, 2]
        assert load(service) == blob(b"kept " * 1000)
        assert save(service, text("next")) == 3
        assert service.database.check() == []
