"""What a trained encoding does: panels of it as it is, and scores taken apart into words and positions."""

import math

import pytest
import torch

import zoo
from zoo.attention import Dims
from zoo.attention.backends.reference import scores
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.layer import Context
from zoo.attention.tokens import Tokens
from zoo.diagnostics.encoding_panels import decompose_scores, draw_correlations, measure_encoding
from zoo.models.transformer import Block, BlockOptions
from zoo.reporting.panel import Panel

LENGTH = 10
TEXT, IMAGE = Dims(32, 2, length=LENGTH, depth=1), Dims(32, 2, axes=2, length=(3, 4), depth=1)


def make_chain(name, dims=TEXT, **options):
    return Chain.of(zoo.encoding(name, dims, **options))


def draw_panels(chain, causal=False):
    """{title: panel}"""
    return {panel.title: panel for panel in measure_encoding(chain, chain.dims.sizes, causal)}


def products(chain):
    return draw_panels(chain)["Products of what is added to the input"].values


def test_products_of_sinusoids_depend_on_the_offset_alone():
    found = products(make_chain("sinusoidal"))
    torch.testing.assert_close(
        found.diagonal(), torch.full((LENGTH,), 16.0, dtype=torch.float64)
    )  # D/2
    waves = 10000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    expected = torch.stack([(offset * waves).cos().sum() for offset in range(LENGTH)])
    for row in range(LENGTH):
        torch.testing.assert_close(found[row, row:], expected[: LENGTH - row])


def test_a_table_that_training_moved_is_shown_as_it_is():
    chain = make_chain("learned")
    with torch.no_grad():
        chain.learned.table.zero_()[[2, 7]] = 0.5  # two places alike, and nothing elsewhere
    expected = torch.zeros(LENGTH, LENGTH, dtype=torch.float64)
    expected[torch.tensor([[2], [7]]), torch.tensor([2, 7])] = 8.0  # 32 channels of 1/2 times 1/2
    torch.testing.assert_close(products(chain), expected)
    assert draw_panels(chain)["Added to the input"].values[:, 7].tolist() == [0.5] * 32


def test_products_of_an_image_are_those_of_its_centre():
    chain = make_chain("sinusoidal", IMAGE)
    panel = draw_panels(chain)["Products of what is added to an image"]
    assert panel.mark == (1, 2)
    assert panel.values.shape == (3, 4)
    torch.testing.assert_close(panel.values[1, 2], torch.tensor(16.0, dtype=torch.float64))


@pytest.mark.parametrize("name", ["cope", "t5", "fox", "learned"])
def test_the_chain_stays_as_it_was(name):
    chain = make_chain(name).train()
    before, drawn = (
        {key: value.clone() for key, value in chain.state_dict().items()},
        torch.get_rng_state(),
    )
    assert draw_panels(chain, causal=chain.causal_only)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert chain.training
    for key, value in chain.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[key])
    assert all(parameter.requires_grad for parameter in chain.parameters())


def test_parameters_that_hardly_tell_are_not_moved():
    chain = make_chain("t5")
    with torch.no_grad():
        chain.t5.table.fill_(1e-3)
    (line,) = draw_panels(chain)["Bias on scores"].lines.values()
    torch.testing.assert_close(line, torch.full_like(line, 1e-3))


def test_a_long_text_is_shown_by_its_beginning():
    chain = make_chain("alibi", Dims(32, 2, length=5000, depth=1))
    assert draw_panels(chain)["Bias on scores"].x_values.tolist() == list(range(-127, 128))


@pytest.mark.parametrize("causal", [True, False])
def test_weights_are_masked_where_the_model_masks_them(causal):
    ((title, panel),) = [
        pair
        for pair in draw_panels(make_chain("rope"), causal).items()
        if "eights of equal" in pair[0]
    ]
    assert title.startswith("Causal") is causal
    assert bool(panel.values[0, 1:].isnan().all()) is causal


def test_the_decay_of_rope_is_a_mean_of_cosines():
    (line,) = draw_panels(make_chain("rope", base=100.0))["Scores of equal tokens"].lines.values()
    zero = len(line) // 2
    assert line[zero] == 0
    assert line[zero + 1] < 0
    torch.testing.assert_close(line, line.flip(0))


@pytest.mark.parametrize(
    ("dims", "names"),
    [
        (TEXT, ("cape", "alibi", "tupe", "fox", "rope", "stickbreaking")),
        (IMAGE, ("learned", "rope_axial", "liere", "t5")),
    ],
    ids=["text", "image"],
)
def test_every_panel_says_what_one_should_see(dims, names):
    for name in names:
        found = measure_encoding(
            make_chain(name, dims), dims.sizes, zoo.encoding_class(name).causal_only
        )
        assert len({panel.title for panel in found}) == len(found)
        for panel in found:
            assert isinstance(panel, Panel)
            assert panel.full_caption.endswith("."), (name, panel.title)


def block(dims=TEXT, **options):
    """A block whose norms and projections are somewhere else than they start, without biases."""
    made = Block(dims, BlockOptions(**options)).double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(
                torch.zeros_like(parameter) if "bias" in name else torch.randn_like(parameter)
            )
    return made


def enter(chain, count=1):
    """Tokens before and after what is added to the input."""
    x = torch.randn(count, LENGTH, chain.dims.dim, dtype=torch.float64)
    before = Tokens.at(x, grid((LENGTH,), x))
    return before, chain.double().embed(before)


def describe_entry(made, chain, tokens):
    """The call of the block's attention."""
    return made.attn.describe(tokens.replace(x=made.norm1(tokens.x)), chain, Context())[1]


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "rms"}, {"norm_position": "post"}, {"norm_position": "parallel"}],
    ids=str,
)
def test_words_and_positions_add_up_to_scores(options):
    made, chain = block(**options), make_chain("sinusoidal")
    before, after = enter(chain)
    parts = decompose_scores(made, before, after)
    read = after if made.norm_position == "post" else after.replace(x=made.norm1(after.x))
    expected = scores(made.attn.describe(read, chain, Context())[1])[0]
    torch.testing.assert_close(sum(parts.values()), expected)
    assert all(part.abs().max() > 0.1 for part in parts.values())


@torch.no_grad()
@pytest.mark.parametrize("head_dim", [8, 4, 16, 40])
def test_heads_that_share_keys_add_up_too(head_dim):
    """All heads together may be narrower or wider than the states, and one head too."""
    dims = Dims(32, 4, length=LENGTH, depth=1, kv_heads=2, head_dim=head_dim)
    made, chain = block(dims), make_chain("sinusoidal", dims)
    before, after = enter(chain)
    read = after.replace(x=made.norm1(after.x))
    expected = scores(made.attn.describe(read, chain, Context())[1])[0]
    torch.testing.assert_close(sum(decompose_scores(made, before, after).values()), expected)


@torch.no_grad()
def test_tokens_without_a_place_are_left_out_of_correlations():
    made, (before, after) = block(), enter(make_chain("sinusoidal"), count=3)
    placed = torch.arange(LENGTH)[None] > 0
    call = describe_entry(made, make_chain("sinusoidal"), after)
    (panel,) = draw_correlations(
        made, before.replace(has_position=placed), after.replace(has_position=placed), call
    )
    assert panel.labels == (
        "word to word",
        "word to position",
        "position to word",
        "position to position",
    )
    assert panel.values.shape == (4, LENGTH - 1, LENGTH - 1)


@torch.no_grad()
def test_nothing_is_told_of_what_is_no_such_sum():
    chain, made, mixing = make_chain("sinusoidal"), block(), block(token_shift=True)
    before, after = enter(chain)
    call = describe_entry(made, chain, after)
    assert draw_correlations(made, before, before, call) == ()
    assert draw_correlations(block(qk_norm=True), before, after, call) == ()
    assert draw_correlations(mixing, before, after, describe_entry(mixing, chain, after)) == ()
    assert math.isfinite(float(draw_correlations(made, before, after, call)[0].values.sum()))


@torch.no_grad()
@pytest.mark.parametrize("other", ["rope", "pope", "head_scale"])
def test_nothing_is_told_of_heads_that_another_link_turns_or_scales(other):
    chain, made = Chain.of(zoo.encoding(["sinusoidal", other], TEXT)).double(), block()
    before, after = enter(chain)
    for parameter in chain.parameters():
        parameter.mul_(1.5)
    assert draw_correlations(made, before, after, describe_entry(made, chain, after)) == ()
