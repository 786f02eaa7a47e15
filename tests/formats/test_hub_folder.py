"""Folders of weights for others: what they hold, and that zoo reads them from disk and Hub."""

import json
import subprocess

import pytest
import torch
from served_hub import serve_hub
from tiny import language
from untrained import write_checkpoint

import zoo as package
from zoo.errors import CheckpointError, RecipeError
from zoo.formats.model_card import compute_wilson_interval
from zoo.run.hub import fetch_folder, name_results

DIGITS = ["model.dim=16", "model.depth=1", "model.heads=2", "trainer.max_steps=2"]
COMMIT = "0123456789abcdef"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a tiny vision transformer, and its folder in float16."""
    place = tmp_path_factory.mktemp("digits")
    overrides = {"model.dim": 16, "model.depth": 1, "model.heads": 2, "trainer.max_steps": 2}
    run = package.fit("vit_rope_axial", overrides, run_dir=str(place / "run"), verbose=None)
    result = package.export(
        run, place / "out", "hub_folder", dtype="float16", licence="mit", verbose=None
    )
    return run, result


@pytest.fixture
def hub(trained, monkeypatch, tmp_path):
    """A cache of the Hub with that folder as models/vit of owner/name; counts downloads."""
    snapshot = tmp_path / "models--owner--name" / "snapshots" / COMMIT
    asked = []

    def snapshot_download(repository, revision=None, allow_patterns=()):
        asked.append((repository, revision, allow_patterns))
        if repository != "owner/name":
            raise OSError("Repository Not Found for url: https://huggingface.co\nmore")
        folder = snapshot / "models" / "vit"
        folder.mkdir(parents=True, exist_ok=True)
        for file in trained[1].folder.iterdir():
            # the cache holds links to files that are named by their hash
            if not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_the_checksums_are_those_of_all_files(trained):
    result = trained[1]
    assert set(result.files) == {
        "README.md",
        "SHA256SUMS",
        "config.json",
        "model.safetensors",
        "recipe.yaml",
    }
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=result.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == len(result.files) - 1


def test_weights_are_those_of_the_run_in_the_chosen_precision(trained):
    run, result = trained
    first, second = (package.load(one).state_dict() for one in (run, result.folder))
    assert first.keys() == second.keys()
    for name, weight in first.items():
        assert second[name].dtype == weight.dtype
        expected = weight.half().to(weight.dtype) if weight.is_floating_point() else weight
        assert torch.equal(second[name], expected)


def test_the_card_says_what_was_measured_and_how(trained):
    run, result = trained
    card = (result.folder / "README.md").read_text()
    accuracy = run.metrics["test/accuracy"]
    low, high = compute_wilson_interval(accuracy, run.result["count"])
    assert f"{accuracy:.4f} | {low:.4f} to {high:.4f}" in card
    assert (
        f"{run.result['baselines']['test/accuracy']['softmax regression']:.4f} (softmax regr"
        in card
    )
    assert "## Licence\n\nmit\n" in card
    assert "license: mit" in card
    assert "stored in float16" in card
    assert "task = zoo.load(" in card
    config = json.loads((result.folder / "config.json").read_text())
    assert config["encodings"] == ["rope_axial"]


def test_an_interval_is_the_one_of_scipy():
    from scipy.stats import binomtest

    for right, count in ((0, 7), (3, 7), (97, 100), (100, 100)):
        found = binomtest(right, count).proportion_ci(0.95, "wilson")
        assert compute_wilson_interval(right / count, count) == pytest.approx(
            (found.low, found.high)
        )


@pytest.mark.parametrize("address", ["hf://owner/name/models/vit", "hf:/owner/name/models/vit/"])
def test_a_folder_of_the_hub_is_loaded(trained, hub, address):
    first, second = (package.load(one).state_dict() for one in (trained[1].folder, address))
    assert all(torch.equal(first[name], second[name]) for name in first)
    ((repository, revision, patterns),) = hub
    assert (repository, revision) == ("owner/name", None)
    # no file that could be run, and none of other folders
    assert all(one.startswith("models/vit/*.") for one in patterns)
    assert not any(one.endswith((".py", ".bin", ".ckpt")) for one in patterns)


def test_a_run_starts_from_a_folder_of_the_hub(hub, zoo):
    words = [*DIGITS, "trainer.max_steps=1", "init_from=hf://owner/name@v1/models/vit"]
    code, out, _ = zoo("fit", "vit_rope_axial", *words, "--json")
    assert code == 0
    copied = json.loads(out)["init_from"]
    assert copied["left"] == {}
    assert COMMIT in copied["checkpoint"]
    assert hub[0][1] == "v1"


def test_results_on_a_model_of_the_hub_are_written_to_runs(hub, zoo, tmp_path):
    address = "hf://owner/name/models/vit"
    code, out, _ = zoo("eval", address, "~evaluate.resolutions", "--json")
    assert code == 0
    assert (tmp_path / name_results(address) / "evaluation.json").is_file()
    assert set(json.loads(out)["metrics"]) >= {"test/accuracy", "test/loss"}


def test_a_pinned_revision_is_read_from_a_served_hub_and_then_without_it(
    trained, monkeypatch, tmp_path
):
    folder, other = trained[1].folder, tmp_path / "other.json"
    other.write_text("{}")
    first = {f"models/vit/{file.name}": file for file in folder.iterdir()}
    # the branch has moved on to a commit without weights, the tag has not
    old, new = "a" * 40, "b" * 40
    commits = {old: first | {"models/vit/run.py": other}, new: {"models/vit/config.json": other}}
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    with serve_hub("owner/name", commits, {"main": new, "v1": old}) as (hub, requests):
        monkeypatch.setattr(f"{constants}.ENDPOINT", hub)
        template = f"{hub}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        task = package.load("hf://owner/name@v1/models/vit")
        assert fetch_folder(f"hf://owner/name@{old}/models/vit").parts[-3:-2] == (old,)
        assert [file.name for file in fetch_folder("hf://owner/name/models/vit").iterdir()] == [
            "config.json"
        ]
        with pytest.raises(CheckpointError, match="hf://owner/name@v2: cannot be fetched, 404"):
            fetch_folder("hf://owner/name@v2")
    expected = package.load(folder).state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in task.state_dict().items())
    # each file once, and nothing that Python would run
    fetched = [path for method, path in requests if method == "GET" and "/resolve/" in path]
    assert sorted(path for path in fetched if old in path) == sorted(
        f"/owner/name/resolve/{old}/{name}" for name in first if not name.endswith("SHA256SUMS")
    )

    # the server is gone: the cache has this revision, and of others zoo says what to do
    assert fetch_folder("hf://owner/name@v1/models/vit").is_dir()
    with pytest.raises(CheckpointError) as refusal:
        fetch_folder("hf://owner/name@v3/models/vit")
    assert "the Hub cannot be reached, " in str(refusal.value)
    command = "hf download owner/name --revision v3 --include 'models/vit/*' --local-dir name"
    assert f"`{command}`" in str(refusal.value)
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE forbids the network, and the cache"):
        fetch_folder("hf://owner/name@v3")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hf://owner", "hf://owner: no address of the Hub; write hf://owner/name"),
        ("hf://owner/name/../other", "hf://owner/name/../other: no address of the Hub"),
        ("hf://other/name", "hf://other/name: cannot be fetched, Repository Not Found for url"),
        ("hf://owner/name/absent", "hf://owner/name/absent: there is no such folder"),
    ],
)
def test_an_address_that_cannot_be_read_is_named(hub, address, problem):
    with pytest.raises(CheckpointError) as refusal:
        fetch_folder(address)
    assert str(refusal.value).startswith(problem)


def test_choices_of_other_targets_are_refused(tmp_path):
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    for key, value in {"dtype": "float16", "licence": "mit"}.items():
        with pytest.raises(RecipeError, match=f"{key}: of to=safetensors there is no such choice"):
            package.export(tmp_path / "run", tmp_path / "out", "safetensors", **{key: value})


def test_a_language_model_is_loaded_to_the_bit_and_its_card_shows_how(tmp_path):
    write_checkpoint(tmp_path / "run", "lm_rope", language(tmp_path / "text.txt"))
    result = package.export(tmp_path / "run", tmp_path / "out", "hub_folder")
    first, second = (package.load(one).state_dict() for one in (tmp_path / "run", result.folder))
    assert all(torch.equal(first[name], second[name]) for name in first)
    card = (result.folder / "README.md").read_text()
    assert "task.generate(" in card
    assert "None is given" in card
    assert "None are recorded" in card
