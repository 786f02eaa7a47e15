"""Masks of pairs of tokens that the caller of an equipped model gives: used as they are, or refused."""

import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers")

from parts import mark_others  # noqa: E402

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
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
COUNT, PREFIX = 12, 5
UNSHARED = ("repo", "tape")  # which refuse heads that share a key
TEXT = [
    one for one in zoo.encoding_names() if 1 in zoo.encoding_class(one).axes and one not in UNSHARED
]


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(name="Llama", kind="ForCausalLM", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    return getattr(transformers, f"{name}{kind}")(config).double().eval()


def make_ids():
    return torch.randint(3, 97, (2, COUNT), generator=torch.Generator().manual_seed(1))


def make_prefix():
    """True where a query may attend: the first tokens see each other, the others what is before."""
    visible = torch.ones(COUNT, COUNT, dtype=torch.bool).tril()
    visible[:PREFIX, :PREFIX] = True
    return visible[None, None]


def to_additive(visible):
    return torch.zeros(visible.shape, dtype=torch.double).masked_fill(
        ~visible, torch.finfo(torch.double).min
    )


@torch.no_grad()
@pytest.mark.parametrize("convert", [lambda visible: visible, to_additive], ids=["bool", "float"])
@pytest.mark.parametrize("name", ["Llama", "GPTNeoX", "GPT2"])
def test_a_mask_that_shows_later_tokens_is_used_as_it_is(name, convert):
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model, mask = build(name, kind), convert(make_prefix())
    if name == "GPT2":
        # Without its table, GPT-2 itself computes what it computes with no encoding.
        model.transformer.wpe.weight.zero_()
    right = model(make_ids(), attention_mask=mask).logits
    zoo.equip(model, "none" if name == "GPT2" else "rope")
    torch.testing.assert_close(
        model(make_ids(), attention_mask=mask).logits, right, atol=1e-5, rtol=0
    )


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["alibi", "t5", "fox", "path", "selective_rope"])
def test_encodings_of_causal_pairs_refuse_a_mask_that_shows_later_tokens(encoding):
    model = build()
    zoo.equip(model, encoding)
    with pytest.raises(OptionError, match=f"later tokens, which {encoding}"):
        model(make_ids(), attention_mask=make_prefix())
    model(make_ids(), attention_mask=make_prefix().tril())  # a causal one is accepted


@torch.no_grad()
@pytest.mark.parametrize("encoding", mark_others(TEXT))
def test_texts_that_a_mask_keeps_apart_are_as_alone(encoding):
    model = build()
    entries = build_shortest_chain(zoo.encoding_class(encoding))
    zoo.equip(model, [{"name": one.name, "coordinates": "index"} for one in entries])
    model.double()
    torch.manual_seed(2)
    for parameter in model.zoo_encoding.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    documents = torch.tensor([0] * 5 + [1] * 7)
    mask = (documents[:, None] == documents).tril()[None, None]
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    ids, options = make_ids()[:1], {"use_cache": False}
    found = model(ids, attention_mask=mask, position_ids=positions, **options).logits
    for part in (slice(0, 5), slice(5, 12)):
        alone = model(ids[:, part], **options).logits
        torch.testing.assert_close(found[:, part], alone, atol=1e-9, rtol=0)


@torch.no_grad()
def test_a_mask_that_skips_tokens_is_refused_by_encodings_that_sum_over_them():
    model, mask = build(), make_prefix().tril()
    mask[..., 8, 6:8] = False  # sees tokens 0 to 5 and itself
    zoo.equip(model, "rope")
    model(make_ids(), attention_mask=mask)
    zoo.unequip(model)
    zoo.equip(model, "fox")
    with pytest.raises(OptionError, match="not the last one before it: fox"):
        model(make_ids(), attention_mask=mask, use_cache=False)
    with pytest.raises(OptionError, match="use_cache=False"):
        model(make_ids(), attention_mask=mask)


@torch.no_grad()
@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (make_prefix().expand(2, 4, COUNT, COUNT), r"\[B, 1, N, M\]"),
        (torch.ones(2, COUNT, COUNT, dtype=torch.bool), r"\[B, 1, N, M\]"),
        (to_additive(make_prefix()) - 1, "other biases"),
    ],
    ids=["heads", "three axes", "bias"],
)
@pytest.mark.parametrize("name", ["Llama", "Bert"])
def test_other_masks_are_refused(name, mask, words):
    model = build(name, "Model")
    zoo.equip(model, "none")
    with pytest.raises(OptionError, match=words):
        model(make_ids(), attention_mask=mask)


def test_a_compiled_model_checks_its_mask_too():
    model = build()
    zoo.equip(model, "alibi")
    compiled = torch.compile(model, backend="eager")
    causal = make_prefix().tril()
    with torch.no_grad():
        right = model(make_ids(), attention_mask=causal, use_cache=False).logits
        found = compiled(make_ids(), attention_mask=causal, use_cache=False).logits
        torch.testing.assert_close(found, right)
        with pytest.raises((OptionError, RuntimeError), match="later tokens"):
            compiled(make_ids(), attention_mask=make_prefix(), use_cache=False)
