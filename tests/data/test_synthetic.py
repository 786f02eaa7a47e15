"""What holds for every source that makes its sequences: seeds, epochs, parts, batches, workers, padding."""

import pytest
import torch
from generated import PADDED, SMALL, fetch

from zoo import registry
from zoo.data.moving_digits import MovingDigits
from zoo.data.seg_digits import SegDigits
from zoo.data.synthetic.base import SyntheticTask
from zoo.data.synthetic.irregular_series import IrregularSeries
from zoo.data.synthetic.marker_offset import MarkerOffset

ALL = pytest.mark.parametrize("source", SMALL, ids=lambda source: source.name)


def small(source, seed=0, **options):
    return source(
        seed, **{"train": 64, "val": 32, "test": 40, "batch_size": 16, **SMALL[source], **options}
    )


def test_every_synthetic_task_is_here():
    found = {registry.find("data", name) for name in registry.names("data")}
    assert {source for source in found if issubclass(source, SyntheticTask)} == {
        *SMALL,
        IrregularSeries,
        MarkerOffset,
        MovingDigits,
        SegDigits,
    }


@ALL
def test_a_sequence_is_the_same_whatever_it_is_fetched_with(source):
    alone, together = (list(fetch(small(source, batch_size=size))) for size in (1, 40))
    assert alone == together
    assert len(alone) == 40
    assert len({str(one) for one in alone}) > 20


@ALL
def test_workers_change_nothing(source):
    pairs = zip(
        small(source).build_loader("train"),
        small(source, workers=1).build_loader("train"),
        strict=True,
    )
    for one, two in pairs:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(one, two, strict=True))


@ALL
def test_parts_and_seeds_differ(source):
    draws = [
        [*fetch(small(source, seed, test=32), part)] for seed in (0, 1) for part in ("val", "test")
    ]
    draws.append([*fetch(small(source, train=32), "train")])
    assert len({str(sorted(draw)) for draw in draws}) == 5
    assert draws[0] == [*fetch(small(source), "val")]


@ALL
def test_training_comes_in_another_order_each_epoch_and_the_same_again(source):
    one, two, again = (list(fetch(small(source), "train", epoch)) for epoch in (0, 1, 0))
    assert one == again
    assert one != two
    redrawn = sorted(one) != sorted(two)
    assert redrawn == (source.name != "counting")  # whose programs are a fixed set


@ALL
def test_padding_is_told(source):
    batches = list(small(source).build_loader("test"))
    assert all((batch.documents is not None) == (source in PADDED) for batch in batches)
    for batch in batches if source in PADDED else ():
        lengths = (batch.documents == 0).sum(1)
        assert torch.equal(
            batch.documents,
            torch.where(torch.arange(batch.inputs.shape[1]) < lengths[:, None], 0, -1),
        )
        assert lengths.max() == batch.inputs.shape[1]
        assert lengths.min() < lengths.max()


@ALL
def test_no_window_is_longer_than_said_and_each_asks_something(source):
    data = small(source)
    for inputs, targets in fetch(data):
        assert len(inputs) <= data.spec.length
        assert max(inputs) < len(data.spec.vocabulary)
        assert max(targets) >= 0


@ALL
def test_the_vocabulary_does_not_depend_on_the_size(source):
    larger = SMALL[source] | {
        key: 2 * size for key, size in SMALL[source].items() if key not in ("keys", "values")
    }
    assert source(0, **larger).spec.vocabulary == small(source).spec.vocabulary
    assert source(0, **larger).spec.length > small(source).spec.length


def test_what_asks_for_an_answer_of_several_tokens_says_so():
    several = {source.name for source in SMALL if small(source).spec.targets == "answers"}
    assert several == {
        "addition",
        "common_words",
        "copying",
        "multikey_passkey",
        "passkey",
        "selective_copy",
        "variable_tracking",
    }
