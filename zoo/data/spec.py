"""Data specs: the shapes and the vocabulary that a model and a task are built for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from zoo.errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor


IGNORE_INDEX = -100
"""The target of tokens that are not predicted, as in PyTorch's `ignore_index`."""


@dataclass(frozen=True)
class ImageSpec:
    """Images [B, channels, height, width] with one label each."""

    noun: ClassVar[str] = "images"
    """The name of this kind of samples in messages."""

    channels: int
    height: int
    width: int
    classes: int
    names: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the classes, empty if they have none."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Pixels along each axis."""
        return self.height, self.width


@dataclass(frozen=True)
class VideoSpec(ImageSpec):
    """Clips [B, channels, frames, height, width] with one label each."""

    noun: ClassVar[str] = "videos"
    """The name of this kind of samples in messages."""

    frames: int

    @property
    def grid(self) -> tuple[int, ...]:
        return self.frames, self.height, self.width


class Vocabulary(Protocol):
    """Token ids for pieces of text."""

    @property
    def unit(self) -> Literal["character", "byte", "token"]:
        """What one token is."""
        ...

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Return token ids.

        Raises:
            OptionError: The vocabulary lacks characters of the text, which are named.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def to_dict(self) -> dict[str, str]:
        """Return plain data for a checkpoint; `vocabulary_from_dict` reads it."""
        ...


@dataclass(frozen=True)
class TextSpec:
    """Windows of at most `length` tokens."""

    noun: ClassVar[str] = "text"
    """The name of this kind of samples in messages."""

    length: int
    vocabulary: Vocabulary
    targets: Literal["every", "some", "answers"] = "every"
    """Every next token, some of them, or one answer of several tokens in each window."""


@dataclass(frozen=True)
class TextClassificationSpec:
    """Texts of at most `length` tokens, int64 [B, N] padded with -1, with one label each."""

    noun: ClassVar[str] = "labelled texts"
    """The name of this kind of samples in messages."""

    length: int
    vocabulary: Vocabulary
    classes: int
    names: tuple[str, ...] = ()
    """Names of the classes, empty if they have none."""


class TextBatch(NamedTuple):
    """A batch of token windows."""

    inputs: Tensor
    """int64 [B, N]."""
    targets: Tensor
    """int64 [B, N], -100 at tokens without a target."""
    documents: Tensor | None = None
    """int64 [B, N], the document of each token, -1 for padding; None for one document, unpadded."""
    target_bytes: Tensor | None = None
    """int64 [B, N], UTF-8 length of each target; None if all tokens are of one unit."""


DataSpec = ImageSpec | TextSpec | TextClassificationSpec


def check_fractions(val: float, test: float) -> None:
    """Raise OptionError unless val and test are positive and leave something to train on."""
    for key, fraction in (("val", val), ("test", test)):
        if not 0 < fraction < 1 or val + test >= 1:
            rule = "must be positive and leave something to train on"
            raise OptionError(key, f"fractions val {val} and test {test} {rule}")
