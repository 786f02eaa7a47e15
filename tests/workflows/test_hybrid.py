"""A run whose layers have mixers: it trains, is evaluated, diagnosed, and exported where it can be."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import language


def test_a_hybrid_is_trained_evaluated_diagnosed_and_exported(zoo, tmp_path):
    words = language(
        tmp_path / "text.txt",
        "model.depth=4",
        "trainer.max_steps=2",
        "trainer.activation_checkpointing=true",
        "evaluate.lengths=[2x]",
        "diagnostics.every_n_steps=1",
    )
    code, _, error = zoo("fit", "lm_hybrid", *words, "--run-dir", "run")
    assert code == 0, error
    code, _, error = zoo("eval", "run")
    assert code == 0, error
    code, _, error = zoo("diagnose", "run", "limit=8")
    assert code == 0, error
    (run,) = json.loads((tmp_path / "run/diagnosis.json").read_text())["runs"]
    assert run["layer_types"] == ["linear", "linear", "linear", "full"]

    for target in ("onnx", "torch_export"):
        code, _, error = zoo("export", "run", f"to={target}", f"out_{target}")
        assert code == 2, target
        assert "gated_delta: its chunks follow each other in a loop" in error


def test_a_convolution_is_exported_for_any_length(zoo, tmp_path):
    types = "model.layer_types={mixed: {mixer: short_conv}, full: {}}"
    pattern = "model.layer_pattern=[mixed,full]"
    words = language(tmp_path / "text.txt", types, pattern, "model.depth=2")
    assert zoo("fit", "lm_rope", *words, "trainer.max_steps=1", "--run-dir", "run")[0] == 0
    # zoo compares the graph with the model at several sizes
    code, _, error = zoo("export", "run", "to=torch_export", "out")
    assert code == 0, error


def test_an_assistant_is_refused(zoo, tmp_path):
    """Assisted decoding takes tokens back, which a state cannot."""
    transformers = pytest.importorskip("transformers")
    words = language(tmp_path / "text.txt", "model.depth=4", "trainer.max_steps=1")
    assert zoo("fit", "lm_hybrid", *words, "--run-dir", "run")[0] == 0
    assert zoo("export", "run", "to=hf", "out")[0] == 0
    folder = tmp_path / "out"
    model, assistant = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
        for _ in range(2)
    )
    inputs = torch.tensor([[1, 2, 3]])
    with pytest.raises(RuntimeError, match="requires a cache"):
        model.generate(inputs, assistant_model=assistant, max_new_tokens=4)
