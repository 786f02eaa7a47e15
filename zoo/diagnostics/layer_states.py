"""Measures of layers with a state in place of weights: its norm, its decay, and its span."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.chain import Chain
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Context, HeadLayer
from zoo.attention.mixer import Mixer, MixerStream
from zoo.attention.tokens import Tokens
from zoo.diagnostics.capture import evaluation_mode
from zoo.reporting.panel import Curves, Panel, label_heads

CAPTIONS = {
    "norm of the state": "Root mean square of the numbers of the state after the last token.",
    "decay of the state": "Factor by which one token shrinks the state, the geometric mean over "
    "tokens: 1 keeps it, 0 clears it.",
    "span of the state": "Tokens after which decay alone has shrunk a part of the state to 1/e, "
    "the mean over channels. Updates may replace it earlier.",
}
"""How to read the measures of `Mixer.measure_state`."""
UNITS = {"decay of the state": "factor", "span of the state": "tokens"}
StateCallback = Callable[[int, Mapping[str, Tensor]], None]
"""Receives the index of a layer and its measures by name [heads]."""


@contextmanager
def hook_states(model: nn.Module, callback: StateCallback) -> Iterator[None]:
    """Within the context, call `callback` with the measures of each layer with a state only.

    Layers whose sums are those of weights, such as linear attention, are left out: `capture_layers`
    has their weights.
    """

    def measure(mixer: nn.Module, arguments: tuple[Tokens, Chain, Context]) -> None:
        assert isinstance(mixer, Mixer)
        tokens, chain, _ = arguments
        # a cache of its own, from which the state is read after the last token
        cache = KeyValueCache()
        # `forward` and no call: hooks would call this again
        mixer.forward(tokens, chain, cache)
        state = cache.state(mixer.dims.layer)
        assert state is not None
        measures = mixer.measure_state(MixerStream.of(tokens, None), state.values)
        callback(mixer.dims.layer, measures)

    mixers = [
        module
        for module in model.modules()
        if isinstance(module, Mixer) and not isinstance(module, HeadLayer)
    ]
    with ExitStack() as stack:
        for mixer in mixers:
            stack.callback(mixer.register_forward_pre_hook(measure).remove)
        yield


def draw_states(model: nn.Module, inputs: Sequence[Any]) -> tuple[Panel, ...]:
    """Draw each measure of the layers with a state only, by layer and head.

    Args:
        model: The model.
        inputs: Its arguments.
    """
    measured: dict[str, dict[int, Tensor]] = {}

    def see(layer: int, measures: Mapping[str, Tensor]) -> None:
        for name, values in measures.items():
            measured.setdefault(name, {})[layer] = values.float().cpu()

    with hook_states(model, see), evaluation_mode(model):
        model(*inputs)
    return tuple(_draw(name, layers) for name, layers in measured.items())


def _draw(name: str, layers: Mapping[int, Tensor]) -> Panel:
    """Draw a measure over the layers, a line for each head."""
    most = max(map(len, layers.values()))
    values = torch.full((len(layers), most), torch.nan)
    for row, heads in zip(values, layers.values(), strict=True):
        row[: len(heads)] = heads
    return Curves(
        title=name[0].upper() + name[1:],
        x="layer",
        y=UNITS.get(name, name),
        caption=CAPTIONS.get(name, ""),
        x_values=torch.tensor([*layers]),
        lines=label_heads(values.T),
    )
