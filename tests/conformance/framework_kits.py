"""The tests that frameworks ship, run on memcore's adapters: a command of its own.

    python tests/conformance/framework_kits.py NAME [--home DIR] [--source DIR]

It makes a virtual environment (not the one that it runs in), fetches the source distribution of
the framework, puts the adapter in the place of the framework's own class (a plugin beside this
file), and runs the test files that use it. Without network it says so and ends with 0. It fails if
a test fails that the kit does not list, or if one that is listed passes.
"""

# ruff: noqa: T201 - it prints what it found

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]


class Unavailable(Exception):  # noqa: N818 - no error: the kit is skipped
    """Something cannot be fetched."""


class Kit(NamedTuple):
    """The tests of a framework; without a source distribution they are given by ``--source``."""

    package: str
    version: str
    plugin: str
    needs: tuple[str, ...]
    options: tuple[str, ...]
    files: tuple[str, ...]
    known: dict[str, tuple[int, str]]
    """Test: how many of its variants fail, and why."""
    has_sdist: bool = True


FILES: Final = "looks into the files"
STAGE: Final = "looks at marks of the framework's own class"
TYPES: Final = "a class of the test's own, which no storage may unpickle; one in memory copies it"
LOOPS: Final = "counts turns of the event loop; only a store that never waits takes none"
IN_FILES: Final = (
    *(f"test_{name}" for name in (
        "uses_msgspec_json_by_default", "stores_and_loads_length_prefixed_msgpack",
        "msgpack_rejects_custom_json_codecs", "custom_json_codecs_are_deprecated",
        "stores_and_loads_messages", "reads_existing_stdlib_non_finite_json",
        "creates_storage_directory", "uses_encoded_filename_for_unsafe_session_id",
        "allows_custom_serializers_returning_bytes", "invalid_jsonl_line_raises",
        "truncated_msgpack_record_raises", "none_session_id_uses_default_jsonl_file",
        "non_mapping_jsonl_line_raises", "serializer_must_return_single_line_json",
        "concurrent_writes_for_same_session_are_locked",
    )),
    *(f"test_file_checkpoint_storage_{name}" for name in (
        "save_and_load", "delete", "directory_creation", "json_serialization",
    )),
)  # fmt: skip
OF_TYPES: Final = tuple(
    f"test_memory_checkpoint_storage_roundtrip_{name}"
    for name in ("dataclass", "pending_request_info_events", "full_checkpoint")
)
KITS: Final = {
    "agent-framework": Kit(
        package="agent-framework-core",
        version="1.23.0",
        plugin="agent_framework_swap",
        needs=("pytest>=9", "pytest-asyncio", "pytest-timeout", "opentelemetry-sdk"),
        options=(
            "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function",
            "--import-mode=importlib", "-k",
            ("TestHistoryProviderBase or TestSessionStore or TestInMemoryHistory or "
             "TestFileHistory or checkpoint"),
        ),
        files=("tests/core/test_sessions.py", "tests/workflow/test_checkpoint.py"),
        known={
            "test_after_run_stores_coalesced_code_interpreter_chunks": (
                1, "fails with the framework's own, too: the tests are of 1.13",
            ),
            "test_is_marked_experimental": (2, STAGE),
            "test_operations_mark_feature_usage": (3, STAGE),
            "test_state_is_serializable": (1, "expects the messages in the session's state"),
            **dict.fromkeys(IN_FILES, (1, FILES)),
            **dict.fromkeys(OF_TYPES, (1, TYPES)),
        },
        has_sdist=False,
    ),
    "claude": Kit(
        package="claude-agent-sdk",
        version="0.2.189",
        plugin="claude_swap",
        needs=("pytest>=9", "anyio[trio]", "pytest-timeout"),
        options=("-p", "anyio"),
        files=tuple(
            f"tests/test_{name}.py"
            for name in (
                "session_resume", "session_import", "session_helpers_store",
                "session_store_conformance", "session_summary", "transcript_mirror",
                "session_store_anyio",
            )
        ),
        known={
            "test_cancelled_after_mkdtemp_cleans_temp_dir": (1, LOOPS),
            "test_load_concurrency_is_bounded": (2, LOOPS),
            "test_gap_fill_bounded_concurrency": (2, LOOPS),
            "test_eager_flush_mode_appends_per_frame_before_result": (1, LOOPS),
        },
    ),
    "llama-index": Kit(
        package="llama-index-core",
        version="0.14.25",
        plugin="llama_index_swap",
        needs=("pytest>=9", "pytest-asyncio", "pytest-timeout", "aiosqlite"),
        options=("-o", "asyncio_default_fixture_loop_scope=function"),
        files=("tests/storage/chat_store/test_sql.py",),
        known={},
        has_sdist=False,
    ),
    "strands": Kit(
        package="strands-agents",
        version="1.62.0",
        plugin="strands_swap",
        needs=("pytest>=9", "pytest-asyncio", "pytest-timeout"),
        options=(),
        files=(
            "tests/strands/session/test_repository_session_manager.py",
            "tests/strands/session/test_snapshot_session_manager.py",
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/storage/test_storage.py",
            "tests/strands/agent/test_agent_storage.py",
            "tests/strands/_context_manager/test_stash.py",
            "tests/strands/_context_manager/test_retrieval_tool.py",
            "tests/strands/_context_manager/test_stash_integration.py",
        ),
        known={
            "test_returns_class_name_of_base_storage": (1, "expects the name InMemoryStorage"),
        },
    ),
}  # fmt: skip


def main() -> int:
    """Run a kit; 0 if it went as it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("name", choices=sorted(KITS))
    parser.add_argument("--source", type=Path, help="the framework's source tree, with its tests")
    parser.add_argument("--home", type=Path, default=cache / "memcore-framework-kits")
    options = parser.parse_args()
    kit, home = KITS[options.name], options.home.resolve()
    try:
        python = environment(kit, home)
        source = options.source or unpacked(kit, home)
    except Unavailable as exc:
        print(f"SKIPPED: the kit of {kit.package} {kit.version} is not at hand: {exc}")
        return 0
    return judge(kit, run(kit, python, source))


def environment(kit: Kit, home: Path) -> Path:
    """The interpreter of the kit's own environment, made if it is missing."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    at = home / f"venv-{kit.package}-{kit.version}-{minor}"
    python, done = at / "bin" / "python", at / "complete"
    if not done.exists():
        _call([sys.executable, "-m", "venv", "--clear", str(at)])
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = [*project["dependencies"], f"{kit.package}=={kit.version}", *kit.needs]
        _call([str(python), "-m", "pip", "install", "-q", *wanted])
        done.touch()
    return python


def unpacked(kit: Kit, home: Path) -> Path:
    """The framework's source tree with its tests."""
    name = f"{kit.package.replace('-', '_')}-{kit.version}"
    if not kit.has_sdist:
        raise Unavailable(
            "its source distribution has no tests: check its repository out, --source"
        )
    if not (home / name / "tests").is_dir():
        _call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary",
               kit.package, "-d", str(home), f"{kit.package}=={kit.version}"])  # fmt: skip
        with tarfile.open(home / f"{name}.tar.gz") as opened:
            opened.extractall(home, filter="data")
    return home / name


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[:5])} ... said {said}")


def run(kit: Kit, python: Path, source: Path) -> dict[str, str | None]:
    """Each test that was run, and why it failed."""
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    paths = (HERE, ROOT, source)
    command = [str(python), "-m", "pytest", "-q", "-p", kit.plugin, "-p", "no:cacheprovider",
               "-o", "addopts=", "--timeout=60", *kit.options, f"--junitxml={report}",
               *kit.files]  # fmt: skip
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        command, cwd=source, env=surroundings, capture_output=True, text=True, check=False
    )
    if not report.exists():
        raise SystemExit(f"pytest made no report:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    found: dict[str, str | None] = {}
    for case in ET.parse(report).iter("testcase"):
        bad = [each for each in case if each.tag in ("failure", "error")]
        why = (bad[0].get("message") or "").splitlines()[:1] if bad else None
        found[f"{case.get('classname')}::{case.get('name')}"] = why and why[0]
    return found


def judge(kit: Kit, found: dict[str, str | None]) -> int:
    """Print what came of it; 1 if it is not what the kit lists."""
    failed = {at: why for at, why in found.items() if why is not None}
    print(f"{kit.package} {kit.version}: {len(found)} tests in {len(kit.files)} files: "
          f"{len(found) - len(failed)} passed, {len(failed)} failed")  # fmt: skip
    left = {name: count for name, (count, _) in kit.known.items()}
    new = 0
    for at, why in failed.items():
        name = at.rpartition("::")[2].partition("[")[0]
        reason = kit.known.get(name, (0, None))[1]
        new += reason is None
        if name in left:
            left[name] -= 1
        print(f"  {'NEW      ' if reason is None else 'known    '} {at}: {reason or why}")
    # What counts turns of the event loop passes where the machine is quick enough.
    stale = {
        name: count
        for name, count in left.items()
        if count < 0 or (count and kit.known[name][1] != LOOPS)
    }
    for name, count in stale.items():
        print(f"  NOT AS LISTED  {name}: {abs(count)} {'fewer' if count > 0 else 'more'} fail")
    print("NOT as listed" if new or stale else "as listed")
    return int(bool(new or stale))


if __name__ == "__main__":
    sys.exit(main())
