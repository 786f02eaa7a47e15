"""The types and ranges of the entries of config.json that families of published models read.

They are checked before weights are read, so that families compute with values that can be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from zoo.data.spec import MAX_SAMPLE
from zoo.encodings.common.scaling import Factor, NotNegative, Positive
from zoo.errors import CheckpointError
from zoo.integrations.rope_parameters import LENGTH_ENTRY
from zoo.options import COUNTED, Between, Count
from zoo.options.validation import Validator


class EntryError(CheckpointError):
    """An entry of a configuration is wrong. Whoever read it names the file in front of it."""


Number = Annotated[int, Between(0, COUNTED)]
Fraction = Annotated[float, Between(1e-6, 1)]
Epsilon = Annotated[float, Between(1e-12, 1)]

# null stands for no entry where the type has it; tensors state the sizes that may be null
ENTRIES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": Count | None,
        "type_vocab_size": Count | None,
        "hidden_size": Count | None,
        "intermediate_size": Count | None,
        "num_hidden_layers": Count,
        "num_attention_heads": Count,
        "num_key_value_heads": Count | None,
        "head_dim": Count | None,
        "max_position_embeddings": Annotated[int, Between(1, MAX_SAMPLE)] | None,
        LENGTH_ENTRY: Count | None,
        "n_embd": Count | None,
        "n_inner": Count | None,
        "n_layer": Count,
        "n_head": Count,
        "n_positions": Count | None,
        "num_channels": Count | None,
        "num_labels": Count | None,
        "num_register_tokens": Number,
        "image_size": Count,
        "patch_size": Count,
        "id2label": Mapping[str, Any] | None,
        "hidden_act": str,
        "hidden_activation": str,
        "activation_function": str,
        "position_embedding_type": str,
        "order_of_interleaved_layers": str,
        "layer_norm_eps": Epsilon,
        "layer_norm_epsilon": Epsilon,
        "norm_eps": Epsilon,
        "rms_norm_eps": Epsilon,
        "logit_scale": Positive,
        "query_pre_attn_scalar": Count,
        "attn_logit_softcapping": Positive | None,
        "final_logit_softcapping": Positive | None,
        "rope_theta": Positive | None,
        "rope_local_base_freq": Positive | None,
        "partial_rotary_factor": Fraction | None,
        "rotary_pct": Fraction,
        "rope_parameters": Mapping[str, Any] | None,
        "rope_scaling": Mapping[str, Any] | None,
        "layer_types": list[str] | None,
        "sliding_window": Count | None,
        "sliding_window_size": Count | None,
        "sliding_window_pattern": Count,
        "_sliding_window_pattern": Count,
        "max_window_layers": Number,
        "no_rope_layers": list[Number | bool] | None,
        "no_rope_layer_interval": Count,
        "full_attention_interval": Count,
        "full_attn_idxs": list[Number] | None,
        "linear_conv_kernel_dim": Count | None,
        "linear_num_key_heads": Count | None,
        "linear_num_value_heads": Count | None,
        "linear_key_head_dim": Count | None,
        "linear_value_head_dim": Count | None,
        "num_experts": Number,
        "mlp_only_layers": list[Number] | None,
        "decoder_sparse_step": Count,
        "conv_L_cache": Count | None,
        "block_ff_dim": Count,
        "block_ffn_dim_multiplier": Positive | None,
        "block_multiple_of": Count,
        **dict.fromkeys(
            (
                "add_cross_attention",
                "attention_bias",
                "block_auto_adjust_ff_dim",
                "conv_bias",
                "is_causal",
                "is_decoder",
                "is_encoder_decoder",
                "key_bias",
                "linear_allow_neg_eigval",
                "mlp_bias",
                "proj_bias",
                "qkv_bias",
                "query_bias",
                "scale_attn_by_inverse_layer_idx",
                "scale_attn_weights",
                "tie_embedding",
                "tie_encoder_decoder",
                "tie_word_embeddings",
                "use_embedding_sharing",
                "use_gated_activation",
                "use_gated_mlp",
                "use_parallel_block",
                "use_parallel_embedding",
                "use_qk_norm",
                "use_sliding_window",
                "value_bias",
            ),
            bool,
        ),
        "use_bidirectional_attention": bool | None,
        "pruned_heads": Mapping[str, Any] | None,
    }
)
"""The types of entries of config.json by their names."""
ROPE_ENTRIES: Mapping[str, Any] = MappingProxyType(
    {
        "rope_type": str | None,
        "type": str | None,
        "rope_theta": Positive | None,
        "partial_rotary_factor": Fraction | None,
        "factor": Factor | None,
        LENGTH_ENTRY: Count | None,
        "low_freq_factor": Positive | None,
        "high_freq_factor": Positive | None,
        "beta_fast": NotNegative | None,
        "beta_slow": NotNegative | None,
        "truncate": bool | None,
        "attention_factor": NotNegative | None,
        "mscale": NotNegative | None,
        "mscale_all_dim": NotNegative | None,
        "short_factor": list[Positive] | None,
        "long_factor": list[Positive] | None,
        "full_attention": Mapping[str, Any] | None,
        "sliding_attention": Mapping[str, Any] | None,
    }
)
"""The types of the entries of `rope_parameters` and `rope_scaling`, and of those per layer type."""


def check_entries(settings: Mapping[str, Any], required: Collection[str] = ()) -> None:
    """Check the types and ranges of the entries of a configuration.

    Args:
        settings: The content of config.json.
        required: Entries that must be there, and not be null.

    Raises:
        EntryError: With all entries that are missing or wrong.
    """
    missing = [key for key in required if settings.get(key) is None]
    present = {key: value for key, value in settings.items() if key not in missing}
    validator = Validator({}, interpolates=False)
    _validate(validator, ENTRIES, present, "")
    wrong = [f"{issue.key}: {issue.problem}" for issue in validator.issues]
    if wrong := [f"{key} is missing" for key in missing] + wrong:
        raise EntryError("; ".join(wrong))


def _validate(
    validator: Validator, types: Mapping[str, Any], entries: Mapping[str, Any], above: str
) -> None:
    for word, value in entries.items():
        if word not in types:
            continue
        validator.validate(types[word], value, f"{above}{word}")
        if isinstance(value, dict) and (above or word.startswith("rope_")):
            _validate(validator, ROPE_ENTRIES, value, f"{above}{word}.")
