"""Exported folders give in transformers what the models give in zoo: logits, answers, tokens and pixels."""

import ast
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import NAME
from parts import draw_part, run_parts
from tiny import TINY, language
from untrained import write_checkpoint

import zoo as package
from zoo import registry
from zoo.api.tools import export
from zoo.config.command_line import parse_overrides
from zoo.data.corpus.tokenizer import Bytes, Characters, Words, train_bpe, vocabulary_from_dict
from zoo.formats.huggingface import restore_vocabulary
from zoo.formats.tokenizer_files import write_tokenizer
from zoo.run import checkpoint
from zoo.run.checkpoint import read as read_checkpoint
from zoo.run.load import load_experiment
from zoo.utils import escape_text

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

NAMES = package.encoding_names()
CAUSAL = [name for name in NAMES if 1 in package.encoding_class(name).axes]
# Decoders are tried with every encoding of texts. What encoders and vision transformers add does not
# depend on the encoding: one of each kind, and all that decoders cannot have.
ENCODERS = ["learned", "rope", "t5", "tupe"]
PICTURES = [name for name in NAMES if 2 in package.encoding_class(name).axes and name not in CAUSAL]
PICTURES += ["alibi", "comrope_ld", "learned", "none"]


def entry(name, index=False):
    before = "alibi," if name == "dape" else ""
    given = ", coordinates: index" if index else ""
    return f"model.encoding=[{before}{{name: {name}{given}}}]"


def compute_logits(task, input_ids=None, attention_mask=None, pixel_values=None):
    """What zoo computes, which marks padding otherwise."""
    if pixel_values is not None:
        return task.model(pixel_values)
    if attention_mask is None:
        return task.model(input_ids)
    if isinstance(task.spec, package.TextClassificationSpec):
        return task.model(input_ids.where(attention_mask.bool(), -1))
    return task.model(input_ids, attention_mask - 1)


def write_folder(folder, auto, recipe, overrides, inputs):
    """Export a model of random weights, and beside it what it computes for inputs."""
    write_checkpoint(folder / "run", recipe, overrides)
    export(folder / "run", folder / "out", to="hf")
    task = package.load(folder / "run")
    with torch.no_grad():
        logits = [compute_logits(task, **given) for given in inputs]
    torch.save({"auto": auto, "inputs": inputs, "logits": logits}, folder / "out" / "expected.pt")


def read_all(folder):
    """Lines that a fresh process prints of all folders."""
    command = [sys.executable, Path(__file__).parent / "reading.py", folder]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folder / "modules")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def write_decoders(folder, step):
    models = {name: [entry(name, index=True)] for name in draw_part(CAUSAL, step, 0)}
    for name in registry.names("mixers"):
        types = f"{{mixed: {{mixer: {name}}}, full: {{}}}}"
        pattern = "model.layer_pattern=[mixed,full]"
        models[name] = [f"model.layer_types={types}", pattern]
    models["tokens"] = ["model.window=5", "model.block.token_shift=true"]
    for name, options in models.items():
        overrides = language(folder / "text.txt", "model.depth=2", *options)
        inputs = [{"input_ids": torch.randint(10, (2, 9))}]
        write_folder(folder / name, "AutoModelForCausalLM", "lm_rope", overrides, inputs)


def write_encoders(folder):
    tokens, mask = torch.randint(11, (2, 9)), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    for name in ENCODERS:
        overrides = language(folder / "text.txt", entry(name), "model.depth=2")
        inputs = [{"input_ids": tokens}, {"input_ids": tokens, "attention_mask": mask}]
        path = folder / f"encoder_{name}"
        write_folder(path, "AutoModelForMaskedLM", "mlm_tupe", overrides, inputs)

    overrides = ["model.dim=16", "model.depth=2", "model.heads=2", "trainer.accelerator=cpu"]
    tokens = torch.randint(5, (2, 9))
    inputs = [{"input_ids": tokens}, {"input_ids": tokens, "attention_mask": mask}]
    auto = "AutoModelForSequenceClassification"
    write_folder(folder / "classifier", auto, "marker_offset_t5", overrides, inputs)


def write_vision_transformers(folder, step):
    for name in draw_part(PICTURES, step, 0):
        overrides = [*TINY, "model.dim=32", "model.heads=4", entry(name), "model.depth=2"]
        inputs = [{"pixel_values": torch.randn(2, 1, *size)} for size in ((16, 16), (24, 16))]
        path = folder / f"image_{name}"
        write_folder(path, "AutoModelForImageClassification", "vit_comrope", overrides, inputs)


@run_parts(4)
def test_exported_models_compute_and_generate_the_same(tmp_path, step):
    """Beams take along all that a decoder remembers: keys, states and tokens."""
    write_decoders(tmp_path, step)
    write_encoders(tmp_path)
    write_vision_transformers(tmp_path, step)
    count = len([*tmp_path.glob("*/out")])
    assert read_all(tmp_path) == [f"{count} folders"]


def test_pixels_are_those_of_an_evaluation(tmp_path):
    image = pytest.importorskip("PIL.Image")
    write_checkpoint(tmp_path / "run", "vit_comrope", TINY)
    export(tmp_path / "run", tmp_path / "out", to="hf")
    picture = image.fromarray(torch.randint(256, (40, 30, 3), dtype=torch.uint8).numpy())
    picture.save(tmp_path / "picture.png")

    experiment = load_experiment("vit_comrope", parse_overrides(TINY))
    (batch,) = experiment.data.read_files([tmp_path / "picture.png"], experiment.spec)
    processor = transformers.AutoImageProcessor.from_pretrained(
        tmp_path / "out", trust_remote_code=True
    )
    for given in (picture, [np.asarray(picture)]):
        found = processor(given, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(found, batch.batch, atol=1e-6, rtol=0)


@pytest.fixture
def decoder(tmp_path):
    """A folder of a language model with alibi, and its task."""
    write_checkpoint(
        tmp_path / "run", "lm_rope", language(tmp_path / "text.txt", "model.encoding=alibi")
    )
    export(tmp_path / "run", tmp_path / "out", to="hf")
    return tmp_path / "out", package.load(tmp_path / "run")


def load_decoder(folder):
    pair = transformers.AutoModelForCausalLM, transformers.AutoTokenizer
    model, tokenizer = (cls.from_pretrained(folder, trust_remote_code=True) for cls in pair)
    return model.eval(), tokenizer


def test_generation_ends_where_a_program_says(decoder):
    model, tokenizer = load_decoder(decoder[0])
    inputs = tokenizer(["abc", "de fgh a"], return_tensors="pt", padding=True)
    longest = model.generate(**inputs, do_sample=False, max_length=40)
    assert longest.shape == (2, 40)
    text = tokenizer.decode(longest[1])
    stop = text[12:14]
    short = model.generate(
        **inputs, do_sample=False, max_length=40, stop_strings=[stop], tokenizer=tokenizer
    )
    assert text.startswith(tokenizer.decode(short[1]).split(stop)[0] + stop)


def test_a_loss_is_the_mean_or_a_share_of_a_batch(decoder):
    model, tokenizer = load_decoder(decoder[0])
    inputs = tokenizer(["abc", "de fgh a"], return_tensors="pt", padding=True)
    labels = inputs["input_ids"].where(inputs["attention_mask"].bool(), -100)
    output = model(**inputs, labels=labels)
    losses = torch.nn.functional.cross_entropy(
        output.logits[:, :-1].mT, labels[:, 1:], reduction="sum"
    )
    count = (labels[:, 1:] >= 0).sum()
    assert count == 3 + 7
    torch.testing.assert_close(output.loss, losses / count)
    share = model(**inputs, labels=labels, num_items_in_batch=20).loss
    torch.testing.assert_close(share, losses / 20)


def test_a_token_that_the_model_does_not_know_is_named(decoder):
    model, tokenizer = load_decoder(decoder[0])
    with pytest.raises(ValueError, match=r"token 10 is not in the vocabulary.*prefix_token_id"):
        model(torch.tensor([[1, 2], [tokenizer.eos_token_id, 3]]))
    with pytest.raises(ValueError, match="token 10 is not"):
        model(torch.tensor([[tokenizer.eos_token_id]]))
    ended = model(torch.tensor([[1, 2, tokenizer.eos_token_id]])).logits[:, :2]
    torch.testing.assert_close(ended, model(torch.tensor([[1, 2]])).logits)


def test_a_step_of_unknown_tokens_alone_is_no_end(decoder):
    model, tokenizer = load_decoder(decoder[0])
    end = tokenizer.eos_token_id
    texts, step = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[end], [5]])
    cache = model(texts, use_cache=True).cache
    with pytest.raises(ValueError, match="token 10 is not"):
        model(torch.tensor([[end], [end]]), cache=cache)
    # one text has ended, the other is what it is alone
    found = model(step, cache=cache).logits[1]
    torch.testing.assert_close(found, model(torch.tensor([[3, 4, 5]])).logits[0, -1:])
    found = model(step, cache=cache).logits[1]
    torch.testing.assert_close(found, model(torch.tensor([[3, 4, 5, 5]])).logits[0, -1:])
    cache.reorder_cache(torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="goes on after a token that is not in the vocabulary"):
        model(step, cache=cache)


@torch.no_grad()
def test_a_model_trained_further_is_saved_loaded_and_converted(decoder, tmp_path, zoo):
    model, tokenizer = load_decoder(decoder[0])
    for weight in model.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "saved")
    names = json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"]
    assert names == ["AutoModelForCausalLM"]

    again, tokenizer = load_decoder(tmp_path / "saved")
    inputs = tokenizer(["abc", "de fgh a"], return_tensors="pt", padding=True)
    right, found = (
        one.generate(**inputs, do_sample=False, max_length=30) for one in (model, again)
    )
    assert torch.equal(found, right)

    code, _, message = zoo("eval", "saved")
    assert code == 5
    assert "zoo convert" in message
    code, _, message = zoo("convert", "saved", "to=back")
    assert code == 0, message
    tokens = torch.randint(10, (2, 16))
    right = model(tokens).logits
    torch.testing.assert_close(package.load("back").model(tokens), right, atol=1e-5, rtol=1e-5)
    code, out, message = zoo("eval", "back", "~evaluate.lengths", "--json")
    assert code == 0, message
    assert json.loads(out)["count"] > 0

    weights = model.state_dict()
    removed = weights.popitem()[0]
    weights["a\x1b[2J\nzoo: done"] = torch.zeros(3)
    safetensors.save_file(weights, tmp_path / "saved" / "model.safetensors")
    code, _, message = zoo("convert", "saved", "to=other")
    assert code == 5
    assert removed in message
    assert "zoo: done" not in message.splitlines()
    assert "\x1b" not in message
    assert not (tmp_path / "other").exists()


def test_subwords_come_back_from_the_tokenizer(tmp_path):
    write_tokenizer(SUBWORDS, tmp_path, None)
    metadata = {"samples": {"vocabulary": {"kind": "count", "size": str(len(SUBWORDS))}}}
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    found = vocabulary_from_dict(restore_vocabulary(metadata, text)["samples"]["vocabulary"])
    assert len(found) == len(SUBWORDS)
    for given in ("one, twelve; é", " two  three\n"):
        assert found.encode(given) == SUBWORDS.encode(given)


TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}, cache_dir: {folder}/cache}}
test_split: test
target_delimiter: ""
"""
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "answer": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["hhhhh"], max_gen_toks: 5, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "stream": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
""",
}
QUESTIONS = [("abc a", ["b", "c de"]), ("ha", ["h", "g"]), ("de fgh", [" h", "fe"])]


@pytest.mark.pretrained
def test_the_evaluation_harness_measures_a_folder(decoder, tmp_path):
    """Log-likelihoods, answers and streams of a local task are those of zoo."""
    harness = pytest.importorskip("lm_eval")
    tasks = pytest.importorskip("lm_eval.tasks")
    folder, task = decoder
    lines = [json.dumps({"question": q, "choices": c, "answer": 0}) for q, c in QUESTIONS]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    for name, rest in TASKS.items():
        text = TASK.format(name=name, folder=tmp_path) + rest
        (tmp_path / f"{name}.yaml").write_text(text)
    found = harness.simple_evaluate(
        model="hf",
        model_args=f"pretrained={folder},trust_remote_code=True,prefix_token_id=0",
        tasks=[*TASKS],
        task_manager=tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
    )["samples"]

    def sum_log_probs(context, continuation):
        tokens = torch.tensor([context + continuation])
        with torch.no_grad():
            log_probs = task.model(tokens[:, :-1]).log_softmax(-1)[0, -len(continuation) :]
        return float(log_probs.gather(1, tokens[0, -len(continuation) :, None]).sum())

    encode = task.spec.vocabulary.encode
    for question, choices in QUESTIONS:
        right = [sum_log_probs(encode(question), encode(choice)) for choice in choices]
        (sample,) = [s for s in found["choice"] if s["doc"]["question"] == question]
        scores = [float(response[0][0]) for response in sample["resps"]]
        assert scores == pytest.approx(right, abs=1e-4)
        (sample,) = [s for s in found["stream"] if s["doc"]["question"] == question]
        (stream,) = sample["resps"][0]
        assert stream == pytest.approx(sum_log_probs([0], encode(question)), abs=1e-4)
        (sample,) = [s for s in found["answer"] if s["doc"]["question"] == question]
        assert len(sample["resps"][0][0]) == 5


@pytest.mark.nightly
def test_a_server_completes_texts(tmp_path):
    for name in ("openai", "fastapi", "uvicorn", "accelerate"):
        pytest.importorskip(name)
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    export(tmp_path / "run", tmp_path / "out", to="hf")
    for saved in load_decoder(tmp_path / "out"):
        saved.save_pretrained(tmp_path / "out")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).parent / "transformers", "serve", "out", "--port", str(port)]
    command += ["--device", "cpu", "--trust-remote-code"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path)}
    server = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    body = {"model": "out", "prompt": "abc de", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    deadline = time.monotonic() + 180
    try:
        while True:
            assert time.monotonic() < deadline, "the server does not listen"
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    answer = json.load(reply)
                break
            except urllib.error.HTTPError:
                raise
            except urllib.error.URLError:
                assert server.poll() is None, server.stdout.read().decode()[-3000:]
                time.sleep(0.5)
    finally:
        server.terminate()
        server.communicate()
    assert len(answer["choices"][0]["text"]) == 8


SUBWORDS = train_bpe(["one two three, four five six; seven eight"] * 5, 300)
VOCABULARIES = [
    (Characters("\n abcé…"), ["abé c…\n", "a  b"]),
    (Bytes(), ["abé …\n\t 漢", ""]),
    (Words(("one", "two", "[sic]")), ["one [sic] two", "two\n one"]),
    (SUBWORDS, ["one, twelve; é", " two  three\n"]),
]


@pytest.mark.parametrize(
    ("vocabulary", "texts"), VOCABULARIES, ids=lambda given: type(given).__name__
)
@pytest.mark.parametrize("mask", [False, True])
def test_tokens_are_numbered_the_same(tmp_path, vocabulary, texts, mask):
    write_tokenizer(vocabulary, tmp_path, len(vocabulary) if mask else None)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in texts:
        tokens = vocabulary.encode(text)
        assert tokenizer(text)["input_ids"] == tokens
        assert tokenizer.decode(tokens) == vocabulary.decode(tokens)
    assert tokenizer.pad_token_id >= len(vocabulary)
    if mask:
        assert tokenizer.mask_token_id == len(vocabulary)


def test_a_card_is_one_of_the_hub(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    prompt = 'a "quote" \u00e9'
    options = language(tmp_path / "text.txt", f"generate.prompt='{prompt}'")
    write_checkpoint(tmp_path / "run", "lm_rope", options)
    (tmp_path / "run" / "end.json").write_text('{"metrics": {"test/loss": 2.5}}')
    export(tmp_path / "run", tmp_path / "out", to="hf")
    card = hub.ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.eval_results[0].metric_value == 2.5
    for part in ("RoFormer", "lm_rope", "name: rope", "| test/loss | 2.5000 |"):
        assert part in card.text
    program = card.text.partition("```python\n")[2].partition("```")[0]
    assert prompt in [node.value for node in ast.walk(ast.parse(program)) if hasattr(node, "value")]


@pytest.mark.parametrize("name", ["end.json", "environment.json"])
def test_a_damaged_record_of_a_run_is_named(tmp_path, zoo, name):
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    (tmp_path / "run" / name).write_text("[1]")
    code, _, message = zoo("export", "run", "to=hf", "out")
    assert code == 5
    assert f"{name}: unreadable" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["hf", "vit", "torch_export"])
def test_hostile_names_are_kept_as_data_and_obeyed_by_none(tmp_path, zoo, target):
    hub = pytest.importorskip("huggingface_hub")
    names = [NAME, "</script>", "key: [a, *b] # x", "\udcff\x9b31m", "![x](y) `c`", "\u2028```"]
    names += ["'\"\\", "---\n- !!a:b", "|", "a"]
    write_checkpoint(
        tmp_path / "run", "vit_comrope", [*TINY, "model.encoding=learned", "model.pool=class"]
    )
    path = tmp_path / "run" / "checkpoints" / "best.ckpt"
    content = read_checkpoint(path)
    content["zoo"]["samples"]["names"], content["zoo"]["name"] = names, f"{NAME}`y`[z](w)"
    checkpoint.write_sealed(checkpoint.serialise(content), path)
    (tmp_path / "run" / "end.json").write_text(json.dumps({"metrics": {f"test/{NAME}": 1.0}}))

    folder = Path(f"out {NAME}".replace("=", ""))  # with one it is an option
    code, out, message = zoo("export", "run", f"to={target}", folder)
    assert code == 0, message
    assert escape_text(out + message, keep="\n") == out + message
    assert out.count("\n") == 1
    if target == "torch_export":
        assert json.loads((folder / "model.json").read_text())["classes"] == names
        return
    text = (folder / "README.md").read_text()
    assert not [letter for letter in text if escape_text(letter, keep="\n") != letter]
    card = hub.ModelCard(text)
    assert card.data.eval_results[0].metric_value == 1.0
    for part in ("<img", "[z](w)", "`y`"):
        # except in the program
        assert part not in card.text.partition("## Use")[0] + card.text.partition("## Results")[2]
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert [config.id2label[number] for number in range(10)] == names
    code, _, message = zoo("convert", folder, "to=back")
    assert code == 0, message
    assert package.load("back").spec.names == tuple(names)


def test_zoo_reads_the_folder_too(tmp_path):
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    export(tmp_path / "run", tmp_path / "out", to="hf")
    first, second = (package.load(tmp_path / name).state_dict() for name in ("run", "out"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_models_of_videos_are_refused(tmp_path, zoo):
    write_checkpoint(tmp_path / "run", "clip_comrope", ["model.depth=1"])
    code, _, message = zoo("export", tmp_path / "run", "to=hf", "out")
    assert code == 2
    assert "videos" in message
    assert not (tmp_path / "out").exists()


def test_without_zoo_the_message_says_what_to_install():
    code = Path(package.__file__).parent / "formats" / "modeling_zoo.py"
    program = f"import sys; sys.modules['zoo'] = None; exec(open({str(code)!r}).read())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install transformer-zoo" in done.stderr


class Hub:
    """A hub that takes everything, or nothing."""

    uploaded = []

    def create_repo(self, name):
        if name == "me/taken":
            raise ValueError("409 Conflict: the repository exists")
        return f"https://huggingface.co/{name}"

    def upload_folder(self, repo_id, folder_path):
        self.uploaded.append((repo_id, sorted(path.name for path in folder_path.iterdir())))


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr(Hub, "uploaded", [])
    return Hub


def test_a_folder_is_uploaded_to_a_new_repository(tmp_path, zoo, hub):
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    code, out, _ = zoo("export", "run", "to=safetensors", "out", "push=me/model", "--json")
    assert code == 0
    assert '"pushed": "https://huggingface.co/me/model"' in out
    assert hub.uploaded == [("me/model", ["model.safetensors", "recipe.yaml"])]
    code, _, message = zoo("export", "run", "to=safetensors", "two", "push=me/taken")
    assert code == 1
    assert "two was written" in message
    assert "the repository exists; try again: hf upload me/taken two" in message
    assert message.count("\n") == 1
    assert (tmp_path / "two" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("me/model", "HF_TOKEN"),
        *((name, "owner/name") for name in ("model", "a b/c", "../b", "a/b/c")),
    ],
)
def test_nothing_is_written_that_cannot_be_uploaded(tmp_path, zoo, monkeypatch, name, part):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    if part == "HF_TOKEN":
        # the token is asked for once the run is known to be there
        write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    code, _, message = zoo("export", "run", "to=safetensors", "out", f"push={name}")
    assert code == 2
    assert part in message
    assert not (tmp_path / "out").exists()
