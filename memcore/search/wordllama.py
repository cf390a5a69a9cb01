"""WordLlama: an embedder that works offline, by the package of that name.

The package is the extra ``embed``; it is imported when a model is loaded, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from memcore.errors import InvalidOptionError

__all__ = [
    "WordLlama",
    "load_wordllama",
]


_DIMENSIONS: Final = 256


def load_wordllama() -> tuple[str, Any]:
    """Load the model that the package bundles; return the package's version, and the model.

    Nothing is downloaded.

    Raises:
        InvalidOptionError: the package is not installed.
    """
    try:
        package: Any = import_module("wordllama")
    except ImportError as exc:
        msg = (
            f'embedder: {exc}: install it with pip install "memcore-db[embed]", or give another one'
        )
        raise InvalidOptionError(msg) from exc
    # The package folder is laid out like its cache, where it looks before the network.
    folder = Path(package.__file__).parent
    model = package.WordLlama.load(cache_dir=folder, disable_download=True)
    return str(package.__version__), model


class WordLlama:
    """Embedder of 256 dimensions that needs no network: ``pip install "memcore-db[embed]"``.

    A vector is the mean over the tokens of a text, which takes tens of microseconds. The model
    takes 16 MB and needs numpy, but no deep-learning framework.

    Raises:
        InvalidOptionError: the package ``wordllama`` is not installed.
    """

    __slots__ = ("_embed", "dimensions", "id")

    def __init__(self) -> None:
        version, model = load_wordllama()
        self.id: str = f"wordllama-{version}-{_DIMENSIONS}"
        """Name, version and dimensions: another version may cut texts into other tokens."""
        self.dimensions: int = _DIMENSIONS
        self._embed: Callable[[list[str]], Any] = model.embed

    def __call__(self, texts: list[str], /) -> list[list[float]]:
        """Return the vector of each text; halves of surrogate pairs count as question marks."""
        plain = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        found: list[list[float]] = self._embed(plain).tolist() if plain else []
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"
