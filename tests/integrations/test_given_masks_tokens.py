"""Masked and packed tokens in equipped models: each text computes what it computes alone."""

import warnings

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

from parts import KINDS, mark_others  # noqa: E402

import zoo  # noqa: E402
from zoo.encodings.common.chains import build_shortest_chain  # noqa: E402
from zoo.errors import OptionError  # noqa: E402

pytestmark = pytest.mark.usefixtures("equal_models_examined_once")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DECODERS = {
    "Llama": SIZES | {"num_key_value_heads": 2},
    "Mistral": SIZES | {"num_key_value_heads": 2, "sliding_window": None},
    "Qwen2": SIZES | {"num_key_value_heads": 2},
    "Qwen3": SIZES | {"num_key_value_heads": 2, "head_dim": 16},
    "SmolLM3": SIZES | {"num_key_value_heads": 2},
    "Olmo2": SIZES,
    "Granite": SIZES,
    "Phi3": SIZES,
    "GPTNeoX": SIZES,
    "GPT2": GPT2,
}
CACHED_MASKS = {
    "left": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    "right": [1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1],
    "inner": [1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1],
}
MASKS = CACHED_MASKS | {"end": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]}
UNSHARED = ("repo", "tape")  # which refuse heads that share a key
TEXT = [
    one for one in zoo.encoding_names() if 1 in zoo.encoding_class(one).axes and one not in UNSHARED
]
BIDIRECTIONAL = [one for one in TEXT if not zoo.encoding_class(one).causal_only]
BERT = [
    pytest.param("Bert", one, marks=() if one in KINDS else pytest.mark.nightly)
    for one in BIDIRECTIONAL
]


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def equip(model, encoding):
    """Equip a model, and move the parameters of its encodings off their initial values."""
    given = {"name": encoding} if isinstance(encoding, str) else encoding
    entries = build_shortest_chain(zoo.encoding_class(given["name"]))
    chain = [{"name": one.name, "coordinates": "index"} for one in entries]
    zoo.equip(model, [*chain[:-1], chain[-1] | given])
    perturb(model)
    return model.double().eval()


def perturb(model):
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.get_submodule("zoo_encoding").parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def build(name, kind, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}{kind}")(config).double().eval()


def build_decoder(name, encoding):
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    return equip(build(name, kind, **DECODERS[name]), encoding)


def make_ids():
    return torch.randint(3, 97, (2, 12), generator=torch.Generator().manual_seed(1))


def make_batch(mask):
    """Two texts of 12 tokens; the mask is that of the first, the second has none."""
    masks = torch.stack([torch.tensor(mask), torch.ones(12, dtype=torch.long)])
    return make_ids(), masks, (masks.cumsum(1) - 1).clamp(min=0)


def check_texts(found, ids, mask, alone):
    """Compare logits [2, 12, V] with those of each text without its masked tokens."""
    kept = torch.tensor(mask) > 0
    torch.testing.assert_close(found[0, kept], alone(ids[:1, kept])[0], atol=1e-9, rtol=0)
    torch.testing.assert_close(found[1], alone(ids[1:])[0], atol=1e-9, rtol=0)


@torch.no_grad()
def check_decoder(model):
    def alone(ids):
        return model(ids, use_cache=False).logits

    for mask in MASKS.values():
        ids, masks, positions = make_batch(mask)
        found = model(ids, attention_mask=masks, position_ids=positions, use_cache=False).logits
        check_texts(found, ids, mask, alone)

    for mask in CACHED_MASKS.values():
        ids, masks, positions = make_batch(mask)
        cache, parts = transformers.DynamicCache(config=model.config), []
        for part in (slice(0, 8), slice(8, 11), slice(11, 12)):
            options = {"position_ids": positions[:, part], "past_key_values": cache}
            out = model(
                ids[:, part], attention_mask=masks[:, : part.stop], use_cache=True, **options
            )
            parts.append(out.logits)
        check_texts(torch.cat(parts, 1), ids, mask, alone)

    # Packed: positions start again at the sixth token.
    ids = make_ids()[:1]
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    found = model(ids, position_ids=positions, use_cache=False).logits
    right = torch.cat([alone(ids[:, :5]), alone(ids[:, 5:])], 1)
    torch.testing.assert_close(found, right, atol=1e-9, rtol=0)


@pytest.mark.parametrize("encoding", TEXT)
def test_each_encoding_in_llama(encoding):
    check_decoder(build_decoder("Llama", encoding))


# How a family passes masks and caches does not depend on the encoding; these two read all of it:
# fox the states of tokens, path the keys of the cache as well. tape also goes from layer to layer.
FAMILIES = [(name, one) for name in DECODERS if name != "Llama" for one in ("fox", "path")]


@pytest.mark.parametrize(("name", "encoding"), [*FAMILIES, ("Olmo2", "tape"), ("GPT2", "tape")])
def test_each_family_of_decoders(name, encoding):
    check_decoder(build_decoder(name, encoding))


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["alibi", "fox", "path", "selective_rope", "stickbreaking"])
def test_generation_with_padding_on_the_left_in_a_static_cache(encoding):
    model = build_decoder("Llama", encoding)
    ids, masks, _ = make_batch(CACHED_MASKS["left"])
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    found = model.generate(ids, attention_mask=masks, cache_implementation="static", **options)
    right = model.generate(ids[:1, 3:], attention_mask=masks[:1, 3:], **options)
    for one, other in zip(found.logits, right.logits, strict=True):
        torch.testing.assert_close(one[:1], other, atol=1e-9, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "encoding"), [*BERT, ("ModernBert", "alibi"), ("ModernBert", "rope")]
)
def test_each_encoding_in_encoders(name, encoding):
    options = dict(SIZES)
    if name == "ModernBert":
        options |= {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 64}
    model = build(name, "ForMaskedLM", **options)
    zoo.equip(model, encoding)
    perturb(model)
    model = model.double().eval()
    for mask in MASKS.values():
        ids, masks, positions = make_batch(mask)
        # ModernBERT numbers tokens as its caller says.
        given = {"position_ids": positions} if name == "ModernBert" else {}
        found = model(ids, attention_mask=masks, **given).logits
        check_texts(found, ids, mask, lambda ids: model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize(
    ("encoding", "causal"),
    [
        *mark_others(TEXT, KINDS, True),
        *mark_others(BIDIRECTIONAL, KINDS, False),
        pytest.param("tape", True, marks=pytest.mark.nightly),
    ],
)
def test_each_encoding_in_torch(encoding, causal):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    entries = build_shortest_chain(zoo.encoding_class(encoding))
    options = {"coordinates": "index"} if causal else {}
    entries = [{"name": one.name, **options} for one in entries]
    zoo.equip(model, entries, causal=causal, length=12)
    perturb(model)
    model = model.double().eval()
    x = torch.randn(2, 12, 32, dtype=torch.double)
    for mask in MASKS.values():
        _, masks, _ = make_batch(mask)
        found = model(x, src_key_padding_mask=masks == 0)
        check_texts(found, x, mask, model)


def test_a_hint_of_a_causal_mask_without_one_is_refused():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    zoo.equip(model, "none")
    with pytest.raises(zoo.OptionError, match="attn_mask"):
        model(torch.randn(2, 6, 32), is_causal=True)


# The encodings whose cached tokens have data of their own, which later tokens read.
STORED = {"fox", "path", "carope", "selective_rope", "grape_ap", "grape_m_contextual", "tupe"}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("encoding", mark_others(TEXT))
def test_a_cache_is_filled_by_chunks_cropped_and_reset(encoding, kind):
    model, ids = build_decoder("Llama", encoding), make_ids()[:, :12]
    expected = model(ids, use_cache=False).logits
    options = {} if kind == "dynamic" else {"max_cache_len": 16}
    cache = getattr(transformers, f"{kind.title()}Cache")(config=model.config, **options)

    def check(start, end):
        found = model(ids[:, start:end], past_key_values=cache, use_cache=True).logits
        torch.testing.assert_close(found, expected[:, start:end], atol=1e-9, rtol=0)

    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        check(start, end)
    if encoding == "path":
        with pytest.raises(OptionError, match="updates cached keys"):
            cache.crop(-4)
    else:
        cache.crop(-4)
        check(5, 9)
    cache.reset()
    check(0, 5)


@torch.no_grad()
@pytest.mark.parametrize("encoding", mark_others(TEXT))
def test_a_sliding_window_is_decoded_by_chunks_of_any_size(encoding):
    options = SIZES | {"num_key_value_heads": 2, "sliding_window": 4}
    model = equip(build("Mistral", "ForCausalLM", **options), encoding)
    for mask, sizes in (("left", [1] * 12), ("inner", [3] * 4), ("right", [6, 1, 1, 4])):
        ids, masks, positions = make_batch(CACHED_MASKS[mask])
        given = {"attention_mask": masks, "position_ids": positions, "use_cache": False}
        expected, cache = model(ids, **given).logits, transformers.DynamicCache(config=model.config)
        if encoding == "key_offset":
            # the key before the window is dropped
            model(ids[:, :4], past_key_values=cache, use_cache=True)
            with pytest.raises(OptionError, match="key_offset reads the key before the window"):
                model(ids[:, 4:5], past_key_values=cache, use_cache=True)
            continue
        parts = []
        for end, size in zip(torch.tensor(sizes).cumsum(0).tolist(), sizes, strict=True):
            part = slice(end - size, end)
            given = {"attention_mask": masks[:, :end], "position_ids": positions[:, part]}
            out = model(ids[:, part], past_key_values=cache, use_cache=True, **given)
            parts.append(out.logits)
        seen = masks.bool()
        found = torch.cat(parts, 1)[seen]
        torch.testing.assert_close(found, expected[seen], atol=1e-9, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("encoding", mark_others(TEXT))
def test_a_cached_token_that_is_masked_later_is_left_out_or_refused(encoding):
    model, ids = build_decoder("Llama", encoding), make_ids()[:, :9]
    cache = transformers.DynamicCache(config=model.config)
    mask = torch.ones(len(ids), 9, dtype=torch.long)
    mask[0, 0] = 0
    given = {"past_key_values": cache, "use_cache": True}
    model(ids[:, :7], attention_mask=mask[:, :7], **given)
    model(ids[:, 7:8], attention_mask=mask[:, :8], **given)
    mask[1, 3] = 0
    if encoding in STORED:
        with pytest.raises(OptionError, match="visible when it was cached"):
            model(ids[:, 8:], attention_mask=mask, **given)
    else:
        assert model(ids[:, 8:], attention_mask=mask, **given).logits.isfinite().all()


@pytest.mark.parametrize("encoding", [*mark_others(TEXT), {"name": "liere", "shared": True}])
def test_both_kinds_of_activation_checkpointing_give_the_same_gradients(encoding):
    found, ids = [], make_ids()[:, :7]
    for reentrant in (None, False, True):
        model = build_decoder("Llama", encoding).train()
        if reentrant is not None:
            options = {"use_reentrant": reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        # Two passes of other lengths before the backward pass, which recomputes both.
        loss = model(ids, labels=ids).loss + model(ids[:, :5], labels=ids[:, :5]).loss
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
        for plain, one in zip(found[0], found[-1], strict=True):
            torch.testing.assert_close(plain, one)
