"""Rules for sizes past those of training: the same weights, in encodings that go by them."""

import math

import language
import pytest
import torch
from literal.rope_tape import linear, llama3, ntk, plain, yarn
from torch.nn import functional as F

import zoo
from zoo.attention.coordinates import apply_convention, grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.data.spec import ImageSpec, VideoSpec
from zoo.models.vit import ViT
from zoo.run import conditions
from zoo.run.build import build_task

HEAD, LENGTH = 64, 128
LITERAL = {
    "linear": lambda factor: linear(HEAD, factor),
    "ntk": lambda factor: ntk(HEAD, factor),
    "yarn": lambda factor: yarn(HEAD, factor, LENGTH),
    "llama3": lambda factor: llama3(HEAD, factor, LENGTH),
}


def ruled(name, dims, rule, factors):
    """An encoding by a rule, made of the options that it declares."""
    options = zoo.encoding(name, dims).extrapolations(factors)[rule]
    return zoo.encoding({"name": name, **options}, dims)


def scores(encoding, pos, heads=2, size=HEAD):
    torch.manual_seed(1)
    q, k = torch.randn(2, 1, heads, len(pos), size, dtype=torch.float64)
    return zoo.scores(encoding.double(), q, k, pos, causal=len(pos[0]) == 1), q, k


@pytest.mark.parametrize("factor", [2.0, 8.0])
@pytest.mark.parametrize("rule", LITERAL)
def test_a_rule_of_rope_is_its_formula(rule, factor):
    """Each pair as a complex number, turned by position times frequency; one score after the other."""
    pos = torch.tensor([0.0, 5.0, 130.0, 128 * factor - 1]).double()[:, None]
    found, q, k = scores(ruled("rope", Dims(2 * HEAD, 2, length=LENGTH), rule, (factor,)), pos)
    frequencies, size = LITERAL[rule](factor)
    w = torch.tensor(frequencies, dtype=torch.float64)
    z, y = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k))
    for i in range(4):
        for j in range(i + 1):
            turn = torch.exp(1j * w * (pos[i] - pos[j]))
            expected = (
                (z[0, :, i] * y[0, :, j].conj() * turn).real.sum(-1) * size**2 / math.sqrt(HEAD)
            )
            torch.testing.assert_close(found[0, :, i, j], expected)


def test_every_rule_of_rope_is_another_one():
    tried = {rule: LITERAL[rule](4.0)[0] for rule in LITERAL} | {"none": plain(HEAD)[0]}
    assert len({tuple(waves) for waves in tried.values()}) == len(tried)


def test_waves_that_are_stretched_already_know_no_rule():
    scaled = zoo.encoding(
        {"name": "rope", "scaling": {"rule": "ntk", "factor": 2}}, Dims(16, 2, length=8)
    )
    assert scaled.extrapolations((2.0,)) == {}


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_no_rule_changes_a_parameter(name):
    cls = zoo.encoding_class(name)
    for axes in cls.axes:
        dims = Dims(96, 2, axes, (4,) * axes, depth=2)
        encoding = zoo.encoding(name, dims)
        own = {key: value.shape for key, value in encoding.state_dict().items()}
        for options in encoding.extrapolations((2.0,) * axes).values():
            other = zoo.encoding({"name": name, **options}, dims)
            assert {key: value.shape for key, value in other.state_dict().items()} == own


@pytest.mark.parametrize("factor", [2, 3])
def test_a_table_of_a_text_is_resampled_as_images_are(factor):
    there = ruled("learned", Dims(6, 1, length=5), "resample", (float(factor),)).double()
    found = zoo.embed(
        there, torch.zeros(1, 5 * factor, 6).double(), torch.arange(5.0 * factor)[:, None]
    )[0]
    image = there.table.detach().T[None, :, :, None]  # [1, D, length, 1]
    resized = F.interpolate(image, size=(5 * factor, 1), mode="bicubic", align_corners=False)
    torch.testing.assert_close(found, resized[0, :, :, 0].T)
    with pytest.raises(zoo.errors.OptionError, match=f"past the table of {5 * factor} positions"):
        zoo.embed(there, torch.zeros(1, 1, 6).double(), torch.tensor([[5.0 * factor]]))


@pytest.mark.parametrize("name", ["learned", "tupe"])
def test_the_last_token_of_a_stretched_table_is_in_it(name):
    there = ruled(name, Dims(4, 1, length=100), "resample", (1.15,))
    x = torch.zeros(1, 115, 4)
    assert zoo.embed(there, x, torch.arange(115.0)[:, None]).shape == x.shape
    with pytest.raises(zoo.errors.OptionError, match="past the table of 115 positions"):
        zoo.embed(there, x[:, :1], torch.tensor([[115.0]]))


def test_places_of_tupe_are_resampled():
    plain = zoo.encoding("tupe", Dims(6, 1, length=5)).double()
    there = ruled("tupe", Dims(6, 1, length=5), "resample", (2.0,)).double()
    there.load_state_dict(plain.state_dict())
    image = plain.table.detach().T[None, :, :, None]  # [1, D, length, 1]
    resized = F.interpolate(image, size=(10, 1), mode="bicubic", align_corners=False)[0, :, :, 0].T
    with torch.no_grad():
        table = plain.norm(resized)
        expected = {"position_query": plain.query(table), "position_key": plain.key(table)}
        notes = there.embed(
            Tokens.at(torch.zeros(1, 10, 6).double(), torch.arange(10.0)[:, None].double())
        ).per_token
    for note, value in expected.items():
        torch.testing.assert_close(notes[note][0].flatten(1), value)


def test_a_table_of_a_grid_is_resampled_anyway():
    encoding = zoo.encoding("learned", Dims(6, 1, 2, (3, 4))).double()
    assert encoding.extrapolations((2.0, 1.5)) == {"resample": {}, "linear": {}}
    tokens = Tokens.at(torch.zeros(1, 36, 6).double(), grid((6, 6), encoding.table))
    found = encoding.embed(tokens.replace(grid_size=torch.tensor([[[6.0, 6.0]]]).double())).x[0]
    image = encoding.table.unflatten(0, (3, 4)).permute(2, 0, 1)[None]
    resized = F.interpolate(image, size=(6, 6), mode="bicubic", align_corners=False)
    torch.testing.assert_close(found, resized[0].flatten(1).T)
    with pytest.raises(zoo.errors.OptionError, match="leave it out"):
        zoo.encoding({"name": "learned", "stretch": 2.0}, Dims(6, 1, 2, (3, 4)))


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed"])
def test_a_grid_is_interpolated_along_the_axes_that_grew(name):
    torch.manual_seed(0)
    dims = Dims(32, 2, 2, (2, 4))
    plain = zoo.encoding(name, dims)
    other = ruled(name, dims, "linear", (3.0, 1.0))
    other.load_state_dict(plain.state_dict())
    samples = torch.randn(2, 1, 2, 24, 16)
    found = []
    for encoding, index in (
        (other, grid((6, 4), samples)),
        (plain, grid((6, 4), samples) * torch.tensor([1 / 3, 1])),
    ):
        tokens = Tokens.at(torch.zeros(1, 24, 32), index)
        tokens = (
            tokens.replace(grid_size=torch.tensor([[[6.0, 4.0]]])) if encoding is other else tokens
        )
        chain = zoo.attention.chain.Chain.of(encoding)
        tokens = chain.prepare(chain.embed(tokens))
        found.append(
            [chain.transform_query(samples[0], tokens), chain.transform_key(samples[1], tokens)]
        )
    torch.testing.assert_close(found[0], found[1])


def test_factors_are_those_of_the_axes_of_the_model():
    assert conditions.compute_factors(ImageSpec(1, 16, 8, 10), (32, 8)) == (2.0, 1.0)
    assert conditions.compute_factors(VideoSpec(1, 16, 8, 10, frames=4), (32, 8)) == (1.0, 2.0, 1.0)
    assert conditions.compute_factors(language.SAMPLES, (48,)) == (4.0,)


def test_a_task_by_a_rule_has_the_same_weights_and_other_logits():
    recipe = zoo.load_recipe(
        "flipflop_rope", ["model.dim=16", "model.depth=1", "model.heads=2", "data.length=8"]
    )
    task = build_task(recipe).eval()
    for parameter in task.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    other = conditions.build_extended_task(recipe, task, task.state_dict(), "yarn", (4.0,))
    assert all(
        torch.equal(task.state_dict()[key], value) for key, value in other.state_dict().items()
    )
    inputs = torch.randint(5, (1, 32))
    assert not torch.allclose(task.model(inputs), other.model(inputs), atol=1e-3)


def test_a_rule_that_no_link_knows_is_told_with_those_that_are():
    message = conditions.explain_unknown(language.decoder("rope", "fox"), "yarm", (2.0,))
    assert (
        message
        == "the encoding of the model, rope and fox, knows no extrapolation yarm; did you mean yarn?"
    )
    assert "resample" in conditions.explain_unknown(language.decoder("learned"), "ntk", (2.0,))
    assert "it knows none" in conditions.explain_unknown(language.decoder("alibi"), "ntk", (2.0,))
    assert conditions.explain_unknown(language.decoder("alibi"), "none", (2.0,)) == ""


LINEAR = ["rope_axial", "rope_mixed", "string", "sinusoidal", "liere", "comrope_ap", "comrope_ld"]


@pytest.mark.parametrize("name", [*LINEAR, "learned", "none"])
def test_linear_keeps_coordinates_of_images_in_the_range_of_training(name):
    dims = Dims(32, 2, 2, (4, 4))
    plain, there = zoo.encoding(name, dims), ruled(name, dims, "linear", (2.0, 2.0))

    def place(encoding, side):
        index = grid((side, side), torch.zeros(0))
        tokens = Tokens.at(torch.zeros(1, side * side, 32), index)
        sized = tokens.replace(grid_size=torch.tensor([[[side, side]]]))
        return apply_convention(sized, encoding.coordinates, dims.sizes).pos

    assert torch.equal(place(there, 4), place(plain, 4))
    distance = place(plain, 4).amax() + (place(plain, 4)[0, 1, 1] - place(plain, 4)[0, 0, 1])
    assert place(there, 8).amax() < distance or name in ("learned", "none")
    if name != "rope_axial":  # a text has no such range: its length is not known
        text = zoo.encoding(name, Dims(32, 2, length=8))
        assert text.extrapolations((2.0,)).keys() <= {"resample"}


def test_a_method_that_changes_nothing_is_told():
    for name, expected in {"rope_axial": True, "liere": True, "comrope_ap": False}.items():
        links = {name: lambda dims, name=name: zoo.encoding(name, dims)}
        image, sizes = ImageSpec(1, 16, 16, 2), {"dim": 32, "depth": 1, "heads": 1, "patch_size": 4}
        model = ViT(image, encoding=links, **sizes)
        assert conditions.changes_encodings(model, "linear", (2.0, 2.0)) == expected
        assert not conditions.changes_encodings(model, "none", (2.0, 2.0))


@pytest.mark.parametrize("coordinates", ["fraction", "symmetric", "growing", "interpolated"])
def test_places_that_are_stretched_already_know_no_rule(coordinates):
    changed = language.links("rope", options={"rope": {"coordinates": coordinates}})
    model = language.encoder(encoding=changed)
    assert conditions.find_methods(model, (2.0,)) == {}
    assert set(conditions.find_methods(language.encoder("rope"), (2.0,))) == {
        "linear",
        "ntk",
        "yarn",
        "llama3",
    }
    message = conditions.explain_unknown(model, "linear", (2.0,))
    assert message.startswith(
        f"the encoding of the model, rope with coordinates {coordinates}, knows no extrapolation linear"
    )
