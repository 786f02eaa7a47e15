"""Whatever is wrong with a recipe or an argument: exit code 2, at most six lines with place, key and remedy, no start."""

from pathlib import Path

import pytest

RECIPES = {
    "empty.yaml": b"",
    "binary.yaml": bytes(range(256)),
    "list.yaml": b"- a\n- b\n",
    "syntax.yaml": b"model: {name: vit\ntask: }\n",
    "twice.yaml": b"extends: vit_comrope\nseed: 1\nseed: 2\n",
    "bomb.yaml": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (c, c, b", ".join([b"*%c" % (c - 1)] * 9))
        for c in range(ord("b"), ord("k"))
    ),
    "deep.yaml": b"[" * 5000,
    "code.yaml": b"extends: vit_comrope\nmodel: !!python/object/apply:os.system ['touch hacked']\n",
    "resolver.yaml": b"extends: vit_comrope\nseed: ${oc.env:HOME}\n",
    "cycle.yaml": b"extends: vit_comrope\nmodel: {dim: '${model.depth}', depth: '${model.dim}'}\n",
    "itself.yaml": b"extends: itself.yaml\n",
    "one.yaml": b"extends: other.yaml\n",
    "other.yaml": b"extends: one.yaml\n",
    "nowhere.yaml": b"extends: model/vit_huge\n",
    "section.yaml": b"extends: vit_comrope\nmodle: {dim: 32}\n",
    "endless.yaml": b"extends: vit_comrope\ntrainer: {max_epochs: null}\n",
}

WRONG = {
    # the recipe
    "no such recipe": (["vit_comrop"], ["vit_comrop", "did you mean vit_comrope?"]),
    "a directory": (["."], [".", "folder"]),
    "a fragment": (
        ["{root}/configs/model/vit_tiny.yaml"],
        ["vit_tiny.yaml", "fragment", "extends"],
    ),
    "an empty file": (["empty.yaml"], ["empty.yaml", "empty"]),
    "a binary file": (["binary.yaml"], ["binary.yaml"]),
    "a list": (["list.yaml"], ["list.yaml:1"]),
    "broken syntax": (["syntax.yaml"], ["syntax.yaml:2"]),
    "a key twice": (["twice.yaml"], ["twice.yaml:3", "seed", "2"]),
    "an alias bomb": (["bomb.yaml"], ["bomb.yaml"]),
    "nesting without end": (["deep.yaml"], ["deep.yaml", "deep"]),
    "code": (["code.yaml"], ["code.yaml:2", "tag", "os.system"]),
    "a resolver": (["resolver.yaml"], ["resolver.yaml:2", "seed", "oc.env"]),
    "an interpolation cycle": (["cycle.yaml"], ["cycle.yaml:2", "model.d"]),
    "a recipe that extends itself": (["itself.yaml"], ["itself.yaml:1", "extends"]),
    "two that extend each other": (["one.yaml"], ["other.yaml:1", "extends"]),
    "a missing fragment": (["nowhere.yaml"], ["nowhere.yaml:1", "model/vit_huge"]),
    "a misspelt section": (["section.yaml"], ["section.yaml:2", "modle", "did you mean model?"]),
    "no length of training": (["endless.yaml"], ["endless.yaml:2", "trainer", "max_epochs"]),
    # keys, types, names
    "a misspelt key": (
        ["vit_comrope", "model.depht=3"],
        ["command line", "model.depht", "did you mean model.depth?"],
    ),
    "a misspelt nested key": (
        ["vit_comrope", "model.block.nrm=rms"],
        ["model.block.nrm", "model.block.norm?"],
    ),
    "a misspelt trainer key": (
        ["vit_comrope", "trainer.max_epoch=3"],
        ["trainer.max_epoch", "trainer.max_epochs?"],
    ),
    "a misspelt option": (
        ["vit_comrope", "model.encoding.0.blok=4"],
        ["model.encoding.0.blok", "block?"],
    ),
    "a word for a number": (
        ["vit_comrope", "model.depth=four"],
        ["model.depth", "an integer", "'four'"],
    ),
    "a fraction for a count": (
        ["vit_comrope", "data.batch_size=1.5"],
        ["data.batch_size", "an integer", "1.5"],
    ),
    "a number for a switch": (
        ["vit_comrope", "trainer.compile=1"],
        ["trainer.compile", "a boolean"],
    ),
    "a number out of range": (
        ["vit_comrope", "task.label_smoothing=2"],
        ["task.label_smoothing", "2"],
    ),
    "an unknown word": (["vit_comrope", "model.pool=max"], ["model.pool", "mean", "class"]),
    "an unknown encoding": (
        ["vit_comrope", "model.encoding=comrope_lt"],
        ["model.encoding.0", "comrope_ld?"],
    ),
    "an unknown model": (["vit_comrope", "model.name=vitt"], ["model.name", "vit"]),
    "an unknown optimizer": (["vit_comrope", "optim.name=adamww"], ["optim.name", "adamw?"]),
    "keys of another data source": (["vit_comrope", "data.path=/tmp"], ["data.path", "unknown"]),
    # what does not fit together
    "heads that do not divide": (["vit_comrope", "model.heads=5"], ["model.heads", "96", "5"]),
    "a block that does not divide": (
        ["vit_comrope", "model.encoding.0.block=6"],
        ["model.encoding.0.block", "6"],
    ),
    "a patch that does not divide": (
        ["vit_comrope", "model.patch_size=3"],
        ["model.patch_size", "3", "16 x 16"],
    ),
    "one axis for an image": (
        ["vit_comrope", "model.encoding=rope"],
        ["model.encoding.0", "1 axis, not 2"],
    ),
    "an encoding twice": (
        ["vit_comrope", "model.encoding=[learned,learned]"],
        ["model.encoding", "learned", "twice"],
    ),
    "two rotations": (
        ["vit_comrope", "model.encoding=[rope_axial,liere]"],
        ["model.encoding", "rope_axial and liere"],
    ),
    "a resolution that does not fit": (
        ["vit_comrope", "evaluate.resolutions=[17]"],
        ["evaluate.resolutions", "17"],
    ),
    "shares of more than all": (["vit_comrope", "data.val=0.9"], ["data.val", "0.9"]),
    "a device that is not there": (
        ["vit_comrope", "trainer.accelerator=tpu"],
        ["trainer", "torch_xla"],
    ),
    # overrides and arguments
    "a plus": (["vit_comrope", "+model.depth=3"], ["+model.depth=3", "model.depth=3"]),
    "no value": (["vit_comrope", "model.depth"], ["model.depth", "write model.depth=..."]),
    "broken value": (["vit_comrope", "model.encoding=[a"], ["model.encoding=[a"]),
    "removal of what is not there": (["vit_comrope", "~model.dephts"], ["model.dephts"]),
    "an unknown flag": (["vit_comrope", "--epochs", "3"], ["--epochs"]),
    "an unknown plug-in": (["vit_comrope", "--plugin", "no_such_package"], ["no_such_package"]),
    "an existing run directory": (
        ["vit_comrope", "--run-dir", "full"],
        ["--run-dir", "full", "--resume"],
    ),
}


@pytest.fixture
def files(tmp_path):
    for name, text in RECIPES.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_nothing_is_started_and_the_answer_helps(case, files, zoo, tmp_path):
    arguments, expected = WRONG[case]
    before = sorted(tmp_path.rglob("*"))
    root = Path(__file__).parents[2]
    code, out, message = zoo(
        "fit", *(word.format(root=root) if "{root}" in word else word for word in arguments)
    )
    assert code == 2, message
    assert out == ""
    assert 1 <= len(message.strip().splitlines()) <= 6, message
    assert "Traceback" not in message
    for word in expected:
        assert word in message
    assert sorted(tmp_path.rglob("*")) == before


def test_all_faults_are_told_at_once(zoo):
    code, _, message = zoo(
        "fit", "vit_comrope", "model.depht=1", "optim.lr=fast", "data.size=x", "seed=-1"
    )
    assert code == 2
    assert all(key in message for key in ("model.depht", "optim.lr", "data.size", "seed"))
    code, _, message = zoo(
        "fit", "vit_comrope", "model.heads=5", "data.val=0.9", "trainer.accelerator=tpu"
    )
    assert code == 2
    assert all(key in message for key in ("data.val", "trainer"))


@pytest.mark.parametrize(
    "arguments", [(), ("fitt", "x"), ("fit",), ("list", "encoding"), ("show", "ropee"), ("eval",)]
)
def test_wrong_verbs_and_arguments(arguments, zoo):
    code, out, message = zoo(*arguments)
    assert (code, out) == (2, "")
    assert 1 <= len(message.strip().splitlines()) <= 6
