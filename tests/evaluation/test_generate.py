"""Text as a user meets it: fit, resume, eval at lengths and on other texts, generate."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import LANGUAGE, LETTERS, language
from training import fit

from zoo.errors import DataError
from zoo.evaluation import evaluate as evaluation
from zoo.evaluation.results import Evaluation

FLIPFLOP = [*LANGUAGE, "data.train=64", "data.val=16", "data.test=16"]
MEMORY = ["model.memory_length=16", "data.streams=true", "data.batch_size=2"]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """train(recipe, *overrides) -> (run directory, what fit returns), each trained once, on a text of letters."""
    folder, known = tmp_path_factory.mktemp("language"), {}
    letters = language(folder / "letters.txt")

    def run(recipe, *overrides):
        key = (recipe, *overrides)
        if key not in known:
            data = FLIPFLOP if recipe.startswith("flipflop") else letters
            known[key] = fit(
                recipe,
                [*data, "evaluate.lengths=null", *overrides],
                folder / f"run{len(known)}",
                "never",
            )
        return Path(known[key]["run"]), known[key]

    return run


@pytest.fixture
def evaluate_run(zoo):
    """What `zoo eval` prints as JSON."""

    def run(*arguments):
        code, out, message = zoo("eval", *arguments, "--json")
        assert code == 0, message
        return Evaluation.from_dict(json.loads(out))

    return run


@pytest.fixture
def generate_text(zoo):
    """The samples that `zoo generate` prints as JSON."""

    def run(*arguments):
        code, out, message = zoo("generate", *arguments, "--json")
        assert code == 0, message
        return json.loads(out)["samples"]

    return run


# runs


def test_a_run_directory_holds_all_of_a_run(train):
    run, result = train("lm_rope")
    found = {
        str(path.relative_to(run)).split("/events")[0] for path in run.rglob("*") if path.is_file()
    }
    files = {
        "recipe.yaml",
        "environment.json",
        "start.json",
        "metrics.csv",
        "train.log",
        "tensorboard",
        "end.json",
    }
    files.add("checkpoints/last.ckpt")
    drawn = {f"lengths.{suffix}" for suffix in ("png", "svg", "pdf")} | {"table.tex", "table.csv"}
    assert found - {"tensorboard/hparams.yaml", *drawn} == files | {"checkpoints/best.ckpt"}
    assert result["count"] == 13
    losses = result["baselines"]["test/loss"]
    assert 0 < losses["bigram"] < 3
    # what is measured in one unit is not compared in another
    assert {*result["baselines"]} == {*result["metrics"]} - {"test/accuracy"}
    for name, loss in losses.items():
        bits = result["baselines"]["test/bits_per_character"][name]
        assert bits == pytest.approx(loss / math.log(2), rel=1e-5)
    log = (run / "train.log").read_text()
    for name, loss in losses.items():
        assert f"Baseline {name}: test/loss {loss:.4f}, test/perplexity {math.exp(loss):.4f}" in log
    best, value = min(losses, key=losses.get), result["metrics"]["test/loss"]
    assert (f"Inconclusive: test/loss {value:.4f} does not beat {best}" in log) == (
        value >= losses[best]
    )


def test_a_run_goes_on_where_it_ended(train, zoo, tmp_path):
    run, _ = train("lm_rope", "trainer.max_epochs=2")
    letters = language(
        tmp_path / "letters.txt",
        "evaluate.lengths=null",
        f"data.files=[{run.parent / 'letters.txt'}]",
    )
    assert zoo("fit", "lm_rope", *letters, "--run-dir", "broken")[0] == 0
    assert (
        zoo(
            "fit",
            "lm_rope",
            *letters,
            "trainer.max_epochs=2",
            "--run-dir",
            "broken",
            "--resume",
            "auto",
        )[0]
        == 0
    )
    broken, whole = (
        torch.load(f"{home}/checkpoints/last.ckpt", weights_only=True) for home in ("broken", run)
    )
    assert broken["global_step"] == whole["global_step"] == 26


def test_the_digest_tells_one_text_from_another(train, zoo, tmp_path):
    letters = language(tmp_path / "letters.txt", "evaluate.lengths=null")
    assert zoo("fit", "lm_rope", *letters, "--json", "--run-dir", "one")[0] == 0
    (tmp_path / "letters.txt").write_text(LETTERS[::-1])
    _, out, _ = zoo("fit", "lm_rope", *letters, "--json", "--run-dir", "two")
    assert json.loads(out)["data"] != train("lm_rope")[1]["data"]


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("lm_rope", []),
        ("lm_xl", MEMORY),
        ("flipflop_rope", []),
        ("mlm_t5", []),
        ("lm_dape", ["data.tokens=byte"]),
    ],
)
def test_eval_gives_what_training_ended_with(recipe, overrides, train, evaluate_run):
    run, result = train(recipe, *overrides)
    found = evaluate_run(run)
    assert found.metrics == result["metrics"]
    assert found.count == result["count"]


# lengths


def test_eval_at_lengths_tells_each_place_and_draws_a_figure(train, evaluate_run):
    run, result = train("lm_rope")
    found = evaluate_run(run, "evaluate.lengths=[8,16,32]")
    for length in (8, 16, 32):
        assert result["metrics"].keys() == found.find(str(length)).metrics.keys()
        assert len(found.find(str(length)).position_losses) == length
    assert found.find("16").metrics == result["metrics"]
    assert found.figure == run / "lengths.png"
    assert (run / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert (run / "lengths.pdf").read_bytes().startswith(b"%PDF")
    titles = [one["title"]["text"] for one in found.chart().to_dict(validate=False)["concat"]]
    assert titles[1].startswith("by position, windows of 32")
    with pytest.raises(DataError, match="nothing to draw"):
        replace(found, conditions=found.conditions[:1]).chart()


@pytest.mark.parametrize(
    ("recipe", "overrides"), [("lm_xl", MEMORY), ("flipflop_rope", []), ("mlm_t5", [])]
)
def test_other_models_are_measured_at_lengths_too(recipe, overrides, train, evaluate_run):
    found = evaluate_run(train(recipe, *overrides)[0], "evaluate.lengths=[8,32]")
    assert all(found.find(length).metrics["test/loss"] > 0 for length in ("8", "32"))
    assert found.figure.is_file()


def test_a_table_of_positions_refuses_what_is_past_it(train, evaluate_run, zoo):
    run, result = train("lm_learned")
    found = evaluate_run(run, "evaluate.lengths=[32,8,16]")
    assert not found.find("32").metrics
    assert "past the table of 16 positions" in found.find("32").refused
    assert found.find("16").metrics["test/loss"] == result["metrics"]["test/loss"]
    _, out, _ = zoo("eval", run, "evaluate.lengths=[32,8]")
    assert "32 tokens: refused: position 31" in out
    assert "\n8 tokens" in out


def test_a_length_that_the_text_does_not_have_is_refused(train, evaluate_run):
    found = evaluate_run(train("lm_rope")[0], "evaluate.lengths=[8,500]")
    assert "needs 501" in found.find("500").refused
    assert found.find("8").metrics["test/loss"] > 0


def test_with_a_stride_only_the_last_places_are_asked(train, evaluate_run):
    run, _ = train("lm_rope")
    found = evaluate_run(run, "evaluate.lengths=[16]", "evaluate.stride=4").find("16").metrics
    whole = evaluate_run(run).metrics
    assert found["test/loss"] != whole["test/loss"]
    assert found["test/loss"] == pytest.approx(whole["test/loss"], rel=0.05)


def test_a_figure_marks_the_length_of_training_whatever_the_data(train, evaluate_run, monkeypatch):
    run, _ = train("lm_rope")
    sizes = []

    def note_size(result, run):
        sizes.append(result.trained_size)

    monkeypatch.setattr(evaluation, "save_figure", note_size)
    evaluate_run(run, "data.length=32", "evaluate.lengths=[8]")
    assert sizes == [(16,)]


# other texts


def test_another_text_is_read_with_the_vocabulary_of_training(train, evaluate_run, tmp_path):
    (tmp_path / "song.txt").write_text("aha " * 200)
    found = evaluate_run(
        train("lm_rope")[0], "data.name=text", f"data.files=[{tmp_path / 'song.txt'}]"
    )
    assert found.count == 5
    assert found.metrics["test/loss"] > 0
    assert found.data.startswith("text ")


def test_characters_that_training_did_not_have_are_named(train, zoo, tmp_path):
    (tmp_path / "song.txt").write_text("aha ooh " * 100)
    code, out, message = zoo("eval", train("lm_rope")[0], "data.name=text", "data.files=[song.txt]")
    assert (code, out) == (4, "")
    assert "song.txt: the vocabulary of 10 characters has no 'o' at position 4" in message


# generate


def test_the_same_seed_writes_the_same_text_with_and_without_a_cache(train, generate_text):
    run, _ = train("lm_rope")
    overrides = ("prompt=abc", "tokens=30")
    (one,) = generate_text(run, *overrides)
    assert one["tokens"] == len(one["text"]) == 30
    assert one["ended"] == "tokens"
    assert generate_text(run, *overrides) == generate_text(run, *overrides, "cache=false") == [one]
    assert generate_text(run, *overrides, "seed=1") != [one]


def test_samples_are_those_of_the_seeds_that_follow(train, generate_text):
    run, _ = train("lm_rope")
    samples = generate_text(run, "prompt=abc", "tokens=20", "samples=2")
    assert samples == [
        generate_text(run, "prompt=abc", "tokens=20", f"seed={seed}")[0] for seed in (0, 1)
    ]


@pytest.mark.parametrize("greedy", ["top_k=1", "top_p=1e-6", "temperature=1e-300"])
def test_the_likeliest_token_is_taken(greedy, train, generate_text):
    run, _ = train("lm_rope")
    likeliest = generate_text(run, "prompt=abc", "tokens=20", "temperature=0")
    assert generate_text(run, "prompt=abc", "tokens=20", "seed=5", greedy) == likeliest


def test_text_ends_before_the_stop(train, generate_text):
    run, _ = train("lm_rope")
    (whole,) = generate_text(run, "prompt=abc", "tokens=60")
    assert "\n" in whole["text"]
    (sample,) = generate_text(run, "prompt=abc", "tokens=60", "stop=\\n")
    assert sample["text"] == whole["text"].partition("\n")[0]
    assert sample["ended"] == "stop"
    assert sample["tokens"] == len(sample["text"]) + 1


class Terminal:
    """Standard output that keeps what is written between two flushes apart."""

    def __init__(self):
        self.pieces = [""]

    def write(self, text):
        self.pieces[-1] += text

    def flush(self):
        self.pieces.append("")


def test_text_is_written_piece_by_piece(train, zoo, monkeypatch):
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert zoo("generate", train("lm_rope")[0], "prompt=abc", "tokens=12")[0] == 0
    first, *pieces, end, _, _ = terminal.pieces
    assert first.startswith("abc")
    assert len(first) == 4
    assert [len(piece) for piece in pieces] == [1] * 11
    assert end == "\n"


def test_what_is_printed_is_the_prompt_and_the_sample(train, zoo, generate_text, caplog):
    run, _ = train("lm_rope")
    samples = [
        sample["text"] for sample in generate_text(run, "prompt=abc", "tokens=9", "samples=2")
    ]
    caplog.clear()
    _, out, _ = zoo("generate", run, "prompt=abc", "tokens=9", "samples=2")
    assert out == f"--- 1 of 2\nabc{samples[0]}\n--- 2 of 2\nabc{samples[1]}\n"
    assert caplog.messages[0].startswith("18 tokens, ")


def test_json_is_one_object_and_nothing_else(train, zoo):
    code, out, _ = zoo("generate", train("lm_rope")[0], "prompt=abc", "tokens=5", "--json")
    assert code == 0
    assert json.loads(out).keys() == {"recipe", "checkpoint", "prompt", "samples"}


@pytest.mark.parametrize("cache", ["true", "false"])
def test_a_table_of_positions_ends_the_text(cache, train, zoo, generate_text, caplog):
    run, _ = train("lm_learned")
    (sample,) = generate_text(run, "prompt=abc", f"cache={cache}")
    assert sample["tokens"] == 14
    assert "past the table of 16 positions" in sample["ended"]
    code, out, _ = zoo("generate", run, "prompt=abc", f"cache={cache}")
    assert (code, out) == (0, f"abc{sample['text']}\n")
    assert "Ended after 14 tokens: position 16 is past the table" in caplog.text


def test_a_model_that_remembers_segments_writes_past_them(train, generate_text, zoo):
    run, _ = train("lm_xl", *MEMORY)
    (sample,) = generate_text(run, "prompt=abc", "tokens=50")
    assert sample["tokens"] == 50
    code, _, message = zoo("generate", run, "prompt=abc", "cache=false")
    assert code == 2
    assert "generate.cache: a model with memory cannot" in message


def test_bytes_are_written_as_whole_characters(train, zoo, tmp_path, monkeypatch):
    (tmp_path / "letters.txt").write_text("\u20ac\U0001f600" * 400)
    words = [
        "data.tokens=byte",
        f"data.files=[{tmp_path / 'letters.txt'}]",
        "optim.lr=0.05",
        "trainer.max_epochs=8",
        "data.length=32",
    ]
    run, _ = train("lm_rope", *words)
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert zoo("generate", run, "prompt=\u20ac", "tokens=28", "temperature=0")[0] == 0
    pieces = [piece for piece in terminal.pieces if piece]
    assert "".join(pieces) == "\u20ac" + "\U0001f600\u20ac" * 4 + "\n"
    assert pieces[1:3] == ["\U0001f600", "\u20ac"]
