"""The flip-flop language: its rules, its rates, its seeds."""

import pytest
import torch

from zoo.data.synthetic.flipflop import Flipflop
from zoo.errors import OptionError


def sequences(data, part="train", epoch=0):
    loader = getattr(data, f"{part}_dataloader")()
    if part == "train":
        loader.epoch_sampler.set_epoch(epoch)
    return [
        torch.cat(column) for column in zip(*((b.inputs, b.targets) for b in loader), strict=True)
    ]


def test_sequences_follow_the_rules():
    data = Flipflop(0, length=16, train=200)
    for row in sequences(data)[0].tolist():
        said = data.spec.vocabulary.decode(row)
        memory = ""
        assert said[0] == "w"
        assert said[-2] == "r"
        for operation, bit in zip(said[::2], said[1::2], strict=True):
            assert operation in "wri"
            assert bit in (memory if operation == "r" else "01")
            memory = bit if operation == "w" else memory


def test_only_the_bit_after_a_read_is_asked():
    inputs, targets = sequences(Flipflop(0, train=100))
    asked = targets >= 0
    assert torch.equal(asked, inputs == 1)
    assert not asked[:, -1].any()
    assert torch.equal(targets[asked], inputs.roll(-1, dims=1)[asked])


@pytest.mark.parametrize("ignore", [0.1, 0.8, 0.98])
def test_operations_and_bits_have_their_rates(ignore):
    inputs, _ = sequences(Flipflop(0, ignore=ignore, length=256, train=500))
    inner = inputs[:, 2:-2:2]
    rates = [(inner == operation).float().mean().item() for operation in range(3)]
    assert rates == pytest.approx([(1 - ignore) / 2, (1 - ignore) / 2, ignore], abs=0.01)
    free = inputs[:, 1::2][inputs[:, ::2] != 1]
    assert (free == 4).float().mean().item() == pytest.approx(0.5, abs=0.01)


def test_training_is_drawn_anew_each_epoch_and_the_rest_is_not():
    data = Flipflop(0, train=64, val=64, test=64)
    first, second = sequences(data)[0], sequences(data, epoch=1)[0]
    assert len(torch.cat([first, second]).unique(dim=0)) > 120
    assert torch.equal(first, sequences(data)[0])
    assert torch.equal(sequences(data, "val")[0], sequences(data, "val")[0])
    assert not torch.equal(sequences(data, "val")[0], sequences(data, "test")[0])
    assert not torch.equal(first, sequences(Flipflop(1, train=64))[0])


def test_workers_and_a_resumed_epoch_give_the_same():
    whole = list(Flipflop(0, train=256).train_dataloader())
    loader = Flipflop(0, train=256, workers=1).train_dataloader()
    loader.load_state_dict({"consumed": 2 * 64})
    rest = list(loader)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(rest, whole[2:], strict=True))


def test_sizes_are_those_asked_for():
    data = Flipflop(0, length=32, val=10, test=70, batch_size=64)
    assert [len(batch.inputs) for batch in data.test_dataloader()] == [35, 35]
    assert data.count_samples("val") == 10
    assert data.spec.length == 32


def test_an_odd_length_is_refused():
    with pytest.raises(OptionError, match="63 is odd") as caught:
        Flipflop(0, length=63)
    assert caught.value.key == "length"


def test_a_sequence_is_the_same_whatever_it_is_fetched_with():
    sequences = Flipflop(0).train_dataloader().dataset
    keys = [(1, 5), (1, 2), (2, 5), (1, 9)]
    together = sequences.__getitems__(keys).inputs
    assert torch.equal(together, torch.cat([sequences.__getitems__([key]).inputs for key in keys]))
    assert len(together.unique(dim=0)) == 4
