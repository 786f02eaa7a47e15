"""A wrong option, then a missing file, then a missing package: that is the order of refusals.

`test_main_early.py` holds it for options. Here each command has lines that name something that is not
there, and they run where all extras are hidden.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from tiny import ROOT

from zoo.cli.commands import COMMANDS
from zoo.cli.main import join_command
from zoo.packages import EXTRAS, REQUIRED, TRANSITIVE, name_module

RECORDS = "docs/records"
FILES = [
    ("fit nothere.yaml", "nothere.yaml: there is no such recipe"),
    ("fit vit_comrope --resume nothere", "nothere: no such checkpoint"),
    ("fit vit_comrope init_from=nothere", "nothere: no such checkpoint"),
    ("fit vit_comrope data.name=images data.path=nothere data.size=[8,8]", "nothere: no such file"),
    (
        "fit seg_digits_none data.name=image_masks data.path=nothere data.size=[8,8] data.classes=2",
        "nothere: no such file",
    ),
    (
        "fit lm_rope data.name=text_table data.path=nothere data.tokens=byte",
        "nothere: no such file",
    ),
    ("fit lm_rope data.name=text_stream data.path=nothere", "nothere: no such file"),
    (
        "fit mlm_t5 data.name=text_classification data.path=nothere task.name=classification "
        "model.name=encoder",
        "nothere: no such file",
    ),
    ("fit points_first_none data.name=points data.path=nothere", "nothere: no such file"),
    ("fit lm_rope data.tokens=subword data.tokenizer=nothere", "nothere: no such file"),
    ("eval nothere", "nothere: no such checkpoint"),
    ("eval hf://nothere", "hf://nothere: no address of the Hub"),
    ("generate nothere", "nothere: no such checkpoint"),
    ("predict nothere picture.png", "nothere: no such checkpoint"),
    ("diagnose nothere", "nothere: no such checkpoint"),
    ("diagnose empty", "empty: no checkpoint in it"),
    ("diagnose", "nothing to diagnose"),
    ("atlas nothere", "nothere: no such checkpoint"),
    ("extend nothere", "nothere: no such checkpoint"),
    ("bench rope layers=[nothere.yaml]", "nothere.yaml: there is no such recipe"),
    ("compare nothere.yaml encodings=[rope]", "nothere.yaml: there is no such recipe"),
    ("compare vit_comrope", "nothing varies"),
    ("compare vit_comrope encodings=[none,none]", "the list names none twice"),
    ("compare vit_comrope encodings=[none] part=7/5", "'7/5' is no part"),
    ("compare vit_comrope encodings=[none] hypotheses=[none]", "'none' is no hypothesis"),
    ("compare vit_comrope encodings=[none] engine=sllurm", "did you mean slurm?"),
    ("compare vit_comrope encodings=[none] records=[nothere]", "nothere: no such folder"),
    ("compare vit_comrope encodings=[none] to=full", "full holds other files"),
    ("compare suite=nothere.yaml", "suite: no such file"),
    ("compare suite=small parts=[nothere]", "there is no part 'nothere'"),
    ("compare rebuild nothere", "nothere: holds no comparison"),
    ("compare rank nothere", "nothere: no such file or folder"),
    ("compare merge nothere to=new", "nothere: holds no comparison"),
    ("compare merge empty", "to: no output folder"),
    ("compare pack nothere to=new", "nothere: holds no comparison"),
    ("compare pack empty", "to: no output folder"),
    ("compare claims nothere", "nothere: holds no comparison"),
    ("compare check nothere", "nothere: holds no comparison"),
    ("launch slurm nothere.yaml", "nothere.yaml: there is no such recipe"),
    ("audit nothere", "nothere: no such folder"),
    ("audit bare", "bare: no config.json"),
    ("convert nothere", "nothere: no such file or folder"),
    ("convert nothere.gguf", "nothere.gguf: no such file or folder"),
    ("convert bare", "bare/config.json: cannot be read"),
    ("convert strange", "model_type 'strange' is not known"),
    ("export nothere to=onnx new", "nothere: no such checkpoint"),
    ("export nothere to=hf new", "nothere: no such checkpoint"),
    ("export nothere to=safetensors new", "nothere: no such checkpoint"),
    ("export nothere to=hub_folder push=owner/name new", "nothere: no such checkpoint"),
    ("export nothere to=hub_folder push=name new", "'name' is not a repository"),
    ("show nothere.yaml", "nothere.yaml: there is no such recipe"),
    ("show rope picture=nothere/rope.png", "there is no folder nothere"),
    ("diff nothere.yaml vit_none", "nothere.yaml: there is no such recipe"),
]
"""Command lines that name something that is not there, and what is said about each."""
LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
"""The config.json of weights whose package is missing."""
WITHOUT_FILES = {"verify", "list", "new", "doctor"}
"""Commands that read no file that a user names."""
NEEDS = [
    ("compare vit_comrope encodings=[none] seeds=1", "altair"),
    (f"compare rebuild {RECORDS}/counting", "altair"),
    (f"compare rank {RECORDS}/digits {RECORDS}/copying", "scipy"),
    (f"compare merge {RECORDS}/counting to=new", "altair"),
    (f"compare pack {RECORDS}/counting to=new", "scipy"),
    (f"compare claims {RECORDS}/counting", "scipy"),
    ("convert weights", "safetensors"),
    ("convert weights.gguf", "gguf"),
    ("show rope picture=rope.png", "altair"),
    ("fit vit_comrope data.name=images data.path=full data.size=[8,8]", "datasets"),
]
"""Command lines that are right, and the package that each needs first."""
DRAWN = ["altair", "vl_convert", "vl_convert_python"]
"""Names of the packages that draw charts."""
UNDRAWN = [
    "compare vit_comrope encodings=[none] --dry-run",
    f"compare pack {RECORDS}/counting to=packed",
    f"compare claims {RECORDS}/counting",
]
"""Command lines that need packages of extras, and none that draws."""
CORE = {*REQUIRED, *TRANSITIVE, "fsspec", "Jinja2", "MarkupSafe"}
"""Distributions that an installation without extras has; torch and lightning bring the last three."""
RUN = """
import contextlib, io, json, os, sys, traceback
from importlib.machinery import PathFinder

stages = json.load(sys.stdin)
hidden = []

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            return None
        return PathFinder.find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *arguments, **more):
        for one in PathFinder.find_distributions(*arguments, **more):
            if one.metadata["Name"].lower().replace("-", "_") not in hidden:
                yield one

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from zoo.cli.main import main

def refuse(line):
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                code = main(line.split())
            except BaseException:
                code = traceback.format_exc()
    return code, shown.getvalue()

answers = []
for hidden, lines in stages:
    answers.append([refuse(line) for line in lines])
print(json.dumps(answers))
"""


def run(folder, *stages):
    """Return code and message of each line of each stage, all in one process.

    Args:
        folder: The folder in which the process starts.
        stages: Modules that are hidden, and command lines. Packages that were hidden in one stage
            can be imported in the next.
    """
    (folder / "docs").symlink_to(ROOT / "docs")
    for name in ("empty", "full", "bare", "strange", "weights"):
        (folder / name).mkdir()
    (folder / "full" / "notes.txt").touch()
    for name in ("bare", "strange", "weights"):
        (folder / name / "model.safetensors").touch()
    (folder / "strange" / "config.json").write_text('{"model_type": "strange"}')
    (folder / "weights" / "config.json").write_text(json.dumps(LLAMA))
    (folder / "weights.gguf").touch()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN],
        input=json.dumps([[[*hidden], lines] for hidden, lines in stages]),
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def list_modules(*extras):
    """Return the names by which extras are imported and found, without packages of the core."""
    names = [name for extra in extras for name in EXTRAS[extra] if name not in CORE]
    return {name_module(name) for name in names} | {
        name.lower().replace("-", "_") for name in names
    }


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory):
    """Return the folder of one process, and code and message by line without extras and charts."""
    folder = tmp_path_factory.mktemp("without_extras")
    hidden, lines = list_modules(*EXTRAS), [line for line, _ in (*FILES, *NEEDS)]
    assert hidden >= {*DRAWN}
    answers, undrawn = run(folder, (hidden, lines), (DRAWN, UNDRAWN))
    return folder, dict(zip(lines, answers, strict=True)), dict(zip(UNDRAWN, undrawn, strict=True))


def test_what_is_not_there_is_named_before_a_missing_package(without_extras):
    _, refusals, _ = without_extras
    for line, message in FILES:
        code, text = refusals[line]
        assert code in (2, 4, 5), f"{line}: {code} {text}"
        assert message in text, f"{line}: {text}"
        assert "this needs" not in text, f"{line}: {text}"


def test_every_command_that_reads_files_has_a_line():
    named = {join_command(line.split())[0] for line, _ in FILES}
    assert named.isdisjoint(WITHOUT_FILES)
    assert named | WITHOUT_FILES == {*COMMANDS}


def test_a_right_line_names_the_missing_package_with_its_extra(without_extras):
    folder, refusals, _ = without_extras
    for line, package in NEEDS:
        code, text = refusals[line]
        assert code == 2, f"{line}: {code} {text}"
        remedy = rf"zoo: this needs {package}[^:]*: (\S+ -m )?pip install -e '{ROOT}\[(\w+)\]'"
        found = re.fullmatch(remedy, text.splitlines()[-1])
        assert found, f"{line}: {text}"
        assert package in EXTRAS[found[2]], f"{line}: {text}"
    assert not (folder / "new").exists()


def test_what_draws_nothing_needs_no_altair(without_extras):
    folder, _, answers = without_extras
    for line, (code, text) in answers.items():
        assert code == 0, f"{line}: {text}"
    assert {"plan.json", "results.json", "comparison.md"} <= {*os.listdir(folder / "packed")}
    assert not (folder / "packed" / "index.html").exists()
