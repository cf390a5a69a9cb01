"""The hot path: classify an item, hash its call ids, maintain the ledger of a session.

This module imports nothing from memcore and returns plain values and status codes. The algorithms
are described in docs/architecture.md ("The ledger"); ``tests/oracle.py`` is their specification.
Python code of an item's own types does not run: instances of str subclasses are converted to plain
str, containers are read through the C API. The exception is ``__eq__`` of a dict key whose type is
a subclass of str: looking up a field may call it.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_GET_LENGTH
from libc cimport errno
from libc.math cimport fabs, floor, isfinite, log, rint, sqrt
from libc.stdint cimport (
    INT64_MAX, UINT32_MAX, UINT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
    uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from posix.stat cimport fstat, struct_stat
from posix.types cimport off_t
from posix.unistd cimport pread, pwrite
from libc.string cimport memchr, memcmp, memcpy, memmove, memset


cdef extern from *:
    """
    #ifndef MEMCORE_FLAVOUR
    #define MEMCORE_FLAVOUR "release"
    #endif
    """
    const char *MEMCORE_FLAVOUR


cdef extern from "Python.h":
    object PyUnicode_FromObject(object)
    object PyUnicode_AsUTF8String(object)
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    int PyObject_GenericSetAttr(object, object, object) except -1


def build_flavour():
    """The build flavour of this extension: ``release``, ``trace`` or ``sanitize``."""
    return MEMCORE_FLAVOUR.decode("ascii")


# --- classification -------------------------------------------------------------------------------

cdef enum:
    # Kinds. The numbers are stored in index records.
    OPAQUE = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    CALL = 4
    RESULT = 5
    REASONING = 6
    EVENT = 7

cdef enum:
    # Flags of an item. The low five bits are stored, the high ones exist only in the ledger.
    MODEL = 1           # emitted by the model
    MIXED = 2           # a result that carries other content too
    THINKING = 4        # has thinking blocks
    ABANDON = 8         # an event that gives up a call
    TURN = 16           # a result in a format that needs all results of a call item in one message
    STORED_FLAGS = 31
    OPENS = 32          # opens at least one call
    DROPPED = 64        # an orphan: no context includes it

cdef enum:
    # Sets of kinds, one bit each.
    MODEL_KINDS = 1 << 3 | 1 << 4 | 1 << 6
    OPENING_KINDS = 1 << 3 | 1 << 4

cdef enum:
    # Classes of call ids: a result answers only a call of its own class.
    FUNCTION = 0
    CUSTOM = 1
    LOCAL_SHELL = 2
    SHELL = 3
    APPLY_PATCH = 4
    COMPUTER = 5
    TOOL_SEARCH = 6
    PROGRAM = 7
    MCP_APPROVAL = 8
    SERVER = 9
    CLASS_MASK = 0x3F
    BY_NAME = 0x40      # no id: binds first-in-first-out by name within its group
    SECOND = 0x80       # opens: another id of the previous call; closes: a reference, no answer

# Flags in the low bits of a key hash; the identity of a key is everything except KEY_SECOND.
cdef uint64_t KEY_BY_NAME = 1
cdef uint64_t KEY_SECOND = 2


cdef extern from *:
    """
    /* Strong references to objects that other threads may remove: nothing may run between
       borrowing a reference and incrementing it. Lines of Cython do not guarantee that: a tracer
       runs between them, and an object that a line frees may have a finalizer, which lets other
       threads run. */

    static inline PyObject *memcore_get(PyObject *dict, PyObject *key, PyObject *missing) {
        PyObject *found = PyDict_GetItem(dict, key);
        return Py_NewRef(found ? found : missing);
    }

    static inline PyObject *memcore_item(PyObject *list, Py_ssize_t at, PyObject *missing) {
        return Py_NewRef(at < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, at) : missing);
    }

    static inline PyObject *memcore_slot(PyObject *value, Py_ssize_t offset, PyObject *unset) {
        PyObject *found = *(PyObject **)((char *)value + offset);
        return Py_NewRef(found ? found : unset);
    }

    static inline int memcore_next_of(
            PyObject *dict, Py_ssize_t *at, PyObject **key, PyObject **entry) {
        PyObject *new_key, *new_entry, *old_key = *key, *old_entry = *entry;
        if (!PyDict_Next(dict, at, &new_key, &new_entry)) return 0;
        *key = Py_NewRef(new_key);
        *entry = Py_NewRef(new_entry);
        Py_XDECREF(old_key);
        Py_XDECREF(old_entry);
        return 1;
    }
    #define memcore_next(dict, at, key, entry) memcore_next_of(dict, at, &(key), &(entry))

    /* An instance of a named tuple: what ``tuple.__new__(type, fields)`` makes, without a call. */
    static inline PyObject *memcore_named(PyTypeObject *type, PyObject *fields) {
        Py_ssize_t at, count = PyTuple_GET_SIZE(fields);
        PyObject *made;
        if (!PyType_IsSubtype(type, &PyTuple_Type)) {
            PyErr_SetString(PyExc_TypeError, "a named tuple is a subclass of tuple");
            return NULL;
        }
        if (type == &PyTuple_Type) return Py_NewRef(fields);
        made = type->tp_alloc(type, count);
        if (!made) return NULL;
        for (at = 0; at < count; at++)
            PyTuple_SET_ITEM(made, at, Py_NewRef(PyTuple_GET_ITEM(fields, at)));
        return made;
    }
    """
    object memcore_get(object, object, object missing)
    object memcore_item(object, Py_ssize_t, object missing)
    object memcore_slot(object, Py_ssize_t offset, object unset)
    # Assigns the last two arguments, which must be local variables.
    bint memcore_next(object, Py_ssize_t *, object key, object entry)
    object memcore_named(type, tuple)


cdef object _MISSING = object()


cdef inline object _text(dict item, str name):
    """The value under ``name`` as a plain str if it is a non-empty string, else None."""
    cdef object found = memcore_get(item, name, None)
    if not isinstance(found, str) or PyUnicode_GET_LENGTH(found) == 0:
        return None
    return PyUnicode_FromObject(found)


cdef inline object _list(dict item, str name):
    """The list under ``name``, else None; a tuple counts as a list: it is stored as one."""
    cdef object found = memcore_get(item, name, None)
    if isinstance(found, list):
        return found
    return list(<tuple>found) if isinstance(found, tuple) else None


cdef inline object _dict(dict item, str name):
    cdef object found = memcore_get(item, name, None)
    return found if isinstance(found, dict) else None


cdef inline bint _is_true(dict item, str name):
    return memcore_get(item, name, None) is True


cdef inline int _add(list keys, int cls, object text) except -1:
    if text is not None:
        keys.append((cls, text))
    return 0


cdef int _add_id_or_name(list keys, dict call) except -1:
    cdef object key = _text(call, "id")
    if key is not None:
        return _add(keys, FUNCTION, key)
    return _add(keys, FUNCTION | BY_NAME, _text(call, "name"))


cdef int _scan_tool_calls(dict item, str name, list opens) except -1:
    cdef object calls = _list(item, name)
    cdef object call
    if calls is not None:
        for call in <list>calls:
            if isinstance(call, dict):
                _add(opens, FUNCTION, _text(<dict>call, "id"))
    return 0


cdef int _scan_assistant(dict item, list opens) except -1:
    """Chat and LangChain: ``tool_calls``, ``invalid_tool_calls``, the deprecated function call."""
    cdef object call
    _scan_tool_calls(item, "tool_calls", opens)
    _scan_tool_calls(item, "invalid_tool_calls", opens)
    call = _dict(item, "function_call")
    if call is not None:
        _add(opens, FUNCTION | BY_NAME, _text(<dict>call, "name"))
    return 0


cdef int _scan_model_block(dict block, str kind, list opens, list closes) except -1:
    """A content block of the model's turn; returns the flags it adds."""
    if kind == "tool_use" or kind == "tool_call" or kind == "invalid_tool_call":
        _add(opens, FUNCTION, _text(block, "id"))
    elif kind == "thinking" or kind == "redacted_thinking" or kind == "reasoning":
        return THINKING
    elif kind == "server_tool_use" or kind == "mcp_tool_use" or kind == "server_tool_call":
        _add(opens, SERVER, _text(block, "id"))
    elif kind == "server_tool_result":
        _add(closes, SERVER, _text(block, "tool_call_id"))
    elif kind.endswith("_tool_result"):
        _add(closes, SERVER, _text(block, "tool_use_id"))
    return 0


cdef int _scan_blocks(list blocks, bint model, list opens, list closes) except -1:
    """Content blocks of Anthropic and LangChain; returns the flags they add."""
    cdef int flags = 0
    cdef object entry
    cdef object kind
    for entry in blocks:
        kind = _text(<dict>entry, "type") if isinstance(entry, dict) else None
        if kind is None:
            flags |= MIXED
        elif model:
            flags |= _scan_model_block(<dict>entry, <str>kind, opens, closes)
        elif kind == "tool_result":
            _add(closes, FUNCTION, _text(<dict>entry, "tool_use_id"))
        else:
            flags |= MIXED
    return flags


cdef int _scan_parts(list parts, bint model, list opens, list closes) except -1:
    """Parts of a Gemini content; returns the flags they add."""
    cdef int flags = 0
    cdef object part
    cdef object found
    for part in parts:
        if not isinstance(part, dict):
            flags |= MIXED
            continue
        if model:
            found = _dict(<dict>part, "functionCall")
            if found is None:
                found = _dict(<dict>part, "function_call")
        else:
            found = _dict(<dict>part, "functionResponse")
            if found is None:
                found = _dict(<dict>part, "function_response")
        if found is not None:
            _add_id_or_name(opens if model else closes, <dict>found)
        elif _is_true(<dict>part, "thought"):
            flags |= THINKING
        else:
            flags |= MIXED
    return flags


cdef int _settle_server_calls(list opens, list closes) except -1:
    """Drop server tool calls answered within their own item: neither open calls nor results."""
    cdef set settled
    if opens and closes:
        settled = set(opens) & set(closes)
        if settled:
            _keep(opens, settled, False)
            _keep(closes, settled, False)
    return 0


cdef int _scan_role(dict item, str role, list opens, list closes) except -1:
    """Chat, Anthropic, Gemini and Responses messages: all items with a role."""
    cdef int flags = 0
    cdef bint model = role == "assistant" or role == "model" or role == "ai"
    cdef object blocks
    if role == "system" or role == "developer":
        return SYSTEM
    blocks = _list(item, "parts")
    if blocks is not None:
        flags = _scan_parts(<list>blocks, model, opens, closes)
    elif role == "tool":
        _add(closes, FUNCTION, _text(item, "tool_call_id"))
        return RESULT
    elif role == "function":
        _add(closes, FUNCTION | BY_NAME, _text(item, "name"))
        return RESULT
    else:
        if model:
            _scan_assistant(item, opens)
        blocks = _list(item, "content")
        if blocks is not None:
            flags = _scan_blocks(<list>blocks, model, opens, closes)
    if model:
        _settle_server_calls(opens, closes)
        return ASSISTANT | ((flags & THINKING) | MODEL) << 8
    if closes:
        return RESULT | ((flags & MIXED) | TURN) << 8
    return USER if role == "user" or role == "human" else OPAQUE


cdef int _scan_langchain_ai(dict body, list opens, list closes) except -1:
    cdef int flags = MODEL
    cdef object blocks
    cdef object extra
    _scan_assistant(body, opens)
    blocks = _list(body, "content")
    if blocks is not None:
        flags |= _scan_blocks(<list>blocks, True, opens, closes) & THINKING
        _settle_server_calls(opens, closes)
    extra = _dict(body, "additional_kwargs")
    if extra is not None and not opens:
        _scan_assistant(<dict>extra, opens)
    return ASSISTANT | flags << 8


cdef int _scan_langchain(dict item, str kind, list opens, list closes) except -2:
    """LangChain messages by type; -1 if the type is not one of theirs."""
    cdef object role
    cdef object body = _dict(item, "data")
    if body is None:
        body = item
    if kind == "human" or kind == "HumanMessageChunk":
        return USER
    if kind == "ai" or kind == "AIMessageChunk":
        return _scan_langchain_ai(<dict>body, opens, closes)
    if kind == "tool" or kind == "ToolMessageChunk":
        _add(closes, FUNCTION, _text(<dict>body, "tool_call_id"))
        return RESULT
    if kind == "system" or kind == "SystemMessageChunk":
        return SYSTEM
    if kind == "function" or kind == "FunctionMessageChunk":
        _add(closes, FUNCTION | BY_NAME, _text(<dict>body, "name"))
        return RESULT
    if kind == "chat" or kind == "ChatMessageChunk":
        role = _text(<dict>body, "role")
        return OPAQUE if role is None else _scan_role(<dict>body, <str>role, opens, closes)
    return -1


cdef int _scan_constructor(dict item, list opens, list closes) except -2:
    """LangChain's serialised constructors: ``{"lc": 1, "type": "constructor", ...}``."""
    cdef object path = _list(item, "id")
    cdef object body = _dict(item, "kwargs")
    cdef object tail
    cdef str name
    if path is None or body is None or not len(<list>path):
        return OPAQUE
    tail = (<list>path)[len(<list>path) - 1]
    if not isinstance(tail, str):
        return OPAQUE
    name = PyUnicode_FromObject(tail)
    if name.endswith("Chunk"):
        name = name[:len(name) - 5]
    if not name.endswith("Message"):
        return OPAQUE
    name = name[:len(name) - 7].lower()
    return max(_scan_langchain(<dict>body, name, opens, closes), OPAQUE)


# OpenAI Responses: the class of each call type and of the output type that answers it.
cdef dict RESPONSE_CALLS = {
    "function_call": FUNCTION,
    "custom_tool_call": CUSTOM,
    "local_shell_call": LOCAL_SHELL,
    "shell_call": SHELL,
    "apply_patch_call": APPLY_PATCH,
    "computer_call": COMPUTER,
    "tool_search_call": TOOL_SEARCH,
    "program": PROGRAM,
    "mcp_approval_request": MCP_APPROVAL,
}
cdef dict RESPONSE_OUTPUTS = {
    "function_call_output": FUNCTION,
    "custom_tool_call_output": CUSTOM,
    "local_shell_call_output": LOCAL_SHELL,
    "shell_call_output": SHELL,
    "apply_patch_call_output": APPLY_PATCH,
    "computer_call_output": COMPUTER,
    "tool_search_output": TOOL_SEARCH,
    "program_output": PROGRAM,
    "mcp_approval_response": MCP_APPROVAL,
}
cdef frozenset RESPONSE_WHOLE = frozenset((
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
    "mcp_list_tools",
))


cdef int _scan_response_call(dict item, int cls, list opens, list closes) except -1:
    cdef object name
    cdef object caller = _dict(item, "caller")
    cdef object call_id = _text(item, "id" if cls == MCP_APPROVAL else "call_id")
    _add(opens, cls, call_id)
    if cls == LOCAL_SHELL:
        # The schema answers by ``id``, the SDK by ``call_id``: both ids identify the call.
        name = _text(item, "id")
        if call_id is None:
            _add(opens, cls, name)
        elif name != call_id:
            _add(opens, cls | SECOND, name)
    elif cls == TOOL_SEARCH and call_id is None:
        _add(opens, cls | BY_NAME, "tool_search")
    if caller is not None and _text(<dict>caller, "type") == "program":
        _add(closes, PROGRAM | SECOND, _text(<dict>caller, "caller_id"))
    return CALL | MODEL << 8


cdef int _scan_response_output(dict item, int cls, list closes) except -1:
    cdef object call_id = _text(item, "approval_request_id" if cls == MCP_APPROVAL else "call_id")
    if call_id is not None:
        _add(closes, cls, call_id)
    elif cls == LOCAL_SHELL:
        _add(closes, cls, _text(item, "id"))
    elif cls == TOOL_SEARCH:
        _add(closes, cls | BY_NAME, "tool_search")
    return RESULT


cdef int _scan_response(dict item, str kind, list opens, list closes) except -1:
    """OpenAI Responses items by type."""
    cdef object cls
    if kind == "reasoning":
        return REASONING | MODEL << 8
    if kind == "mcp_call":
        _add(closes, MCP_APPROVAL | SECOND, _text(item, "approval_request_id"))
        return ASSISTANT | MODEL << 8
    if kind.startswith("tool_search_") and _text(item, "execution") == "server":
        return ASSISTANT | MODEL << 8
    cls = memcore_get(RESPONSE_CALLS, kind, None)
    if cls is not None:
        return _scan_response_call(item, <int>cls, opens, closes)
    cls = memcore_get(RESPONSE_OUTPUTS, kind, None)
    if cls is not None:
        return _scan_response_output(item, <int>cls, closes)
    return ASSISTANT | MODEL << 8 if kind in RESPONSE_WHOLE else OPAQUE


cdef int _drop_repeats(list keys) except -1:
    """Merge repeats of an id within an item into one call; calls without an id stay separate."""
    cdef set seen
    if len(keys) > 1:
        seen = set(keys)
        if len(seen) < len(keys):
            _keep(keys, seen, True)
    return 0


cdef int _keep(list keys, set chosen, bint once) except -1:
    """Keep the chosen keys, each id only once; without ``once``, the keys not chosen."""
    cdef list kept = []
    cdef tuple key
    for key in keys:
        if (key in chosen) == once:
            kept.append(key)
            if once and not <int>key[0] & BY_NAME:
                chosen.remove(key)
    keys[:] = kept
    return 0


cdef int _scan_item(dict item, list opens, list closes) except -1:
    """``kind | flags << 8`` of any dict; an unknown format is OPAQUE, never an error."""
    cdef int found
    cdef object role = _text(item, "role")
    cdef object kind = _text(item, "type")
    if role is not None and kind != "chat":
        found = _scan_role(item, <str>role, opens, closes)
    elif kind is None:
        return OPAQUE
    elif kind == "constructor" and memcore_get(item, "lc", _MISSING) is not _MISSING:
        found = _scan_constructor(item, opens, closes)
    else:
        found = _scan_langchain(item, <str>kind, opens, closes)
        if found < 0:
            found = _scan_response(item, <str>kind, opens, closes)
    _drop_repeats(opens)
    return found


cdef int _need_dict(object item) except -1:
    if not isinstance(item, dict):
        raise TypeError(f"an item is a dict, not {type(item).__name__}")
    return 0


def classify(item):
    """``(kind, opens, closes, flags)`` of one item in any supported wire format.

    ``opens`` and ``closes`` are tuples of ``(class, id)`` in the item's order.
    """
    cdef list opens = []
    cdef list closes = []
    cdef int found
    _need_dict(item)
    found = _scan_item(<dict>item, opens, closes)
    return found & 0xFF, tuple(opens), tuple(closes), found >> 8


cdef bint _is_content(dict holder, object name):
    """True if a message's content or parts may be what they are: a text, a list, or nothing."""
    cdef object found = memcore_get(holder, name, None)
    return found is None or isinstance(found, str) or _has_entries(found, texts=True)


cdef bint _has_entries(object found, bint texts):
    """True if an object is a list or tuple of dicts; with ``texts``, of texts, too."""
    cdef object entry
    if not isinstance(found, (list, tuple)):
        return False
    for entry in found:
        if not isinstance(entry, dict) and not (texts and isinstance(entry, str)):
            return False
    return True


cdef bint _is_readable(dict item, uint8_t kind):
    """True if an item of this kind is a message or item of some format."""
    cdef object body, calls
    if kind == OPAQUE or not _is_content(item, "content") or not _is_content(item, "parts"):
        return False
    calls = memcore_get(item, "tool_calls", None)
    if calls is not None and not _has_entries(calls, texts=False):
        return False
    body = memcore_get(item, "data", None)
    if isinstance(body, dict):
        return _is_content(<dict>body, "content")
    # Users and instructions say something; items of other types say it elsewhere.
    return (
        (kind != USER and kind != SYSTEM)
        or memcore_get(item, "content", None) is not None
        or memcore_get(item, "parts", None) is not None
        or memcore_get(item, "type", None) is not None
    )


def is_readable(dict item not None):
    """Return True if an item is a message or item of a known format, whatever else is wrong."""
    return _is_readable(item, <uint8_t>(classify(item)[0]))


def has_long_id(list messages not None, Py_ssize_t most):
    """Return True if a message makes a call whose id has more than ``most`` characters."""
    cdef list opens = []
    cdef list closes = []
    cdef object message
    cdef object role
    cdef tuple key
    for message in messages:
        _need_dict(message)
        role = _text(<dict>message, "role")
        if role is not None and (<str>role == "user" or <str>role == "tool"):
            continue  # makes no calls
        _scan_item(<dict>message, opens, closes)
        for key in opens:
            if PyUnicode_GET_LENGTH(key[1]) > most and not <int>key[0] & BY_NAME:
                return True
        opens.clear()
        closes.clear()
    return False


# --- call keys as 64-bit hashes -------------------------------------------------------------------

cdef inline uint64_t _rotl(uint64_t x, int b) noexcept nogil:
    return (x << b) | (x >> (64 - b))


cdef inline uint64_t _load64(const uint8_t *p) noexcept nogil:
    cdef uint64_t x = 0
    memcpy(&x, p, 8)
    return x


cdef inline int _u16(const uint8_t *p) noexcept nogil:
    return p[0] | p[1] << 8


cdef inline void _sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[1] = _rotl(v[1], 13) ^ v[0]
    v[0] = _rotl(v[0], 32)
    v[2] += v[3]
    v[3] = _rotl(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _rotl(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _rotl(v[1], 17) ^ v[2]
    v[2] = _rotl(v[2], 32)


cdef uint64_t _siphash13(uint64_t k0, uint64_t k1, const uint8_t *p, Py_ssize_t n) noexcept nogil:
    """SipHash-1-3 (Aumasson and Bernstein): keyed, so that no one can construct collisions."""
    cdef uint64_t[4] v
    cdef uint64_t word = (<uint64_t>n) << 56
    cdef Py_ssize_t i = 0
    v[0] = k0 ^ 0x736F6D6570736575ULL
    v[1] = k1 ^ 0x646F72616E646F6DULL
    v[2] = k0 ^ 0x6C7967656E657261ULL
    v[3] = k1 ^ 0x7465646279746573ULL
    while i + 8 <= n:
        v[3] ^= _load64(p + i)
        _sip_round(v)
        v[0] ^= _load64(p + i)
        i += 8
    cdef int shift = 0
    while i < n:
        word |= (<uint64_t>p[i]) << shift
        shift += 8
        i += 1
    v[3] ^= word
    _sip_round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    _sip_round(v)
    _sip_round(v)
    _sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef uint64_t _hash_key(int cls, str text, const uint8_t *seed) except? 1:
    """The stored form of a call key: 62 bits of identity and two flag bits."""
    cdef Py_ssize_t size = 0
    cdef const char *chars
    cdef bytes raw
    cdef uint64_t h
    try:
        chars = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:  # a lone surrogate: any id is legal
        raw = text.encode("utf-8", "surrogatepass")
        chars = PyBytes_AS_STRING(raw)
        size = PyBytes_GET_SIZE(raw)
    # The class goes into the hash key, so equal ids of two classes are two keys.
    h = _siphash13(_load64(seed) ^ <uint64_t>(cls & CLASS_MASK), _load64(seed + 8),
                   <const uint8_t *>chars, size)
    h &= ~(KEY_BY_NAME | KEY_SECOND)
    if cls & BY_NAME:
        h |= KEY_BY_NAME
    if cls & SECOND:
        h |= KEY_SECOND
    return h


cdef enum:
    FACTS_HEADER = 6    # kind u8 | flags u8 | n_close u16 | n_open u16; then the key hashes
    RECORD_HEADER = 18  # tokens u32 | created u32 | chain u64 | counter u16; then the facts
    SEED_BYTES = 16


cdef const uint8_t *_seed(bytes seed) except NULL:
    if PyBytes_GET_SIZE(seed) != SEED_BYTES:
        raise ValueError("the seed must be 16 bytes")
    return <const uint8_t *>PyBytes_AS_STRING(seed)


cdef uint8_t *_write_keys(uint8_t *p, list keys, const uint8_t *seed) except NULL:
    cdef uint64_t h
    cdef object cls
    cdef object text
    for cls, text in keys:
        h = _hash_key(cls, text, seed)
        memcpy(p, &h, 8)
        p += 8
    return p


cdef object _pack(int found, list opens, list closes, const uint8_t *seed):
    cdef Py_ssize_t n_close = len(closes)
    cdef Py_ssize_t n_open = len(opens)
    cdef uint8_t *p
    cdef bytes out
    if n_close > 0xFFFF or n_open > 0xFFFF:
        return None
    out = PyBytes_FromStringAndSize(NULL, FACTS_HEADER + 8 * (n_close + n_open))
    p = <uint8_t *>PyBytes_AS_STRING(out)
    p[0] = <uint8_t>(found & 0xFF)
    p[1] = <uint8_t>((found >> 8) & STORED_FLAGS)
    p[2] = <uint8_t>(n_close & 0xFF)
    p[3] = <uint8_t>(n_close >> 8)
    p[4] = <uint8_t>(n_open & 0xFF)
    p[5] = <uint8_t>(n_open >> 8)
    if n_close or n_open:
        _write_keys(_write_keys(p + FACTS_HEADER, closes, seed), opens, seed)
    return out


def pack_facts(item, bytes seed not None):
    """The stored facts of an item: ``kind u8 | flags u8 | n_close u16 | n_open u16 | keys``.

    Each key is a keyed 64-bit hash of (class, id) under the 16-byte ``seed``. None if the item
    has more than 65,535 calls or results.
    """
    cdef const uint8_t *chars = _seed(seed)
    cdef list opens = []
    cdef list closes = []
    cdef int found
    _need_dict(item)
    found = _scan_item(<dict>item, opens, closes)
    return _pack(found, opens, closes, chars)


def pack_event(tuple abandons not None, bytes seed not None):
    """The facts of an event, which gives up the calls with these ``(class, id)`` keys."""
    cdef int found = EVENT | (ABANDON if abandons else 0) << 8
    return _pack(found, [], list(abandons), _seed(seed))


# --- JSON admissibility ---------------------------------------------------------------------------

cdef enum:
    JSON_DEPTH_MAX = 512
    JSON_NODES_MAX = 16_000_000
    JSON_INT_BITS_MAX = 14_283  # the most that always fit Python's limit of 4,300 decimal digits
    JSON_OK = 0
    JSON_NOT_FINITE = 1
    JSON_KEY = 2
    JSON_TYPE = 3
    JSON_DEPTH = 4
    JSON_SIZE = 5
    JSON_INT = 6


cdef inline int _scan_int(object value) except -1:
    cdef int overflow = 0
    PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow and int.bit_length(value) > JSON_INT_BITS_MAX:
        return JSON_INT
    return JSON_OK


cdef int _scan_json(object value, int depth, int64_t *nodes) except -1:
    cdef object key = None, entry = None, part
    cdef Py_ssize_t at = 0
    cdef int code
    nodes[0] += 1
    if nodes[0] > JSON_NODES_MAX:
        return JSON_SIZE
    if isinstance(value, str) or value is None:
        return JSON_OK
    if isinstance(value, int):
        return _scan_int(value)
    if isinstance(value, float):
        return JSON_OK if isfinite(<double>value) else JSON_NOT_FINITE
    if depth >= JSON_DEPTH_MAX:
        return JSON_DEPTH if isinstance(value, (dict, list, tuple)) else JSON_TYPE
    if isinstance(value, dict):
        while memcore_next(value, &at, key, entry):
            if not isinstance(key, str):
                return JSON_KEY
            code = _scan_json(entry, depth + 1, nodes)
            if code:
                return code
    elif isinstance(value, list):
        for part in <list>value:
            code = _scan_json(part, depth + 1, nodes)
            if code:
                return code
    elif isinstance(value, tuple):
        for part in <tuple>value:
            code = _scan_json(part, depth + 1, nodes)
            if code:
                return code
    else:
        return JSON_TYPE
    return JSON_OK


def scan_json(object value):
    """0 if ``value`` is JSON that round-trips unchanged.

    Subclasses count as their base types, and a tuple as a list. 1: NaN or infinity; 2: a key that
    is not a string; 3: a type that JSON does not have; 4: nested deeper than 512 (or circular);
    5: more than 16 million nodes, or an integer too long for Python to write (about 4,300 digits).
    """
    cdef int64_t nodes = 0
    return _scan_json(value, 0, &nodes)


# --- the ledger -----------------------------------------------------------------------------------

cdef struct Call:
    uint64_t key        # its identity; calls are numbered in order of position
    int32_t opener      # position of the item that opened it
    int32_t closer      # position of the item that first answered it or gave it up, -1 while open
    int32_t prev_same   # the previous call with the same key, -1 if none
    int32_t main        # the call of which this is another id, else itself
    # Calls by name form one queue per group (run of calling items) and name:
    int32_t group       # where the run starts, -1 for calls by id
    int32_t first       # the head of the queue; calls by id: itself
    int32_t next_same   # the next in the queue, -1 at its end
    int32_t cursor      # on the head: no open call precedes it in the queue; -1 if none is open

cdef struct Calls:
    Call *at
    int32_t n
    int32_t room

cdef struct Close:
    int32_t position
    int32_t call

cdef struct Closes:
    Close *at
    int32_t n
    int32_t room

cdef struct Mark:
    int32_t by          # the position whose item set the mark
    int32_t repair      # the greatest position so far at which a context needs repair

cdef struct Ints:
    int32_t *at
    int32_t n
    int32_t room

cdef struct New:
    # The item being appended.
    int kind
    int flags
    int n_close
    int n_open
    int32_t at
    int32_t low
    int32_t repair      # the greatest position that it shows to need repair, -1 if none
    int orphans         # how many of its results answer no call
    int given_up        # how many open calls it gave up


cdef int _reserve(void **block, int32_t *room, Py_ssize_t need, size_t width) noexcept nogil:
    """Make room for ``need`` elements; -1 if out of memory (the block stays valid)."""
    cdef Py_ssize_t size = room[0]
    cdef void *grown
    if need <= size:
        return 0
    size = max(need, size + size // 2 + 8)
    if size > POSITIONS_MAX:
        return -1
    grown = realloc(block[0], <size_t>size * width)
    if grown is NULL:
        return -1
    block[0] = grown
    room[0] = <int32_t>size
    return 0


cdef inline uint8_t *_moved(uint8_t **before, uint8_t **now, Py_ssize_t room, Py_ssize_t size,
                            size_t width) noexcept nogil:
    """Move the column that ends at ``before`` to end at ``now``; both then point to its start."""
    before[0] -= <size_t>room * width
    now[0] -= <size_t>size * width
    if room:
        memmove(now[0], before[0], <size_t>room * width)
    return now[0]


cdef inline void _copy(void *target, const void *source, Py_ssize_t n, size_t width) noexcept nogil:
    if n:  # memcpy requires valid pointers even for a size of 0
        memcpy(target, source, <size_t>n * width)


cdef inline int32_t _first_ge(const int32_t *at, int32_t n, int32_t x) noexcept nogil:
    """The index of the first element >= x of an ascending array."""
    cdef int32_t lo = 0
    cdef int32_t hi = n
    cdef int32_t mid
    while lo < hi:
        mid = lo + ((hi - lo) >> 1)
        if at[mid] < x:
            lo = mid + 1
        else:
            hi = mid
    return lo


cdef int _compare_ints(const void *a, const void *b) noexcept nogil:
    cdef int32_t x = (<const int32_t *>a)[0]
    cdef int32_t y = (<const int32_t *>b)[0]
    return (x > y) - (x < y)


cdef inline uint64_t _identity(uint64_t key) noexcept nogil:
    return key & ~KEY_SECOND


cdef enum:
    # Positions and sums stay far below the maxima of int32 and int64.
    POSITIONS_MAX = 1 << 30
    TOKENS_MAX = 0xFFFFFFFF
    OPEN_TOKENS_MAX = 0x7FFFFFFF
    EXPECTED_MAX = 1 << 22
    COLUMNS_BYTES = 34      # of a position in all columns of a ledger: 2 * 8 + 4 * 4 + 2 * 1


@cython.final
@cython.auto_pickle(False)
@cython.no_gc  # a ledger references only its base, which references none
cdef class Ledger:
    """The running index of one history.

    For position r let low(r) be the earliest position that must be kept if r is kept. A cut at i
    is safe iff low(r) >= i for every r >= i; appending r only invalidates a suffix of the safe
    cuts, so they are a monotone stack: pop while top > low(r), then push r if low(r) == r.
    ``base`` makes an overlay: a small ledger of uncommitted items on top of a committed one, which
    it never changes; it binds and counts, but keeps no stacks. An overlay is valid until its base
    changes.

    Args:
        start_mask: one bit per kind at which a context may start.
        glue: 1 keeps a reasoning item with its successor and consecutive calls together, 2 keeps a
            thinking tool loop whole.
        orphan: 0 leaves orphans out (they count zero tokens), 1 makes every cut at or before one
            unsafe, plus 2 if a result without any id is an orphan too.
        open_tokens: maximum cost of the synthetic result of one unanswered call, in tokens.
        expect_items, expect_calls: preallocate room for this many.
    """

    cdef Ledger base
    cdef list entries           # overlay: (facts, tokens) in order, for fold()
    cdef uint32_t start_mask
    cdef int glue, orphan
    cdef int64_t open_tokens
    cdef int64_t stamp, base_stamp          # of this ledger; of the base when this was created
    cdef int32_t base_n, base_calls, base_events
    # Columns: one element per position; sums has one more. They share one block, in this order.
    cdef int32_t n, room
    cdef int64_t *sums          # sums[i] = tokens before position i, from sums[0] of the base
    # Ascending lists of positions, with the capacity of the columns.
    cdef Mark *marks            # ascending in both fields
    cdef int32_t *safe
    cdef int32_t *starts        # the safe cuts at which a context may start
    cdef int32_t *events
    # Columns again.
    cdef int32_t *low
    cdef uint8_t *kinds
    cdef uint8_t *flags
    cdef int32_t n_safe, n_starts, n_events, n_marks
    cdef Calls calls
    cdef Ints opened            # open calls, ascending; an overlay has none
    cdef Closes closes
    cdef Calls shadow           # overlay: changed copies of calls of the base,
    cdef Ints shadowed          # and the numbers of those calls, ascending
    # Hash table of the latest call with each key: 1 + index in calls, 0 marks a free slot.
    cdef uint32_t *slots
    cdef size_t slot_mask
    cdef int32_t n_open, n_turns, n_unbound
    # The last item that a context can show, and the state its successor needs: see _advance.
    cdef int32_t last
    cdef int last_kind, last_flags
    cdef int32_t run            # where the newest run of calling items, or else of results, starts
    cdef int32_t loop_start     # where the current thinking loop starts, -1 if none
    cdef bint reasoned          # the last item belongs to a reasoning item
    # Open calls before `passed` count as unanswered: the last item except results at the end and
    # a run of CALLs before these (wire.message.Binding.ends); -1 if there is none.
    cdef int32_t passed
    cdef int32_t newest         # the last item that is not an event, -1 if there is none

    def __cinit__(self, *, uint32_t start_mask=0, int glue=0, int orphan=0,
                  long long open_tokens=0, Ledger base=None, Py_ssize_t expect_items=0,
                  Py_ssize_t expect_calls=0):
        self.last = self.loop_start = self.passed = self.newest = -1
        if base is not None:
            self._stand_on(base)
        elif open_tokens < 0 or open_tokens > OPEN_TOKENS_MAX:
            raise ValueError("open_tokens must be from 0 to 2**31 - 1")
        else:
            self.start_mask = start_mask
            self.glue = glue
            self.orphan = orphan
            self.open_tokens = open_tokens
        expect_items = min(max(expect_items, 8), EXPECTED_MAX)
        expect_calls = min(max(expect_calls, 0), EXPECTED_MAX)
        self._make_room(expect_items, expect_calls, expect_calls)
        self.sums[0] = 0 if base is None else base.sums[base.n]

    cdef int _stand_on(self, Ledger base) except -1:
        if base.base is not None:
            raise ValueError("an overlay cannot be the base of another")
        self.base = base
        self.entries = []
        self.base_stamp = base.stamp
        self.base_n = base.n
        self.base_calls = base.calls.n
        self.base_events = base.n_events
        self._take_settings(base)
        return 0

    cdef void _take_settings(self, Ledger other) noexcept:
        """Copy settings and running state: everything except arrays."""
        self.start_mask = other.start_mask
        self.glue = other.glue
        self.orphan = other.orphan
        self.open_tokens = other.open_tokens
        self.n_open = other.n_open
        self.n_turns = other.n_turns
        self.n_unbound = other.n_unbound
        self.last = other.last
        self.last_kind = other.last_kind
        self.last_flags = other.last_flags
        self.run = other.run
        self.loop_start = other.loop_start
        self.reasoned = other.reasoned
        self.passed = other.passed
        self.newest = other.newest

    def __dealloc__(self):
        free(self.sums)     # and all columns behind it
        free(self.calls.at)
        free(self.opened.at)
        free(self.closes.at)
        free(self.shadow.at)
        free(self.shadowed.at)
        free(self.slots)

    def __len__(self):
        return self.base_n + self.n

    def __sizeof__(self):
        cdef size_t size = 512
        size += <size_t>self.room * COLUMNS_BYTES
        size += <size_t>(self.opened.room + self.shadowed.room) * sizeof(int32_t)
        size += <size_t>(self.calls.room + self.shadow.room) * sizeof(Call)
        size += <size_t>self.closes.room * sizeof(Close)
        if self.slots is not NULL:
            size += (self.slot_mask + 1) * sizeof(uint32_t)
        return size

    # --- capacity ---------------------------------------------------------------------------------

    cdef int _make_room(self, Py_ssize_t items, Py_ssize_t closes, Py_ssize_t opens) except -1:
        """Reserve all memory for that many more: after it, nothing can fail half-way."""
        if self.n + items > self.room and self._grow_columns(self.n + items) < 0:
            raise MemoryError
        if self.base_n + self.n + items > POSITIONS_MAX:
            raise OverflowError("a history holds at most 2**30 items")
        if closes and _reserve(<void **>&self.closes.at, &self.closes.room,
                               self.closes.n + closes, sizeof(Close)) < 0:
            raise MemoryError
        if opens and self._make_room_for_calls(opens) < 0:
            raise MemoryError
        if self.base is not None and (closes or opens) and self._make_room_for_shadows(
                closes + 2 * opens) < 0:
            raise MemoryError
        return 0

    cdef int _grow_columns(self, Py_ssize_t need) noexcept:
        cdef Py_ssize_t size = max(need, self.room + self.room // 2)
        cdef uint8_t *grown
        cdef uint8_t *before
        cdef uint8_t *now
        if size > POSITIONS_MAX:
            size = need
        if need > POSITIONS_MAX:
            return -1
        grown = <uint8_t *>realloc(self.sums, <size_t>size * COLUMNS_BYTES + sizeof(int64_t))
        if grown is NULL:
            return -1
        # Each column moves to where it begins in the larger block, the last one first.
        before, now = grown + <size_t>self.room * COLUMNS_BYTES + sizeof(int64_t), (
            grown + <size_t>size * COLUMNS_BYTES + sizeof(int64_t))
        self.flags = _moved(&before, &now, self.room, size, 1)
        self.kinds = _moved(&before, &now, self.room, size, 1)
        self.low = <int32_t *>_moved(&before, &now, self.room, size, sizeof(int32_t))
        self.events = <int32_t *>_moved(&before, &now, self.room, size, sizeof(int32_t))
        self.starts = <int32_t *>_moved(&before, &now, self.room, size, sizeof(int32_t))
        self.safe = <int32_t *>_moved(&before, &now, self.room, size, sizeof(int32_t))
        self.marks = <Mark *>_moved(&before, &now, self.room, size, sizeof(Mark))
        self.sums = <int64_t *>grown
        self.room = <int32_t>size
        return 0

    cdef int _make_room_for_calls(self, Py_ssize_t opens) noexcept:
        cdef Py_ssize_t need = self.calls.n + opens
        if (_reserve(<void **>&self.calls.at, &self.calls.room, need, sizeof(Call)) < 0
                or _reserve(<void **>&self.opened.at, &self.opened.room, need,
                            sizeof(int32_t)) < 0):
            return -1
        if self.slots is NULL or <size_t>need * 2 > self.slot_mask:
            return self._grow_table(<size_t>need)
        return 0

    cdef int _make_room_for_shadows(self, Py_ssize_t more) noexcept:
        # A binding changes at most two calls of the base: the call and the head of its queue.
        cdef Py_ssize_t need = min(<Py_ssize_t>self.base_calls, self.shadow.n + 2 * more)
        if (_reserve(<void **>&self.shadow.at, &self.shadow.room, need, sizeof(Call)) < 0
                or _reserve(<void **>&self.shadowed.at, &self.shadowed.room, need,
                            sizeof(int32_t)) < 0):
            return -1
        return 0

    # --- the table of keys ------------------------------------------------------------------------

    cdef int _grow_table(self, size_t calls) noexcept:
        """Rebuild the table with at least twice as many slots as calls; -1 if out of memory."""
        cdef size_t mask = 15
        cdef uint32_t *slots
        cdef int32_t c
        while mask < calls * 2:
            mask = mask * 2 + 1
        slots = <uint32_t *>calloc(mask + 1, sizeof(uint32_t))
        if slots is NULL:
            return -1
        free(self.slots)
        self.slots = slots
        self.slot_mask = mask
        for c in range(self.calls.n):
            self.slots[self._slot(self.calls.at[c].key)] = <uint32_t>c + 1
        return 0

    cdef inline size_t _slot(self, uint64_t identity) noexcept:
        """The slot that holds this key, or the free one where it belongs."""
        cdef size_t i = (identity >> 2) & self.slot_mask
        while self.slots[i] and self.calls.at[self.slots[i] - 1].key != identity:
            i = (i + 1) & self.slot_mask
        return i

    cdef inline int32_t _latest(self, uint64_t identity) noexcept:
        """The latest call with this key, -1 if there is none."""
        cdef uint32_t found = 0
        if self.slots is not NULL:
            found = self.slots[self._slot(identity)]
        if found:
            return self.base_calls + <int32_t>found - 1
        return self.base._latest(identity) if self.base is not None else -1

    # --- calls ------------------------------------------------------------------------------------

    cdef inline Call *_call(self, int32_t c) noexcept:
        """A call for reading. Call numbers continue from the base into the overlay."""
        cdef int32_t i
        if c >= self.base_calls:
            return &self.calls.at[c - self.base_calls]
        i = _first_ge(self.shadowed.at, self.shadowed.n, c)
        if i < self.shadowed.n and self.shadowed.at[i] == c:
            return &self.shadow.at[i]
        return &self.base.calls.at[c]

    cdef inline Call *_call_to_change(self, int32_t c) noexcept:
        """A call for writing, valid until the next such call: an overlay changes a copy."""
        if c >= self.base_calls:
            return &self.calls.at[c - self.base_calls]
        return self._shadow(c)

    cdef Call *_shadow(self, int32_t c) noexcept:
        cdef int32_t i = _first_ge(self.shadowed.at, self.shadowed.n, c)
        cdef size_t behind = <size_t>(self.shadowed.n - i)
        if not behind or self.shadowed.at[i] != c:
            memmove(self.shadowed.at + i + 1, self.shadowed.at + i, behind * sizeof(int32_t))
            memmove(self.shadow.at + i + 1, self.shadow.at + i, behind * sizeof(Call))
            self.shadowed.at[i] = c
            self.shadow.at[i] = self.base.calls.at[c]
            self.shadowed.n += 1
            self.shadow.n += 1
        return &self.shadow.at[i]

    cdef int32_t _find(self, uint64_t key) noexcept:
        """The call that a result with this key answers, or -1."""
        cdef int32_t c = self._latest(_identity(key))
        cdef int32_t first
        cdef int32_t at
        if c < 0 or not key & KEY_BY_NAME:
            return c if c < 0 else self._call(c).main
        # First in, first out: the first open call of the latest group, else the latest call.
        first = self._call(c).first
        at = self._call(first).cursor
        while at >= 0 and self._call(at).closer >= 0:
            at = self._call(at).next_same
        if at != self._call(first).cursor:
            self._call_to_change(first).cursor = at
        return c if at < 0 else at

    cdef int32_t _find_open(self, uint64_t key) noexcept:
        """The call that giving up this key refers to, or -1: the newest open one.

        By name: the first open one of the latest group, as for a result, before older groups.
        """
        cdef int32_t found = self._find(key)
        cdef int32_t c = self._latest(_identity(key))
        while c >= 0 and self._call(found).closer >= 0:
            found = self._call(c).main
            c = self._call(c).prev_same
        return found if found >= 0 and self._call(found).closer < 0 else -1

    cdef void _open(self, New *new, uint64_t key, int32_t group) noexcept:
        """Record a call that the new item opens."""
        cdef uint64_t identity = _identity(key)
        cdef size_t slot = self._slot(identity)
        cdef int32_t c = self.base_calls + self.calls.n
        cdef int32_t prev = -1
        cdef Call *call = &self.calls.at[self.calls.n]
        if self.slots[slot]:
            prev = self.base_calls + <int32_t>self.slots[slot] - 1
        elif self.base is not None:
            prev = self.base._latest(identity)
        call.key = identity
        call.opener = new.at
        call.closer = call.next_same = call.group = -1
        call.prev_same = prev
        call.main = call.first = call.cursor = c
        self.calls.n += 1
        self.slots[slot] = <uint32_t>self.calls.n
        if key & KEY_BY_NAME:
            self._queue(c, prev, group)
        else:
            if prev >= 0:  # not every format allows an id to recur
                new.repair = max(new.repair, self._call(prev).opener)
            if key & KEY_SECOND and c > 0 and self._call(c - 1).opener == new.at:
                call.main = self._call(c - 1).main
                return
        if self.base is None:
            self.opened.at[self.opened.n] = c
            self.opened.n += 1
        self.n_open += 1

    cdef void _queue(self, int32_t c, int32_t prev, int32_t group) noexcept:
        """Append a call by name to the queue of its group."""
        cdef int32_t first
        self._call_to_change(c).group = group
        if prev >= 0 and self._call(prev).group == group:
            first = self._call(prev).first
            self._call_to_change(c).first = first
            self._call_to_change(prev).next_same = c
            if self._call(first).cursor < 0:
                self._call_to_change(first).cursor = c

    cdef void _answer(self, New *new, uint64_t key) noexcept:
        """Bind one result, reference or abandonment of the new item."""
        cdef int32_t c = self._find_open(key) if new.kind == EVENT else self._find(key)
        cdef Call *call
        if c < 0:
            self.n_unbound += 1
            if new.kind != EVENT:
                new.repair = new.at
                new.orphans += not key & KEY_SECOND
            return
        call = self._call(c)
        if new.kind != EVENT:
            new.low = min(new.low, call.opener)
        if key & KEY_SECOND:
            return
        if call.closer >= 0 or new.kind != RESULT:
            new.repair = new.at  # a late result is already marked: its call was left unanswered
        self.closes.at[self.closes.n].position = new.at
        self.closes.at[self.closes.n].call = c
        self.closes.n += 1
        if call.closer < 0:
            new.given_up += new.kind == EVENT
            self._call_to_change(c).closer = new.at
            self._no_longer_open(c)

    cdef void _no_longer_open(self, int32_t c) noexcept:
        cdef int32_t i
        self.n_open -= 1
        if self.base is None:
            i = _first_ge(self.opened.at, self.opened.n, c)
            self.opened.n -= 1
            memmove(self.opened.at + i, self.opened.at + i + 1,
                    <size_t>(self.opened.n - i) * sizeof(int32_t))

    # --- append -----------------------------------------------------------------------------------

    cdef int _push(self, const uint8_t *facts, int64_t tokens) noexcept:
        """Append one item, for which there is room; returns how many of its results are orphans."""
        cdef New new
        cdef int32_t run
        cdef int i
        new.kind = facts[0]
        new.flags = facts[1] & (MIXED | THINKING | TURN) | (MODEL_KINDS >> new.kind & 1)
        new.n_close = _u16(facts + 2)
        new.n_open = _u16(facts + 4)
        new.at = new.low = self.base_n + self.n
        new.repair = -1
        new.orphans = new.given_up = 0
        facts += FACTS_HEADER
        for i in range(new.n_close):
            self._answer(&new, _load64(facts + 8 * i))
        if new.kind == RESULT:
            self._judge_result(&new)
        if new.orphans and self.orphan & 1:
            new.low = -1
        run = self.run if self.last_flags & OPENS else new.at
        if new.kind != EVENT and self.base is None:
            self._inspect(&new)
        if new.n_open:
            new.flags |= OPENS
            for i in range(new.n_close, new.n_close + new.n_open):
                self._open(&new, _load64(facts + 8 * i), run)
        if new.kind != EVENT:
            self._pass(&new)
        if new.kind == EVENT:
            tokens = self.open_tokens * new.given_up
        elif new.flags & DROPPED:
            tokens = tokens if self.orphan & 1 else 0
        else:
            self._advance(&new, run)
        self._settle(&new, tokens)
        return new.orphans

    cdef inline void _pass(self, New *new) noexcept:
        """Update ``passed``: whether the new item leaves earlier calls unanswered."""
        if new.kind == CALL:
            if self.newest < 0 or self._kind_at(self.newest) != CALL:
                self.passed = self.newest
        elif new.kind != RESULT or new.flags & MIXED:
            self.passed = new.at
        self.newest = new.at

    cdef inline void _judge_result(self, New *new) noexcept:
        """Mark a result that is an orphan."""
        if not new.n_close:
            new.repair = new.at
            new.orphans = self.orphan >> 1 & 1
        if new.orphans == max(new.n_close, 1) and not new.flags & MIXED:
            new.flags |= DROPPED

    cdef inline void _inspect(self, New *new) noexcept:
        """Set ``repair`` if the new item reveals something that a context would have to repair.

        Regular is one calling item, or a run of CALLs, followed immediately by its results and by
        nothing else until all of them are there. (_answer and _open have marked their findings.)
        """
        cdef int32_t newest = -1
        if self.opened.n:
            newest = self.calls.at[self.opened.at[self.opened.n - 1]].opener
        if new.kind == RESULT:
            if new.flags & MIXED:
                new.repair = new.at
            if new.flags & TURN and (self.last_kind == RESULT or newest >= self.run):
                new.repair = new.at
            return
        if self.last_kind == REASONING and not new.flags & MODEL:
            new.repair = max(new.repair, self.last)
        if newest >= self.run and not (
                new.n_open and new.kind == CALL and self.last_kind == CALL):
            new.repair = max(new.repair, newest)

    cdef inline void _advance(self, New *new, int32_t run) noexcept:
        """Apply glue to the next item that a context can show, and advance the state."""
        if self.glue & 1:
            if new.flags & MODEL and (
                    self.reasoned or (new.kind == CALL and self.last_kind == CALL)):
                new.low = min(new.low, self.last)
            self.reasoned = new.kind == REASONING or (self.reasoned and new.flags & MODEL != 0)
        if self.glue & 2:
            if self.loop_start >= 0 and (new.flags & MODEL or new.kind == RESULT):
                new.low = min(new.low, self.loop_start)
            if not _in_loop(new.kind, new.flags):
                self.loop_start = -1
            elif self.loop_start < 0 and new.flags & THINKING and new.flags & OPENS:
                self.loop_start = new.at
        if new.kind != RESULT:
            self.run = run if new.flags & OPENS else new.at
        self.last = new.at
        self.last_kind = new.kind
        self.last_flags = new.flags

    cdef inline void _settle(self, New *new, int64_t tokens) noexcept:
        """Write the columns of the new position and update the stacks."""
        cdef int32_t i = self.n
        self.low[i] = new.low
        self.kinds[i] = <uint8_t>new.kind
        self.flags[i] = <uint8_t>new.flags
        self.sums[i + 1] = self.sums[i] + tokens
        self.n_turns += new.kind == USER
        if new.kind == EVENT:
            new.repair = new.at
            self.events[self.n_events] = new.at
            self.n_events += 1
        if self.base is None:
            self._restack(new.at, new.low, new.kind)
            if new.repair > self._last_repair():
                self.marks[self.n_marks].by = new.at
                self.marks[self.n_marks].repair = new.repair
                self.n_marks += 1
        self.n = i + 1
        self.stamp += 1

    cdef inline int32_t _last_repair(self) noexcept:
        return self.marks[self.n_marks - 1].repair if self.n_marks else -1

    cdef inline void _restack(self, int32_t r, int32_t lo, int kind) noexcept:
        if lo >= r:
            self.safe[self.n_safe] = r
            self.n_safe += 1
            if self.start_mask >> kind & 1:
                self.starts[self.n_starts] = r
                self.n_starts += 1
            return
        while self.n_safe and self.safe[self.n_safe - 1] > lo:
            self.n_safe -= 1
        while self.n_starts and self.starts[self.n_starts - 1] > lo:
            self.n_starts -= 1

    def push(self, bytes facts not None, long long tokens):
        """Append an item by its packed facts; returns how many of its results are orphans."""
        return self._push_facts(facts, tokens)

    cdef int _push_facts(self, bytes facts, int64_t tokens) except -1:
        cdef const uint8_t *p
        cdef Py_ssize_t size, calls
        if facts is None:
            raise TypeError("facts are bytes")
        p, size = <const uint8_t *>PyBytes_AS_STRING(facts), PyBytes_GET_SIZE(facts)
        if size < FACTS_HEADER or size != _facts_bytes(p):
            raise ValueError("malformed facts")
        if tokens < 0 or tokens > TOKENS_MAX:
            raise ValueError("tokens must be from 0 to 2**32 - 1")
        calls = (size - FACTS_HEADER) >> 3
        if calls or self.n == self.room:
            self._make_room(1, calls, calls)
        if self.base is not None:
            self._need_base()
            self.entries.append((facts, tokens))
        return self._push(p, tokens)

    def load(self, bytes page not None, Py_ssize_t skip, Py_ssize_t take, int counter,
             bytes counts=None, Py_ssize_t at=0):
        """Append records ``skip .. skip + take`` of an index page.

        ``counts``, if given, holds their tokens as packed u32 from its ``at``-th on and overrides
        those in the records.

        Returns how many were appended; -1 if the page is malformed; -2 if a record was counted
        by a counter other than ``counter``. Below 0 nothing was appended.
        """
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(page)
        cdef const uint8_t *end = p + PyBytes_GET_SIZE(page)
        cdef const uint8_t *first
        cdef Py_ssize_t items = 0
        cdef Py_ssize_t closes = 0
        cdef Py_ssize_t opens = 0
        cdef Py_ssize_t size
        cdef Py_ssize_t n
        cdef uint32_t tokens = 0
        cdef const uint8_t *given = NULL
        self._need_stacks()
        if counts is not None:
            if at < 0 or take < 0 or PyBytes_GET_SIZE(counts) // 4 - at < take:
                raise ValueError("there are fewer counts than records to take")
            given = <const uint8_t *>PyBytes_AS_STRING(counts) + 4 * at
        while p < end and skip > 0:
            size = _record_bytes(p, end)
            if size < 0:
                return -1
            p += size
            skip -= 1
        first = p
        while p < end and items < take:
            size = _record_bytes(p, end)
            if size < 0:
                return -1
            if given is NULL and _u16(p + 16) != counter:
                return -2
            closes += _u16(p + RECORD_HEADER + 2)
            opens += _u16(p + RECORD_HEADER + 4)
            items += 1
            p += size
        self._make_room(items, closes, opens)
        n = self.n + items
        p = first
        while self.n < n:
            if given is NULL:
                memcpy(&tokens, p, 4)
            else:
                memcpy(&tokens, given, 4)
                given += 4
            self._push(p + RECORD_HEADER, tokens)
            p += RECORD_HEADER + _facts_bytes(p + RECORD_HEADER)
        return items

    def fold(self, Ledger overlay not None):
        """Append the items that an overlay of this ledger collected, after its commit."""
        if overlay.base is not self or overlay.base_stamp != self.stamp:
            raise ValueError("the overlay does not stand on the end of this ledger")
        cdef bytes facts
        cdef object tokens, _tokens
        cdef Py_ssize_t closes = 0, opens = 0
        cdef tuple entries = tuple(overlay.entries)
        for facts, _tokens in entries:
            closes += _u16(<const uint8_t *>PyBytes_AS_STRING(facts) + 2)
            opens += _u16(<const uint8_t *>PyBytes_AS_STRING(facts) + 4)
        self._make_room(len(entries), closes, opens)
        for facts, tokens in entries:
            self._push(<const uint8_t *>PyBytes_AS_STRING(facts), <int64_t>tokens)

    # --- truncation -------------------------------------------------------------------------------

    def appended_tokens(self, Py_ssize_t at):
        """The tokens of the ``at``-th item that an overlay collected."""
        if self.entries is None or not 0 <= at < len(self.entries):
            raise IndexError("an overlay did not collect so many items")
        return (<tuple>self.entries[at])[1]

    def appended(self):
        """The items that an overlay collected: ``(facts, tokens)`` in order."""
        return [] if self.entries is None else self.entries[:]

    def truncate(self, Py_ssize_t length):
        """Drop all positions from ``length`` on."""
        cdef int32_t n
        if length < self.base_n or length > self.base_n + self.n:
            raise ValueError("truncate: no such length")
        if self.base is not None:
            self._need_base()
        n = <int32_t>length
        if n == self.base_n + self.n:
            return
        if self.base is None:
            # Open and reopened calls never exceed all calls.
            if _reserve(<void **>&self.opened.at, &self.opened.room, self.calls.n,
                        sizeof(int32_t)) < 0:
                raise MemoryError
        self._take_back_calls(n)
        self._take_back_positions(n)
        self._recall()
        self.stamp += 1

    cdef void _take_back_calls(self, int32_t n) noexcept:
        cdef int32_t kept = self._calls_before(n)
        cdef int32_t n_opened = self.opened.n
        while n_opened and self.opened.at[n_opened - 1] >= kept:
            n_opened -= 1
        self.opened.n = n_opened
        while self.closes.n and self.closes.at[self.closes.n - 1].position >= n:
            self.closes.n -= 1
            self._reopen(&self.closes.at[self.closes.n], kept)
        if self.opened.n > n_opened:
            qsort(self.opened.at, <size_t>self.opened.n, sizeof(int32_t), &_compare_ints)
        while self.base_calls + self.calls.n > kept:
            self._unopen()

    cdef int32_t _calls_before(self, int32_t n) noexcept:
        """The number of calls opened before position n."""
        cdef int32_t lo = 0
        cdef int32_t hi = self.calls.n
        cdef int32_t mid
        while lo < hi:
            mid = lo + ((hi - lo) >> 1)
            if self.calls.at[mid].opener < n:
                lo = mid + 1
            else:
                hi = mid
        return self.base_calls + lo

    cdef void _reopen(self, const Close *close, int32_t kept) noexcept:
        """Undo a close; calls from number ``kept`` on are about to be removed, so not listed."""
        cdef int32_t c = close.call
        cdef int32_t first
        if self._call(c).closer != close.position:  # it was not the first close of its call
            return
        self._call_to_change(c).closer = -1
        self.n_open += 1
        first = self._call(c).first
        if self._call(first).cursor < 0 or c < self._call(first).cursor:
            self._call_to_change(first).cursor = c
        if c < kept and self.base is None:
            self.opened.at[self.opened.n] = c
            self.opened.n += 1

    cdef void _unopen(self) noexcept:
        """Remove the newest call; its closes are already undone, so it is open."""
        cdef int32_t c = self.base_calls + self.calls.n - 1
        cdef Call *call = &self.calls.at[self.calls.n - 1]
        cdef size_t slot = self._slot(call.key)
        if call.prev_same >= self.base_calls:
            self.slots[slot] = <uint32_t>(call.prev_same - self.base_calls) + 1
        else:  # its key was inserted last, so no other key was probed past its slot
            self.slots[slot] = 0
        if call.first != c:
            self._call_to_change(call.prev_same).next_same = -1
            if self._call(call.first).cursor == c:
                self._call_to_change(call.first).cursor = -1
        if call.main == c:
            self.n_open -= 1
        self.calls.n -= 1

    cdef void _take_back_positions(self, int32_t n) noexcept:
        cdef int32_t i
        cdef int32_t lo = n
        for i in range(n - self.base_n, self.n):
            lo = min(lo, self.low[i] + 1)
            self.n_turns -= self.kinds[i] == USER
        self.n = n - self.base_n
        if self.entries is not None:
            del self.entries[self.n:]
        while self.n_events and self.events[self.n_events - 1] >= n:
            self.n_events -= 1
        while self.n_marks and self.marks[self.n_marks - 1].by >= n:
            self.n_marks -= 1
        if self.base is not None:
            return
        # The removed items had popped no cut below lo; from there on the stacks are rebuilt.
        self.n_safe = _first_ge(self.safe, self.n_safe, lo)
        self.n_starts = _first_ge(self.starts, self.n_starts, lo)
        for i in range(lo, n):
            self._restack(i, self.low[i], self.kinds[i])

    cdef inline int _kind_at(self, int32_t r) noexcept:
        return self.base.kinds[r] if r < self.base_n else self.kinds[r - self.base_n]

    cdef inline int _flags_at(self, int32_t r) noexcept:
        return self.base.flags[r] if r < self.base_n else self.flags[r - self.base_n]

    cdef int32_t _shown_before(self, int32_t r) noexcept:
        """The last position before r that a context can show, -1 if none."""
        r -= 1
        while r >= 0 and (self._kind_at(r) == EVENT or self._flags_at(r) & DROPPED):
            r -= 1
        return r

    cdef void _recall(self) noexcept:
        """Recompute the state that _advance had at this length."""
        cdef int32_t last = self._shown_before(self.base_n + self.n)
        cdef int32_t r = last
        self.last = last
        self.last_kind = self._kind_at(r) if r >= 0 else OPAQUE
        self.last_flags = self._flags_at(r) if r >= 0 else 0
        while r >= 0 and self._kind_at(r) == RESULT:
            r = self._shown_before(r)
        self.run = max(r, 0)
        while r >= 0 and self._flags_at(r) & OPENS:
            self.run = r
            r = self._shown_before(r)
        self.reasoned = False
        r = last if self.glue & 1 else -1
        while r >= 0 and self._flags_at(r) & MODEL and not self.reasoned:
            self.reasoned = self._kind_at(r) == REASONING
            r = self._shown_before(r)
        self.loop_start = -1
        r = last if self.glue & 2 else -1
        while r >= 0 and _in_loop(self._kind_at(r), self._flags_at(r)):
            if self._flags_at(r) & THINKING and self._flags_at(r) & OPENS:
                self.loop_start = r
            r = self._shown_before(r)
        r = self.base_n + self.n - 1
        while r >= 0 and self._kind_at(r) == EVENT:
            r -= 1
        self.newest = r
        while r >= 0 and (self._kind_at(r) == EVENT or (
                self._kind_at(r) == RESULT and not self._flags_at(r) & MIXED)):
            r -= 1
        while r >= 0 and (self._kind_at(r) == EVENT or self._kind_at(r) == CALL):
            r -= 1
        self.passed = r

    def copy(self):
        """An independent ledger of the same history."""
        cdef Ledger other
        cdef Py_ssize_t n = self.n
        self._need_stacks()
        other = Ledger(expect_items=n)
        other._take_settings(self)
        other._make_room(n, self.closes.n, self.calls.n)
        other.n = self.n
        other.n_safe = self.n_safe
        other.n_starts = self.n_starts
        other.n_events = self.n_events
        other.n_marks = self.n_marks
        _copy(other.low, self.low, n, sizeof(int32_t))
        _copy(other.sums, self.sums, n + 1, sizeof(int64_t))
        _copy(other.kinds, self.kinds, n, 1)
        _copy(other.flags, self.flags, n, 1)
        _copy(other.safe, self.safe, self.n_safe, sizeof(int32_t))
        _copy(other.starts, self.starts, self.n_starts, sizeof(int32_t))
        _copy(other.events, self.events, self.n_events, sizeof(int32_t))
        _copy(other.marks, self.marks, self.n_marks, sizeof(Mark))
        other.calls.n = self.calls.n
        other.closes.n = self.closes.n
        other.opened.n = self.opened.n
        _copy(other.calls.at, self.calls.at, self.calls.n, sizeof(Call))
        _copy(other.closes.at, self.closes.at, self.closes.n, sizeof(Close))
        _copy(other.opened.at, self.opened.at, self.opened.n, sizeof(int32_t))
        if self.calls.n and other._copy_table(self) < 0:
            raise MemoryError
        return other

    cdef int _copy_table(self, Ledger other) noexcept:
        if self.slot_mask != other.slot_mask:
            return self._grow_table(<size_t>self.calls.n)
        memcpy(self.slots, other.slots, (self.slot_mask + 1) * sizeof(uint32_t))
        return 0

    # --- queries ----------------------------------------------------------------------------------

    @property
    def tokens(self):
        """Tokens of the whole history: no left-out orphans, ``open_tokens`` per given-up call."""
        return self.sums[self.n]

    @property
    def open_count(self):
        """The number of calls that are unanswered and not given up."""
        return self.n_open

    @property
    def shown_count(self):
        """The number of items that are not events."""
        return self.base_n + self.n - self.base_events - self.n_events

    @property
    def turns(self):
        """The number of user items."""
        return self.n_turns

    cdef inline int32_t _open_before(self, int32_t i) noexcept:
        """The number of open calls before position i."""
        cdef int32_t lo = 0
        cdef int32_t hi = self.opened.n
        cdef int32_t mid
        while lo < hi:
            mid = lo + ((hi - lo) >> 1)
            if self.calls.at[self.opened.at[mid]].opener < i:
                lo = mid + 1
            else:
                hi = mid
        return lo

    cdef inline int64_t _cost(self, int32_t i) noexcept:
        cdef int64_t tokens = self.sums[self.n] - self.sums[i]
        if self.open_tokens and self.opened.n and i < self.passed:
            tokens += self.open_tokens * (self._open_before(self.passed) - self._open_before(i))
        return tokens

    cdef inline Ints _stack(self, bint starts) noexcept:
        cdef Ints stack
        stack.at = self.starts if starts else self.safe
        stack.n = stack.room = self.n_starts if starts else self.n_safe
        return stack

    def cut_for_budget(self, long long budget, *, Py_ssize_t at_least=0, bint starts=True):
        """The smallest cut >= ``at_least`` whose suffix costs at most ``budget`` tokens, or -1.

        ``starts`` admits only cuts at which the policy lets a context start. The cost of a cut is
        the sum of its suffix plus ``open_tokens`` for each unanswered call in it: one that is open
        although content follows that is neither a result nor a call of the same run.
        """
        self._need_stacks()
        cdef Ints stack = self._stack(starts)
        cdef int32_t lo
        cdef int32_t hi = stack.n
        cdef int32_t mid
        if at_least > self.n:
            return -1
        lo = _first_ge(stack.at, stack.n, <int32_t>max(at_least, 0))
        while lo < hi:
            mid = lo + ((hi - lo) >> 1)
            if self._cost(stack.at[mid]) > budget:
                lo = mid + 1
            else:
                hi = mid
        return stack.at[lo] if lo < stack.n else -1

    cdef int32_t _shown_position(self, int32_t k) noexcept:
        """The position of the k-th item that is not an event, from 0; n if there is none."""
        cdef int32_t lo = 0
        cdef int32_t hi = self.n_events
        cdef int32_t mid
        while lo < hi:
            mid = lo + ((hi - lo) >> 1)
            if self.events[mid] - mid <= k:  # the number of non-events before it
                lo = mid + 1
            else:
                hi = mid
        return k + lo

    def cut_keep_last(self, Py_ssize_t keep, *, bint starts=False):
        """The greatest cut that keeps at least ``keep`` items that are not events, or -1."""
        self._need_stacks()
        cdef Ints stack = self._stack(starts)
        cdef int32_t shown = self.n - self.n_events
        cdef int32_t i
        if keep > shown:
            return -1
        i = self._shown_position(shown - <int32_t>max(keep, 0))
        i = _first_ge(stack.at, stack.n, i + 1)
        return stack.at[i - 1] if i else -1

    def cut_at_most(self, Py_ssize_t position):
        """The greatest safe cut <= ``position``, or -1."""
        self._need_stacks()
        cdef int32_t i
        if position >= self.n:
            return self.n
        i = _first_ge(self.safe, self.n_safe, <int32_t>max(position, -1) + 1)
        return self.safe[i - 1] if i else -1

    def is_safe(self, Py_ssize_t position):
        """Return True if a cut at ``position`` splits nothing (the end is always safe)."""
        self._need_stacks()
        return self._is_safe(position)

    cdef bint _is_safe(self, Py_ssize_t position) noexcept:
        cdef int32_t i
        if position < 0 or position >= self.n:
            return position == self.n
        i = _first_ge(self.safe, self.n_safe, <int32_t>position)
        return i < self.n_safe and self.safe[i] == position

    def irregular_from(self, Py_ssize_t position):
        """False only if the suffix from a cut at ``position`` is legal in every format unchanged.

        That is: the cut is safe, and after it there is no event, no orphan, no result that is late,
        interleaved, a second one for its call, mixed with other content or without an id, no call
        followed by something else before its answer, no reasoning without its successor, no
        repeated id. Calls followed only by results may be open. True may be a false positive;
        whether the format lets a context start there is not checked.
        """
        self._need_stacks()
        if not self._is_safe(position) or self._last_repair() >= position:
            return True
        return self.last_kind == REASONING and self.last >= position

    def safe_cuts(self, *, bint starts=False):
        """All safe cuts in ascending order, without the end."""
        self._need_stacks()
        cdef Ints stack = self._stack(starts)
        cdef list cuts = []
        cdef int32_t i
        for i in range(stack.n):
            cuts.append(stack.at[i])
        return cuts

    def cost(self, Py_ssize_t position):
        """Upper bound on the tokens of the suffix from ``position`` as a context renders it."""
        self._need_stacks()
        if position < 0 or position > self.n:
            raise IndexError("cost: no such position")
        return self._cost(<int32_t>position)

    def sum_between(self, Py_ssize_t start, Py_ssize_t stop):
        """Tokens of positions ``start <= r < stop``."""
        self._need_stacks()
        if start < 0 or stop > self.n or start > stop:
            raise IndexError("sum_between: no such range")
        return self.sums[stop] - self.sums[start]

    def kind_at(self, Py_ssize_t position):
        """The kind of the item at ``position``."""
        return self._kind_at(self._position(position))

    def is_dropped(self, Py_ssize_t position):
        """Return True if the item at ``position`` is an orphan that no context shows."""
        return self._flags_at(self._position(position)) & DROPPED != 0

    cdef int32_t _position(self, Py_ssize_t position) except -1:
        if position < 0 or position >= self.base_n + self.n:
            raise IndexError("no such position")
        if self.base is not None:
            self._need_base()
        return <int32_t>position

    def leading(self, int kind):
        """The number of leading items of ``kind``, including events between them."""
        self._need_stacks()
        cdef int32_t i = 0
        cdef int32_t found = 0
        while i < self.n and (self.kinds[i] == kind or self.kinds[i] == EVENT):
            i += 1
            if self.kinds[i - 1] == kind:
                found = i
        return found

    @property
    def unbound(self):
        """Number of results, references and abandonments without a call so far, also truncated."""
        return self.n_unbound

    @property
    def last_shown(self):
        """The last position that a context can show, -1 if none."""
        return self.last

    def first_of(self, int kind):
        """The first position of that kind, -1 if none."""
        self._need_stacks()
        cdef int32_t i
        for i in range(self.n):
            if self.kinds[i] == kind:
                return i
        return -1

    def last_of(self, uint32_t kinds, Py_ssize_t count, *, Py_ssize_t at_least=0):
        """The position of the ``count``-th last item of the kinds (a mask of 1 << kind).

        ``at_least`` if there are fewer from there on; the end for a count of 0.
        """
        self._need_stacks()
        cdef Py_ssize_t i = self.n
        cdef Py_ssize_t first = max(at_least, 0)
        while count > 0 and i > first:
            i -= 1
            count -= kinds >> self.kinds[i] & 1
        return i if count <= 0 else min(first, self.n)

    def count_of(self, uint32_t kinds, Py_ssize_t start):
        """The number of items of the kinds (a mask of 1 << kind) from ``start`` on."""
        self._need_stacks()
        cdef Py_ssize_t i
        cdef Py_ssize_t found = 0
        for i in range(max(start, 0), self.n):
            found += kinds >> self.kinds[i] & 1
        return found

    def tokens_of(self, Py_ssize_t start, Py_ssize_t stop):
        """The tokens of each position ``start <= r < stop``."""
        self._need_stacks()
        if start < 0 or stop > self.n or start > stop:
            raise IndexError("tokens_of: no such range")
        cdef list found = []
        cdef int32_t i
        for i in range(<int32_t>start, <int32_t>stop):
            found.append(self.sums[i + 1] - self.sums[i])
        return found

    def open_calls(self):
        """``(position, ordinal)`` of the open calls; the ordinal numbers an item's calls from 0."""
        self._need_stacks()
        cdef list found = []
        cdef int32_t i
        cdef int32_t c
        cdef int32_t next = 0
        cdef int32_t ordinal = 0
        cdef int32_t opener = -1
        for i in range(self.opened.n):
            c = self.opened.at[i]
            if self.calls.at[c].opener != opener:
                opener = self.calls.at[c].opener
                ordinal = 0
                next = c
                while next > 0 and self.calls.at[next - 1].opener == opener:
                    next -= 1
            while next < c:
                ordinal += self.calls.at[next].main == next
                next += 1
            found.append((opener, ordinal))
        return found

    def open_positions(self):
        """Positions of the items with open calls, ascending, one entry per call."""
        self._need_stacks()
        cdef list positions = []
        cdef int32_t i
        for i in range(self.opened.n):
            positions.append(self.calls.at[self.opened.at[i]].opener)
        return positions

    def find_call(self, int cls, str text not None, bytes seed not None):
        """``(opener, closers, open)`` of the call that a result with this key answers, or None.

        That is the latest with this key; by name, the first open one of the latest group.
        ``closers`` holds the positions of all items that answered it or gave it up.
        """
        self._need_stacks()
        cdef int32_t c = self._find(_hash_key(cls, text, _seed(seed)))
        cdef int32_t i = self.closes.n
        cdef int32_t last = -1
        cdef Call call
        cdef list closers = []
        if c < 0:
            return None
        call = self.calls.at[c]
        if call.closer >= 0:
            while i and self.closes.at[i - 1].position >= call.closer:
                i -= 1
                if self.closes.at[i].call == c and self.closes.at[i].position != last:
                    last = self.closes.at[i].position
                    closers.append(last)
        return call.opener, closers[::-1], call.closer < 0

    cdef int _need_stacks(self) except -1:
        if self.base is not None:
            raise ValueError("an overlay answers no such question")
        return 0

    cdef int _need_base(self) except -1:
        if self.base.stamp != self.base_stamp:
            raise ValueError("the base of this overlay has changed")
        return 0


cdef inline bint _in_loop(int kind, int flags) noexcept nogil:
    """Return True if a thinking tool loop continues past an item: it is a result or calls again."""
    return flags & OPENS != 0 if flags & MODEL else kind == RESULT


# --- index records --------------------------------------------------------------------------------

cdef inline Py_ssize_t _facts_bytes(const uint8_t *facts) noexcept nogil:
    """The size of the facts; -1 if they are invalid."""
    cdef int n_open = _u16(facts + 4)
    if facts[0] > EVENT or (n_open and not OPENING_KINDS >> facts[0] & 1):
        return -1
    return FACTS_HEADER + 8 * (_u16(facts + 2) + n_open)


cdef inline Py_ssize_t _record_bytes(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The size of the record at p; -1 if it is malformed or extends past ``end``."""
    cdef Py_ssize_t size
    if end - p < RECORD_HEADER + FACTS_HEADER:
        return -1
    size = _facts_bytes(p + RECORD_HEADER)
    return RECORD_HEADER + size if size >= 0 and end - p - RECORD_HEADER >= size else -1


def record_spans(bytes page not None):
    """``(start, stop)`` byte offsets of the records of an index page; None if malformed."""
    cdef const uint8_t *first = <const uint8_t *>PyBytes_AS_STRING(page)
    cdef const uint8_t *p = first
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(page)
    cdef Py_ssize_t size
    cdef list spans = []
    while p < end:
        size = _record_bytes(p, end)
        if size < 0:
            return None
        spans.append((p - first, p - first + size))
        p += size
    return spans


def record_in(bytes page not None, Py_ssize_t at):
    """The record at a place of an index page; None without one, or behind a malformed one."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(page)
    cdef const uint8_t *end = p + PyBytes_GET_SIZE(page)
    cdef Py_ssize_t size
    while p < end:
        size = _record_bytes(p, end)
        if size < 0:
            return None
        if at == 0:
            return p[:size]
        at -= 1
        p += size
    return None


# --- the head of a session ------------------------------------------------------------------------

cdef enum:
    HEAD_FIXED = 168    # 20 u64, open_calls u32, flags u8, sizes of policy, counter, segments u8
    SEGMENT_BYTES = 24


cdef inline uint8_t *_put64(uint8_t *p, uint64_t x) noexcept nogil:
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(x >> (8 * i) & 0xFF)
    return p + 8


cdef inline uint64_t _take64(const uint8_t **p) noexcept nogil:
    cdef uint64_t x = 0
    cdef int i
    for i in range(8):
        x |= <uint64_t>p[0][i] << (8 * i)
    p[0] += 8
    return x


@cython.auto_pickle(False)
cdef class HeadFields:
    """Fields of a session's head, and its stored form: little-endian, in this order.

    A subclass provides ``_begin_segment(session, lo, hi)`` and ``older_segments(txn, scope)``.
    """

    cdef public uint64_t revision, epoch, next_seq, count, chain, tokens
    cdef public uint64_t view_session, view_number, next_view
    cdef public uint64_t parent_session, parent_seq, base_count
    cdef public uint64_t link_session, link_block, next_block
    cdef public uint64_t created_ms, updated_ms
    cdef public uint64_t recount_session, recount_number, recount_stop
    cdef public uint32_t open_calls
    cdef public uint8_t flags
    cdef public object policy   # str
    cdef public object counter  # str
    cdef public list segments   # of tuples (session, first seq, last seq)

    def changed(self):
        """A copy that may be changed."""
        cdef type cls = type(self)
        cdef HeadFields other = cls.__new__(cls)
        other.revision = self.revision
        other.epoch = self.epoch
        other.next_seq = self.next_seq
        other.count = self.count
        other.chain = self.chain
        other.tokens = self.tokens
        other.view_session = self.view_session
        other.view_number = self.view_number
        other.next_view = self.next_view
        other.parent_session = self.parent_session
        other.parent_seq = self.parent_seq
        other.base_count = self.base_count
        other.link_session = self.link_session
        other.link_block = self.link_block
        other.next_block = self.next_block
        other.created_ms = self.created_ms
        other.updated_ms = self.updated_ms
        other.recount_session = self.recount_session
        other.recount_number = self.recount_number
        other.recount_stop = self.recount_stop
        other.open_calls = self.open_calls
        other.flags = self.flags
        other.policy = self.policy
        other.counter = self.counter
        other.segments = self.segments[:]
        return other

    cdef int _extend(self, uint64_t session, uint64_t count) except -1:
        """Append seqs of a session to the live history."""
        cdef list segments = self.segments
        cdef uint64_t first = self.next_seq
        cdef uint64_t end = first + count
        cdef Py_ssize_t at = len(segments) - 1
        cdef object last, lo = None
        if at >= 0 and count:
            last = segments[at]
            if not isinstance(last, tuple) or len(<tuple>last) != 3:
                raise TypeError("a segment is a tuple of three")
            if <uint64_t>(<tuple>last)[0] == session and <uint64_t>(<tuple>last)[2] == first - 1:
                lo = (<tuple>last)[1]
                segments[at] = memcore_named(type(last), (session, lo, end - 1))
            else:
                self._begin_segment(session, first, end - 1)
        elif count:
            self._begin_segment(session, first, end - 1)
        self.next_seq = end
        self.count += count
        return 0

    def pack(self):
        """Encode the body of the head's row; docs/architecture.md has a diagram."""
        cdef Py_ssize_t policy_bytes = 0
        cdef Py_ssize_t counter_bytes = 0
        cdef object policy_name = self.policy, counter_name = self.counter  # keep the bytes alive
        cdef const char *policy = PyUnicode_AsUTF8AndSize(policy_name, &policy_bytes)
        cdef const char *counter = PyUnicode_AsUTF8AndSize(counter_name, &counter_bytes)
        cdef tuple segments = tuple(self.segments)  # a copy: its length must match the allocation
        cdef Py_ssize_t count = len(segments)
        cdef uint64_t session, lo, hi
        cdef object segment
        cdef bytes out
        cdef uint8_t *p
        if policy_bytes > 0xFF or counter_bytes > 0xFF or count > 0xFF:
            raise ValueError("a head holds names and segments of at most 255")
        out = PyBytes_FromStringAndSize(
            NULL, HEAD_FIXED + policy_bytes + counter_bytes + SEGMENT_BYTES * count)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        p = _put64(p, self.revision)
        p = _put64(p, self.epoch)
        p = _put64(p, self.next_seq)
        p = _put64(p, self.count)
        p = _put64(p, self.chain)
        p = _put64(p, self.tokens)
        p = _put64(p, self.view_session)
        p = _put64(p, self.view_number)
        p = _put64(p, self.next_view)
        p = _put64(p, self.parent_session)
        p = _put64(p, self.parent_seq)
        p = _put64(p, self.base_count)
        p = _put64(p, self.link_session)
        p = _put64(p, self.link_block)
        p = _put64(p, self.next_block)
        p = _put64(p, self.created_ms)
        p = _put64(p, self.updated_ms)
        p = _put64(p, self.recount_session)
        p = _put64(p, self.recount_number)
        p = _put64(p, self.recount_stop)
        # open_calls u32 | flags u8 | policy bytes u8 | counter bytes u8 | segments u8
        p = _put64(p, self.open_calls | <uint64_t>self.flags << 32 | <uint64_t>policy_bytes << 40
                   | <uint64_t>counter_bytes << 48 | <uint64_t>count << 56)
        memcpy(p, policy, <size_t>policy_bytes)
        memcpy(p + policy_bytes, counter, <size_t>counter_bytes)
        p += policy_bytes + counter_bytes
        for segment in segments:
            if not isinstance(segment, tuple):
                raise TypeError("a segment is a tuple")
            session, lo, hi = <tuple>segment
            p = _put64(_put64(_put64(p, session), lo), hi)
        return out

    def load(self, bytes body not None):
        """Set all fields from a packed body except the segments, and return those."""
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(body)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
        cdef Py_ssize_t at = HEAD_FIXED
        cdef Py_ssize_t policy_bytes, counter_bytes, count
        cdef uint64_t sizes, session, lo, hi
        cdef list segments = []
        if size < HEAD_FIXED:
            raise ValueError("the head is cut short")
        self.revision = _take64(&p)
        self.epoch = _take64(&p)
        self.next_seq = _take64(&p)
        self.count = _take64(&p)
        self.chain = _take64(&p)
        self.tokens = _take64(&p)
        self.view_session = _take64(&p)
        self.view_number = _take64(&p)
        self.next_view = _take64(&p)
        self.parent_session = _take64(&p)
        self.parent_seq = _take64(&p)
        self.base_count = _take64(&p)
        self.link_session = _take64(&p)
        self.link_block = _take64(&p)
        self.next_block = _take64(&p)
        self.created_ms = _take64(&p)
        self.updated_ms = _take64(&p)
        self.recount_session = _take64(&p)
        self.recount_number = _take64(&p)
        self.recount_stop = _take64(&p)
        sizes = _take64(&p)
        self.open_calls = <uint32_t>(sizes & 0xFFFFFFFF)
        self.flags = <uint8_t>(sizes >> 32 & 0xFF)
        policy_bytes = <Py_ssize_t>(sizes >> 40 & 0xFF)
        counter_bytes = <Py_ssize_t>(sizes >> 48 & 0xFF)
        count = <Py_ssize_t>(sizes >> 56)
        if size != HEAD_FIXED + policy_bytes + counter_bytes + SEGMENT_BYTES * count:
            raise ValueError("the head's parts do not fill it")
        self.policy = body[at:at + policy_bytes].decode()
        at += policy_bytes
        self.counter = body[at:at + counter_bytes].decode()
        p += policy_bytes + counter_bytes
        while count > 0:
            count -= 1
            session = _take64(&p)
            lo = _take64(&p)
            hi = _take64(&p)
            segments.append((session, lo, hi))
        return segments


include "_checksum.pxi"
include "_rows.pxi"
include "_write.pxi"
include "_commit.pxi"
include "_session.pxi"
include "_bpe.pxi"
include "_trees.pxi"
include "_runs.pxi"
include "_packed.pxi"
include "_scan.pxi"
include "_literals.pxi"
include "_pages.pxi"
include "_search.pxi"
include "_records.pxi"
