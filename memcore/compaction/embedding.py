"""Embedders for ``DropSimilar``: any model that turns texts into vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from memcore.compaction.reducer import Embed
from memcore.errors import InvalidOptionError

__all__ = ["as_embedder", "wordllama_embedder"]

_METHODS: Final = ("encode", "embed_documents", "embed")


def as_embedder(model: Any) -> Embed:
    """An embedder of a model: sentence-transformers, model2vec, LangChain, WordLlama, a function.

    The method is the first that there is of ``encode``, ``embed_documents`` and ``embed``. Arrays
    are taken as they are: nothing here needs numpy.

    Raises:
        InvalidOptionError: the model has none of them and is no function.
    """
    for name in _METHODS:
        method = getattr(model, name, None)
        if callable(method):
            break
    else:
        method = model
    if not callable(method):
        msg = (
            f"embed: expected a function or an object with {', '.join(_METHODS)}, "
            f"got {type(model).__name__}"
        )
        raise InvalidOptionError(msg)
    call: Callable[[list[str]], Any] = method

    def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        found = call(list(texts))
        vectors: list[list[float]] = found.tolist() if hasattr(found, "tolist") else list(found)
        return vectors

    return embed


def wordllama_embedder() -> Embed:
    """The embedder of the ``wordllama`` package, which carries its model: nothing is downloaded.

    Vectors of 256 numbers, means over the tokens of the whole text, however long; the model has
    16 MB and needs numpy but no deep-learning framework. ``pip install "memcore[embed]"``.

    Raises:
        InvalidOptionError: the package is not installed.
    """
    try:
        package: Any = import_module("wordllama")
    except ImportError as exc:
        msg = f'embed: {exc}: install it with pip install "memcore[embed]", or give an embedder'
        raise InvalidOptionError(msg) from exc
    # The folder of the package is laid out as its cache is, where it looks before the network.
    folder = Path(package.__file__).parent
    return as_embedder(package.WordLlama.load(cache_dir=folder, disable_download=True))
