"""Vectors of items: what is embedded, how vectors lie in bytes, how near they are to a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import dist, isfinite, sqrt
from operator import mul
from struct import Struct, error, pack, unpack_from
from typing import Any, Final

from langgraph.store.base import IndexConfig, ensure_embeddings, get_text_at_path, tokenize_path

from memcore.errors import InvalidOptionError
from memcore.options import checked_choice, need_known

__all__ = ["Index", "Scorer", "pack_vectors"]

_HEADER: Final = Struct("<II")  # numbers of a vector, vectors
_WHOLE: Final = "$"
_OPTIONS: Final = ("dims", "embed", "fields", "text_fields", "distance_type")
_COSINE: Final = "cosine"
_L2: Final = "l2"
_DISTANCES: Final = (_COSINE, _L2, "inner_product")
_SCORE_DIGITS: Final = 12
"""Sums of floats depend on their order: rounded here, scores and ranks do not."""


class Index:
    """The ``index`` option of a store: which texts of a value are embedded, and by what."""

    def __init__(self, config: IndexConfig) -> None:
        need_known("index", config, _OPTIONS)
        self.distance = checked_choice(
            "index: distance_type", config.get("distance_type", _COSINE), _DISTANCES
        )
        """``cosine``, ``l2`` or ``inner_product``."""
        dims: Any = config.get("dims")
        if dims is not None and (isinstance(dims, bool) or not isinstance(dims, int) or dims < 1):
            msg = f"index: dims must be a positive int, got {dims!r}"
            raise InvalidOptionError(msg)
        self._dims: int | None = dims
        # The SQL stores read "text_fields", a list or one path; LangGraph's own name is "fields".
        given: Any = config.get("text_fields")
        fields: Any = config.get("fields") or ([given] if isinstance(given, str) else given)
        fields = fields or [_WHOLE]
        if not isinstance(fields, list | tuple) or not all(
            isinstance(path, str) for path in fields
        ):
            msg = f"index: fields: expected a list of paths, got {fields!r:.80}"
            raise InvalidOptionError(msg)
        self._paths = [_tokens(path) for path in fields]
        try:
            self.embeddings = ensure_embeddings(config.get("embed"))
        except ValueError as exc:
            msg = f"index: {exc}"
            raise InvalidOptionError(msg) from exc

    def texts(self, value: Any, paths: Any) -> list[str]:
        """The texts of a value to embed; ``paths`` as ``put``'s ``index``: None, False or paths."""
        if paths is False:
            return []
        chosen = self._paths if paths is None else [_tokens(path) for path in paths]
        return [text for path in chosen for text in get_text_at_path(value, path)]

    def checked(self, texts: Sequence[str], found: Any) -> dict[str, list[float]]:
        """What the embedder gave for each text.

        Raises:
            InvalidOptionError: it gave another number of vectors, of other dimensions than the
                index has, or no finite numbers.
        """
        vectors = _listed(found)
        if len(vectors) != len(texts):
            msg = f"index: embed gave {len(vectors)} vectors for {len(texts)} texts"
            raise InvalidOptionError(msg)
        return {
            text: _rounded(vector, self._dims) for text, vector in zip(texts, vectors, strict=True)
        }


def _tokens(path: str) -> str | list[str]:
    return path if path == _WHOLE else tokenize_path(path)


def _listed(found: Any) -> list[Any]:
    return list(found.tolist() if hasattr(found, "tolist") else found)


def _rounded(vector: Any, dims: int | None) -> list[float]:
    """The vector as it is stored: in single precision."""
    numbers = _listed(vector)
    if not numbers or dims not in (None, len(numbers)):
        msg = f"index: dims is {dims}, but embed gave a vector of {len(numbers)} numbers"
        raise InvalidOptionError(msg)
    form = f"<{len(numbers)}f"
    try:
        stored = list(unpack_from(form, pack(form, *numbers)))
    except (error, OverflowError) as exc:
        msg = f"index: embed gave a vector that is none of single-precision numbers: {exc}"
        raise InvalidOptionError(msg) from exc
    if not all(map(isfinite, stored)):
        msg = "index: embed gave a vector that holds NaN or infinity"
        raise InvalidOptionError(msg)
    return stored


def pack_vectors(vectors: Sequence[Sequence[float]]) -> bytes:
    """The bytes of an item's vectors, all of one length."""
    dims = len(vectors[0])
    numbers = [number for vector in vectors for number in vector]
    return _HEADER.pack(dims, len(vectors)) + pack(f"<{len(numbers)}f", *numbers)


class Scorer:
    """How near items are to one query, the nearest with the highest score.

    ``cosine``: the cosine of the angle; ``inner_product``: the inner product; ``l2``: the euclidean
    distance, negative; as PostgresStore's. numpy does it where it is installed.
    """

    def __init__(self, query: list[float], distance: str = _COSINE) -> None:
        self._query = query
        self._distance = distance
        self._norm = sqrt(sum(map(mul, query, query)))
        self._numpy = _numpy()

    def best(self, rows: Iterable[bytes]) -> list[float]:
        """The score of each item: that of the nearest of its vectors.

        The cosine of a vector of zeros is 0.

        Raises:
            InvalidOptionError: an item was embedded in other dimensions than the query.
        """
        found = []
        for row in rows:
            dims, count = _HEADER.unpack_from(row)
            if dims != len(self._query):
                msg = (
                    f"index: embed gave {len(self._query)} numbers for the query, but items were "
                    f"stored with vectors of {dims}: put them again with this embedder"
                )
                raise InvalidOptionError(msg)
            score = self._by_numpy if self._numpy else self._by_hand
            found.append(round(max(score(row, dims, count)), _SCORE_DIGITS))
        return found

    def _by_hand(self, row: bytes, dims: int, count: int) -> list[float]:
        numbers = unpack_from(f"<{dims * count}f", row, _HEADER.size)
        scores = []
        for at in range(0, dims * count, dims):
            vector = numbers[at : at + dims]
            if self._distance != _COSINE:
                scores.append(self._by_distance(vector))
                continue
            norm = sqrt(sum(map(mul, vector, vector))) * self._norm
            scores.append(sum(map(mul, vector, self._query)) / norm if norm else 0.0)
        return scores

    def _by_distance(self, vector: Sequence[float]) -> float:
        if self._distance == _L2:
            return -dist(vector, self._query)
        return float(sum(map(mul, vector, self._query)))

    def _by_numpy(self, row: bytes, dims: int, count: int) -> list[float]:
        np = self._numpy
        matrix = np.frombuffer(row, "<f4", dims * count, _HEADER.size).astype("f8")
        matrix = matrix.reshape(count, dims)
        if self._distance == _L2:
            return (-np.linalg.norm(matrix - np.array(self._query), axis=1)).tolist()  # type: ignore[no-any-return]
        if self._distance != _COSINE:
            return (matrix @ np.array(self._query)).tolist()  # type: ignore[no-any-return]
        norms = np.linalg.norm(matrix, axis=1) * self._norm
        scores = np.zeros(count)
        np.divide(matrix @ np.array(self._query), norms, out=scores, where=norms != 0)
        return scores.tolist()  # type: ignore[no-any-return]


@cache
def _numpy() -> Any:
    """The module, or None where it is not installed."""
    return import_module("numpy") if find_spec("numpy") else None
