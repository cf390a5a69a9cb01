"""The tests that ship with the OpenAI Agents SDK, run on MemcoreSession: a command of its own.

    python tests/conformance/openai_kit.py [--sdist FILE] [--home DIR] [FILES]

It makes a virtual environment (not the one that it runs in), fetches the source distribution of
the SDK whose version is installed here, puts MemcoreSession in the place of ``SQLiteSession`` and
of the tests' own ``SimpleListSession`` (``openai_swap.py``), and runs all test files that use
these: about five minutes. Without network it says so and ends with 0. It fails if a test fails
that ``KNOWN`` does not list and that passes with the SDK's own sessions, or if one that is listed
passes.
"""

# ruff: noqa: T201 - it prints what it found

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
NEEDED: Final = (
    "pytest>=9", "pytest-asyncio", "pytest-mock", "pytest-timeout", "inline-snapshot", "httpx",
    "cryptography", "aiosqlite", "sqlalchemy[asyncio]", "fakeredis[lua]", "pymongo", "websockets",
)  # fmt: skip
SECONDS_A_TEST: Final = 20
USES: Final = re.compile(r"SQLiteSession|SimpleListSession|simple_session")
NOT_MEANT: Final = {
    "tests/extensions/memory/test_advanced_sqlite_session.py": "of the subclass, not of what it is",
    "tests/extensions/memory/test_async_sqlite_session.py": "of another class",
    "tests/tracing/test_import_side_effects.py": "of what importing the SDK does",
}
SQL: Final = "looks into the SQLite file"
CONNECTIONS: Final = "looks at the connections that SQLiteSession keeps"
INSERT: Final = "halts SQLiteSession's own insert"
KNOWN: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "tests/memory/test_session.py": {
        "test_sqlite_session_close_closes_worker_thread_connections": (1, CONNECTIONS),
        "test_sqlite_session_reaps_connections_from_exited_worker_threads": (1, CONNECTIONS),
        "test_sqlite_session_closes_retired_connections_before_the_next_allocation": (
            1,
            CONNECTIONS,
        ),
        "test_sqlite_session_keeps_connections_of_live_worker_threads": (1, CONNECTIONS),
        "test_sqlite_session_closed_rejects_empty_add_items": (
            1,
            "expects the words 'SQLiteSession is closed'; the error is 'MemcoreSession is closed'",
        ),
        "test_sqlite_session_pop_item_skips_corrupt_most_recent": (1, SQL),
        "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": (1, SQL),
        "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": (1, SQL),
        "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": (1, SQL),
        "test_sqlite_session_file_lock_is_shared_across_instances": (1, CONNECTIONS),
        "test_sqlite_session_failed_add_items_releases_write_lock": (1, SQL),
        "test_sqlite_session_failed_clear_session_rolls_back": (1, SQL),
        "test_sqlite_session_failed_pop_item_releases_write_lock": (1, SQL),
        "test_sqlite_session_rollback_failure_evicts_connection": (1, CONNECTIONS),
        "test_sqlite_session_close_retries_quarantined_connection": (1, CONNECTIONS),
        "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": (
            3,
            CONNECTIONS,
        ),
    },
    "tests/memory/test_compaction_suffix.py": {
        "test_suffix_transaction_rolls_back_failed_insert": (1, SQL),
        "test_cancelled_suffix_transaction_settles_before_newer_append": (1, INSERT),
        "test_failed_encrypted_suffix_transaction_preserves_original_tokens": (2, SQL),
    },
    "tests/memory/test_openai_responses_compaction_session.py": {
        "test_settled_pop_failure_invalidates_response_chain": (2, CONNECTIONS),
        "test_settled_clear_failure_invalidates_response_chain": (2, CONNECTIONS),
    },
    "tests/extensions/memory/test_encrypt_session.py": {
        "test_encrypted_pop_authentication_is_atomic_with_concurrent_mutations": (2, SQL),
        "test_encrypted_pop_wrong_key_preserves_row_identity": (1, SQL),
    },
    "tests/test_run_impl_resume_paths.py": {
        "test_handoff_resume_after_cancelled_compaction_commits": (4, INSERT),
    },
}
"""File and test: how many of its variants fail, and why."""


class Unavailable(Exception):  # noqa: N818 - no error: the kit is skipped
    """Something cannot be fetched."""


def main() -> int:
    """Run the kit; 0 if it went as ``KNOWN`` says."""
    options = _options()
    home = options.home.resolve()
    try:
        python = environment(home)
        source = unpacked(home, options.sdist)
    except Unavailable as exc:
        print(f"SKIPPED: the kit of openai-agents {version()} is not at hand: {exc}")
        return 0
    files = options.files or chosen(source)
    report = run(python, source, files)
    failed = [at for at, found in report.items() if found["made"] and found["outcome"] == "failed"]
    alone = run(python, source, [at for at in failed if known(at) is None], swap=False)
    return judge(report, alone, set(files))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--home", type=Path, default=cache / "memcore-openai-kit")
    parser.add_argument("--sdist", type=Path, help="the source distribution, if it is at hand")
    parser.add_argument("files", nargs="*", help="test files of the SDK; all that use sessions")
    return parser.parse_args()


def version() -> str:
    """The SDK's version here."""
    return importlib.metadata.version("openai-agents")


# --- what is needed -------------------------------------------------------------------------------


def environment(home: Path) -> Path:
    """The interpreter of the kit's own environment, made if it is missing."""
    at = home / f"venv-{version()}-{sys.version_info.major}.{sys.version_info.minor}"
    python, done = at / "bin" / "python", at / "complete"
    if not done.exists():
        _call([sys.executable, "-m", "venv", "--clear", str(at)])
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = [*project["dependencies"], f"openai-agents=={version()}", *NEEDED]
        _call([str(python), "-m", "pip", "install", "-q", *wanted])
        done.touch()
    return python


def unpacked(home: Path, sdist: Path | None) -> Path:
    """The SDK's source tree with its tests."""
    source = home / f"openai_agents-{version()}"
    if not (source / "tests").is_dir():
        archive = sdist or home / f"openai_agents-{version()}.tar.gz"
        if not archive.exists():
            wanted = f"openai-agents=={version()}"
            _call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary",
                   ":all:", "-d", str(home), wanted])  # fmt: skip
        with tarfile.open(archive) as opened:
            opened.extractall(home, filter="data")
    return source


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[:5])} ... said {said}")


def chosen(source: Path) -> list[str]:
    """The test files that use a session of the kind that is replaced."""
    files = sorted((source / "tests").rglob("test_*.py"))
    named = {str(file.relative_to(source)): file for file in files}
    return [
        name
        for name, file in named.items()
        if name not in NOT_MEANT and USES.search(file.read_text(encoding="utf-8"))
    ]


# --- running --------------------------------------------------------------------------------------


def run(python: Path, source: Path, tests: list[str], *, swap: bool = True) -> dict[str, Any]:
    """What came of tests: outcome, whether they made a session of ours, why they failed."""
    if not tests:
        return {}
    report = source.parent / "report.json"
    report.unlink(missing_ok=True)
    paths = (HERE, ROOT, source)
    surroundings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OPENAI_API_KEY": "none",
        "MEMCORE_KIT_SWAP": str(int(swap)),
        "MEMCORE_KIT_REPORT": str(report),
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "openai_swap", "-p", "no:cacheprovider",
               "--tb=short", f"--timeout={SECONDS_A_TEST}", *tests]  # fmt: skip
    done = subprocess.run(
        command, cwd=source, env=surroundings, capture_output=True, text=True, check=False
    )
    if not report.exists():
        raise SystemExit(f"pytest made no report:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return json.loads(report.read_text(encoding="utf-8"))


def known(at: str) -> str | None:
    """Why a test may fail; None if it may not."""
    file, _, rest = at.partition("::")
    name = rest.rpartition("::")[2].partition("[")[0]
    found = KNOWN.get(file, {}).get(name)
    return None if found is None else found[1]


def judge(report: dict[str, Any], alone: dict[str, Any], files: set[str]) -> int:
    """Print what came of it; 1 if it is not what ``KNOWN`` says."""
    made = {at: found for at, found in report.items() if found["made"]}
    counts = Counter(found["outcome"] for found in made.values())
    print(f"openai-agents {version()}: {len(report)} tests in {len(files)} files, of which")
    print(f"{len(made)} made a session: {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped")  # fmt: skip
    failed = {at: found["why"] for at, found in made.items() if found["outcome"] == "failed"}
    drifted = [at for at in failed if alone.get(at, {}).get("outcome") == "failed"]
    print(f"{len(drifted)} of these fail with the SDK's own sessions, too (its dependencies moved)")
    expected: Counter[tuple[str, str]] = Counter()
    for at, why in failed.items():
        reason = known(at)
        if reason is not None:
            expected[at.partition("::")[0], at.rpartition("::")[2].partition("[")[0]] += 1
            print(f"  known     {at}: {reason}")
        elif at in drifted:
            print(f"  drifted   {at}: {why}")
        else:
            print(f"  NEW       {at}: {why}")
    new = [at for at in failed if known(at) is None and at not in drifted]
    stale = [
        f"{file}::{name}: {expected[file, name]} of {count} fail"
        for file, tests in KNOWN.items()
        for name, (count, _) in tests.items()
        if file in files and expected[file, name] != count
    ]
    for line in stale:
        print(f"  NOT AS LISTED  {line}")
    print("as listed" if not new and not stale else "NOT as listed")
    return int(bool(new or stale))


if __name__ == "__main__":
    sys.exit(main())
