"""Every command takes models whose heads together are wider or narrower than the model."""

import pytest
import torch
from tiny import language

import zoo
from zoo.config.command_line import parse_overrides

SIZES = ["model.dim=16", "model.heads=4", "model.kv_heads=2", "model.depth=2"]
WIDTHS = {"wide": 8, "narrow": 2, "one head is wider than the model": 24}


@pytest.mark.parametrize(
    "head_dim",
    [
        pytest.param(width, id=name, marks=() if name == "wide" else pytest.mark.nightly)
        for name, width in WIDTHS.items()
    ],
)
def test_a_model_is_trained_inspected_and_exported(tmp_path, monkeypatch, head_dim):
    monkeypatch.chdir(tmp_path)
    words = [*SIZES, f"model.head_dim={head_dim}", "model.encoding=[rope,alibi]"]
    edits = parse_overrides([*language(tmp_path / "text.txt", *words), "trainer.max_steps=2"])
    run = zoo.fit("lm_rope", edits, run_dir="run", verbose=None)
    (layer, *_) = [block.attn for block in run.model.blocks]
    assert layer.q_proj.weight.shape == (4 * head_dim, 16)

    plain = {"evaluate.lengths": None}
    assert zoo.evaluate(run, plain, verbose=None).metrics["test/loss"] > 0
    assert zoo.generate(run, prompt="abc", tokens=4, verbose=None)
    assert zoo.load(run.path).predict(["abc ab"])
    zoo.diagnose(run, to="diagnosis.html", verbose=None)
    assert (tmp_path / "diagnosis.html").is_file()

    tokens, task = torch.randint(9, (2, 12)), zoo.load(run.path)
    for target in ("safetensors", "hf"):
        folder = str(tmp_path / target)
        zoo.export(run, folder, target, verbose=None)
        if target == "hf":
            folder = zoo.convert(folder, to="back", verbose=None).run
        with torch.no_grad():
            assert torch.equal(zoo.load(folder).model(tokens), task.model(tokens))


def test_variants_of_such_models_are_compared(tmp_path):
    edits = parse_overrides(language(tmp_path / "text.txt", *SIZES))
    vary = {"model.head_dim": [2, 4, 8]}
    estimate = zoo.estimate_comparison("lm_rope", edits, vary=vary, seeds=1, verbose=None)
    first, *others = (variant.parameters for variant in estimate.variants)
    # for each channel of a head, two layers project 16 states to 4 queries and 2 keys and values,
    # and 4 outputs back, with biases but for keys
    channel = 2 * (16 * (4 + 2 + 2 + 4) + 4 + 2)
    assert [count - first for count in others] == [2 * channel, 6 * channel]
