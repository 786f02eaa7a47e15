"""Windows of text: what is asked, once, and how they go on."""

import pytest
import torch

from zoo.data.text import Text


def tokens(data, part):
    return torch.from_numpy(data.corpus.tokens.splits[part].tokens.astype("int64"))


def batches(data, part, epoch=0):
    loader = getattr(data, f"{part}_dataloader")()
    if part == "train":
        loader.epoch_sampler.set_epoch(epoch)
    return list(loader)


def join(data, part, epoch=0):
    return [
        torch.cat(column)
        for column in zip(*((b.inputs, b.targets) for b in batches(data, part, epoch)), strict=True)
    ]


def test_targets_are_inputs_one_further(text):
    inputs, targets = join(text(), "train")
    assert inputs.shape == targets.shape == (99, 8)  # 800 tokens
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.dtype == targets.dtype == torch.int64


def test_contiguous_windows_are_shuffled_by_epoch(text):
    data = text()
    whole = tokens(data, "train")[:792].view(99, 8)
    first, second = join(data, "train", 0)[0], join(data, "train", 1)[0]
    assert torch.equal(first.unique(dim=0), whole.unique(dim=0))
    assert torch.equal(second.unique(dim=0), whole.unique(dim=0))
    assert not torch.equal(first, second)
    assert torch.equal(first, join(data, "train", 0)[0])


def test_random_windows_begin_anywhere(text):
    data = text(windows="random")
    inputs, targets = join(data, "train", 2)
    assert inputs.shape == (99, 8)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    present = {tuple(window.tolist()) for window in tokens(data, "train").unfold(0, 8, 1)}
    assert all(tuple(window.tolist()) in present for window in inputs)
    assert not torch.equal(inputs.sort(0)[0], join(data, "train", 3)[0].sort(0)[0])
    assert torch.equal(inputs, join(text(windows="random", workers=1), "train", 2)[0])


@pytest.mark.parametrize("stride", [None, 1, 3, 7, 8])
@pytest.mark.parametrize("length", [8, 13, 98, 99])
def test_each_target_is_asked_once(text, length, stride):
    data = text(length=length, stride=stride)
    inputs, targets = join(data, "val")
    assert data.count_samples("val") == len(inputs)
    assert torch.equal(targets[targets >= 0], tokens(data, "val")[1:])
    assert torch.equal(inputs[targets >= 0], tokens(data, "val")[:-1])


def test_a_stride_leaves_the_last_targets_of_a_window(text):
    targets = join(text(stride=3), "test")[1]
    assert (targets[0] >= 0).all()
    assert all((row >= 0).tolist() == [False] * 5 + [True] * 3 for row in targets[1:-1])


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_streams_go_on_from_batch_to_batch(text, part):
    data = text(streams=True)
    found = batches(data, part)
    rows = torch.cat([batch.inputs for batch in found], dim=1)  # [B, steps * N]
    assert len(found) == (len(tokens(data, part)) - 1) // 32
    assert torch.equal(rows.flatten(), tokens(data, part)[: rows.numel()])
    assert data.count_samples(part) == 4 * len(found)
    assert torch.equal(
        rows, torch.cat([batch.inputs for batch in batches(data, part, epoch=1)], dim=1)
    )


@pytest.mark.parametrize("options", [{}, {"windows": "random"}, {"streams": True}], ids=str)
def test_a_loader_goes_on_in_the_middle_of_an_epoch(text, options):
    whole = batches(text(**options), "train", epoch=1)
    loader = text(**options).train_dataloader()
    loader.epoch_sampler.set_epoch(1)
    loader.load_state_dict({"consumed": 5 * loader.epoch_sampler.global_batch_size})
    rest = list(loader)
    assert len(rest) == len(whole) - 5
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(rest, whole[5:], strict=True))


def test_documents_are_told_apart(write):
    files = [
        write("a" * 100, "a.txt"),
        write("b" * 21, "b.txt"),
        write("c" * 3, "c.txt"),
        write("d" * 76, "d.txt"),
    ]
    data = Text(0, files=files, length=10, batch_size=100, val=0.4, test=0.1, documents=True)
    (batch,) = data.val_dataloader()  # 80 tokens, ends in d
    seen = [data.spec.vocabulary.decode(row) for row in batch.inputs.tolist()]
    assert seen[1:3] == ["bbbbbbbbbb", "bcccdddddd"]
    assert batch.documents[1:3].tolist() == [[0] * 10, [0, 1, 1, 1, 2, 2, 2, 2, 2, 2]]
    assert (batch.documents[3:] == 0).all()
    assert (batch.targets[2] < 0).tolist() == [True, False, False, True] + [False] * 6
    asked = batch.targets >= 0
    assert asked.sum() == 79 - 2


def test_batches_of_one_unit_carry_inputs_and_targets_alone(text):
    batch = batches(text(), "val")[0]
    assert batch.documents is None
    assert batch.target_bytes is None


def test_bytes_of_targets_add_up(text):
    content = "the café of the zoo … " * 60
    data = text(content, tokens="subword", vocabulary=270)
    total = sum(int(batch.target_bytes.sum()) for batch in batches(data, "test"))
    encoded = tokens(data, "test").tolist()
    assert total == len(data.spec.vocabulary.decode(encoded[1:]).encode())
    assert all(
        (batch.target_bytes[batch.targets < 0] == 0).all() for batch in batches(data, "test")
    )
