"""``memcore.open`` of a path as a store on a PostgreSQL server, so that tests of files run on it.

``MEMCORE_TEST_SERVER=1`` turns it on. Each path is a schema of its own, dropped when its test ends.
What only a file has stays a file: stores in memory, without durability, encrypted and audited ones.
Tests that look at a file's bytes, or open it in another process, are left out by ``NEED_A_FILE``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import servers

from memcore.database import open as opening

IS_ON = bool(os.environ.get("MEMCORE_TEST_SERVER"))
NEED_A_FILE = frozenset(
    (
        "test_a_failed_commit_leaves_no_trace_in_the_handles",
        "test_a_commit_that_fails_leaves_no_trace_of_a_recount_in_the_handles",
        "test_two_that_recount_at_once",
        "test_two_handles_of_a_file_share_a_batch",
        "test_a_recount_among_neighbours_in_one_commit",
        "test_a_cancelled_add_waits_for_its_outcome",
        "test_a_cancelled_replacement_is_settled_before_who_comes_next",
        "test_a_commit_that_fails_leaves_the_history",
        "test_a_compact_copy_keeps_it",
        "test_a_copy_and_a_salvage_keep_what_was_rewritten",
        "test_a_counter_that_is_gone_is_named",
        "test_a_fresh_process_and_a_salvaged_file_find_the_same",
        "test_a_fresh_process_goes_on",
        "test_a_handle_with_a_stale_cache",
        "test_a_killed_owner_is_taken_over_and_its_twin_fenced",
        "test_a_process_that_is_killed_neither_loses_nor_doubles",
        "test_a_salvage_brings_nothing_back",
        "test_a_salvage_keeps_what_is_proven",
        "test_a_salvage_keeps_what_is_whole_and_says_what_was_lost",
        "test_a_search_on_a_full_device_reads_what_it_cannot_index",
        "test_a_session_deleted_by_another_process_is_counted_by_the_default_counter",
        "test_a_session_that_cannot_be_counted_is_reported_and_the_others_are_counted",
        "test_a_snapshot_is_of_one_moment",
        "test_a_thread_goes_back_to_its_newest_whole_checkpoint",
        "test_a_thread_that_was_being_deleted_does_not_come_back",
        "test_a_value_with_a_lost_part_is_told_of_and_never_reads_as_another",
        "test_an_audit_that_begins_later_covers_memories",
        "test_an_encrypted_thread_is_saved",
        "test_an_encrypted_thread_without_its_key_is_lost_and_told",
        "test_another_process_writes",
        "test_backup_and_copy_compact_take_the_pages_along",
        "test_changes_of_another_process_are_found",
        "test_copies_hold_the_threads",
        "test_copies_keep_it_and_exports_leave_it_out",
        "test_deleting_may_take_the_room_that_is_kept_for_it",
        "test_deleting_may_use_the_room_that_is_kept_for_it",
        "test_items_that_were_not_searched_are_told",
        "test_on_the_command_line",
        "test_paths_and_options_of_uris",
        "test_processes_equal_one_after_the_other",
        "test_processes_lose_no_report",
        "test_processes_share_the_jobs_and_do_none_twice",
        "test_salvage_brings_no_grant_back",
        "test_salvage_keeps_artifacts",
        "test_salvage_keeps_contents_and_counts_them_anew",
        "test_salvage_keeps_every_counter",
        "test_salvage_leaves_the_index_out",
        "test_salvage_saves_the_checkpoints_of_a_damaged_session_anew",
        "test_salvage_takes_checkpoints_along",
        "test_sweeps_of_several_processes",
        "test_the_command_counts_what_differs",
        "test_the_command_line",
        "test_the_command_line_looks_at_one_thread_once",
        "test_the_command_line_shows_a_profile_and_what_does_not_fit",
        "test_the_command_line_tells_the_same",
        "test_the_constructor_makes_the_file_and_needs_no_loop",
        "test_united_memories_travel_and_survive_a_salvage",
        "test_what_is_erased_or_deleted_is_not_remembered",
        "test_what_is_lost_of_a_thread_is_told",
        "test_what_the_command_refuses",
        "test_what_was_read_of_a_file_is_not_taken_for_the_one_that_replaced_it",
    )
)
"""Names of tests that look at a file: its bytes, its copies, its free space, or its name in another
process or command; that two handles share one queue; and what a snapshot shows while others write,
which runs again here."""


class Redirect:
    """Opens paths on one server."""

    def __init__(self, server: servers.Server) -> None:
        import psycopg

        from memcore.store.postgres.store import PostgresStore

        self._server = server
        self._store = PostgresStore
        self._names: set[str] = set()
        self._plain = opening._open_file
        opening._open_file = self.open_file
        self._admin = psycopg.connect(server.dsn, autocommit=True)

    def open_file(self, file: str, *, read_only: bool, create: bool, **options: Any) -> Any:
        """As ``_open_file``."""
        if file.startswith("postgresql:/"):  # of a handle's path, maybe as a Path
            name = file.partition("#")[2]
            address = self._server.address(name)
            return self._store(address, read_only=read_only, create=create)
        is_plain = file == ":memory:" or options.get("access") or options["durability"] == "none"
        if is_plain or os.path.exists(file):
            return self._plain(file, read_only=read_only, create=create, **options)
        name = f"t{blake2b(os.path.realpath(file).encode(), digest_size=8).hexdigest()}"
        self._names.add(name)
        return self._store(
            self._server.address(name),
            read_only=read_only, create=create, durability=options["durability"],
        )  # fmt: skip

    def drop(self) -> None:
        """Drop what one test has made."""
        for name in self._names:
            self._admin.execute(f'drop schema if exists "{name}" cascade')
        self._names.clear()

    def end(self) -> None:
        """Open files again."""
        opening._open_file = self._plain
        self._admin.close()


@contextmanager
def redirected() -> Iterator[Redirect]:
    """A server, on which paths are opened."""
    with servers.postgres() as server:
        redirect = Redirect(server)
        try:
            yield redirect
        finally:
            redirect.end()
