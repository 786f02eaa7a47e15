"""Decoders of every family that `zoo convert` reads, made and saved by transformers."""

import json

import torch

WINDOW = {"sliding_window": 5}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DECODERS = {
    "Llama": {},
    "Llama of biases": {"attention_bias": True, "mlp_bias": True},
    "Mistral": WINDOW,
    "Qwen2": {},
    "Qwen3": {},
    "Phi3": {},
    "SmolLM3": {"no_rope_layers": [1, 0]},
    "Olmo2": {},
    "Olmo3": {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "Gemma2": WINDOW,
    "Gemma3": {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "Cohere2": {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    "GPT2": {},
    "Qwen3Next": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 0,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 5,
    },
    "OlmoHybrid": {"linear_key_head_dim": 6},
    "Lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
}
FIXED_WIDTH = ("GPT2", "Cohere2", "Phi3", "Olmo2", "Olmo3", "SmolLM3", "OlmoHybrid", "Lfm2")
"""Families whose configuration has no head dim."""


def build(transformers, name, **changes):
    """Return a decoder of random weights, in evaluation mode."""
    kind = name.split()[0]
    config_class = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")
    model_class = f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    sizes = GPT2 if kind == "GPT2" else SIZES
    if kind not in FIXED_WIDTH:
        sizes = {**sizes, "head_dim": 8}
    model = getattr(transformers, model_class)(
        config_class(**{**sizes, **DECODERS[name], **changes})
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    return model.eval()


IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGES |= {"intermediate_size": 48, "image_size": 16, "patch_size": 8}
OTHERS = {
    "BertForMaskedLM": {**SIZES, "num_labels": 2},
    "BertModel": SIZES,
    "ViTForImageClassification": {**IMAGES, "num_labels": 3},
    "ViTModel": IMAGES,
    "DINOv3ViTModel": {**IMAGES, "num_register_tokens": 2},
    "DINOv3ViTModel of key biases": {**IMAGES, "key_bias": True},
}
"""Models that are no decoders, by the class that saves them."""


def build_other(transformers, name):
    """Return a model of OTHERS, of random weights."""
    model_class = getattr(transformers, name.split()[0])
    model = model_class(model_class.config_class(**OTHERS[name]))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    return model.eval()


def change_config(folder, *removed, **changes):
    """Change entries of config.json."""
    file = folder / "config.json"
    settings = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: settings[key] for key in settings.keys() - {*removed}}))
