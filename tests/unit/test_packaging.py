"""What an installation promises: its names, its types, its extension, and what it leaves alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import memcore
from memcore import _fast, distribution
from memcore.distribution import foreign_owners
from memcore.faces import face

ROOT = Path(__file__).parents[2]
PACKAGE = Path(memcore.__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Import names, of the command line's libraries, optional ones and the frameworks under adapters.
NOT_LOADED = [
    "a2a",
    "agents",
    "anthropic",
    "click",
    "cryptography",
    "deepagents",
    "google.adk",
    "google.genai",
    "langchain_core",
    "langgraph",
    "mcp",
    "openai",
    "presidio_analyzer",
    "psycopg",
    "pydantic",
    "re2",
    "rich",
    "tiktoken",
    "click",
]


def run_python(
    code: str, *path: Path, arguments: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in an interpreter of its own that looks for modules in ``path`` first."""
    inherited = os.environ.get("PYTHONPATH")
    search = [*map(str, path), *([inherited] if inherited else [])]
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],  # -P: not the current directory
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_import_loads_nothing_optional() -> None:
    ran = run_python("import memcore, sys; print(*sys.modules, sep='\\n')")
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert "memcore._fast" in loaded
    assert loaded.isdisjoint(NOT_LOADED)
    assert loaded.isdisjoint({"memcore.adapters", "memcore.cli", "memcore.testing"})


FIRST_TURN = """
import sys
before = set(sys.modules)
import memcore
with memcore.open(sys.argv[1]) as db:
    session = db.session("s")
    session.append({"role": "user", "content": "Hello"})
    assert len(session.context().messages) == 1
print(*sorted(set(sys.modules) - before), sep="\\n")
"""
FIRST_TURN_MODULES = 85
"""Of memcore, with its packages: a number that may fall, and does not rise."""


def test_the_first_turn_loads_what_it_needs(tmp_path: Path) -> None:
    ran = run_python(FIRST_TURN, arguments=[str(tmp_path / "m.db")])
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert loaded.isdisjoint(NOT_LOADED)
    # Of the standard library what takes long or much: asyncio with ssl and sockets, OpenSSL.
    late = {"asyncio", "concurrent.futures", "decimal", "difflib", "hashlib", "hmac", "queue"}
    assert loaded.isdisjoint(late | {"secrets", "shutil", "socket", "ssl", "subprocess"})
    assert loaded.isdisjoint({"tempfile", "tomllib", "zoneinfo"})
    ours = {name for name in loaded if name.partition(".")[0] == "memcore"}
    optional = (
        "aio audit.start compaction.policy exchange.load graph.store kv.rows retention.erasure"
    )
    optional += " maintenance.check session.compact session.recovery session.retry"
    optional += " state.rows store.audit_log store.copy store.page_scan telemetry.otel"
    assert ours.isdisjoint(f"memcore.{name}" for name in optional.split())
    assert len(ours) <= FIRST_TURN_MODULES, sorted(ours)


def test_all_is_sorted_and_there() -> None:
    # Constants, classes, functions, as the linter sorts them.
    wanted = sorted(set(memcore.__all__), key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert list(memcore.__all__) == wanted
    missing = [name for name in memcore.__all__ if not hasattr(memcore, name)]
    assert missing == []


@pytest.mark.parametrize("script", ["make_aio", "make_faces"])
def test_what_scripts_write_is_what_they_would_write(script: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_face_offers_its_names_and_no_others() -> None:
    names, get, offered = face(
        "memcore.privacy", {"": "guards", "policy": "Policy=RedactionPolicy"}
    )
    assert names == ["Policy", "guards"]
    assert get("Policy") is memcore.RedactionPolicy
    assert get("guards") is sys.modules["memcore.privacy.guards"]
    assert set(names) < set(offered())
    with pytest.raises(AttributeError, match="has no attribute 'RedactionPolicy'"):
        get("RedactionPolicy")


def test_version_is_that_of_the_project() -> None:
    assert memcore.__version__ == PYPROJECT["project"]["version"]


def test_build_group_repeats_the_build_requirements() -> None:
    assert PYPROJECT["dependency-groups"]["build"] == PYPROJECT["build-system"]["requires"]


def test_types_are_announced() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "_fast.pyi").is_file()


def test_build_flavour_is_known() -> None:
    assert _fast.build_flavour() in {"release", "trace", "sanitize"}


def test_missing_extension_is_loud(tmp_path: Path) -> None:
    built = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "*.html", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "memcore", ignore=built)
    ran = run_python("import memcore", tmp_path)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "pip install -e ." in last


def test_the_gate_notes_the_tree_that_it_checked(tmp_path: Path) -> None:
    gate = (ROOT / "scripts/check").read_text(encoding="utf-8")
    start = gate.index("# The hash of the tree")
    functions = gate[start : gate.index("checked=$(")]

    def run(script: str) -> str:
        command = f"set -euo pipefail\n{functions}\n{script}"
        ran = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return ran.stdout

    run("git init -q . && git config user.email a@b && git config user.name a")
    run("echo build >.gitignore; mkdir build; echo 1 >f; git add . && git commit -qm one")
    tree = run("git rev-parse 'HEAD^{tree}'")
    assert run("committed_tree") == tree
    run('note_checked "$(committed_tree)" build/checked')
    noted = tmp_path / "build" / "checked"
    assert noted.read_text() == tree
    noted.unlink()
    seeds = gate[gate.index("seeding=") : gate.index("crash_first()")]
    for tree_or_none in (tree.strip(), ""):
        seed = run(f"checked={tree_or_none}\n{seeds}\necho $crash_seed")
        assert int(seed) > 0
    run('then=$(committed_tree); echo 2 >f; note_checked "$then" build/checked')
    assert not noted.exists()  # something was changed while it ran
    run('note_checked "$(committed_tree)" build/checked; [ -z "$(committed_tree)" ]')
    assert not noted.exists()


def test_a_failing_job_of_the_gate_hides_no_other(tmp_path: Path) -> None:
    gate = (ROOT / "scripts/check").read_text(encoding="utf-8")
    start = gate.index("# Run the functions named")
    functions = gate[start : gate.index("check_tests() {")]
    script = f"""
set -euo pipefail
{functions}
scratch={tmp_path} kept={tmp_path} cores=2
first() {{ echo one; false; echo not reached; }}
second() {{ echo two; }}
third() {{ echo three; }}
run_jobs second third
echo left: $(left first second third)
run_jobs first second third
echo not reached
"""
    ran = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert "not reached" not in lines
    assert "left: first" in lines  # a run that goes on does not repeat what passed
    assert [lines.count(word) for word in ("one", "two", "three")] == [1, 2, 2], ran.stderr
    ended = [line.rsplit(",")[0] for line in ran.stdout.splitlines() if line.startswith("-- ")]
    assert sorted(ended) == ["-- first: FAILED", *["-- second: ok"] * 2, *["-- third: ok"] * 2]


def test_the_gate_runs_the_tests_of_every_directory() -> None:
    gate = (ROOT / "scripts/check").read_text(encoding="utf-8")
    there = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    jobs = gate[gate.index("test_units_even()") : gate.index("heavy=")]
    assert there == {name for name in there if name in jobs or name == "unit"}


# --- other distributions of this import name ------------------------------------------------------


def install(beside: Path, name: str, *files: str) -> None:
    metadata = beside / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_other_owners_of_the_package_are_named(tmp_path: Path) -> None:
    package = str(tmp_path / "memcore")
    assert list(foreign_owners(package)) == []
    install(tmp_path, distribution.NAME, "memcore/__init__.py")
    install(tmp_path, "memcore-guide", "memcore_guide/__init__.py")
    assert list(foreign_owners(package)) == []
    install(tmp_path, "memcore-omnix", "memcore/doctor.py", "memcore/__main__.py")
    install(tmp_path, "memcore", "memcore/__init__.py")
    assert sorted(foreign_owners(package)) == ["memcore", "memcore-omnix"]
    with pytest.warns(RuntimeWarning, match="memcore, memcore-omnix installs a package"):
        distribution.warn_of_foreign_owners(package)


def test_an_import_beside_another_owner_says_so(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "memcore", ignore=shutil.ignore_patterns("__pycache__"))
    install(tmp_path, "memcore-omnix", "memcore/doctor.py")
    program = "import memcore; print(len(memcore.open(':memory:').session('s')))"
    ran = run_python(program, tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "0\n")
    assert "pip uninstall memcore-omnix" in ran.stderr
    store = tmp_path / "a.memcore"
    with memcore.open(store):
        pass
    ran = run_python(
        f"from memcore.maintenance.doctor import examine; print(examine({str(store)!r}).advice)",
        tmp_path,
    )
    assert "pip uninstall memcore-omnix" in ran.stdout


def test_another_system_is_told_so(tmp_path: Path) -> None:
    for system in ("win32", "darwin"):
        ran = run_python(f"import sys; sys.platform = {system!r}; import memcore")
        last = ran.stderr.strip().splitlines()[-1]
        assert last.startswith(f"ImportError: memcore runs on Linux, not on {system}")


def test_every_extra_that_is_named_exists() -> None:
    """In errors and docstrings of the package, and on the pages."""
    known = set(PYPROJECT["project"]["optional-dependencies"])
    named: dict[str, set[str]] = {}
    places = [*PACKAGE.rglob("*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    for place in places:
        text = place.read_text(encoding="utf-8")
        found = re.findall(
            r"memcore-db\[([a-z0-9_,-]+)\]|pip install \"\.\[([a-z0-9_,-]+)\]\"", text
        )
        found += [(extra, "") for extra in re.findall(r'extra=\("[^"]+", "([^"]+)"', text)]
        for pair in found:
            for extra in "".join(pair).split(","):
                named.setdefault(extra, set()).add(str(place.relative_to(ROOT)))
    assert len(named) > 10
    assert {extra: where for extra, where in named.items() if extra not in known} == {}
