from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from mmap import mmap
from typing import Any, Final, Self, TypeVar, final

from typing_extensions import Buffer, disjoint_base

_T = TypeVar("_T")

def build_flavour() -> str: ...
def record_init(self: object, /, *args: object, **named: object) -> None: ...
def record_repr(self: object, /) -> str: ...
def record_eq(self: object, other: object, /) -> bool: ...
def record_hash(self: object, /) -> int: ...
def record_getstate(self: object, /) -> list[Any]: ...
def record_setstate(self: object, state: list[Any], /) -> None: ...

@final
class RecordLayout:
    names: Final[tuple[str, ...]]
    arguments: Final[int]
    positional: Final[int]
    def __new__(
        cls,
        names: tuple[str, ...],
        defaults: tuple[Any, ...],
        factories: tuple[Callable[[], Any] | None, ...],
        missing: object,
        arguments: int,
        positional: int,
        shown: tuple[str, ...],
        compared: tuple[str, ...],
        has_check: bool,
    ) -> Self: ...

def classify(
    item: dict[str, Any],
) -> tuple[int, tuple[tuple[int, str], ...], tuple[tuple[int, str], ...], int]: ...
def is_readable(item: dict[str, Any]) -> bool: ...
def has_long_id(messages: list[dict[str, Any]], most: int) -> bool: ...
def pack_runs(values: list[Any], numbers: bool, finite: bool) -> list[tuple[int, int, bytes]]: ...
def unpack_run(content: bytes) -> list[Any]: ...
def pack_facts(item: dict[str, Any], seed: bytes) -> bytes | None: ...
def pack_event(abandons: tuple[tuple[int, str], ...], seed: bytes) -> bytes | None: ...
def scan_json(value: object) -> int: ...
def open_messages(
    rows: list[tuple[bytes, bytes]],
    prefix: bytes,
    first: int,
    head: bytes,
    loads: Callable[[bytes], Any],
) -> list[dict[str, Any] | None] | None: ...
def leading_rows(
    rows: list[tuple[bytes, bytes]], prefix: bytes, first: int, start: int = 0
) -> int: ...
def open_items(
    rows: list[tuple[bytes, bytes]],
    first: int,
    tokens: list[int],
    head: bytes,
    loads: Callable[[bytes], Any],
    item: type[Any],
    kinds: tuple[Any, ...],
    slow: Callable[[int, bytes, bytes, int], Any],
) -> list[Any]: ...

@final
class SessionRows:
    def __init__(
        self,
        cursor: Any,
        get: Callable[[bytes], bytes | None],
        opened: Callable[[bytes, bytes], bytes] | None,
        policies: frozenset[bytes],
        event: bytes,
        rest: bytes,
        meta: bytes,
        stamp: bytes,
    ) -> None: ...
    def names(
        self, start: bytes, prefix: bytes, most: int
    ) -> tuple[list[tuple[str, int]], bool]: ...
    def fields(
        self, prefix: bytes, names: Mapping[bytes, tuple[bytes, int]]
    ) -> tuple[bytes | None, bytes, int] | None: ...
    def summary(
        self,
        scope: int,
        session: int,
        names: Mapping[bytes, tuple[bytes, int]],
        known: tuple[Any, ...] | None,
    ) -> tuple[Any, ...] | None: ...

def xxh3_64(data: Buffer, seed: int = 0) -> int: ...
def is_sealed(key: bytes, value: bytes) -> bool: ...
def seal_value(key: bytes, body: bytes, flags: int = 0, *, value_format: int = 1) -> bytes: ...
def redo_record(ops: dict[bytes, bytes | None], txnid: int, base: int, seed: int) -> bytes: ...
def write_redo(
    fd: int, ops: dict[bytes, bytes | None], txnid: int, seed: int, slot: int, meta: int
) -> bytes: ...
def encode_plain(item: dict[str, Any], seed: bytes, options: int) -> tuple[bytes, bytes] | None: ...

@final
class PlainEncoder:
    def __init__(
        self,
        cls: type[Any],
        seed: bytes,
        options: int,
        checked: Callable[[str, Any], int],
        most: int,
    ) -> None: ...
    @property
    def screens(self) -> bool: ...
    def screen(self, classes: int, clean: bytes) -> None: ...
    def encode(
        self, items: list[Any], counter: Any, now_us: int, envelope: bytes = b""
    ) -> list[Any]: ...

@disjoint_base
class RecordingTxn:
    raw: Any
    get: Callable[[bytes], bytes | None]
    vault: Any
    audit: Any
    raw_put: Callable[[bytes, bytes], bool]
    raw_delete: Callable[[bytes], bool]
    ops: dict[bytes, bytes | None]
    puts: dict[bytes, int]
    local: dict[Any, Any]
    callbacks: list[tuple[Any, Callable[[], None]]]
    topics: set[bytes]
    owner: Any
    failed: Exception | None
    size: int
    recording: bool
    dirty: bool
    deleted: bool
    number: int
    def __init__(
        self, raw: Any, recording: bool, vault: Any = None, recorder: Any = None
    ) -> None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def put_own(self, key: bytes, value: bytes) -> None: ...
    def drop(self) -> Any: ...
    def delete(self, key: bytes) -> bool: ...
    def record(self, key: bytes, value: bytes | None) -> None: ...
    def spoil(self) -> None: ...
    def on_commit(self, callback: Callable[[], None]) -> None: ...
    def notify(self, topic: bytes) -> None: ...

@disjoint_base
class PreparedFields:
    message: dict[str, Any]
    facts: bytes
    tokens: int
    body: bytes
    flags: int
    created_s: int
    counter: str
    payload: bytes | None
    staged: Any
    held: bytes | None
    content: bytes | None
    was: int
    def __init__(
        self,
        message: dict[str, Any],
        facts: bytes,
        tokens: int,
        body: bytes,
        flags: int,
        created_s: int,
        counter: str,
        payload: bytes | None = None,
        *,
        was: int = 0,
    ) -> None: ...

@disjoint_base
class CacheFields:
    lock: Any
    place: tuple[int, int]
    scope: int
    session: int
    head_key: bytes
    tombstone: bytes
    item_rows: bytes
    tag: int
    counter: Any
    head: Any
    head_bytes: bytes | None
    tail: tuple[int, bytes, bytes] | None
    ledger: Any
    older: list[Any]
    positions: Any
    def older_of(self, txn: Any, head: HeadFields) -> list[Any]: ...

@disjoint_base
class AppendingTxn:
    txn: Any
    log: Any
    seed: int
    head: Any
    base: Any
    overlay: Ledger
    waiting: list[tuple[int, Any]]
    tail: tuple[int, bytes, bytes] | None
    older: list[Any]
    packed: bytes | None
    is_rebased: bool
    is_vacated: bool
    def __init__(
        self, txn: Any, log: Any, seed: int, new_head: Any = None, base: Any = None
    ) -> None: ...
    def receipt(self, count: int) -> Any: ...
    def append(self, items: Iterable[PreparedFields], *, orphans: str) -> int: ...
    def flush(self) -> None: ...
    def finish(self, *, now_ms: int, revised: bool = True) -> None: ...
    def drop(self) -> None: ...
    def take_over(self) -> None: ...

def page_rule(
    page: bytes,
    number: int,
    branch: bool,
    *,
    numbered: bool = False,
    low: bytes | None = None,
    high: bytes | None = None,
) -> int: ...

@final
class TreeWalk:
    rows: int
    own: int
    def __new__(
        cls, fd: int, last_page: int, damage: Callable[..., Exception], row: type[Any]
    ) -> Self: ...
    def judge(self, tree: tuple[Any, ...], nodes_max: int = 0) -> None: ...
    def leaves(self, tree: tuple[Any, ...], nodes_max: int = 0) -> Iterator[list[Any]]: ...
    def run(self, first: int, size: int) -> int: ...
    def take_list(self, data: bytes) -> int: ...
    def referred(self) -> set[int]: ...

@disjoint_base
class DraftFields:
    seed: int
    def of(self, txn: Any, log: Any) -> Any: ...

@disjoint_base
class RefFields:
    engine: Any
    options: Any
    asks: bool
    always_drafts: bool
    log: Any
    due: Any
    lease: Any
    uses: Any
    def begin_append(self, items: list[Any], change: type[AppendFields]) -> Any: ...

@disjoint_base
class ChangeFields:
    ref: Any
    def __call__(self, txn: Any) -> Any: ...

@disjoint_base
class AppendFields(ChangeFields):
    items: Any
    expected_revision: int | None
    request: Any
    creates: bool

@final
class WriteRequest:
    fn: Callable[[Any], Any]
    result: Any
    error: BaseException | None
    waiter: Any
    future: Any
    state: int
    makes_room: bool
    done: bool
    struck: bool
    job: bool
    def __init__(self, fn: Callable[[Any], Any], *, makes_room: bool = False) -> None: ...

@final
class WriteBatch:
    own: WriteRequest | None
    refusal: Any
    calls: list[WriteRequest]
    back: list[WriteRequest]
    hurried: bool
    decided: bool
    def __init__(self, own: WriteRequest | None, *, hurried: bool = False) -> None: ...
    def take_back(self, index: int) -> None: ...

@disjoint_base
class RequestQueue:
    _run: Callable[[WriteBatch], None]
    _batch: WriteBatch | None
    _busy: bool
    _writer_leads: bool
    def __init__(
        self, run: Callable[[WriteBatch], None], reading: Container[int], most: int
    ) -> None: ...
    def reset(self) -> None: ...
    @property
    def waiting(self) -> list[WriteRequest]: ...
    @property
    def led_here(self) -> bool: ...
    def call(
        self, fn: Callable[[Any], _T], *, job: bool = False, makes_room: bool = False
    ) -> _T: ...
    def lead(self, batch: WriteBatch) -> bool: ...
    def take_more(self, batch: WriteBatch) -> bool: ...
    def settle(self, batch: WriteBatch) -> None: ...
    def claim(self, patience_seconds: float) -> WriteRequest | None: ...
    def release(self, claimed: WriteRequest) -> None: ...
    def enqueue(self, call: WriteRequest) -> bool: ...
    def take_writer_lead(self) -> bool: ...

def whole(rest: Any, item: Any) -> Any: ...
def known_from(known: dict[int, _T], first: int, last: int) -> list[_T]: ...
def fresh_json(values: list[Any], absent: object) -> list[Any]: ...
def record_spans(page: bytes) -> list[tuple[int, int]] | None: ...
def record_in(page: bytes, at: int) -> bytes | None: ...
def clock_us() -> int: ...
def file_size(fd: int) -> int: ...
def row_sizes(puts: dict[bytes, int]) -> tuple[int, int, int, int]: ...
def pages_for(rows: tuple[int, int, int, int], depth: int, pages: int) -> int: ...

@disjoint_base
class ReserveFields:
    fd: int
    _left: int
    _next: int
    measured: int
    admitted: int
    strangers: int
    steady: Any
    pins: dict[int, Any]
    @property
    def figures(self) -> tuple[int, int, int, int]: ...
    def look(self) -> None: ...
    def measure(self, cost: int) -> None: ...
    def reserve(self, raw: Any, txnid: int, puts: dict[bytes, int]) -> bool: ...

@disjoint_base
class SteadyFields:
    _raw: Any
    _thread: Any
    is_busy: bool
    _timing: bool
    _made: int
    _covered: int
    commits_hurry: int
    commits_max: int

@disjoint_base
class EnvironmentFields:
    raw: Any
    begin: Any
    queue: Any
    redo: Any
    vault: Any
    audit: Any
    notifier: Any
    reserve: Any
    steady_sync: Any
    waits: bool
    has_name: bool
    named: int
    def begin_write(self, *, hurried: bool = False) -> Any: ...

@disjoint_base
class BatchRunner:
    env: Any
    txn: Any
    poison: str
    unsynced: bool
    batches: int
    closures: int
    def __init__(self, env: Any) -> None: ...
    def run(self, batch: WriteBatch) -> None: ...
    def run_callbacks(self, callbacks: list[tuple[WriteRequest, Any]]) -> None: ...
    def _commit(self, txn: RecordingTxn, batch: WriteBatch) -> None: ...

@final
class Ledger:
    def __new__(
        cls,
        *,
        start_mask: int = 0,
        glue: int = 0,
        orphan: int = 0,
        open_tokens: int = 0,
        base: Ledger | None = None,
        expect_items: int = 0,
        expect_calls: int = 0,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def push(self, facts: bytes, tokens: int) -> int: ...
    def load(
        self,
        page: bytes,
        skip: int,
        take: int,
        counter: int,
        counts: bytes | None = None,
        at: int = 0,
    ) -> int: ...
    def fold(self, overlay: Ledger) -> None: ...
    def appended_tokens(self, at: int) -> int: ...
    def appended(self) -> list[tuple[bytes, int]]: ...
    def truncate(self, length: int) -> None: ...
    def copy(self) -> Ledger: ...
    @property
    def tokens(self) -> int: ...
    @property
    def open_count(self) -> int: ...
    @property
    def shown_count(self) -> int: ...
    @property
    def turns(self) -> int: ...
    def cut_for_budget(self, budget: int, *, at_least: int = 0, starts: bool = True) -> int: ...
    def cut_keep_last(self, keep: int, *, starts: bool = False) -> int: ...
    def cut_at_most(self, position: int) -> int: ...
    def is_safe(self, position: int) -> bool: ...
    def irregular_from(self, position: int) -> bool: ...
    def safe_cuts(self, *, starts: bool = False) -> list[int]: ...
    def cost(self, position: int) -> int: ...
    def sum_between(self, start: int, stop: int) -> int: ...
    def kind_at(self, position: int) -> int: ...
    def is_dropped(self, position: int) -> bool: ...
    def leading(self, kind: int) -> int: ...
    @property
    def unbound(self) -> int: ...
    @property
    def last_shown(self) -> int: ...
    def first_of(self, kind: int) -> int: ...
    def last_of(self, kinds: int, count: int, *, at_least: int = 0) -> int: ...
    def count_of(self, kinds: int, start: int) -> int: ...
    def tokens_of(self, start: int, stop: int) -> list[int]: ...
    def open_calls(self) -> list[tuple[int, int]]: ...
    def open_positions(self) -> list[int]: ...
    def find_call(self, cls: int, text: str, seed: bytes) -> tuple[int, list[int], bool] | None: ...

@disjoint_base
class HeadFields:
    revision: int
    epoch: int
    next_seq: int
    count: int
    chain: int
    tokens: int
    view_session: int
    view_number: int
    next_view: int
    parent_session: int
    parent_seq: int
    base_count: int
    link_session: int
    link_block: int
    next_block: int
    created_ms: int
    updated_ms: int
    recount_session: int
    recount_number: int
    recount_stop: int
    open_calls: int
    flags: int
    policy: str
    counter: str
    segments: list[Any]
    def changed(self) -> Self: ...
    def pack(self) -> bytes: ...
    def load(self, body: bytes) -> list[tuple[int, int, int]]: ...

@final
class Encoding:
    def __new__(cls, vocabulary: bytes | mmap, classes: bytes) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def n_tokens(self) -> int: ...
    def token(self, number: int) -> bytes: ...
    def count(self, text: str) -> int: ...
    def fits(self, text: str, max_tokens: int) -> bool: ...
    def count_many(self, texts: list[str] | tuple[str, ...]) -> array[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def measure(self, text: str) -> tuple[int, int, int]: ...
    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> tuple[str, int, int]: ...

@final
class MessageCounter:
    def __init__(
        self,
        load: Callable[[], Encoding],
        reference: Callable[[Mapping[str, Any], bytes], int],
        keys: dict[str, int],
        kinds: dict[str, str],
        dumps: Callable[[Any], bytes],
        costs: tuple[int, int, int],
    ) -> None: ...
    def count(self, message: Mapping[str, Any], encoded: bytes) -> int: ...

@final
class Trees:
    @property
    def opaque(self) -> object: ...
    def __init__(
        self, classify: Callable[[type], tuple[int, bool, tuple[str, ...], tuple[str, ...]]]
    ) -> None: ...
    def copy(self, value: Any) -> Any: ...
    def same(self, a: Any, b: Any) -> bool: ...
    def head(self, trees: list[Any], others: list[Any], values: list[Any]) -> int: ...
    def carried(
        self,
        before: dict[str, int],
        trees: list[Any],
        others: list[Any],
        nodes: list[bytes],
        entries: list[bytes],
        value: dict[Any, Any],
    ) -> tuple[list[str], list[bytes], list[bytes], list[Any], list[int]] | None: ...

@final
class Literals:
    def __new__(cls, names: list[str], *, ignore_case: bool = True) -> Self: ...
    def find(self, text: str) -> list[tuple[int, int]]: ...

def sized(content: bytes) -> bytes: ...
def find_sensitive(text: str, classes: int, context: int = 0) -> list[tuple[int, int, int]]: ...
def sensitive_work(text: str, classes: int, context: int = 0) -> int: ...
def key_context(key: str) -> int: ...
def holds_sensitive(value: object, classes: int) -> bool: ...
def types_in_packed(content: bytes, nameless: int) -> set[tuple[str, str]]: ...
def chunk_row(key: bytes, epoch: int, kind: str, content: bytes) -> bytes: ...
def sized_parts(parts: Iterable[bytes]) -> bytes: ...
def page_stops(entries: list[bytes], least: int, most_bytes: int, mask: int) -> list[int]: ...
def search_terms(text: str, key: bytes, most: int) -> tuple[bytes, int]: ...
def search_spans(
    text: str, key: bytes, wanted: dict[int, str] | None = None
) -> list[tuple[int, int, int]]: ...
def search_words(text: str) -> list[str]: ...
def stem_word(word: str) -> str: ...
def is_packed(packed: bytes) -> bool: ...
def invert_terms(documents: list[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]: ...
def pack_postings(postings: bytes, base: int) -> bytes: ...
def unpack_postings(block: bytes, base: int, stop: int) -> bytes: ...
def times_in(packed: bytes, term: int) -> int: ...
def quantized(numbers: tuple[float, ...]) -> bytes | None: ...
def best_vectors(vectors: bytes, query: bytes, k: int) -> list[tuple[int, int]]: ...

@final
class SearchTable:
    def __new__(cls, count: int) -> Self: ...
    def __len__(self) -> int: ...
    def load(self, first: int, records: bytes) -> None: ...
    def link(self) -> None: ...
    def record(self, ordinal: int) -> tuple[int, int, int, int, int, int, int] | None: ...
    def rank(
        self,
        terms: list[tuple[int, list[tuple[int, int, bytes]]]],
        pending: list[tuple[int, bytes]],
        absent: list[bytes],
        *,
        k: int,
        total: float,
        k1: float,
        b: float,
        average: float,
        lend: float,
        kinds: int,
        roles: int,
        since: int,
        until: int,
        authors: bytes,
        ranges: bytes | None,
        vectors: list[tuple[int, bytes]] | None = None,
        query: bytes = b"",
        mix: float = 0.0,
        lent: list[tuple[int, float]] | None = None,
    ) -> tuple[list[tuple[int, float, float]], list[int]]: ...
