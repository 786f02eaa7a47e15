"""The page about mixers, made from docstrings, declared facts and recipes: docs/mixers.md."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from zoo import registry
from zoo.attention.encoding import Dims
from zoo.attention.mixer import describe_facts
from zoo.cli.describe import describe_mixer_costs, describe_options, list_mixer_users

DIM = 512
INTRODUCTION = """# Mixers

Made by `python docs/build/pages.py` from docstrings, declared facts and recipes. `zoo list mixers`
lists them, and `zoo show gated_delta` prints one for a width of your own.

A mixer takes the place of attention in some layers: it reads the tokens in their order and keeps a
state of fixed size, so that time grows linearly with the length and a cache does not grow. A state
that decays or is corrected carries the order of tokens. Whether the layers with attention between
them still need positions is a question that a recipe asks in one key:

```yaml
extends: lm_rope
model:
  encoding: none                        # of the layers with attention: compare with rope
  layer_types:
    linear: {mixer: {name: gated_delta, heads: 4, decay: head}}
    full: {}
  layer_pattern: [linear*3, full]
```

- A mixer has no scores of queries and keys. `window`, `softcap`, `sinks` and `temperature` of the
  model do not reach it, and `zoo show` names those that are set; a model with a mixer in each layer
  refuses them. In its own type they are config errors. `encoding` reaches only mixers whose facts
  say that they use it (`linear`, which rotates its features). Encodings that add to the input reach
  every layer. Options of `block` that belong to attention (norms of heads, `output_gate`,
  `token_shift`, biases of projections) apply only to mixers that project heads as attention does.
- A recurrence needs a causal mask: `encoder`, `vit` and `point_encoder` refuse mixers that are
  causal only, by their facts. `linear` is not: without a mask its two sums run over all tokens of a
  document, in whatever order.
- Packed documents are computed alone: the state and the convolution end with the document. Padding
  changes nothing, wherever it stands. A cache in parts of any size equals one pass, and a copy of a
  cache goes on by itself. With `memory_length` the state is that of the remembered tokens.
- A state cannot go back to fewer tokens, so no cache of zoo has a `crop`, and `generate` of an
  exported folder refuses assistants, prompt lookup and contrastive search.
- A diagnosis shows the layers with attention, and `linear`, whose sums are those of weights of
  pairs. Other mixers have no weights, and no map is drawn for them: the page and TensorBoard
  (`state/LAYER/...`) show the norm of the state, and of `gated_delta` the decay and the span of
  each head. A model in which no layer has weights cannot be diagnosed.
- Exports as an architecture of transformers refuse mixers by name. `to=hf` takes every mixer;
  graphs for ONNX and torch.export take those whose facts say so.

A plug-in adds one by a file in its folder `mixers`: a subclass of `zoo.attention.mixer.Mixer` that
computes `mix`, marked with `@zoo.registry.register`. `zoo new mixer NAME` writes one to start from.
The base class orders tokens so that padding comes last, numbers documents, and keeps the state;
`mix` ends its state with the document. `linear` reads positions, too, and overrides `forward`.

`zoo convert` reads Qwen3-Next without experts, OLMo Hybrid and LFM2. Kimi Linear is refused by
name. Its recurrent layers are `gated_delta` with `decay: channel`, and equal those of transformers
in a test; its other layers have latent attention without positions: keys and values are
W_b norm(W_a x). The norm divides by the root mean square of W_a x, which differs by token, so that
no single projection W_b W_a computes the same, and a decoder of zoo has no projection with a norm
inside. `zoo.equip` takes the model of transformers.

Until version 0.3 linear attention was the option `attention: linear` of a model. Recipes write a
type with `mixer: linear` now. Checkpoints and exported folders of 0.3 with linear attention are
read as before, with equal numbers; for transformers a folder is exported anew, and the error says
how.
"""


SPEED = """## Time and memory

One causal layer on a text, forward and backward, on one thread of an AMD EPYC with other work on
the machine: D 256, 4 heads, float32, medians of {rounds} rounds in which the layers take turns
(torch {torch}, `python docs/build/record_mixers.py`). A ratio is the layer's time by that of
softmax attention in the same round. Memory is what a pass holds at most.

| tokens | layer | milliseconds | ratio | MiB |
|---|---|---|---|---|"""


def write_speed() -> Iterator[str]:
    """Yield the lines about recorded time and memory."""
    record = json.loads(Path(__file__).with_name("mixers_speed.json").read_text("utf-8"))
    yield SPEED.format(rounds=record["rounds"], torch=record["torch"])
    for row in record["rows"]:
        numbers = f"{row['milliseconds']:.0f} | {row['ratio']:.2f} | {row['mib']:.1f}"
        yield f"| {row['tokens']:,} | {row['layer']} | {numbers} |"
    yield ""


def write_mixers_page() -> str:
    """Return the page of all mixers."""
    users = list_mixer_users()
    sections = [
        "\n".join(_describe(name, users.get(name, []))) for name in registry.names("mixers")
    ]
    return "\n".join([INTRODUCTION, *write_speed(), *sections])


def _describe(name: str, recipes: list[str]) -> Iterator[str]:
    """Yield the lines of a mixer: formula, options, facts, parameters and cost."""
    cls = registry.find("mixers", name)
    about, _, _ = (inspect.getdoc(cls) or "").partition("\n\nArgs:\n")
    formula, _, notes = about.partition("\n\n")
    yield from (f"## {name}", "", str(inspect.getdoc(sys.modules[cls.__module__])), "")
    yield from ("```", formula, "```", "", notes, "")
    if options := describe_options(cls, "mixers"):
        yield from ("| option | value |", "|---|---|")
        yield from (
            f"| `{key}` | {value.replace('|', chr(92) + '|')} |" for key, value in options.items()
        )
        yield ""
    yield from ("| fact | |", "|---|---|")
    for key, value in describe_facts(cls).items():
        yield f"| {key} | {value} |"
    yield from ("", f"| parameter, for dim {DIM} and 8 heads | shape |", "|---|---|")
    with torch.device("meta"):
        mixer = cls(Dims(DIM, 8))
    for key, parameter in mixer.named_parameters():
        yield f"| `{key}` | {' x '.join(map(str, parameter.shape))} |"
    costs = describe_mixer_costs(name, {}, DIM)
    yield from ("", "; ".join(f"{key}: {value}" for key, value in costs.items()) + ".", "")
    yield from (f"Recipes: {', '.join(f'`{one}`' for one in recipes) or 'none yet'}.", "")
