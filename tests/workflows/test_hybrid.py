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


def test_modes_that_take_tokens_back_are_refused(zoo, tmp_path):
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
    # a search that transformers would load from the hub
    search = {"do_sample": False, "penalty_alpha": 0.6, "top_k": 4, "trust_remote_code": True}
    for options, left_out in (
        ({"assistant_model": assistant}, "assisted generation takes.*leave out assistant_model"),
        ({"prompt_lookup_num_tokens": 2}, "leave out .* prompt_lookup_num_tokens"),
        (search, "contrastive search takes.*leave out penalty_alpha"),
    ):
        with pytest.raises(ValueError, match=left_out):
            model.generate(inputs, max_new_tokens=4, **options)
    with pytest.raises(ValueError, match="cannot go back to fewer tokens"):
        model(inputs, use_cache=True).cache.crop(2)
