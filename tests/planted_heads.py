"""Language models in float64 whose heads were written by hand."""

import torch
from torch import nn

from zoo.attention.chain import make_factory
from zoo.data.spec import TextSpec
from zoo.models.decoder import Decoder
from zoo.models.transformer import BlockOptions

SHARPNESS = 40.0
LETTERS = "abcdefghijklmnop"
BASE = 100.0


class Letters:
    """A vocabulary of sixteen letters."""

    unit = "character"

    def __len__(self):
        return len(LETTERS)

    def decode(self, tokens):
        return "".join(LETTERS[token] for token in tokens)


def build_decoder(depth, heads, head_dim, *, rotary_fraction=1.0, dim=48, length=64):
    """Build a decoder without norms and MLPs whose weights are 0, except the embeddings.

    Token t is the unit vector t of the states.
    """
    rope = {"name": "rope", "base": BASE, "rotary_fraction": rotary_fraction}
    spec = TextSpec(length=length, vocabulary=Letters())
    model = Decoder(
        spec,
        dim=dim,
        depth=depth,
        heads=heads,
        head_dim=head_dim,
        encoding={"rope": make_factory(rope)},
        block=BlockOptions(key_bias=True),
        tie_embeddings=False,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        next(model.embed_tokens.parameters())[: len(LETTERS), : len(LETTERS)] = torch.eye(16)
    for block in model.blocks:
        block.norm1 = block.norm2 = nn.Identity()
    model.norm = nn.Identity()
    return model.eval()


def frequencies(width):
    """Return the frequencies of rope, by its formula."""
    return [BASE ** (-2 * t / width) for t in range(width // 2)]


@torch.no_grad()
def plant_offset(layer, head, offset, width, pairs=None):
    """Let a head attend to the token `offset` before the query, by a rotation of its keys."""
    start = head * layer.dims.head_dim
    waves = torch.tensor(frequencies(width), dtype=torch.float64)
    for pair in range(width // 2) if pairs is None else pairs:
        layer.q_proj.bias[start + 2 * pair] = SHARPNESS**0.5
        angle = offset * waves[pair]
        layer.k_proj.bias[start + 2 * pair] = SHARPNESS**0.5 * angle.cos()
        layer.k_proj.bias[start + 2 * pair + 1] = SHARPNESS**0.5 * angle.sin()


@torch.no_grad()
def build_induction():
    """Build two layers of one head: the first copies the previous token, the second finds it.

    Channels 0 to 15 of a state are the token, 16 to 31 the token before, 32 to 47 the prediction.
    The first 32 channels of a head rotate, the last 16 hold content.
    """
    model = build_decoder(2, 1, 48, rotary_fraction=32 / 48)
    first, second = (block.attn for block in model.blocks)
    one = torch.eye(16, dtype=torch.float64)
    plant_offset(first, 0, 1, 32)
    first.v_proj.weight[:16, :16] = one
    first.o_proj.weight[16:32, :16] = one
    second.q_proj.weight[32:, :16] = SHARPNESS**0.5 * 4 * one
    second.k_proj.weight[32:, 16:32] = SHARPNESS**0.5 * one
    second.v_proj.weight[:16, :16] = one
    second.o_proj.weight[32:, :16] = one
    next(model.lm_head.parameters())[:16, 32:] = 20 * one
    return model
