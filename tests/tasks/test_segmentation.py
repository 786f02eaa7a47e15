"""Segmentation: the loss and the metrics of pixels, and what is ignored."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import zoo
from zoo.config.command_line import parse_overrides
from zoo.data.spec import IGNORE_INDEX, SegmentationSpec
from zoo.errors import DataError, OptionError, RecipeError
from zoo.run.build import Experiment
from zoo.tasks.segmentation import Segmentation

SPEC = SegmentationSpec(3, 4, 6, 3)
SMALL = ["model.dim=16", "model.depth=1", "model.heads=2"]


def make_task(**options):
    task = Segmentation(nn.Identity(), None, SPEC, **options)
    task.log = task.log_dict = lambda *args, **kwargs: None
    return task


@pytest.fixture
def batch():
    """Logits that an identity returns, and masks."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 6, generator=generator)
    return logits, torch.randint(3, (2, 4, 6), generator=generator)


def test_the_loss_is_a_mean_over_pixels_with_a_target(batch):
    logits, masks = batch
    masks[0, :2] = IGNORE_INDEX
    known = masks != IGNORE_INDEX
    expected = F.cross_entropy(logits.permute(0, 2, 3, 1)[known], masks[known])
    torch.testing.assert_close(make_task().training_step(batch, 0), expected)


def test_weights_of_classes_are_those_of_torch(batch):
    logits, masks = batch
    weights = (0.5, 2.0, 0.0)
    found = make_task(class_weights=weights).training_step(batch, 0)
    torch.testing.assert_close(found, F.cross_entropy(logits, masks, torch.tensor(weights)))


def test_a_batch_without_targets_has_a_loss_of_zero(batch):
    logits, masks = batch
    assert make_task().training_step((logits, torch.full_like(masks, IGNORE_INDEX)), 0) == 0


@pytest.mark.parametrize("ignored", [0, 255])
def test_an_ignored_class_counts_nowhere(batch, ignored):
    logits, masks = batch
    masks[0, 0] = ignored
    plain = masks.masked_fill(masks == ignored, IGNORE_INDEX)
    values = []
    for task, given in ((make_task(ignore_index=ignored), masks), (make_task(), plain)):
        task.test_step((logits, given), 0)
        task.on_test_epoch_end()
        measured = {name: float(value) for name, value in task.test_metrics.compute().items()}
        loss = float(task.training_step((logits, given), 0))
        values.append((measured, task.confusion, task.class_ious, loss))
    assert values[0] == values[1]
    assert sum(map(sum, values[0][1])) == int((plain != IGNORE_INDEX).sum())


def test_masks_in_which_no_pixel_has_a_class_are_refused(batch):
    logits, masks = batch
    task, blind = make_task(), torch.full_like(masks, IGNORE_INDEX)
    task.validation_step((logits, blind), 0)
    with pytest.raises(DataError, match="no pixel of val that was read has a class"):
        task.on_validation_epoch_end()
    task.test_step((logits, blind), 0)
    with pytest.raises(DataError, match="no pixel of test that was read has a class"):
        task.on_test_epoch_end()
    task.validation_step((logits, masks), 1)
    task.on_validation_epoch_end()


def test_the_mean_is_over_classes_that_occur():
    masks = torch.tensor([[[0, 0, 1, 1]]])
    predicted = torch.tensor([[[0, 1, 1, 1]]])
    logits = 9.0 * F.one_hot(predicted, 3).permute(0, 3, 1, 2)
    task = make_task()
    task.on_test_epoch_start()
    task.test_step((logits, masks), 0)
    task.on_test_epoch_end()
    assert task.class_ious == pytest.approx([1 / 2, 2 / 3, None])
    assert float(task.test_metrics["miou"].compute()) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert float(task.test_metrics["accuracy"].compute()) == pytest.approx(3 / 4)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0, 1.0), (0.0, 0.0, 0.0)])
def test_weights_that_cannot_work_are_refused(weights):
    with pytest.raises(OptionError) as error:
        make_task(class_weights=weights)
    assert error.value.key == "class_weights"


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        ("seg_digits_comrope", "task=classification", "classification reads images, labelled"),
        ("vit_comrope", "task=segmentation", "segmentation reads images with masks"),
        ("vit_comrope", "model.dense_head=multiscale", "no pixel has one"),
        ("seg_digits_comrope", "task.metrics=[f1]", "f1 applies to images, labelled texts"),
    ],
)
def test_other_samples_are_refused_by_name(recipe, words, message):
    with pytest.raises(RecipeError, match=message):
        zoo.load_recipe(recipe, parse_overrides([words]))


@pytest.mark.parametrize("words", [[], ["model.dense_head=multiscale", "model.pool=class"]])
def test_a_model_learns_one_scene_by_heart(words):
    recipe = zoo.load_recipe("seg_digits_comrope", parse_overrides([*SMALL, *words]))
    torch.manual_seed(0)
    task = Experiment(recipe).build_task()
    task.log = lambda *args, **kwargs: None
    images, masks = Experiment(recipe).data._build_samples("train").__getitems__([0])
    optimizer = torch.optim.Adam(task.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        losses.append(task.training_step((images, masks), 0))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert task.model(images[..., :16]).shape == (1, 11, 32, 16)
