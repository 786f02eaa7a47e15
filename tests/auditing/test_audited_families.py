"""`zoo.audit` explains faults in decoders of several families, law by law."""

import planted
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MBartConfig,
    MBartForConditionalGeneration,
)

import zoo
from zoo.auditing.comparisons import LENGTH
from zoo.auditing.model_folder import build_random
from zoo.auditing.model_subjects import make_subject
from zoo.auditing.run_laws import Auditor, ask_shift, changes_evenly
from zoo.auditing.subject import AuditSubject, NotAskedError
from zoo.integrations.attention_windows import is_windowed_kind


class ForgetfulConfig(LlamaConfig):
    """Saves another base than it has."""

    def to_dict(self):
        entries = super().to_dict()
        return {**entries, "rope_parameters": planted.PLAIN}


class ForgetfulLlama(LlamaForCausalLM):
    config_class = ForgetfulConfig


def build_forgetful():
    torch.manual_seed(0)
    entries = {**planted.PLAIN, "rope_theta": 777.0}
    return ForgetfulLlama(ForgetfulConfig(**planted.SIZES, rope_parameters=entries)).eval()


def override_first_mlp(change, *family, **options):
    model = planted.build_decoder(*family, **options)
    planted.override(model.model.layers[0].mlp, change)
    return model


def let_gradients_flow(module, sound, x):
    leak = (x - x.detach()).mean(1, keepdim=True) if module.training else 0.0
    return sound(x) + leak


def halve_gradients(module, sound, x):
    is_packed = module.training and x.shape[1] > 30
    return sound(0.5 * x.detach() + 0.5 * x if is_packed else x)


def keep_a_state(module, sound, x):
    return sound(x) + 0.1 * x.cumsum(1)


def keep_the_states(module, sound, x, *args, **kwargs):
    return sound(x, *args, **kwargs) + 0.1 * x.cumsum(1)


def halve_the_original_length():
    entries = {**planted.YARN, "original_max_position_embeddings": 1024}
    model, other = (
        planted.build_decoder(rope_parameters=one, max_position_embeddings=4096)
        for one in (entries, planted.YARN)
    )
    model.model.rotary_emb.inv_freq = other.model.rotary_emb.inv_freq
    return model


def count_all_channels():
    entries = {**planted.PLAIN, "partial_rotary_factor": 0.5}
    model = planted.build_decoder("gpt_neox", rope_parameters=entries)
    rotary = model.gpt_neox.rotary_emb
    rotary.inv_freq = 10_000.0 ** (-torch.arange(len(rotary.inv_freq)) / 6)
    return model


def rename(model):
    """Give a model a class that no library knows."""
    model.__class__ = type("MyModel", (type(model),), {})
    return model


FAULTS = {
    "configuration_lost": (build_forgetful, "save"),
    "gradients_mix": (lambda: override_first_mlp(let_gradients_flow), "packing"),
    "gradients_mix of parameters": (lambda: override_first_mlp(halve_gradients), "packing"),
    "state_of_documents": (lambda: override_first_mlp(keep_a_state), "packing"),
    "state_of_documents in a wide window": (
        lambda: override_first_mlp(keep_a_state, "mistral", sliding_window=4096),
        "packing",
    ),
    "state_of_documents unknown": (lambda: rename(override_first_mlp(keep_a_state)), "packing"),
    "original_length": (halve_the_original_length, "rotary"),
    "exponents of gpt_neox": (count_all_channels, "rotary"),
    "original_length unknown": (lambda: rename(halve_the_original_length()), "rotary"),
    "mask_of_documents unknown": (lambda: rename(planted.add_mask_of_ones()), "packing"),
}
"""{explanation and what else: (what builds the broken model, the law)}"""


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_explained(name):
    build, law = FAULTS[name]
    (result,) = zoo.audit(build(), laws=[law]).results
    assert result.status == "broken"
    assert result.explanation == name.partition(" ")[0], result.remark


def test_a_state_next_to_attention_has_a_place_only():
    model = planted.build_decoder()
    planted.override(model.model.layers[0], keep_the_states)
    (result,) = zoo.audit(model, laws=["packing"]).results
    assert (result.status, result.module) == ("broken", "model.layers.0")
    assert result.explanation is None, result.remark


def test_positions_that_restart_in_each_call_are_explained():
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 8, "mamba_chunk_size": 8}
    model = planted.build_decoder("bamba", attn_layer_indices=[1], **sizes)
    (result,) = zoo.audit(model, laws=["cache"]).results
    # The class counts from 0 in each call that is given a cache and no positions.
    assert (result.status, result.explanation) == ("broken", "positions_in_cache"), result.remark


def test_frequencies_by_length_are_those_of_the_configuration():
    entries = {
        **planted.YARN,
        "rope_type": "longrope",
        "short_factor": [1.0] * 6,
        "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
    }
    model = planted.build_decoder("phi3", rope_parameters=entries, max_position_embeddings=4096)
    report = zoo.audit(rename(model), laws=["rotary", "long"])
    assert [result.status for result in report.results] == ["kept", "kept"], str(report)


@pytest.mark.nightly
def test_wide_windows_are_asked_in_a_copy():
    model = planted.build_decoder("mistral", sliding_window=4096)
    report = zoo.audit(model, laws=["window"])
    assert report.results[0].status == "kept"
    assert any("in a copy with 16 tokens" in note for note in report.notes)


def test_a_scale_that_grows_with_the_position_is_told_from_rounding():
    few = {"num_experts": 4, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
    kinds = ["sliding_attention", "full_attention"]
    models = (planted.build_decoder("beam", layer_types=kinds, **few), planted.build_decoder())
    found = []
    for model in models:
        auditor = Auditor(make_subject(model))
        with torch.no_grad():
            found.append(changes_evenly(auditor.double, auditor.subject.draw_ids(1, LENGTH)))
    assert found == [True, False]


def test_products_by_keyword_are_scores_of_attention():
    # its heads are a part of the batch in the product, and not in the softmax
    report = zoo.audit(planted.build_decoder("bloom", "eager"), laws=["left_padding", "cache"])
    assert [result.status for result in report.results] == ["kept", "kept"], str(report)


def test_embeddings_that_are_scaled_in_place_have_gradients():
    model = planted.build_decoder("ctrl", dff=64)
    (result,) = zoo.audit(model, laws=["packing"]).results
    assert result.status == "kept", result.remark


def test_padding_is_not_what_a_decoder_reads_first():
    # The class makes the first token of the decoder of the last one that is no padding.
    sizes = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    torch.manual_seed(0)
    config = MBartConfig(vocab_size=64, max_position_embeddings=64, init_std=0.3, **sizes)
    model = MBartForConditionalGeneration(config).eval()
    (result,) = zoo.audit(model, laws=["right_padding"]).results
    assert result.status == "kept", result.remark


@pytest.mark.parametrize("kind", ["sliding_attention", "hybrid_sliding", "local"])
def test_layers_with_a_window_are_known_by_their_kind(kind):
    assert is_windowed_kind(kind)
    assert not is_windowed_kind("hybrid")


def test_products_of_zeros_are_filled_in_small_models():
    class Zeros(LlamaForCausalLM):
        def _init_weights(self, module):
            super()._init_weights(module)
            if isinstance(module, torch.nn.Linear):
                module.weight.data.zero_()

    class Zero(AutoModelForCausalLM):
        _model_mapping = {LlamaConfig: Zeros}

        @classmethod
        def from_config(cls, config, **options):
            return Zeros(config)

    model = build_random(Zero, LlamaConfig(**planted.SIZES))
    assert all(bool(one.any()) for one in model.parameters())


def build_far(size):
    """Logits that are larger by a part of them past position 1,000."""

    def compute(ids, positions=None):
        far = 0 if positions is None else (positions > 1000)[..., None]
        return torch.nn.functional.one_hot(ids, 64).float() * (1 + size * far)

    return Auditor(AuditSubject(compute, vocab_size=64))


def test_rounding_that_hides_far_positions_is_told_from_a_fault():
    auditor = build_far(0.1)
    assert ask_shift(auditor).is_broken
    auditor = build_far(0.1)
    auditor.rounding = 1e-3
    with pytest.raises(NotAskedError, match="rounding changes logits by"):
        ask_shift(auditor)


def test_a_fault_above_what_rounding_explains_is_found():
    auditor = build_far(2.0)
    auditor.rounding = 1e-3
    finding = ask_shift(auditor)
    assert finding.is_broken
    assert finding.since == 1001


def test_rounding_as_large_as_logits_leaves_laws_unasked():
    auditor = build_far(2.0)
    auditor.rounding = 0.1
    with pytest.raises(NotAskedError, match="hides what the law asks"):
        ask_shift(auditor)


@pytest.mark.parametrize("end", [None, 1000])
@torch.no_grad()
def test_far_positions_of_a_model_in_half_precision_are_judged(end):
    model = planted.build_decoder().to(torch.bfloat16)
    rotary = model.model.rotary_emb
    compute = rotary.forward
    if end is not None:
        rotary.forward = lambda x, position_ids: compute(x, position_ids.clamp(max=end))
    (result,) = zoo.audit(model, laws=["shift"]).results
    assert result.status == ("kept" if end is None else "broken"), result.remark
