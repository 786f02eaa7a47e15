"""Of the files in a folder, those are read that transformers reads."""

import json
import shutil

import pytest
import torch
from decoders import build

import zoo as package
from zoo.errors import CheckpointError
from zoo.formats.convert import find_gguf, read_published
from zoo.weights import INDEX, find_weights, read_shapes

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders of one model, with one file and with two shards, and its weights."""
    root = tmp_path_factory.mktemp("published")
    model = build(transformers, "Llama")
    model.save_pretrained(root / "whole")
    model.save_pretrained(root / "shards", max_shard_size="50KB")
    assert sorted(file.name for file in (root / "shards").glob("*.safetensors")) == [*SHARDS]
    return root


@pytest.fixture
def folder(published, tmp_path):
    """Copy a folder, to which a test may add files."""

    def copy(kind):
        shutil.copytree(published / kind, tmp_path / "it")
        return tmp_path / "it"

    return copy


def write(file, weights):
    safetensors.save_file(weights, file, {"format": "pt"})


def shift(file):
    return {name: weight + 0.1 for name, weight in safetensors.load_file(file).items()}


def require_same(folder):
    """The weights that zoo reads are those that transformers loads."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    right, found = model.state_dict(), read_published(folder).weights
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], right[name]) for name in right)
    assert {name: tuple(one.shape) for name, one in read_shapes(folder).items()} == {
        name: tuple(one.shape) for name, one in right.items()
    }


STRAY = (
    "model_old.safetensors",
    "optimizer.safetensors",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "model-00001-of-00003.safetensors",
    "model.fp16.safetensors",
    "a.safetensors",
    "zzz.safetensors",
)


@pytest.mark.parametrize("kind", ["whole", "shards"])
def test_files_under_other_names_are_not_read(folder, kind, caplog):
    place = folder(kind)
    first = next(place.glob("*.safetensors"))
    for name in STRAY:
        write(place / name, shift(first))
    (place / "model-00009-of-00009.safetensors").write_bytes(b"no safetensors")
    with caplog.at_level("INFO", "zoo"):
        require_same(place)
    assert all(name in caplog.text for name in STRAY)
    assert package.convert(place, to=place.parent / "run").difference < 1e-5


def test_one_file_comes_before_an_index(folder, published):
    """As in transformers: shards that a merged model has left behind."""
    place = folder("shards")
    write(place / "model.safetensors", shift(published / "whole" / "model.safetensors"))
    require_same(place)
    (place / SHARDS[0]).unlink()
    require_same(place)


def change_index(place, change):
    file = place / INDEX
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


def test_shards_and_their_index_agree_or_are_refused(folder):
    place = folder("shards")
    first, second = (place / name for name in SHARDS)
    weights, other = safetensors.load_file(first), safetensors.load_file(second)
    name, moved = next(iter(weights)), next(iter(other))

    write(second, {**other, name: weights[name] + 1})
    with pytest.raises(CheckpointError, match=f"{name} is in {SHARDS[0]} and in {SHARDS[1]}"):
        read_published(place)

    write(second, {key: one for key, one in other.items() if key != moved})
    with pytest.raises(CheckpointError, match=f"{moved} is not in {SHARDS[1]}, where {INDEX}"):
        read_published(place)
    write(first, {**weights, moved: other[moved]})
    with pytest.raises(CheckpointError, match=f"{moved} is not in {SHARDS[1]}, where {INDEX}"):
        read_published(place)

    # the index may be silent about a tensor that a shard has
    write(first, weights)
    write(second, other)
    change_index(place, lambda places: places.pop(moved))
    require_same(place)

    second.unlink()
    with pytest.raises(CheckpointError, match=rf"not all files .*\n  missing: {SHARDS[1]}"):
        read_published(place)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "not an index of weights"),
        ("[", "not an index of weights"),
        ('{"weight_map": 3}', "not an index of weights"),
        ('{"weight_map": {}}', "names no file"),
        ('{"weight_map": {"x": "../it/model.bin"}}', "not safetensors of its folder"),
        ('{"weight_map": {"x": "/etc/passwd"}}', "not safetensors of its folder"),
        ('{"weight_map": {"x": "../whole/model.safetensors"}}', "not safetensors of its folder"),
        ('{"weight_map": {"x": "\\u001b.safetensors"}}', r"missing: \\x1b.safetensors"),
    ],
)
def test_a_damaged_index_is_named(folder, content, problem):
    place = folder("shards")
    (place / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=problem) as error:
        find_weights(place)
    assert "\x1b" not in str(error.value)


def test_shards_without_their_index_are_refused(folder):
    place = folder("shards")
    (place / INDEX).unlink()
    with pytest.raises(CheckpointError, match=rf"no {INDEX}.* there are {SHARDS[0]}, .*restore"):
        read_published(place)
    assert read_shapes(place) == {}


def test_an_adapter_is_refused_with_the_way_on(folder, tmp_path):
    """Also beside sound weights, to which transformers would add it."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    write(adapter / "adapter_model.safetensors", {"lora_A": torch.ones(2)})
    beside = folder("whole")
    shutil.copytree(adapter, beside, dirs_exist_ok=True)
    for place in (adapter, beside):
        with pytest.raises(CheckpointError, match=r"adapter of peft.*merge_and_unload of peft"):
            read_published(place)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors is an adapter of peft"):
        read_published(adapter)


def test_which_of_several_gguf_files_is_meant_is_asked(tmp_path):
    (tmp_path / "model.Q4.gguf").touch()
    assert find_gguf(tmp_path) == tmp_path / "model.Q4.gguf"
    (tmp_path / "model.Q8.gguf").touch()
    with pytest.raises(CheckpointError, match=r"name one file: model.Q4.gguf, model.Q8.gguf"):
        find_gguf(tmp_path)
    (tmp_path / "model.Q8.gguf").rename(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="which weights are meant"):
        find_gguf(tmp_path)


def test_a_recipe_of_a_model_of_transformers_reads_the_same_files(folder, tmp_path):
    """Sizes are checked against the weights that transformers loads."""
    place = folder("whole")
    (place / "damaged.safetensors").write_bytes(b"no safetensors")
    (tmp_path / "text.txt").write_text("one two three " * 50)
    edits = {
        "model": {"name": "transformers", "path": str(place), "encoding": ["rope"]},
        "data": {"name": "text", "files": [str(tmp_path / "text.txt")], "length": 16},
    }
    recipe = package.load_recipe("lm_rope", {**edits, "data.tokens": "character"})
    assert package.build_model(recipe) is not None
