"""The rotary embedding of a model of transformers, described by the options of `rope`.

What rotates is read from the module, not from the configuration: some families ignore entries that
others read, such as `partial_rotary_factor`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.chain import make_factory
from zoo.attention.encoding import Dims
from zoo.errors import OptionError
from zoo.integrations.rope_parameters import (
    FIXED_LENGTH,
    OF_ATTENTION,
    read_kind,
    read_rope_parameters,
)
from zoo.options import Choice

CLOSE = 1e-5  # relative; transformers computes frequencies in float32


@dataclass(frozen=True)
class OwnRope:
    """The rotation of one kind of layers.

    Attributes:
        frequencies: Radians per token of each pair of channels, float64 [R/2].
        factor: Factor of cos and sin.
        parameters: The entries of the configuration from which the model computed them.
        length: Training length in tokens, which some rules of scaling read.
    """

    frequencies: Tensor
    factor: float
    parameters: Mapping[str, Any]
    length: int

    @property
    def width(self) -> int:
        """Number of rotated channels R of a head."""
        return 2 * len(self.frequencies)

    def translate(self, head_dim: int) -> dict[str, Any]:
        """Return the options of `rope` that equal this rotation.

        Args:
            head_dim: Number of channels of a head.

        Raises:
            OptionError: `rope` has no such frequencies.
        """
        try:
            entries = {key: one for key, one in self.parameters.items() if key not in OF_ATTENTION}
            options = read_rope_parameters(entries, self.length)
        except OptionError as error:
            raise self._refuse(f", {error}") from None
        if self.width != head_dim:
            options["rotary_fraction"] = self.width / head_dim

        # An entry that the model does not follow shows in the frequencies, or in the factor, which
        # is cos at position 0.
        like = torch.zeros(1, 1, 1, dtype=torch.float64, device="cpu")
        dims = Dims(head_dim, 1, length=self.length)
        rope: Any = make_factory(Choice("rope", options))(dims)
        frequencies, factor = (
            rope.wave_vectors(like).flatten(),
            rope.compute_rotation(like)[0].max(),
        )
        is_equal = torch.allclose(frequencies, self.frequencies, rtol=CLOSE, atol=0)
        if not is_equal or abs(factor - self.factor) > CLOSE:
            raise self._refuse()
        return options

    def _refuse(self, reason: str = "") -> OptionError:
        named = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        problem = "the model's own rotary embedding is of a kind that rope does not have"
        problem = f"{problem}{reason} ({named})"
        remedy = "give rope a base, as in {name: rope, base: 10000.0}, or choose another encoding"
        return OptionError("encoding", f"{problem}; {remedy}")


def read_own_rope(rotary: nn.Module, config: Any, kind: str = "") -> OwnRope:
    """Read the rotation of one kind of layers.

    Args:
        rotary: The module of a model that makes tables of cos and sin.
        config: The configuration of the model.
        kind: The kind of layers, an entry of `layer_types`; empty if all layers are alike.
    """
    if any(buffer.is_meta for buffer in rotary.buffers()):
        rebuild: Any = type(rotary)
        # Frequencies of a model without weights are recomputed from its configuration.
        with torch.device("cpu"):
            rotary = rebuild(config)
    # Kinds of layers may have separate frequencies, and separate entries of the configuration.
    prefix = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters.get(kind, parameters)
    name = "inv_freq"
    # Frequencies that follow the length of texts are as the last text left them.
    if read_kind(parameters) in FIXED_LENGTH:
        name = "original_inv_freq"
    return OwnRope(
        getattr(rotary, prefix + name).detach().double().cpu(),
        float(getattr(rotary, f"{prefix}attention_scaling", 1.0)),
        parameters,
        int(config.max_position_embeddings),
    )


@contextmanager
def keep_rotary(rotary: nn.Module) -> Iterator[None]:
    """Make a rotary embedding whose frequencies follow the lengths of texts forget earlier ones.

    Args:
        rotary: The module; afterwards it is as it was, whatever texts have changed in it.
    """
    kinds = getattr(rotary, "rope_type", "")
    if not {*(kinds.values() if isinstance(kinds, Mapping) else [kinds])} & {*FIXED_LENGTH}:
        yield
        return
    values = dict(vars(rotary))
    buffers = {name: (one, one.clone()) for name, one in rotary._buffers.items() if one is not None}
    for name, (buffer, _) in buffers.items():
        original = buffers.get(name.replace("inv_freq", "original_inv_freq"))
        if original is not None:
            buffer.copy_(original[1])
    for name in values:
        if name.endswith("max_seq_len_cached"):
            setattr(rotary, name, values["original_max_seq_len"])
    try:
        yield
    finally:
        vars(rotary).clear()
        vars(rotary).update(values)
        for name, (buffer, value) in buffers.items():
            buffer.copy_(value)
            rotary._buffers[name] = buffer


def rotates_neighbours(attention: nn.Module) -> bool:
    """Return whether an attention rotates channels (2i, 2i + 1), as zoo does.

    Most families rotate (i, i + R/2). The function `rotate_half` of a family's module tells: it
    maps a pair (a, b) to (-b, a).
    """
    rotate = getattr(sys.modules[type(attention).__module__], "rotate_half", None)
    # Models may be built on the meta device, where numbers have no values.
    pairs = torch.arange(4.0, device="cpu")
    return rotate is not None and rotate(pairs).tolist() == [-1, 0, -3, 2]
