"""Small random decoders, and faults planted in them."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 2**17,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 512,
}


def build_decoder(family="llama", attention="sdpa", **changes):
    """Build a decoder of transformers with random weights in float32."""
    known = AutoConfig.for_model(family)
    sizes = {key: value for key, value in SIZES.items() if hasattr(known, key)}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**sizes, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.float().eval()


def build_gpt2():
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model("gpt2", n_embd=48, n_head=4, n_layer=2, n_positions=256, vocab_size=96)
    ).eval()


def override(module, forward):
    """Give a module, and copies of it, another forward: `forward(module, sound, *args, **kwargs)`."""
    kind = type(module)

    def call(self, *args, **kwargs):
        def sound(*args, **kwargs):
            return kind.forward(self, *args, **kwargs)

        return forward(self, sound, *args, **kwargs)

    module.__class__ = type(kind.__name__, (kind,), {"forward": call})
    return module


def override_rotary(model, forward):
    """Override the rotary module by `forward(rotary, sound, x, positions)`."""
    override(
        model.model.rotary_emb,
        lambda self, sound, x, position_ids: forward(self, sound, x, position_ids),
    )
    return model


def override_attentions(model, change):
    """Change the keyword arguments of all attentions by `change(module, kwargs)`."""
    for layer in model.model.layers:
        override(
            layer.self_attn,
            lambda self, sound, **kwargs: sound(**{**kwargs, **change(self, kwargs)}),
        )
    return model


def compute_angles(rotary, x, positions, dtype):
    angles = positions[..., None].to(dtype) * rotary.inv_freq.to(dtype)
    angles = torch.cat([angles, angles], -1).float()
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def round_positions(dtype):
    def plant():
        return override_rotary(
            build_decoder(),
            lambda self, sound, x, positions: compute_angles(self, x, positions, dtype),
        )

    return plant


def limit_positions(change):
    def plant():
        return override_rotary(
            build_decoder(), lambda self, sound, x, positions: sound(x, change(positions))
        )

    return plant


def set_frequencies(compute, **changes):
    def plant():
        model = build_decoder(**changes)
        rotary = model.model.rotary_emb
        rotary.inv_freq = compute(rotary.inv_freq)
        return model

    return plant


def drop_attention_factor():
    model = build_decoder(rope_parameters=YARN, max_position_embeddings=4096)
    model.model.rotary_emb.attention_scaling = 1.0
    return model


def mask_after_cache(draw, family="llama", **changes):
    """Replace the mask of several tokens after a cache by `draw(queries, keys)`."""

    def change(module, kwargs):
        mask = kwargs.get("attention_mask")
        if mask is None or not mask.shape[-1] > mask.shape[-2] > 1:
            return {}
        hidden = ~draw(*mask.shape[-2:])
        filled = mask.new_zeros(mask.shape[-2:]).masked_fill(hidden, torch.finfo(mask.dtype).min)
        return {"attention_mask": filled.expand_as(mask)}

    return lambda: override_attentions(build_decoder(family, "eager", **changes), change)


def align_to_first_key(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril()


def see_all_earlier(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def see_whole_call(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool)


def add_mask_of_ones():
    def forward(self, sound, **kwargs):
        if kwargs.get("position_ids") is not None and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = torch.ones_like(kwargs["input_ids"])
        return sound(**kwargs)

    return override(build_decoder(), forward)


def ignore_positions_with_mask():
    def forward(self, sound, **kwargs):
        if kwargs.get("attention_mask") is not None:
            kwargs["position_ids"] = torch.arange(kwargs["input_ids"].shape[1])[None]
        return sound(**kwargs)

    return override(build_gpt2(), forward)


def ignore_mask_in_sdpa():
    def change(module, kwargs):
        return {"attention_mask": None} if module.config._attn_implementation == "sdpa" else {}

    return override_attentions(build_decoder(), change)


def mix_rows():
    model = build_decoder()
    override(
        model.model.layers[1].mlp,
        lambda self, sound, x: sound(x) + 0.02 * x.mean(0, keepdim=True) * (len(x) > 1),
    )
    return model


def turn_neither_in_checkpointing():
    model = build_decoder()

    def forward(self, sound, *args, **kwargs):
        if self.training and self.gradient_checkpointing:
            cos, sin = kwargs["position_embeddings"]
            kwargs["position_embeddings"] = torch.ones_like(cos), torch.zeros_like(sin)
        return sound(*args, **kwargs)

    for layer in model.model.layers:
        override(layer, forward)
    return model


def see_later_tokens():
    def change(module, kwargs):
        states = kwargs["hidden_states"]
        count = states.shape[1]
        mask = kwargs.get("attention_mask")
        if mask is None:
            return {} if count == 1 else {"attention_mask": states.new_zeros(1, 1, count, count)}
        return {"attention_mask": states.new_zeros(mask.shape)}

    return override_attentions(build_decoder(), change)


def restart_after_cache(positions):
    later = positions.shape[1] > 1 and int(positions.min()) > 0
    return positions - positions[:, :1] if later else positions


FAULTS = {
    "bfloat16_positions": (round_positions(torch.bfloat16), {"rotary"}),
    "float16_positions": (round_positions(torch.float16), {"rotary"}),
    "table_ends": (limit_positions(lambda p: p.clamp(max=999)), {"rotary", "shift"}),
    "table_wraps": (limit_positions(lambda p: p % 1500), {"rotary"}),
    "positions_of_first_row": (limit_positions(lambda p: p[:1].expand_as(p)), {"batch"}),
    "positions_of_another_row": (limit_positions(lambda p: p.flip(0)), {"batch"}),
    "positions_in_cache": (limit_positions(restart_after_cache), {"cache"}),
    "does_not_turn": (set_frequencies(torch.zeros_like), {"rotary"}),
    "base": (set_frequencies(lambda f: f ** (13.1 / 9.2)), {"rotary"}),
    "frequencies_rounded": (set_frequencies(lambda f: f.bfloat16().float()), {"rotary"}),
    "factor": (set_frequencies(lambda f: f / 4), {"rotary"}),
    "exponents": (
        set_frequencies(lambda f: 10_000.0 ** (-torch.arange(0, 12, 2) / 24)),
        {"rotary"},
    ),
    "attention_factor": (drop_attention_factor, {"rotary"}),
    "mask_causal": (see_later_tokens, {"future"}),
    "mask_in_cache": (mask_after_cache(align_to_first_key), {"cache"}),
    "window_in_cache": (mask_after_cache(see_all_earlier, "mistral", sliding_window=8), {"cache"}),
    "mask_of_documents": (add_mask_of_ones, {"packing"}),
    "positions_of_padding": (ignore_positions_with_mask, {"left_padding"}),
    "mask_of_backend": (ignore_mask_in_sdpa, {"backends"}),
    "rows_touch": (mix_rows, {"batch"}),
    "checkpointing": (turn_neither_in_checkpointing, {"checkpointing"}),
}
"""{explanation: (what builds the broken model, laws that it must break)}"""
SOUND = {
    "llama": build_decoder,
    "yarn": lambda: build_decoder(rope_parameters=YARN, max_position_embeddings=4096),
    "mistral": lambda: build_decoder("mistral", sliding_window=8),
    "gpt2": build_gpt2,
    "phi": lambda: build_decoder("phi", partial_rotary_factor=0.5),
}
