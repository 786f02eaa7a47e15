"""RoPE-ViT as it is published: made-up weights in timm's layout, and its forward pass, literally, with nothing of zoo's."""

import math

import torch
from torch.nn import functional as F


def weights(*, dim, depth, heads, patch_size, classes, mixed=True, side=0, seed=0):
    """Drawn so that every one of them tells in the logits; `side` makes a table of positions for side x side patches."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, mean=0.0, std=0.1):
        return mean + std * torch.randn(*shape, generator=generator)

    def layer(name, *shape):
        return {
            f"{name}.weight": draw(*shape, std=math.prod(shape[1:]) ** -0.5),
            f"{name}.bias": draw(shape[0]),
        }

    def norm(name):
        return {f"{name}.weight": draw(dim, mean=1.0), f"{name}.bias": draw(dim)}

    found = {
        "cls_token": draw(1, 1, dim, std=1.0),
        **layer("patch_embed.proj", dim, 3, patch_size, patch_size),
    }
    for block in (f"blocks.{number}" for number in range(depth)):
        found |= (
            {f"{block}.gamma_{n}": draw(dim, mean=0.5) for n in (1, 2)}
            | norm(f"{block}.norm1")
            | norm(f"{block}.norm2")
        )
        found |= layer(f"{block}.attn.qkv", 3 * dim, dim) | layer(f"{block}.attn.proj", dim, dim)
        found[f"{block}.attn.qkv.bias"] = draw(3 * dim, std=1.0)  # so that the keys' tells
        found |= layer(f"{block}.mlp.fc1", 4 * dim, dim) | layer(f"{block}.mlp.fc2", dim, 4 * dim)
    if mixed:
        found["rope.freqs"] = draw(2, depth, heads, dim // heads // 2, std=0.5)
    if side:
        found["pos_embed"] = draw(1, side * side, dim, std=1.0)
    return found | norm("norm") | layer("head", classes, dim)


def logits(weights, images, heads):
    """[B, classes] for images [B, 3, height, width]."""
    x = F.conv2d(
        images,
        weights["patch_embed.proj.weight"],
        weights["patch_embed.proj.bias"],
        stride=weights["patch_embed.proj.weight"].shape[-1],
    )
    rows, columns = x.shape[2:]
    x = x.flatten(2).transpose(1, 2)
    if "pos_embed" in weights:
        side = math.isqrt(weights["pos_embed"].shape[1])
        table = weights["pos_embed"].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(rows, columns), mode="bicubic", align_corners=False)
        x = x + table.flatten(2).transpose(1, 2)
    x = torch.cat([weights["cls_token"].expand(len(x), -1, -1), x], dim=1)
    depth = 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("blocks."))
    for number in range(depth):
        block = {
            key.split(".", 2)[2]: value
            for key, value in weights.items()
            if key.startswith(f"blocks.{number}.")
        }
        angles = _angles(weights, number, rows, columns, x.shape[-1] // heads)
        x = x + block["gamma_1"] * _attention(block, _norm(block, "norm1", x), angles, heads)
        hidden = F.gelu(_linear(block, "mlp.fc1", _norm(block, "norm2", x)))
        x = x + block["gamma_2"] * _linear(block, "mlp.fc2", hidden)
    return _linear(weights, "head", _norm(weights, "norm", x)[:, 0])


def _angles(weights, number, rows, columns, head):
    """[1 or heads, patches, K/2]: x is the column of a patch, y its row."""
    t = torch.arange(rows * columns)
    x, y = (t % columns).float(), (t // columns).float()
    if "rope.freqs" in weights:
        x_freqs, y_freqs = weights["rope.freqs"][:, number]
        return x[None, :, None] * x_freqs[:, None] + y[None, :, None] * y_freqs[:, None]
    bands = 100.0 ** -(torch.arange(head // 4).float() / (head // 4))
    return torch.cat([x[:, None] * bands, y[:, None] * bands], dim=-1)[None]


def _attention(block, x, angles, heads):
    qkv = _linear(block, "attn.qkv", x)
    q, k, v = qkv.reshape(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    q, k = _rotate(q, angles), _rotate(k, angles)
    shares = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
    return _linear(block, "attn.proj", (shares @ v).transpose(1, 2).flatten(2))


def _rotate(x, angles):
    """Neighbouring channels are a pair; the class token, which comes first, is not turned."""
    first, second = x[:, :, 1:, 0::2], x[:, :, 1:, 1::2]
    cos, sin = angles.cos(), angles.sin()
    patches = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(
        -2
    )
    return torch.cat([x[:, :, :1], patches], dim=2)


def _linear(weights, name, x):
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights, name, x):
    return F.layer_norm(
        x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6
    )
