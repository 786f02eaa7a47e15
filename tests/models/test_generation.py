"""Continuing a text: the same with and without a cache, and drawn as asked."""

from itertools import islice

import pytest
import torch
from language import decoder

from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.errors import OptionError
from zoo.models.generation import sample_token, sample_tokens, sampling_probabilities

CHAINS = [
    ("none",),
    ("rope",),
    ("alibi",),
    ("fox",),
    ("cope",),
    ("stickbreaking",),
    ("tape",),
    ("fire",),
    ("t5",),
    ("shaw",),
    ("transformer_xl",),
    ("kerple", "dape"),
    ("sinusoidal",),
    ("comrope_ld",),
    ("fox", "rope"),
]
PROMPT = [3, 1, 4, 1, 5]


def tokens(model, context=None, seed=0, count=25, **options):
    return list(
        islice(
            sample_tokens(model, PROMPT, context, torch.Generator().manual_seed(seed), **options),
            count,
        )
    )


def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("names", CHAINS, ids="+".join)
def test_a_cache_changes_nothing(names):
    model = decoder(*names)
    whole = tokens(model)
    assert tokens(model, KeyValueCache()) == whole
    assert len(set(whole)) > 1


def test_a_cache_is_shown_each_token_once():
    model, seen = decoder("rope"), []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    tokens(model, KeyValueCache(), count=4)
    assert seen == [5, 1, 1, 1]
    seen.clear()
    tokens(model, count=4)
    assert seen == [5, 6, 7, 8]


def test_a_memory_goes_on_past_its_length():
    found = tokens(decoder("transformer_xl", memory_length=8), SegmentMemory(8), count=40)
    assert len(found) == 40
    assert len(set(found)) > 1


def test_a_seed_is_a_text():
    model = decoder("rope")
    assert tokens(model) == tokens(model)
    assert tokens(model) != tokens(model, seed=1)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-308}])
def test_the_likeliest_token_is_taken(options):
    model = decoder("rope")
    likeliest = tokens(model, temperature=0)
    assert tokens(model, seed=7, temperature=0) == likeliest
    assert tokens(model, seed=7, **options) == likeliest
    assert tokens(model, seed=7) != likeliest


def test_a_model_that_can_go_no_further_says_so():
    model = decoder("learned")
    with pytest.raises(OptionError, match="table of 12 positions"):
        tokens(model, KeyValueCache(), count=9)
    assert (
        len(tokens(model, KeyValueCache(), count=8)) == 8
    )  # the last is read from the last position of the table


def test_shares_are_those_of_the_logits():
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    torch.testing.assert_close(sampling_probabilities(logits, 1.0, None, 1.0), logits.softmax(0))
    torch.testing.assert_close(
        sampling_probabilities(logits, 0.5, None, 1.0), (2 * logits).softmax(0)
    )


def test_the_likeliest_few_keep_their_proportions():
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).double().log()
    torch.testing.assert_close(
        sampling_probabilities(logits, 1.0, 2, 1.0), torch.tensor([0, 2 / 3, 0, 1 / 3]).double()
    )
    torch.testing.assert_close(
        sampling_probabilities(logits, 1.0, None, 0.74), torch.tensor([0, 2 / 3, 0, 1 / 3]).double()
    )
    torch.testing.assert_close(
        sampling_probabilities(logits, 1.0, None, 0.76)[0], torch.tensor(0.0).double()
    )
    torch.testing.assert_close(
        sampling_probabilities(logits, 1.0, None, 0.76)[2], torch.tensor(1 / 6).double()
    )
    torch.testing.assert_close(sampling_probabilities(logits, 1.0, 9, 1.0), logits.exp())


def test_of_equals_the_first_is_the_likeliest():
    logits = torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert (
        sampling_probabilities(logits, 1.0, 1, 1.0).tolist()
        == sampling_probabilities(logits, 1.0, None, 1e-6).tolist()
        == [0, 1, 0, 0]
    )
    assert sample_token(logits, generator(), 0, None, 1.0) == 1


def test_draws_come_as_often_as_their_shares():
    logits, source = torch.tensor([0.2, 0.3, 0.5]).log(), generator()
    found = (
        torch.tensor([sample_token(logits, source, 1.0, None, 1.0) for _ in range(4000)]).bincount()
        / 4000
    )
    torch.testing.assert_close(found, torch.tensor([0.2, 0.3, 0.5]), atol=0.03, rtol=0)
