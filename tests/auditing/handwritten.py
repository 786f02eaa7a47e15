"""Decoders in classes that no library knows, with switches that plant faults.

None calls transformers' attention interface, or makes masks by transformers' functions.
"""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

LOWEST = torch.finfo(torch.float32).min


class HandConfig(PretrainedConfig):
    model_type = "zoo_test_hand"

    def __init__(
        self,
        vocab_size=96,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_theta=10_000.0,
        sliding_window=None,
        positions="complex",
        fault=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.sliding_window = sliding_window
        self.positions = positions
        self.fault = fault


class ComplexAngles(nn.Module):
    """Return e^(i p w) [B, N, K/2] of positions [B, N]."""

    def __init__(self, config):
        super().__init__()
        self.width = config.hidden_size // config.num_attention_heads
        self.base = 5_000.0 if config.fault == "base" else config.rope_theta
        self.count = 2 * self.width if config.fault == "exponents" else self.width
        self.fault = config.fault

    def forward(self, positions):
        if self.fault == "table_wraps":
            positions = positions % 1_111
        if self.fault == "table_ends":
            positions = positions.clamp(max=1_499)
        if self.fault == "length_of_call" and positions.shape[1] > 8:
            positions = positions * 8 / positions.shape[1]
        if self.fault == "bfloat16_positions":
            positions = positions.bfloat16()
        exponents = torch.arange(0, self.width, 2).double() / self.count
        angles = positions[..., None].double() * self.base**-exponents
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


class HandAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def turn(self, x, angles):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * angles[:, None]).flatten(-2).to(x)

    def forward(self, x, angles, bias, past=None):
        fault = self.config.fault
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        if angles is not None:
            q = self.turn(q, angles)
            if fault != "keys_not_turned":
                k = self.turn(k, angles)
        if past is not None:
            old_k, old_v = past
            if fault == "keys_in_cache":
                old_k = old_k * 0.9
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias.to(q)
        out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        if fault == "rows_touch" and len(out) > 1:
            out = out + 0.02 * out.mean(0, keepdim=True)
        return self.out(out), (k, v)


class HandLayer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.attention = HandAttention(config, layer)
        self.mlp = nn.Sequential(
            nn.LayerNorm(config.hidden_size),
            nn.Linear(config.hidden_size, 64),
            nn.GELU(),
            nn.Linear(64, config.hidden_size),
        )

    def forward(self, x, angles, bias, past=None):
        mixed, past = self.attention(self.norm(x), angles, bias, past)
        x = x + mixed
        return x + self.mlp(x), past


class HandDecoder(PreTrainedModel):
    """Complex rotations by a module or a function, a learned table, or ALiBi.

    Restarting positions begin a text unless there is a mask.
    """

    config_class = HandConfig
    main_input_name = "input_ids"
    _tied_weights_keys = None

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.positions == "learned":
            self.table = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.angles = ComplexAngles(config) if config.positions == "complex" else None
        # Angles that no module returns.
        self.turning = [ComplexAngles(config)] if config.positions == "function" else []
        self.layers = nn.ModuleList(
            HandLayer(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.2)

    def make_bias(self, mask, positions, start):
        """Return what is added to scores [B, 1 or H, N, M], and positions of queries."""
        fault, window = self.config.fault, self.config.sliding_window
        rows, count = positions.shape
        total = start + count
        queries, keys = torch.arange(start, total)[:, None], torch.arange(total)
        if fault == "mask_in_cache" and start and count > 1:
            queries = queries - start
        visible = (keys <= queries)[None].expand(rows, -1, -1)
        if fault == "mask_causal":
            visible = (keys <= queries + 1)[None].expand(rows, -1, -1)
        if window is not None:
            width = window + 1 if fault == "window" else window
            if not (fault == "window_in_cache" and start and count > 1):
                visible = visible & (keys > queries - width)
        if fault == "hole":
            visible = visible & (keys != queries - 3)
        if mask is not None and mask.dim() == 4:
            visible = visible & (
                mask[:, 0] > LOWEST / 2 if mask.is_floating_point() else mask[:, 0]
            )
        elif mask is not None and fault != "mask_of_padding":
            visible = visible & mask[:, None, :total].bool()
        if mask is None and not start and fault != "mask_of_documents":
            texts = torch.nn.functional.pad(positions[:, 1:] != positions[:, :-1] + 1, (1, 0))
            texts = texts.cumsum(1)
            visible = visible & (texts[:, :, None] == texts[:, None])
        bias = torch.zeros(visible.shape).masked_fill(~visible, LOWEST)[:, None]
        if self.config.positions == "alibi":
            slopes = 2.0 ** -torch.arange(1, self.config.num_attention_heads + 1)
            scale = 1 + count / 100 if fault == "length_of_call" else 1
            bias = bias - slopes[:, None, None] * (queries - keys).abs() * scale
        return bias

    def forward(
        self,
        input_ids,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        use_cache=False,
        **kwargs,
    ):
        fault = self.config.fault
        start = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        count = input_ids.shape[1]
        if position_ids is None:
            first = 0 if fault == "positions_in_cache" and count > 1 else start
            position_ids = torch.arange(first, first + count)[None]
        position_ids = position_ids.expand(input_ids.shape)
        bias = self.make_bias(attention_mask, position_ids, start)
        if fault == "positions_of_documents" and not start:
            position_ids = torch.arange(count).expand(input_ids.shape)
        if fault == "positions_of_first_row":
            position_ids = position_ids[:1].expand(input_ids.shape)
        if fault == "positions_of_another_row":
            position_ids = position_ids.flip(0)
        x = self.embed(input_ids)
        if self.config.positions == "learned":
            x = x + self.table(position_ids)
        angles = None if self.angles is None else self.angles(position_ids)
        for function in self.turning:
            angles = function.forward(position_ids)
        cache = []
        for number, layer in enumerate(self.layers):
            x, past = layer(x, angles, bias, past_key_values and past_key_values[number])
            cache.append(past)
        logits = self.head(x)
        return CausalLMOutputWithPast(
            logits=logits, past_key_values=tuple(cache) if use_cache else None
        )


def build_hand(positions="complex", fault=None, **options):
    torch.manual_seed(0)
    return HandDecoder(HandConfig(positions=positions, fault=fault, **options)).eval()
