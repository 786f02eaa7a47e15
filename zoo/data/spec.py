"""What a data source yields: the facts that a model and a task are built for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImageSpec:
    """Images [B, channels, height, width] with one label each. `names` of the classes are empty where they have none."""

    noun: ClassVar[str] = "images"

    channels: int
    height: int
    width: int
    classes: int
    names: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def grid(self) -> tuple[int, ...]:
        """Pixels along each axis."""
        return self.height, self.width


@dataclass(frozen=True)
class VideoSpec(ImageSpec):
    """Clips [B, channels, frames, height, width] with one label each."""

    noun: ClassVar[str] = "videos"

    frames: int

    @property
    def grid(self) -> tuple[int, ...]:
        return self.frames, self.height, self.width


class Vocabulary(Protocol):
    """Numbers for pieces of text. `unit` is what one token is."""

    @property
    def unit(self) -> Literal["character", "byte", "token"]: ...

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Raises OptionError("prompt", ...) naming what the vocabulary does not have."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def plain(self) -> dict[str, str]:
        """As plain data, for a checkpoint."""
        ...


@dataclass(frozen=True)
class TextSpec:
    """Windows of `length` tokens, at most, out of a vocabulary. Asked is every next token, or some of them, or one answer
    in each window, token by token.
    """

    noun: ClassVar[str] = "text"

    length: int
    vocabulary: Vocabulary
    asks: Literal["every", "some", "answers"] = "every"


@dataclass(frozen=True)
class TextClassificationSpec:
    """Texts of at most `length` tokens, int64 [B, N] with -1 for padding, with one label each. `names` as of images."""

    noun: ClassVar[str] = "labelled texts"

    length: int
    vocabulary: Vocabulary
    classes: int
    names: tuple[str, ...] = ()


class Windows(NamedTuple):
    """A batch of text: what a model reads, what it should say, and whose document each token is of."""

    inputs: Tensor  # int64 [B, N]
    targets: Tensor  # int64 [B, N], -100 where nothing is asked
    documents: Tensor | None = (
        None  # int64 [B, N], -1 for padding; None for one document and no padding
    )
    bytes: Tensor | None = (
        None  # int64 [B, N] length of each target in UTF-8, where a token is no fixed unit
    )


Samples = ImageSpec | TextSpec | TextClassificationSpec
