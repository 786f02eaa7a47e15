"""Classification and its optimizer."""

import math

import pytest
import torch

import zoo
from zoo.config.command_line import parse_overrides
from zoo.data.spec import ImageSpec
from zoo.errors import RecipeError
from zoo.optim.optimizers import AdamW
from zoo.run.build import Experiment
from zoo.tasks.classification import Classification, _make_metrics


@pytest.fixture(scope="module")
def task():
    overrides = [
        "model.encoding=[learned,comrope_ld]",
        "model.pool=class",
        "model.registers=1",
        "model.block.layer_scale=0.1",
    ]
    return Experiment(zoo.load_recipe("vit_comrope", parse_overrides(overrides))).build_task()


def test_only_matrices_decay(task):
    optimizer = AdamW(lr=1e-3).configure(task.model, 100)["optimizer"]
    names = {id(p): name for name, p in task.model.named_parameters()}
    decayed, others = ([names[id(p)] for p in group["params"]] for group in optimizer.param_groups)
    assert optimizer.param_groups[1]["weight_decay"] == 0
    assert all(name.endswith("weight") and "norm" not in name for name in decayed)
    kinds = (
        "bias",
        "norm",
        "cls_token",
        "register_tokens",
        "table",
        "generators",
        "scales",
        "scale",
    )
    assert all(any(kind in name for kind in kinds) for name in others)
    assert len(decayed) + len(others) == len(names)


def test_the_rate_rises_linearly_and_falls_along_a_cosine():
    optim = AdamW(lr=1.0, warmup_ratio=0.1, min_lr_ratio=0.01)
    assert [optim.lr_factor(step, 100) for step in (0, 4, 9, 10)] == pytest.approx(
        [0.1, 0.5, 1.0, 1.0]
    )
    assert optim.lr_factor(55, 100) == pytest.approx(0.01 + 0.99 / 2)
    assert optim.lr_factor(100, 100) == optim.lr_factor(500, 100) == pytest.approx(0.01)


def test_measures_are_those_of_the_whole_set(task):
    metrics = _make_metrics(10)
    logits, labels = torch.randn(50, 10), torch.randint(10, (50,))
    task.log_dict = lambda *args, **kwargs: None
    task.model.forward, forward = (lambda inputs: logits[inputs]), task.model.forward
    for number, part in enumerate(torch.arange(50).split(16)):
        task._update("val", metrics, (part, labels[part]), number)
    task.model.forward = forward
    found = metrics.compute()
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())
    assert found["accuracy"] == (logits.argmax(1) == labels).float().mean()
    assert found["top5"] == (logits.topk(5).indices == labels[:, None]).any(1).float().mean()


def test_shares_of_one_class_are_its_label(task):
    inputs, labels = torch.randn(8, 1, 16, 16), torch.arange(8)
    task.log = lambda *args, **kwargs: None
    task.model.head.weight.data.normal_()
    task.eval()
    hard = task.training_step((inputs, labels), 0)
    soft = task.training_step((inputs, torch.nn.functional.one_hot(labels, 10).float()), 0)
    torch.testing.assert_close(soft, hard)


def test_the_loss_of_shares_is_the_share_of_losses(task):
    inputs, one, two = torch.randn(8, 1, 16, 16), torch.arange(8), torch.arange(8) + 1
    task.log = lambda *args, **kwargs: None
    task.eval()
    shares = 0.3 * torch.nn.functional.one_hot(one, 10) + 0.7 * torch.nn.functional.one_hot(two, 10)
    losses = [task.training_step((inputs, labels), 0) for labels in (one, two)]
    torch.testing.assert_close(
        task.training_step((inputs, shares), 0), 0.3 * losses[0] + 0.7 * losses[1]
    )


def test_a_test_gives_f1_and_calibration_error(task):
    metrics = task.test_metrics
    assert {"f1", "ece"} < {*task.val_metrics}
    # two classes of ten, one image of each right and a third wrong, all with confidence 0.9
    logits = torch.full((3, 10), 0.1 / 9).log()
    logits[[0, 1, 2], [0, 1, 1]] = torch.tensor(0.9).log()
    labels = torch.tensor([0, 1, 0])
    for name in ("f1", "ece"):
        metrics[name].update(logits, labels)
    assert float(metrics["f1"].compute()) == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert float(metrics["ece"].compute()) == pytest.approx(0.9 - 2 / 3, abs=1e-5)
    metrics.reset()


def test_small_logits_are_not_taken_for_probabilities(task, monkeypatch):
    monkeypatch.setattr(task, "log_dict", lambda *_, **__: None)
    monkeypatch.setattr(task, "forward", lambda inputs: torch.eye(10)[:1])
    task.test_step((torch.zeros(1), torch.tensor([0])), 0)
    confidence = math.e / (math.e + 9)
    assert float(task.test_metrics["ece"].compute()) == pytest.approx(1 - confidence, abs=1e-5)
    task.test_metrics.reset()


def test_a_confusion_matrix_counts_labels_by_predictions(task, monkeypatch):
    monkeypatch.setattr(task, "log_dict", lambda *_, **__: None)
    monkeypatch.setattr(task, "forward", lambda inputs: torch.eye(10)[[1, 1, 2]])
    for _ in range(2):  # a second test counts anew
        task.on_test_epoch_start()
        task.test_step((torch.zeros(3), torch.tensor([0, 1, 2])), 0)
        task.on_test_epoch_end()
        assert [row[:3] for row in task.confusion[:3]] == [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    task.test_metrics.reset()


def test_metrics_are_chosen_by_name_and_options():
    chosen = ["task.metrics=[{name: f1, average: weighted}]", "model.depth=1"]
    task = Experiment(zoo.load_recipe("vit_none", parse_overrides(chosen))).build_task()
    assert {*task.test_metrics} == {"accuracy", "loss", "top5", "f1"}
    assert task.test_metrics["f1"].average == "weighted"
    plain = Experiment(zoo.load_recipe("vit_none", {"task.metrics": []})).build_task()
    assert {*plain.val_metrics} == {"accuracy", "loss", "top5"}


@pytest.mark.parametrize(("classes", "expected"), [(2, False), (5, False), (6, True), (10, True)])
def test_top5_is_measured_where_it_can_be_below_1(classes, expected):
    task = Classification(torch.nn.Identity(), None, ImageSpec(1, 4, 4, classes))
    for metrics in (task.val_metrics, task.test_metrics):
        assert ("top5" in metrics) is expected


@pytest.mark.parametrize(
    ("recipe", "metrics", "problem"),
    [
        (
            "vit_none",
            "[f2]",
            "task.metrics.0.name: there is no 'f2' among metrics; did you mean f1",
        ),
        ("vit_none", "[f1, ece, f1]", "task.metrics.2: f1 is measured already; leave it out"),
        ("vit_none", "[{name: f1, averag: macro}]", "did you mean task.metrics.0.average?"),
        (
            "copying_none",
            "[f1]",
            "task.metrics.0: f1 applies to images, labelled texts or points, but the data yields text",
        ),
    ],
)
def test_a_metric_that_cannot_be_measured_is_refused(recipe, metrics, problem):
    with pytest.raises(RecipeError) as caught:
        zoo.load_recipe(recipe, parse_overrides([f"task.metrics={metrics}"]))
    assert problem in str(caught.value)
