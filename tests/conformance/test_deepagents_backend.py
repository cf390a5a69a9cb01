"""MemcoreBackend: DeepAgents' own backends are the specification."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading

import pytest

pytest.importorskip("deepagents")

from deepagents.backends.store import StoreBackend
from deepagents.backends.utils import InvalidGlobPatternError, compile_grep_include_glob
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

import memcore
from memcore.adapters.deepagents import MemcoreBackend, files, rows
from memcore.adapters.deepagents import backend as matching
from memcore.errors import InvalidOptionError, StoreFullError
from memcore.store import LmdbStore

TREE = {
    "/top.py": "print(1)\nTODO here\n",
    "/src/app/main.py": "import os\n# TODO\nmain()\n",
    "/src/app/util.py": "",
    "/src/app-old.txt": "old\r\nTODO\r\n",
    "/src/app.txt": "one\ntwo\nthree",
    "/.env": "KEY=TODO",
    "/src/.hidden/a.yml": "a: TODO",
    "/data/文件.txt": "内容 TODO 😀\n",
    "relative.txt": "TODO",
    "/a//b": "double",
    "/../up": "up TODO",
    "/nul\0name": "nul TODO",
    "/long/" + "x" * 600 + ".txt": "long TODO",
    "/dir/": "slash",
    "/blank.txt": " \n \n",
}
GLOBS = [
    "*",
    "*.py",
    "**/*.py",
    "/*.py",
    "src/**",
    "*.{py,txt}",
    "**",
    ".env",
    ".*",
    "",
    "../*",
    "{a,b}" * 12,
]
GLOBS += [
    "**/.hidden/*",
    "[a-t]*",
    "!*.py",
    "main.py",
    "/",
    "?op.py",
    "*.yml",
    "src/*/",
    "[",
    "a\\b",
    "(a|b)",
]
PATHS = [
    None,
    "",
    " ",
    "/",
    "/src",
    "/src/",
    "src",
    "/src/app",
    "/src/app/main.py",
    "/none",
    "//",
    "/..",
    "/long",
]


@pytest.fixture
def ours(db):
    return MemcoreBackend(db)


@pytest.fixture
def theirs():
    return StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",))


@pytest.fixture
def both(ours, theirs):
    for backend in (ours, theirs):
        for path, content in TREE.items():
            assert backend.write(path, content).error is None
        backend.upload_files([("/img/a.png", b"\x89PNG\xff"), ("/img/b.txt", b"\xff\xfe\x00a")])
    return ours, theirs


def plain(result):
    """A result without times; listings in the order of paths."""
    found = vars(result).copy()
    for name in ("entries", "matches"):
        if found.get(name) is not None:
            kept = [{k: v for k, v in one.items() if k != "modified_at"} for one in found[name]]
            found[name] = sorted(kept, key=lambda one: (one["path"], one.get("line", 0)))
    if found.get("file_data") is not None:
        found["file_data"] = {k: v for k, v in found["file_data"].items() if not k.endswith("_at")}
    return found


def agree(both, method, *args, **options):
    mine, other = (plain(getattr(backend, method)(*args, **options)) for backend in both)
    assert mine == other, (method, args, options)
    return mine


# --- the same answers -----------------------------------------------------------------------------


def test_listings_and_searches_agree(both):
    for path in PATHS:
        if path is not None:
            agree(both, "ls", path)
        for pattern in GLOBS:
            agree(both, "glob", pattern, path)
        for pattern in ("TODO", "", "o\n", "😀", "nothing there"):
            agree(both, "grep", pattern, path)
    for pattern in GLOBS:
        agree(both, "grep", "TODO", "/src", pattern)
    assert agree(both, "glob", "*.py")["matches"]
    assert agree(both, "grep", "TODO")["matches"]


def test_listings_are_in_the_order_of_paths(both):
    for path in ("/", "/src"):
        mine, other = ([one["path"] for one in backend.ls(path).entries] for backend in both)
        assert mine == other


def test_a_search_stops_at_its_cap(both):
    whole = len(both[1].grep("TODO", "/").matches)
    for cap in (0, 1, whole - 1, whole, whole + 1):
        mine, other = (backend.grep("TODO", "/", max_count=cap) for backend in both)
        assert (len(mine.matches), mine.truncated) == (len(other.matches), other.truncated)


def test_reading_agrees(both):
    windows = [(0, 2000), (1, 1), (0, 0), (-1, 5), (2, -3), (99, 1), (2, 1)]
    for path in [*TREE, "/img/a.png", "/img/b.txt", "/none", "/src"]:
        for offset, limit in windows:
            agree(both, "read", path, offset, limit)
    paths = [*TREE, "/img/a.png", "/img/b.txt", "/none"]
    mine, other = (backend.download_files(paths) for backend in both)
    assert mine == other


def test_changes_agree(both):
    steps = [
        ("edit", "/top.py", "TODO", "done"),
        ("edit", "/top.py", "", "x"),
        ("edit", "/top.py", "nowhere", "x"),
        ("edit", "/top.py", "here\n\n", "x"),
        ("edit", "/src/app.txt", "three\n", "x"),
        ("edit", "/src/app.txt", "o", "0"),
        ("edit", "/src/app.txt", "o", "0", True),
        ("edit", "/src/app.txt", "three", "three\nfour"),
        ("edit", "/none", "a", "b"),
        ("edit", "/img/a.png", "a", "b"),
        ("write", "/img/b.txt", "text now"),
        ("edit", "/img/b.txt", "now", "then"),
        ("write", "/src/app/util.py", "x = 1"),
        ("delete", "/src/app"),
        ("delete", "/src/app"),
        ("delete", "/a/"),
        ("delete", "/src/app.txt/"),
        ("delete", "/*"),
        ("write", "/top.py/below", "under a file"),
        ("delete", "/top.py"),
        ("delete", "relative.txt"),
        ("delete", "/"),
    ]
    for method, *args in steps:
        agree(both, method, *args)
        agree(both, "ls", "/")
        agree(both, "glob", "**")
        agree(both, "grep", "o")


def test_what_changed_last_is_found_first(ours):
    for path in ("/a.py", "/b.py", "/c.py"):
        ours.write(path, "x")
    ours.edit("/b.py", "x", "y")
    assert [one["path"] for one in ours.glob("*.py").matches] == ["/b.py", "/c.py", "/a.py"]


ALPHABET = "ab.*?[]{},!/\\-(|)@+ \n"


@settings(max_examples=150, deadline=None)
@given(st.text(ALPHABET, max_size=8), st.lists(st.text("ab./\n\\", max_size=8), max_size=8))
def test_globs_match_as_the_shared_matcher_does(pattern, names):
    paths = ["/" + name for name in dict.fromkeys(names)]
    try:
        told = compile_grep_include_glob(pattern)
    except InvalidGlobPatternError as error:
        with pytest.raises(InvalidGlobPatternError) as raised:
            matching.matched(pattern, paths, "/")
        assert str(raised.value) == str(error)
        return
    assert matching.matched(pattern, paths, "/") == [path for path in paths if told(path[1:])]


# --- times and what is imported -------------------------------------------------------------------


def test_a_file_keeps_its_birth(ours):
    ours.write("/f", "one")
    born = ours.read("/f").file_data
    assert born["created_at"] == born["modified_at"]
    ours.write("/f", "two")
    ours.edit("/f", "two", "three")
    ours.upload_files([("/f", b"four")])
    ours.append("/f", "five")
    now = ours.read("/f").file_data
    assert now["created_at"] == born["created_at"] < now["modified_at"]
    assert ours.ls("/").entries[0]["modified_at"] == now["modified_at"]


def test_files_of_other_backends_are_imported(ours):
    old = {"content": ["one", "two"], "created_at": "2024-01-01", "modified_at": "2024-01-02"}
    files = {
        "/old": old,
        "/new": {"content": "text", "encoding": "utf-8"},
        "/png": {"content": "iVBO/w==", "encoding": "base64"},
        "/bad": {"content": 5},
        "/worse": {"content": "%", "encoding": "base64"},
    }
    errors = {one.path: one.error for one in ours.import_files(files)}
    assert [path for path, error in errors.items() if error is None] == ["/old", "/new", "/png"]
    assert ours.read("/old").file_data == {
        "content": "one\ntwo", "encoding": "utf-8",
        "created_at": "2024-01-01", "modified_at": "2024-01-02",
    }  # fmt: skip
    assert ours.download_files(["/png"])[0].content == b"\x89PN\xff"
    assert ours.read("/png").file_data["content"] == "iVBO/w=="


# --- storage --------------------------------------------------------------------------------------


def stored(db, name="deepagents:files"):
    return dict(db.scope().kv(name).scan())


def parts(db):
    return {key: value for key, value in stored(db).items() if key.startswith("p")}


@pytest.mark.parametrize("size", [0, 1, 128 * 1024, 128 * 1024 + 1, 1_000_000])
def test_contents_of_any_size_come_back_and_go(db, ours, size):
    payload = (b"\xff0123456789" * (size // 11 + 1))[:size]
    ours.upload_files([("/bin", payload)])
    assert ours.download_files(["/bin"])[0].content == payload
    assert sum(map(len, parts(db).values())) == size
    ours.write("/bin", "small")
    assert list(parts(db).values()) == [b"small"]
    ours.delete("/bin")
    assert list(stored(db)) == ["g"]


def test_an_append_costs_what_it_adds(db, ours, path):
    start = "x" * 300_000
    ours.write("/log.md", start)
    before = parts(db)
    text = start
    for at in range(30):
        more = f"## Summarized {at} {'é' * 500}\n"
        text += more
        assert ours.append("/log.md", more).error is None
    after = parts(db)
    # Nothing of what was there was written again, and small ends share a part.
    assert {key: after[key] for key in before} == before
    assert len(after) - len(before) <= 6
    assert ours.download_files(["/log.md"])[0].content == text.encode()
    with MemcoreBackend.from_path(path) as other:
        assert other.download_files(["/log.md"])[0].content == text.encode()


@pytest.mark.parametrize("how", ["edit", "write", "upload"])
def test_a_file_that_only_grew_is_not_written_again(db, ours, how):
    text = "section\n" * 20_000
    ours.write("/conversation_history/s.md", text)
    before = parts(db)
    grown = text + "## Summarized\n"
    if how == "edit":
        assert ours.edit("/conversation_history/s.md", text, grown).occurrences == 1
    elif how == "write":
        ours.write("/conversation_history/s.md", grown)
    else:
        ours.upload_files([("/conversation_history/s.md", grown.encode())])
    after = parts(db)
    assert before.items() <= after.items()
    assert sum(map(len, after.values())) == len(grown)
    assert ours.download_files(["/conversation_history/s.md"])[0].content == grown.encode()


def test_equal_content_is_not_written_again(db, ours):
    image = b"\x89PNG" + bytes(range(256)) * 1000
    blob = f"/blobs/{hashlib.sha256(image).hexdigest()}"
    ours.upload_files([(blob, image)])
    before = parts(db)
    ours.upload_files([(blob, image)])
    assert parts(db) == before
    assert ours.download_files([blob])[0].content == image


def test_listings_read_no_contents(db, ours, monkeypatch):
    ours.write("/a/b.txt", "text")
    cold = MemcoreBackend(db)
    monkeypatch.setattr("memcore.adapters.deepagents.files.read_parts", None)
    assert cold.ls("/a").entries[0]["size"] == 4
    assert cold.glob("*.txt").matches[0]["size"] == 4
    assert cold.delete("/a").error is None


def test_a_directory_of_many_files_goes_in_pieces(db, ours):
    ours.upload_files([(f"/many/{at}", b"x") for at in range(600)])
    ours.write("/many-more", "stays")
    assert ours.delete("/many").error is None
    assert [one["path"] for one in ours.ls("/").entries] == ["/many-more"]
    assert list(parts(db).values()) == [b"stays"]
    assert rows.Head.unpack(stored(db)["g"]).changes == 601 + 3


def test_large_files_of_a_directory_go_in_pieces(db, ours):
    for at in range(4):
        ours.write(f"/large/{at}", "x" * 1_000_000)
    before = rows.Head.unpack(stored(db)["g"]).changes
    assert ours.delete("/large").error is None
    assert parts(db) == {}
    assert rows.Head.unpack(stored(db)["g"]).changes - before > 1


def test_deleting_many_files_reads_no_listing_again(ours, monkeypatch):
    ours.upload_files([(f"/many/{at}", b"x") for at in range(600)])
    ours.write("/many/0/below", "x")
    ours.ls("/")
    monkeypatch.setattr(files, "_loaded", None)
    assert ours.delete("/many").error is None
    assert ours.ls("/").entries == []


def test_a_lost_head_hides_no_file(db, ours):
    ours.write("/old", "old")
    db.scope().kv("deepagents:files").delete("g")
    for backend in (ours, MemcoreBackend(db)):
        assert backend.read("/old").file_data["content"] == "old"
    ours.write("/new", "new")
    for backend in (ours, MemcoreBackend(db)):
        assert [one["path"] for one in backend.ls("/").entries] == ["/new", "/old"]


def test_a_path_that_is_uploaded_twice_ends_as_the_last(ours):
    ours.write("/log", "x" * 5000)
    ours.upload_files([("/log", b"short"), ("/log", b"x" * 5001)])
    assert ours.download_files(["/log"])[0].content == b"x" * 5001


def test_deleting_may_use_the_room_that_is_kept_for_it(db, ours, monkeypatch):
    ours.write("/f", "text")
    asked, transact = [], LmdbStore.transact  # below whatever watches the handles

    def watched(self, fn, *, makes_room=False):
        asked.append(makes_room)
        return transact(self, fn, makes_room=makes_room)

    monkeypatch.setattr(LmdbStore, "transact", watched)
    ours.delete("/f")
    ours.write("/f", "text")
    assert asked == [True, False]


def test_a_namespace_that_is_cleared_begins_anew(db, ours):
    other = MemcoreBackend(db)
    for backend in (ours, other):
        backend.write("/f", "old")
        assert backend.read("/f").file_data["content"] == "old"
    before = rows.Head.unpack(stored(db)["g"])
    db.scope().kv("deepagents:files").clear()
    assert other.read("/f").error == "File '/f' not found"
    ours.write("/f", "new")
    assert other.read("/f").file_data["content"] == "new"
    db.scope().kv("deepagents:files").clear()
    for at in range(4):  # it comes further than the handle had seen its earlier life
        ours.write(f"/{at}", "x")
    assert [entry["path"] for entry in other.ls("/").entries] == ["/0", "/1", "/2", "/3"]
    # A text that is still kept from an earlier life is never taken for one of this.
    after = rows.Head.unpack(stored(db)["g"])
    assert abs(after.numbers - before.numbers) > 100


# --- hostile --------------------------------------------------------------------------------------


def test_a_lone_surrogate_is_refused_in_words(ours):
    assert "surrogates not allowed" in ours.write("/f", "\ud800").error
    ours.write("/f", "text")
    assert "surrogates not allowed" in ours.edit("/f", "text", "\ud800").error
    assert "surrogates not allowed" in ours.append("/f", "\ud800").error
    assert ours.read("/f").file_data["content"] == "text"
    assert ours.write("/\ud800", "odd path").error is None
    assert ours.read("/\ud800").file_data["content"] == "odd path"


def test_paths_at_the_bound_of_a_key(db, ours):
    lengths = range(474, 484)
    for length in lengths:
        assert ours.write("/" * length, f"{length}").error is None
    assert {key[0] for key in stored(db)} == {"g", "f", "l", "p"}
    cold = MemcoreBackend(db)
    for length in lengths:
        assert cold.read("/" * length).file_data["content"] == f"{length}"
    assert cold.delete("/" * 480).error is None


def test_a_damaged_content_is_reported(db, ours):
    ours.write("/f", "text")
    kv = db.scope().kv("deepagents:files")
    for key in parts(db):
        kv.delete(key)
    cold = MemcoreBackend(db)
    assert "is missing" in cold.read("/f").error
    assert "is missing" in cold.download_files(["/f"])[0].error
    assert "is missing" in cold.grep("text").error
    assert "is missing" in cold.edit("/f", "text", "new").error
    assert cold.write("/f", "again").error is None


def test_storage_errors_are_told_not_raised(db, ours, monkeypatch):
    ours.write("/f", "text")

    def full(*_, **__):
        raise StoreFullError("no space")

    monkeypatch.setattr(type(db.scope().kv("x")), "transact", full)
    assert ours.write("/g", "x").error == "Error writing file '/g': no space"
    assert ours.append("/g", "x").error == "Error writing file '/g': no space"
    assert ours.edit("/f", "text", "x").error == "Error editing file '/f': no space"
    assert ours.delete("/f").error == "Error deleting '/f': no space"
    assert ours.upload_files([("/g", b"x")])[0].error == "no space"
    monkeypatch.setattr(type(db.scope().kv("x")), "get", full)
    assert ours.read("/f").error == "Error reading file '/f': no space"
    assert ours.ls("/").error == "Error listing '/': no space"
    assert ours.glob("*").error == "Error globbing path '/': no space"
    assert ours.grep("x").error == "Error searching path '/': no space"


def test_a_read_only_file_can_be_read(path, open_db):
    MemcoreBackend(open_db()).write("/f", "text")
    with MemcoreBackend.from_path(path, read_only=True) as backend:
        assert backend.read("/f").file_data["content"] == "text"
        assert "read_only" in backend.write("/f", "x").error
        assert backend.upload_files([("/f", b"x")])[0].error == "permission_denied"


# --- several handles ------------------------------------------------------------------------------


def test_each_sees_what_the_others_did(path, open_db):
    one, two = MemcoreBackend(open_db()), MemcoreBackend(open_db())
    for count in (1, 3, 12):  # within what the head tells, and beyond it
        for at in range(count):
            one.write(f"/{count}/{at}.txt", f"{at}")
        assert len(two.ls(f"/{count}").entries) == count
        assert two.read(f"/{count}/0.txt").file_data["content"] == "0"
    two.delete("/12")
    assert one.ls("/12").entries == []
    two.write("/x" + "y" * 300, "long paths are not told in the head")
    assert one.grep("not told").matches[0]["path"] == "/x" + "y" * 300
    one.write("/1/0.txt", "changed")
    assert two.read("/1/0.txt").file_data["content"] == "changed"


def test_no_edit_and_no_append_is_lost(open_db):
    backends = [MemcoreBackend(open_db(durability="relaxed")) for _ in range(2)]
    backends[0].write("/n", ":end")
    errors = []

    def work(backend, name):
        for at in range(15):
            found = [backend.append("/log", f"{name}{at}\n"), backend.edit("/n", ":end", "+:end")]
            errors.extend(one.error for one in found if one.error)

    threads = [
        threading.Thread(target=work, args=(backend, name))
        for name, backend in zip("abcd", backends * 2, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for backend in backends:
        assert backend.read("/n").file_data["content"] == "+" * 60 + ":end"
        lines = backend.read("/log").file_data["content"].split()
        assert sorted(lines) == sorted(f"{name}{at}" for name in "abcd" for at in range(15))


def test_a_delete_also_takes_what_is_written_meanwhile(ours, db, monkeypatch):
    other = MemcoreBackend(db)
    ours.write("/d/a", "a")
    other.ls("/")
    files = ours._files
    told = files.look
    monkeypatch.setattr(
        files, "look", lambda fn: (told(fn), other.write("/d/late", "late"), monkeypatch.undo())[0]
    )
    assert ours.delete("/d").error is None
    for backend in (ours, other, MemcoreBackend(db)):
        assert backend.ls("/d").entries == []


def overtaken(backend, monkeypatch, change):
    """Make the next look at a file's row stale: a change comes behind it."""
    files = backend._files
    row = files.row

    def look(path):
        found = row(path)
        monkeypatch.undo()
        change()
        return found

    monkeypatch.setattr(files, "row", look)


def test_a_reader_that_is_overtaken_reads_again(ours, db, monkeypatch):
    ours.write("/f", "old")
    cold = MemcoreBackend(db)
    overtaken(cold, monkeypatch, lambda: ours.write("/f", "new"))
    assert cold.read("/f").file_data["content"] == "new"


def test_a_reader_does_not_see_what_is_appended_meanwhile(ours, db, monkeypatch):
    ours.write("/f", "old")
    cold = MemcoreBackend(db)
    overtaken(cold, monkeypatch, lambda: ours.append("/f", " and new"))
    assert cold.read("/f").file_data["content"] == "old"
    assert cold.read("/f").file_data["content"] == "old and new"


@pytest.mark.parametrize("change", ["append", "edit"])
def test_a_writer_that_is_overtaken_writes_upon_the_others(ours, db, monkeypatch, change):
    other = MemcoreBackend(db)
    if change == "append":
        overtaken(ours, monkeypatch, lambda: other.write("/f", "first "))
        ours.append("/f", "second")
    else:
        ours.write("/f", "x second")
        overtaken(ours, monkeypatch, lambda: other.write("/f", "y x second"))
        ours.edit("/f", "x ", "first ")
    expected = "first second" if change == "append" else "y first second"
    for backend in (ours, other, MemcoreBackend(db)):
        assert backend.read("/f").file_data["content"] == expected


def test_a_write_does_not_hide_what_others_wrote_before(db):
    one, two = MemcoreBackend(db), MemcoreBackend(db)
    one.write("/start", "x")
    two.ls("/")
    one.write("/one", "x")
    two.write("/two", "x")
    assert [entry["path"] for entry in two.ls("/").entries] == ["/one", "/start", "/two"]


# --- namespaces and opening -----------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_does_not_inherit_a_lock(path, open_db):
    backend = MemcoreBackend(open_db())
    backend.write("/f", "text")
    looking, forked = threading.Event(), threading.Event()

    def look(listing):
        looking.set()
        return forked.wait(60)

    thread = threading.Thread(target=backend._files.look, args=(look,))
    thread.start()
    assert looking.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for ever is ended
        os._exit(0 if backend.read("/f").file_data["content"] == "text" else 1)
    forked.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_scopes_and_namespaces_keep_apart(db):
    one = MemcoreBackend(db, user="ann", namespace="a")
    two = MemcoreBackend(db, user="bob", namespace="a")
    three = MemcoreBackend(db.scope(user="ann"), namespace=("a", "b"))
    one.write("/f", "ann's")
    assert two.read("/f").error
    assert three.read("/f").error
    assert MemcoreBackend(db.scope(user="ann"), namespace=("a",)).read("/f").file_data
    current = ["x"]
    by_call = MemcoreBackend(db, namespace=lambda _: current[0])
    by_call.write("/f", "x's")
    current[0] = "y"
    assert by_call.read("/f").error
    needs_runtime = MemcoreBackend(db, namespace=lambda runtime: runtime.context.user)
    with pytest.raises(RuntimeError, match="only inside"):
        needs_runtime.ls("/")


@pytest.mark.parametrize("namespace", ["", (), ("a", ""), ("a/b",), "a*", 5, ("a", 1)])
def test_namespaces_that_are_refused(db, namespace):
    with pytest.raises(InvalidOptionError):
        MemcoreBackend(db, namespace=namespace)


def test_opening(db, path):
    with pytest.raises(InvalidOptionError):
        MemcoreBackend(db.scope(), user="ann")
    with pytest.raises(InvalidOptionError):
        MemcoreBackend(5)
    for missing in ({"user": ""}, {"app": ""}):  # never the default's files
        with pytest.raises(InvalidOptionError):
            MemcoreBackend(db, **missing)
    with MemcoreBackend(path) as backend:
        backend.write("/f", "text")
    backend.close()
    with pytest.raises(memcore.ClosedError):
        backend.read("/f")
    assert MemcoreBackend(db).read("/f").file_data["content"] == "text"


def test_the_twins_with_await(both):
    ours, _ = both

    async def run():
        assert (await ours.awrite("/t", "one")).path == "/t"
        assert (await ours.aappend("/t", " two")).path == "/t"
        assert (await ours.aedit("/t", "one", "1")).occurrences == 1
        await ours.aupload_files([("/u", b"up")])
        many = [ours.awrite(f"/many/{at}", "x") for at in range(8)]
        assert [one.error for one in await asyncio.gather(*many)] == [None] * 8
        assert len((await ours.als("/many")).entries) == 8
        assert (await ours.aread("/t")).file_data["content"] == "1 two"
        assert (await ours.agrep("1 two")).matches[0]["path"] == "/t"
        assert len((await ours.aglob("/many/*")).matches) == 8
        assert (await ours.adownload_files(["/u"]))[0].content == b"up"
        assert (await ours.adelete("/many")).error is None

    asyncio.run(run())
    assert ours.ls("/many").entries == []


def test_the_head_stays_small(db, ours):
    for at in range(20):
        ours.write(f"/{'d' * 200}/{at}", "x")
    assert len(str(stored(db)["g"])) < 8 * 600
    assert rows.Head.unpack(stored(db)["g"]).changes == 20
    for at in range(20):
        ours.write(f"/{'d' * 300}/{at}", "x")
    assert len(str(stored(db)["g"])) < 200


def test_files_of_who_opts_out_of_memory_are_neither_written_nor_found(db):
    scope = db.scope(user="alice")
    memories = MemcoreBackend(scope, namespace=("me", "memories"))
    assert memories.write("/m.md", "likes tea").error is None
    scope.opt_out_memory()
    for done in (memories.write("/n.md", "x"), memories.append("/m.md", "x")):
        assert "opted out of memory" in done.error
    assert "opted out" in memories.upload_files([("/u", b"x")])[0].error
    assert memories.read("/m.md").error
    assert memories.edit("/m.md", "tea", "cake").error
    assert memories.grep("tea").matches == []
    assert memories.glob("*.md").matches == []
    assert memories.ls("/").entries == []
    work = MemcoreBackend(scope, namespace="work", memory=False)
    assert work.write("/w.md", "x").error is None
    scope.opt_in_memory()
    assert memories.read("/m.md").file_data["content"] == "likes tea"
    assert scope.opt_out_memory(remove=True) > 0
    scope.opt_in_memory()
    assert memories.read("/m.md").error


def _spoilt(value, field, wrong):
    return [*value[:field], wrong, *value[field + 1 :]]


@pytest.mark.parametrize(
    ("key", "spoil"),
    [
        ("f", lambda value: _spoilt(value, 4, "latin-1")),
        ("f", lambda value: _spoilt(value, 1, -1)),
        ("f", lambda value: _spoilt(value, 2, "7")),
        ("f", lambda value: _spoilt(value, 6, 7)),
        ("f", lambda value: value[:3]),
        ("f", lambda _: {"a": 1}),
        ("f", lambda _: 7),
        ("l", lambda value: _spoilt(value, 7, 5)),
        ("l", lambda _: []),
        ("p", lambda value: b"\xeb" * len(value)),
        ("g", lambda _: ["life", "3", 4, []]),
        ("g", lambda _: 7),
    ],
)  # fmt: skip
def test_rows_that_no_backend_wrote_are_damage(db, key, spoil):
    backend, long = MemcoreBackend(db.scope()), "/" + "d" * 600 + ".md"
    backend.write("/a.md", "a line 1")
    backend.write(long, "a line 1")
    kv = db.scope().kv("deepagents:files")
    named, value = next((name, value) for name, value in kv.scan() if name.startswith(key))
    kv.put(named, spoil(value))
    damaged = 0
    with memcore.open(db.engine.store.path) as again:  # which has nothing in memory
        reader = MemcoreBackend(again.scope())
        for read in (
            lambda: reader.ls("/"),
            lambda: reader.grep("a line 1"),
            lambda: reader.read("/a.md"),
            lambda: reader.read(long),
            lambda: reader.write("/c.md", "x"),
        ):
            damaged += "run 'memcore check'" in str(read().error)
    assert damaged


@pytest.mark.parametrize(
    "data",
    [
        {"content": "x", "encoding": "utf-16"},
        {"content": "x", "created_at": 1_700_000_000},
        {"content": "x", "modified_at": ["now"]},
    ],
)
def test_an_imported_file_of_no_form_is_refused_and_the_others_stay_readable(path, data) -> None:
    with memcore.open(path) as db:
        backend = MemcoreBackend(db)
        bad, good = backend.import_files(
            {"/bad": data, "/good": {"content": "y", "encoding": None}}
        )
        assert bad.error
        assert good.error is None
    with memcore.open(path) as db:
        backend = MemcoreBackend(db)
        assert [each["path"] for each in backend.ls("/").entries] == ["/good"]
        assert backend.upload_files([("/bad", b"now good")])[0].error is None


def test_a_repeated_append_to_a_file_that_became_binary_succeeded_before(path) -> None:
    with memcore.open(path) as db:
        backend = MemcoreBackend(db)
        assert backend.append("/log", "a", idempotency_key="k").error is None
        backend.upload_files([("/log", b"\xff\xfe")])
        assert backend.append("/log", "a", idempotency_key="k").error is None
        assert backend.append("/log", "b", idempotency_key="k2").error is not None
