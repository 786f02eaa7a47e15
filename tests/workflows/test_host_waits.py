"""Training keeps a device busy: nothing that an encoding, a model or a task does waits for its numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from reads import Waits
from tiny import language

import zoo
from zoo.attention import Encoding
from zoo.attention.coordinates import PositionAugmentation
from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.data.corpus.tokenizer import Characters
from zoo.data.patch_rows import place_patches
from zoo.data.spec import ImageSpec, SegmentationSpec, TextSpec
from zoo.models.decoder import Decoder
from zoo.models.encoder import Encoder
from zoo.models.vit import ViT
from zoo.run.build import Experiment
from zoo.run.callbacks import nan_guard
from zoo.run.callbacks.nan_guard import FiniteGuard
from zoo.run.processes import Processes

ON_CPU_ONLY = {
    ("encodings/common/interpolation.py", "_count_past"),
    ("encodings/common/matrix_exp.py", "_count_halvings"),
    ("encodings/common/spectral_rotation.py", "forward"),
    ("encodings/common/spectral_rotation.py", "spectrum"),
    ("encodings/pape.py", "_measure_spread"),
}
"""Lines that read numbers of a CPU, which costs nothing there, and ask first what the device is."""
MOVED = PositionAugmentation(stretch=1.5, shift=1.0)
SAMPLES = TextSpec(length=12, vocabulary=Characters("abcdefghijk"))
IMAGES = ImageSpec(channels=1, height=8, width=8, classes=5)
PIXELS = SegmentationSpec(channels=1, height=8, width=8, classes=5)
SIZES = {"dim": 64, "depth": 1, "heads": 4}
TEXT = torch.arange(24).view(2, 12) % 11
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7, [0] * 9 + [-1] * 3])


def find_waits(compute):
    """Return where the host waits in a forward and backward pass."""
    with Waits() as waits:
        compute().float().square().mean().backward()
    return waits.found - ON_CPU_ONLY


def list_models(name, **options):
    """Yield (a model that is trained, its inputs) for each kind of model that takes an encoding."""
    cls = zoo.encoding_class(name)
    chosen = {name: lambda dims: zoo.encoding({"name": name, **options}, dims)}
    if cls.consumes_biases:
        chosen = {"alibi": lambda dims: zoo.encoding("alibi", dims), **chosen}
    if 1 in cls.axes and not cls.needs_full_sequence:
        kind = Decoder if cls.coordinates == "index" else Encoder
        model = kind(SAMPLES, **SIZES, encoding=chosen)
        yield model, (TEXT,)
        yield model, (TEXT, DOCUMENTS)
    if 1 in cls.axes and not cls.causal_only:
        yield Encoder(SAMPLES, **SIZES, encoding=chosen), (TEXT, DOCUMENTS)
    if 2 in cls.axes:
        images = torch.randn(2, 1, 8, 8)
        model = ViT(IMAGES, **SIZES, encoding=chosen, patch_size=2, position_augmentation=MOVED)
        yield model, (images,)
        # images of two shapes in one row, but not where a table is resized to one of them
        if not options.get("antialias"):
            rows = place_patches([(4, 4), (2, 3)], pack=32)
            yield model, (images, *rows)
            special = {"pool": "class", "registers": 1, "dense_head": "multiscale"}
            yield ViT(PIXELS, **SIZES, encoding=chosen, patch_size=2, **special), (images, *rows)


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_no_encoding_waits_at_the_positions_of_its_model(name):
    found = {
        (type(model).__name__, len(inputs), *at)
        for model, inputs in list_models(name)
        for at in find_waits(lambda model=model, inputs=inputs: model(*inputs))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("learned", {"antialias": True}),
        ("learned", {"shared": False}),
        ("rope", {"scaling": {"rule": "dynamic", "factor": 2.0, "original": 8, "length": 16}}),
        (
            "rope",
            {
                "scaling": {
                    "rule": "longrope",
                    "original": 8,
                    "length": 16,
                    "short_factor": [1.0] * 8,
                    "long_factor": [2.0] * 8,
                }
            },
        ),
    ],
)
def test_no_option_that_has_an_end_waits(name, options):
    if "antialias" in options:
        chosen = {name: lambda dims: zoo.encoding({"name": name, **options}, dims)}
        model = ViT(IMAGES, **SIZES, encoding=chosen, patch_size=2)
        models = [(model, (torch.randn(2, 1, 16, 8),))]
    else:
        models = [one for one in list_models(name, **options) if not isinstance(one[0], ViT)]
    for model, inputs in models:
        assert find_waits(lambda model=model, inputs=inputs: model(*inputs)) == set()


@pytest.mark.parametrize("moved", [MOVED, PositionAugmentation(jitter=0.5)])
def test_text_whose_positions_move_is_not_read_where_no_draw_leaves_the_range(moved):
    chosen = {"xpos": lambda dims: zoo.encoding("xpos", dims)}
    model = Decoder(SAMPLES, **SIZES, encoding=chosen, position_augmentation=moved)
    assert find_waits(lambda: model(TEXT)) == set()


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_a_layer_of_its_own_does_not_wait(name):
    cls = zoo.encoding_class(name)
    dims = zoo.Dims(64, 4, axes=cls.axes[0], length=(12, 3, 2)[: cls.axes[0]], depth=2)
    layer = zoo.Attention(
        dims,
        ["alibi", name] if cls.consumes_biases else name,
        causal=cls.causal_only or (cls.coordinates == "index" and not cls.needs_full_sequence),
    )
    x = torch.randn(2, dims.tokens, 64)
    assert find_waits(lambda: layer(x)) == set()


@pytest.mark.parametrize("recipe", ["vit_comrope", "lm_rope", "lm_fox", "lm_learned"])
def test_no_training_step_waits(recipe, tmp_path, monkeypatch):
    """But for the flag of the step before, which a device has computed by then."""
    monkeypatch.setattr(nan_guard, "_reads_later", lambda trainer: True)
    words = ["model.dim=32", "model.depth=2", "model.heads=2", "data.batch_size=4"]
    if recipe.startswith("lm_"):
        words = language(tmp_path / "text.txt", *words)
    experiment = Experiment(load(recipe, parse_overrides(words)))
    data, task = experiment.data, experiment.build_task()
    data.setup("fit")
    first, second, *_ = data.train_dataloader()
    task.count_planned_steps = lambda: 10  # which asks the trainer
    optimizer = task.configure_optimizers()
    optimizer = optimizer["optimizer"] if isinstance(optimizer, dict) else optimizer

    trainer = SimpleNamespace(
        global_step=0, current_epoch=0, precision="32-true", optimizers=[optimizer]
    )
    guard = FiniteGuard(SimpleNamespace(processes=Processes()))
    guard.on_train_start(trainer, task)

    def take_step(batch, index):
        guard.on_train_batch_start(trainer, task, batch, index)
        loss = task.training_step(batch, index)
        optimizer.zero_grad()
        guard.on_before_zero_grad(trainer, task, optimizer)
        guard.on_before_backward(trainer, task, loss)
        loss.backward()
        guard.on_before_optimizer_step(trainer, task, optimizer)
        optimizer.step()

    take_step(first, 0)
    check = guard.check
    assert not check.is_broken()
    with Waits() as waits:
        take_step(second, 1)
    assert guard.check is not check
    assert waits.found - ON_CPU_ONLY == {("run/callbacks/nan_guard.py", "is_broken")}


def test_what_reads_only_a_cpu_is_still_there():
    models = [one for name in ("comrope_ld", "cope", "liere", "pape") for one in list_models(name)]
    with Waits() as waits:
        for model, inputs in models:
            model(*inputs).mean().backward()
    assert waits.found == ON_CPU_ONLY


class ReadsNumber(Encoding):
    def modify(self, call):
        return call.replace(q=call.q * call.q.amax().item())


class ChoosesByMask(Encoding):
    def modify(self, call):
        return call.replace(q=call.q + call.q[call.q > 0].mean())


class CopiesNumbers(Encoding):
    def modify(self, call):
        return call.replace(q=call.q * call.q.new_tensor([0.5, 2.0])[:, None, None])


@pytest.mark.parametrize("fault", [ReadsNumber, ChoosesByMask, CopiesNumbers])
def test_planted_fault_is_found(fault):
    dims = zoo.Dims(32, 2, axes=1, length=12, depth=2)
    layer = zoo.Attention(dims, fault(dims))
    assert find_waits(lambda: layer(torch.randn(1, 12, 32)))
