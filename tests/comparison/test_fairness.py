"""What cells have otherwise than others is found in what they wrote down."""

from dataclasses import replace

import pytest

from zoo.comparison.fairness import count_shared_weights, find_different_starts, find_flags
from zoo.comparison.record import CellRecord, Environment, group_weights
from zoo.comparison.results import ComparisonCell, Flag, Variant

ENVIRONMENT = Environment(
    zoo="0.1.0",
    packages={"torch": "2.13.0"},
    git={"commit": "a" * 40},
    processes=1,
    devices={"threads": 1, "cuda": []},
)


def make_record(
    variant,
    seed,
    *,
    order="o",
    environment=None,
    parameters=100,
    steps=6,
    interpreter="sdpa",
    state="done",
    **more,
):
    weights = {"head": [4, 2, f"h{seed}"], "norm": [4, "n"], **more}
    return CellRecord(
        name=f"{variant}-{seed}",
        variant=variant,
        seed=seed,
        state=state,
        weights=group_weights(weights),
        order=f"{order}{seed}",
        batch=f"b{seed}",
        device="cpu",
        environment=environment or ENVIRONMENT,
        parameters=parameters,
        backends=(interpreter,),
        steps=steps,
    )


def make_cell(record, different=()):
    return ComparisonCell(
        seed=record.seed, run_dir="", state=record.state, different_start=different
    )


def message(cells, *varied):
    variants = {}
    for one, different in zip(cells, find_different_starts(cells, varied), strict=True):
        variants.setdefault(one.variant, []).append(make_cell(one, different))
    made = [
        Variant(name=name, values=dict.fromkeys(varied, ""), cells=tuple(each))
        for name, each in variants.items()
    ]
    return {
        name: tuple(flag.text for flag in flags) for name, flags in find_flags(made, cells).items()
    }


PLAIN = [make_record(name, seed) for name in ("none", "rope", "fox") for seed in (0, 1)]


def test_cells_that_are_alike_are_fair():
    assert message(PLAIN) == {"none": (), "rope": (), "fox": ()}
    assert count_shared_weights(PLAIN) == 2
    assert not any(find_different_starts(PLAIN, ()))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (make_record("t5", 0, parameters=164), "64 more parameters than most"),
        (make_record("t5", 0, parameters=40), "60 fewer parameters than most"),
        (make_record("t5", 0, interpreter="reference"), "attention: reference, most have sdpa"),
        (make_record("t5", 0, steps=3), "steps: 3, most have 6"),
        (make_record("t5", 0, order="p"), "seed 0 did not start as the others: order of samples"),
        (make_record("t5", 0, head=[4, 2, "x"]), "seed 0 did not start as the others: head"),
        (
            make_record("t5", 0, environment=replace(ENVIRONMENT, packages={"torch": "2.12"})),
            "torch: 2.12, most have 2.13.0",
        ),
        (
            make_record(
                "t5", 0, environment=replace(ENVIRONMENT, devices={"threads": 2, "cuda": []})
            ),
            "threads: 2, most have 1",
        ),
        (
            make_record("t5", 0, environment=replace(ENVIRONMENT, git={"commit": "b"})),
            "commit: b, most have aaaaaaaaaaaa",
        ),
        (make_record("t5", 0, state="failed"), "seed 0 failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_told(other, expected):
    assert message([*PLAIN, other]) == {"none": (), "rope": (), "fox": (), "t5": (expected,)}


def test_models_are_compared_with_those_of_their_own_size():
    sizes = {"small": 8, "small fox": 8, "large": 16, "large fox": 16}
    counts = dict(zip(sizes, (100, 110, 400, 400), strict=True))
    records = [make_record(name, 0, parameters=counts[name]) for name in sizes]

    def find(key):
        variants = [Variant(name=name, values={key: sizes[name]}, cells=()) for name in sizes]
        return {
            name: [one.text for one in own] for name, own in find_flags(variants, records).items()
        }

    more = "10 more parameters than small"
    assert find("model.dim") == {"small": [], "small fox": [more], "large": [], "large fox": []}
    assert find("data.length")["small"] == ["300 fewer parameters than most"]


def test_weights_of_another_shape_do_not_compare():
    wide = make_record("wide", 0, head=[8, 2, "x"])
    assert message([*PLAIN, wide])["wide"] == ()
    assert count_shared_weights([*PLAIN, wide]) == 1  # the norm
    assert count_shared_weights([*PLAIN, make_record("t5", 0, norm=[4, "other"])]) == 1


def test_of_two_variants_the_first_is_the_measure():
    assert message([make_record("none", 0), make_record("rope", 0, parameters=103)])["rope"] == (
        "3 more parameters than none",
    )


def test_up_to_a_hundredth_more_parameters_are_told_and_mark_nobody():
    cells = [
        make_record("none", 0),
        make_record("rope", 0, parameters=101),
        make_record("fox", 0, parameters=103),
    ]
    made = [Variant(name=one.variant, values={}, cells=(make_cell(one),)) for one in cells]
    message = find_flags(made, cells)
    assert message["rope"] == (
        Flag("parameters", "1 more parameters than none, within 1 %", minor=True),
    )
    assert [replace(one, flags=message[one.name]).flag_kinds for one in made] == [
        (),
        (),
        ("parameters",),
    ]


def test_a_cell_that_has_not_begun_says_nothing():
    waiting = CellRecord(name="t5-0", variant="t5", seed=0, state="waiting")
    assert message([*PLAIN, waiting])["t5"] == ()
    assert count_shared_weights([*PLAIN, waiting]) == 2
    assert find_different_starts([waiting], ()) == [()]


def test_what_varies_is_not_unfair():
    longer = make_record("long", 0, steps=12, order="p")
    assert "steps: 12, most have 6" in message([*PLAIN, longer], "model.depth")["long"]
    assert message([*PLAIN, longer], "trainer.max_steps")["long"] == (
        "seed 0 did not start as the others: order of samples",
    )


def test_weights_of_encodings_that_vary_may_begin_otherwise():
    names = "encoding.rope.base", "patch_embed"
    cells = [make_record(name, 0, **{key: [2, name] for key in names}) for name in ("a", "b", "b2")]
    cells += [make_record("b3", 0, **{key: [2, "b"] for key in names})]
    assert find_different_starts(cells, ["model.encoding"])[0] == ("patch_embed",)
    assert find_different_starts(cells, ["model.depth"])[0] == names


def test_a_last_try_elsewhere_is_told():
    moved = make_record("t5", 0)
    later = replace(
        ENVIRONMENT, packages={"torch": "2.14"}, git={"commit": "a" * 40, "changed": True}
    )
    moved = replace(moved, device="cuda", continued=(later,))
    assert message([*PLAIN, moved])["t5"] == (
        "device: cuda, most have cpu",
        "torch: 2.14, most have 2.13.0",
        f"commit: {'a' * 12} with changes, most have {'a' * 12}",
    )


def test_what_began_otherwise_is_told_once_and_shortly():
    names = tuple(f"blocks.{number}" for number in range(40))
    cells = tuple(
        ComparisonCell(seed=seed, run_dir="", state="done", different_start=names)
        for seed in (0, 1)
    )
    (one,) = find_flags([Variant(name="a", values={}, cells=cells)], [])["a"]
    assert one.text == "seeds 0 and 1 did not start as the others: blocks.0, blocks.1 and 38 others"
