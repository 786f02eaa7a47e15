"""Every code block of the documentation runs, page by page, in an empty folder.

The Python of a page runs in one namespace. The recipe of a command is resolved as printed, then the
command runs with the words of SMALL_COMMANDS added, which leave it little to do. YAML is loaded as a
recipe or as sections of one. PREPARE provides what a page expects to exist (photos, a model of a
hub), SUBSTITUTIONS replaces words that stand for something, and EXCLUDED lists what does not run.
"""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from pictures import encode, parquet
from small_recipes import ROOT, shrink, write_data
from tables import corpus
from torch.nn.functional import cross_entropy
from without_torchvision import import_timm

import zoo as library
from zoo.benchmark import models
from zoo.benchmark.protocol import Contender, Workload, find_refusal
from zoo.cli import main
from zoo.comparison.suite import load_suite
from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.data.corpus.tokenizer import train_bpe
from zoo.utils import follow_latest

# its commands are those of claims.yaml, which test_evidence.py checks one by one
GENERATED = ROOT / "docs" / "claims.md"
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if path != GENERATED
    ),
]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PROGRAMS = "zoo|pip|make|python|torchrun|sbatch|source|transformers|curl|lm_eval|tensorboard"
UNFENCED = re.compile(rf"^ {{4,}}(?:\$ )?(?:{PROGRAMS}|import|from|def) ", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = []
    for found in FENCED.finditer(text):
        indent, language, content = found.groups()
        lines = "".join(line.removeprefix(indent) for line in content.splitlines(keepends=True))
        blocks.append(Block(page, text.count("\n", 0, found.start()) + 1, language, lines))
    return blocks


def read_commands(block: Block) -> list[str]:
    """Return the commands of a shell block, without prompts and comments."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    lines = (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


EXCLUDED = {
    (
        "docs/equip.md",
        "zoo fit vit_comrope '~model'",
    ): "timm 1 imports torchvision, which tests lack",
    ("docs/export.md", "transformers serve"): "starts a server; a test of export does so",
    ("docs/export.md", "curl"): "asks that server",
    ("docs/export.md", "lm_eval run"): "another program; a test of export runs it on the same task",
    ("docs/export.md", "task: mine"): "a task of lm_eval, not of zoo; the same test reads it",
    ("docs/scale.md", "zoo fit RECIPE"): "a pattern: RECIPE, key and DIR stand for anything",
    ("docs/export.md", "zoo export RUN"): "a pattern: RUN, TARGET and FOLDER stand for anything",
    ("docs/scale.md", "sbatch"): "needs SLURM",
    ("docs/scale.md", "apiVersion: jobset"): "a manifest of Kubernetes",
    ("docs/scale.md", "apiVersion: trainer"): "a manifest of Kubeflow",
    ("docs/runs.md", "torchrun"): "starts processes; tests of run do so",
    ("docs/diagnostics.md", "tensorboard"): "starts a server",
    (
        "docs/training.md",
        "python tests/benchmarks/training.py",
    ): "a pattern: RECIPE and STEPS stand for anything",
    ("docs/quickstart.md", "source .venv"): "changes the user's shell",
}
"""Blocks and commands that do not run, by page and beginning. Remove entries; add none."""
MOST_EXCLUDED = 14
"""How many blocks may be excluded. Lower it with every entry that goes."""


def find_exclusion(page: str, text: str) -> tuple[str, str] | None:
    """Return the key in EXCLUDED of a block or command."""
    keys = (key for key in EXCLUDED if key[0] == page and text.lstrip().startswith(key[1]))
    return next(keys, None)


SUBSTITUTIONS = {
    "docs/audit.md": {
        "RUN": "runs/lm_rope/latest",
        "model=NAME": "model=tiny",
        "reference=FOLDER": "reference=reference",
        "FOLDER": "llama",
        "lambda ids, positions=None: ...": "compute_logits",
        "lambda ids, cache, **options: ...": "compute_cached",
        "vocab_size=32_000": "vocab_size=256",
        "...  # forward and backward, no update": (
            "loss = train(documents, packed, accumulation, checkpointing)"
        ),
    },
    "docs/language.md": {
        "hub:Salesforce/wikitext:wikitext-2-raw-v1": "made",
        "hub:openai-community/gpt2": "words.json",
        "data.path=FOLDER": "data.path=made",
    },
    "docs/python.md": {
        # two small cells in place of nine whole ones, and one in place of twelve
        'zoo.compare("vit_comrope"': 'zoo.compare("small.yaml"',
        'encodings=["none", "rope_axial", "comrope_ld"], seeds=3': 'encodings=["none"], seeds=2',
        'encodings=["none", "rope_axial"], vary={"optim.lr": [3e-4, 1e-3]}': (
            'encodings=["none"], seeds=1, vary={"optim.lr": [3e-4]}'
        ),
    },
    "docs/comparing.md": {
        "rebuild DIR": "rebuild comparisons/small",
        # a record with hypotheses
        "claims DIR": "claims comparisons/flipflop",
        "comparisons/vit_comrope-1a2b3c4d": "comparisons/small",
        # two trials of one step in place of twenty of ten epochs
        'zoo.fit("vit_comrope"': 'zoo.fit("small.yaml"',
        '"trainer.max_epochs": 10,': "",
        "n_trials=20": "n_trials=2",
    },
    "docs/diagnostics.md": {
        "RUN_A RUN_B": "runs/vit_comrope/latest runs/vit_rope_axial/latest",
        "RUN": "runs/vit_comrope/latest",
    },
    "docs/equip.md": {"FOLDER": "llama"},
    "docs/export.md": {"hf://owner/name@v1": "weights", "hf://owner/name": "weights"},
    "docs/runs.md": {
        "RUN photos/": "runs/vit_comrope/latest photos/",
        "RUN letters/": "runs/lm_rope/latest letters/",
    },
    "docs/tasks.md": {"eval RUN": "eval copying_rope"},
    "docs/training.md": {"init_from=RUN": "init_from=runs/lm_none/latest"},
}
"""Words of a page that stand for something, and what they stand for here."""


FILES = {
    "docs/adding.md": {
        '"""A bias for near tokens': "my_zoo/encodings/window.py",
        "from zoo.encodings": "my_zoo/encodings/window.py",
        "    def panels": "my_zoo/encodings/window.py",
        "# Near patches": "my_zoo/recipes/vit_window.yaml",
    },
    "docs/equip.md": {"# lm_mine.yaml": "lm_mine.yaml"},
    "docs/images.md": {"extends: [model/vit_light": "mine.yaml"},
}
"""Files that a page has its reader write, by the beginning of the block."""


@dataclass
class Reader:
    """Follows one page in an empty folder."""

    page: str
    folder: Path
    run_store: Path
    """Runs of registered recipes that pages share."""
    capsys: pytest.CaptureFixture[str]
    namespace: dict[str, Any] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)
    """Substitutions that are known when the page is prepared, such as an address."""
    stack: ExitStack = field(default_factory=ExitStack)
    """Closes what the preparation has opened."""

    def follow(self, block: Block) -> None:
        """Run or check a block. Raises if it fails."""
        if block.language == "sh":
            for command in read_commands(block):
                if self.can_run(command):
                    self.run_command(command)
        elif self.can_run(block.text):
            self.run_block(block)

    def can_run(self, text: str) -> bool:
        """Return whether a block or command is not excluded."""
        return find_exclusion(self.page, text) is None

    def run_block(self, block: Block) -> None:
        """Run or check a block other than a shell block."""
        text = self.substitute(block.text)
        if file := find_file(block):
            write_part(self.folder / file, text)
            if file.endswith(".yaml"):
                load(file)
        elif block.language == "python":
            exec(compile(text, str(block), "exec"), self.namespace)
        elif block.language == "pycon":
            run_doctest(block, self.namespace)
        elif block.language == "console":
            (command,) = read_commands(block)
            self.train_runs(command)
            error = self.run_zoo(shlex.split(command)[1:], code=2)
            error = re.sub(r"\d{8}-\d{6}-[0-9a-f]{8}", "TIME-HASH", error)
            assert error == block.text.partition("\n")[2]
        elif block.language == "yaml":
            check_yaml(text)
        elif block.language == "toml":
            assert tomllib.loads(text)
        else:
            assert block.language == "", f"{block}: no test knows {block.language}"
            assert not re.match(rf"(?:\$ )?(?:{PROGRAMS}) ", text), f"{block}: label it sh"

    def substitute(self, text: str) -> str:
        """Return a text with its stand-ins."""
        stand_ins = {**SUBSTITUTIONS.get(self.page, {}), **self.stand_ins}
        for word, replacement in stand_ins.items():
            text = text.replace(word, replacement)
        return text

    def run_command(self, command: str) -> None:
        """Run or check one command. Raises AssertionError if it fails."""
        command = self.substitute(command)
        program, *words = shlex.split(command)
        if program == "zoo":
            self.train_runs(command)
            # the quickstart promises that its commands run as they are printed
            is_exact = self.page == "docs/quickstart.md"
            more = [] if is_exact else SMALL_COMMANDS.get(words[0], lambda words: [])(words)
            taken = "to=taken" in more
            error = self.run_zoo([*words, *more], code=2 if taken else 0)
            if taken:
                assert re.search(r"zoo: 1 config error.*\n.*taken holds other files", error), error
        elif program == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), command
        elif program == "pip":
            check_pip(words)
        elif program == "git":
            subprocess.run(command, shell=True, check=True, capture_output=True)
        elif program == "python":
            paths = [word for word in words if word.startswith(("tests/", "examples/"))]
            assert paths, command
            assert all((ROOT / path).exists() for path in paths), command
        else:
            raise AssertionError(f"{self.page}: {command}: no test knows {program}")

    def run_zoo(self, words: list[str], *, code: int = 0) -> str:
        """Run a command of zoo in this process, and return its standard error."""
        self.capsys.readouterr()
        assert main(words) == code, (words, self.capsys.readouterr().err)
        return self.capsys.readouterr().err

    def train_runs(self, text: str) -> None:
        """Train the recipes of all runs that a text names."""
        for name in re.findall(r"\bruns/(\w+)/latest", text):
            self.train(name)

    def train(self, name: str) -> None:
        """Provide a run of a recipe, of two steps, unless the page has made one."""
        run = self.folder / "runs" / name
        if run.exists():
            return
        stored = self.run_store / name
        if not stored.exists():
            recipe = load(name)
            write_data(recipe, self.folder)
            self.train_runs(recipe.init_from or "")
            self.run_zoo(["fit", name, SHALLOW, *shrink(recipe)])
            shutil.copytree(run, stored, symlinks=True)
        else:
            shutil.copytree(stored, run, symlinks=True)


SHALLOW = "model.depth=2"
"""The override of commands that build models of a recipe."""


def is_depth_free(words: list[str]) -> bool:
    """Return whether nothing in a command on a registered recipe depends on the depth."""
    fixed = r"~model|model\.name=|(vary\.|model\.)*depth|diagnostics\.layers|init_from=(?!runs/)"
    return not words[1].endswith(".yaml") and not any(re.match(fixed, word) for word in words)


def shorten_fit(words: list[str]) -> list[str]:
    """List overrides that let `zoo fit` train for one step, once its own words are resolved."""
    flags = [n for n, word in enumerate(words) if word.startswith("--") and word != "--wait"]
    values = {n + 1 for n in flags}
    overrides = [
        word for n, word in enumerate(words) if n > 1 and n not in values and word[:2] != "--"
    ]
    recipe = load(words[1], parse_overrides(overrides))
    write_data(recipe, Path())
    # a folder of its own, so that no later command of the page evaluates this run
    folder = [] if "--run-dir" in words else ["--run-dir", f"fits/{len([*Path().glob('fits/*')])}"]
    depth = [SHALLOW] if is_depth_free(words) else []
    return [*shrink(recipe, steps=1), *depth, "trainer.devices=1", *folder]


def name_taken_folder(words: list[str]) -> list[str]:
    """Return an output folder that is refused, which happens once all else has been checked."""
    if words[1] in ("rebuild", "rank", "pack", "merge", "claims", "check"):
        return []
    Path("taken").mkdir(exist_ok=True)
    Path("taken/file").touch()
    is_of_recipe = words[0] == "compare"
    if any(word.startswith("suite=") for word in words):
        # all parts are checked alike
        return ["to=taken", "parts=[copying]"]
    # each trial is checked, and those of all studies are checked alike
    studies = [word for word in words if word.startswith("studies=")]
    few = ["studies=3", "budget=1"] if studies else []
    return ["to=taken", *few, *([SHALLOW] if is_of_recipe and is_depth_free(words) else [])]


SMALL_COMMANDS: dict[str, Callable[[list[str]], list[str]]] = {
    "fit": shorten_fit,
    "compare": name_taken_folder,
    "bench": name_taken_folder,
    "audit": lambda words: [] if "laws=" in " ".join(words) else ["laws=[batch]"],
    "verify": lambda words: ["laws=[decoding_equals_one_pass]"],
    "generate": lambda words: ["tokens=5"],
    "extend": lambda words: ["methods=[yarn]", "data.test=0.02", "data.val=0.02"],
}
"""What is added to a command, by its verb."""


def run_doctest(block: Block, namespace: dict[str, Any]) -> None:
    """Run the examples of a block, which share the namespace of their page."""
    test = doctest.DocTestParser().get_doctest(
        block.text, namespace, str(block), block.page, block.line
    )
    output: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    failed = runner.run(test, out=output.append, clear_globs=False).failed
    namespace |= test.globs
    assert failed == 0, "".join(output)


def find_file(block: Block) -> str | None:
    """Return the file that a block is a part of, if its page says so."""
    parts = FILES.get(block.page, {})
    return next((path for start, path in parts.items() if block.text.startswith(start)), None)


def write_part(path: Path, text: str) -> None:
    """Write a file, or add to it: what is indented continues its last class, imports go on top."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = [written, text] if text.startswith(" ") else [text, written]
    path.write_text("\n".join(filter(None, parts)), encoding="utf-8")


def check_yaml(text: str) -> None:
    """Check a suite, a recipe, or sections that a recipe of the page's subject could have."""
    content = yaml.safe_load(text)
    assert content, text
    path = Path("block.yaml")
    if "parts" in content:
        path.write_text(text, encoding="utf-8")
        load_suite(path)
        return
    recipe = {"extends": "vit_comrope", **content}
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    load(str(path))


def check_pip(words: list[str]) -> None:
    """Check that what `pip install` names are this package and extras that it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    for word in words[1:]:
        found = re.fullmatch(r"([\w.-]+)(?:\[([\w,]+)\])?", word)
        assert found, word
        if found[1] in (project["name"], ".") and found[2]:
            assert {*found[2].split(",")} <= {*project["optional-dependencies"]}, word
        else:
            assert word.startswith("-") or found[1] in (project["name"], "."), word


def write_pictures(folder: Path) -> None:
    """Write photos/ with two classes, photos/seven.png and scan.png."""
    for number, name in enumerate(["cat/001", "cat/002", "dog/001", "dog/002", "seven"]):
        path = folder / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number, (40, 32)))
    (folder / "scan.png").write_bytes(encode(9, (40, 32)))


def write_texts(folder: Path) -> None:
    """Write book.txt, letters/a.txt and a.txt."""
    (folder / "letters").mkdir()
    for name in ("book.txt", "letters/a.txt"):
        (folder / name).write_text("The import statement binds names. " * 600)
    (folder / "a.txt").write_text("abcabc")


def write_small_recipe(folder: Path) -> None:
    """Write small.yaml, which trains vit_comrope for one step."""
    small = {
        "extends": "vit_comrope",
        "data": {"test": 0.02, "val": 0.02},
        "trainer": {"max_steps": 1, "max_epochs": None},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")


def make_llama() -> Any:
    """Build a small random Llama, with the context of SmolLM2."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=8192,
        rope_theta=100_000.0,
    )
    return LlamaForCausalLM(config).eval()


def save_llama(folder: Path) -> None:
    """Save a small random Llama with a tokenizer of characters, as transformers does."""
    from transformers import PreTrainedTokenizerFast

    make_llama().save_pretrained(folder)
    text = "The capital of France is the import statement. " * 20
    (folder / "tokenizer.json").write_text(train_bpe([text], 256).json)
    PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)


def prepare_readme(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(reader.folder)
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name: make_llama())


def prepare_python(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    write_pictures(reader.folder)
    write_small_recipe(reader.folder)
    reader.namespace["picture"] = Image.open(reader.folder / "scan.png")
    reader.train("lm_rope")


def prepare_equip(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenize(texts: list[str], return_tensors: str) -> dict[str, torch.Tensor]:
        ids = torch.tensor([[ord(letter) for letter in text[:12]] for text in texts])
        return {"input_ids": ids}

    tokenizer: Any = tokenize
    tokenizer.decode = lambda ids: "".join(map(chr, ids))
    q, k, v = torch.randn(3, 1, 8, 16, 32)
    pos = torch.arange(16.0)[:, None]
    reader.namespace |= {"tokenizer": tokenizer, "q": q, "k": k, "v": v, "pos": pos}
    reader.namespace["model"] = make_llama()
    save_llama(reader.folder / "llama")


def prepare_language(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(reader.folder)
    corpus(reader.folder / "made")


def prepare_runs(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(reader.folder)
    write_texts(reader.folder)


def prepare_export(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide images, and a model that transformers trained further and saved."""
    reader.namespace["images"] = torch.rand(2, 1, 16, 16).numpy()
    reader.train("lm_rope")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader.run_zoo(["export", "runs/lm_rope/latest", "to=hf", "exported"])
    for auto in (AutoModelForCausalLM, AutoTokenizer):
        loaded = auto.from_pretrained("exported", trust_remote_code=True)
        loaded.save_pretrained("lm-finetuned")


def prepare_scale(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Ray by a trainer that calls its function once, in this process."""

    class TorchTrainer:
        def __init__(self, function: Callable[[], None], **options: object) -> None:
            self.function = function

        def fit(self) -> None:
            self.function()

    names = ("FailureConfig", "RunConfig", "ScalingConfig", "TorchConfig")
    configs: dict[str, Any] = dict.fromkeys(names, dict)
    for name in ("ray", "ray.train", "ray.train.torch"):
        module = ModuleType(name)
        vars(module).update({**configs, "TorchTrainer": TorchTrainer})
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda words, **options: started.append(words))
    reader.namespace["started"] = started


def prepare_weights(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(reader.folder)
    save_llama(reader.folder / "SmolLM2-135M")


def prepare_protocol(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.attention import AttentionCall, Tokens
    from zoo.attention.backends.dispatch import attend
    from zoo.attention.kv_cache import Context

    dims = library.Dims(16, heads=2)
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    reader.namespace |= {
        "AttentionCall": AttentionCall,
        "attend": attend,
        "backend": "reference",
        "causal": True,
        "chain": library.encoding(["rope", "alibi"], dims),
        "context": Context(),
        "layer": 0,
        "project": lambda x: (q, k, v),
        "scale": 8**-0.5,
        "tokens": Tokens.at(torch.randn(1, 5, 16), torch.arange(5.0)[:, None]),
        "window": None,
    }


def prepare_diagnostics(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    import base64

    import numpy

    reader.namespace |= {"np": numpy, "base64": base64}


def prepare_tasks(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ["model.encoding=rope", *shrink(load("copying_none")), "--run-dir", "copying_rope"]
    reader.run_zoo(["fit", "copying_none", *few])


def prepare_adding(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    (reader.folder / "my_zoo").mkdir()
    (reader.folder / "my_zoo" / "__init__.py").touch()
    monkeypatch.setenv("ZOO_PLUGINS", "my_zoo")


def prepare_plugin(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs" / "plugin" / "zoo_example", reader.folder / "zoo_example")
    monkeypatch.setenv("ZOO_PLUGINS", "zoo_example")


def prepare_claims(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        path = reader.folder / "cifar10" / f"{split}-0.parquet"
        parquet(path, 40, size=(32, 32), classes=10)


def prepare_comparing(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide small comparisons, one packed in a repository, and a recorded one three times."""
    write_small_recipe(reader.folder)
    few = ["encodings=[rope]", "seeds=1", *shrink(load("flipflop_rope"))]
    few += ["model.dim=16", "model.heads=2", "evaluate.lengths=[32]"]
    reader.run_zoo(["compare", "flipflop_rope", *few, "to=comparisons/small"])
    # a pilot of one step, without the variant whose level it would judge
    pilot = ["encodings=[none]", "seed=1001", "seeds=1", *shrink(load("recall_stickbreaking"))]
    reader.run_zoo(["compare", "recall_stickbreaking", *pilot, "to=comparisons/pilot"])
    packed = "docs/records/digits"
    reader.run_zoo(["compare", "pack", "comparisons/small", f"to={packed}"])
    for place in ("here", "there"):
        shutil.copytree(packed, f"{place}/digits")
    # the hash of a commit chooses the cell that is trained again
    for words in (["init"], ["config", "user.name", "me"], ["config", "user.email", "me@here"]):
        subprocess.run(["git", *words], check=True, capture_output=True)
    recorded = ROOT / "docs" / "records" / "copying"
    for name in ("flipflop", "recall", "lm"):
        folder = reader.folder / "comparisons" / name
        folder.mkdir()
        shutil.copytree(recorded, folder, dirs_exist_ok=True)


def prepare_audit(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a model, its functions, a packed batch, a training step, and a server."""
    from transformers import DataCollatorWithFlattening

    model = make_llama()
    documents = [torch.randint(3, 256, (count,)).tolist() for count in (9, 14, 6)]
    batch = DataCollatorWithFlattening()([{"input_ids": ids} for ids in documents])

    def compute_cached(ids: torch.Tensor, cache: Any, **options: torch.Tensor) -> Any:
        output = model(ids, cache=cache, use_cache=True)
        return output.logits, output.cache

    reader.namespace |= {
        "model": model,
        "MyModel": lambda config: model,
        "config": model.config,
        "layer": model.model.rotary_emb,
        "compute_logits": lambda ids, positions=None: model(ids, position_ids=positions).logits,
        "compute_cached": compute_cached,
        "documents": documents,
        "loader": [batch],
        "train": partial(train_packed, model),
    }
    save_llama(reader.folder / "llama")
    monkeypatch.syspath_prepend(ROOT / "tests" / "auditing")
    from planted_server import save_reference, serving

    save_reference(reader.folder / "reference")
    address, _ = reader.stack.enter_context(serving())
    reader.stand_ins["http://127.0.0.1:8000/v1"] = address


def train_packed(
    model: Any, documents: Sequence[list[int]], packed: bool, accumulation: int, checkpointing: bool
) -> float:
    """Compute the loss of documents and its gradients, as a sound training step does."""
    model.train()
    model.zero_grad()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    count = sum(len(document) - 1 for document in documents)
    size = -(-len(documents) // accumulation)
    parts = [documents[start : start + size] for start in range(0, len(documents), size)]
    rows = parts if packed else [[document] for document in documents]
    total = 0.0
    for row in rows:
        ids = torch.tensor([[token for document in row for token in document]])
        positions = torch.tensor([[place for one in row for place in range(len(one))]])
        logits = model(ids, position_ids=positions, use_cache=False).logits[0, :-1]
        is_inside = positions[0, 1:] > 0
        losses = cross_entropy(logits, ids[0, 1:], reduction="none")
        loss = losses[is_inside].sum() / count
        loss.backward()
        total += loss.item()
    if checkpointing:
        model.activation_checkpointing_disable()
    return total


def prepare_coming(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    (reader.folder / "input.txt").write_text("To be, or not to be. " * 4000, encoding="utf-8")


PREPARE: dict[str, Callable[[Reader, pytest.MonkeyPatch], None]] = {
    "docs/adding.md": prepare_adding,
    "docs/audit.md": prepare_audit,
    "docs/claims.md": prepare_claims,
    "docs/coming.md": prepare_coming,
    "docs/comparing.md": prepare_comparing,
    "docs/conformance.md": prepare_plugin,
    "docs/diagnostics.md": prepare_diagnostics,
    "docs/equip/timm.md": lambda reader, monkeypatch: import_timm(),
    "docs/plugin/README.md": prepare_plugin,
    "docs/protocol.md": prepare_protocol,
    "docs/scale.md": prepare_scale,
    "docs/tasks.md": prepare_tasks,
    "README.md": prepare_readme,
    "docs/python.md": prepare_python,
    "docs/equip.md": prepare_equip,
    "docs/language.md": prepare_language,
    "docs/runs.md": prepare_runs,
    "docs/export.md": prepare_export,
    "docs/weights.md": prepare_weights,
}


def check_adding(reader: Reader) -> None:
    """The encoding of the page is listed, and its own panel is in a diagnosis."""
    reader.train("vit_window")
    reader.run_zoo(["diagnose", "runs/vit_window/latest", "controls=false"])
    run = follow_latest(reader.folder / "runs" / "vit_window" / "latest")
    assert "Gains" in (run / "diagnosis.json").read_text(encoding="utf-8")


def check_audit(reader: Reader) -> None:
    """The reports were written, and the test of the page asks a law."""
    assert {path.name for path in reader.folder.glob("audit.*")} == {"audit.html", "audit.json"}
    reader.namespace["test_my_model"]("batch")


def check_comparing(reader: Reader) -> None:
    """Optuna found the best of two settings, each of which has a run directory."""
    study = reader.namespace["study"]
    runs = [library.Run(reader.folder / "study" / str(number)) for number in range(2)]
    assert study.best_value == min(run.result["best"] for run in runs)
    assert runs[0].recipe.plain()["optim"]["lr"] == study.trials[0].params["optim.lr"]


def check_quickstart(reader: Reader) -> None:
    """The commands wrote what the page promises."""
    run = follow_latest(reader.folder / "runs" / "vit_comrope" / "latest")
    assert (run / "recipe.yaml").exists()
    assert (run / "diagnosis.html").exists()
    assert (reader.folder / "first" / "index.html").exists()


def check_scale(reader: Reader) -> None:
    """Each worker starts the script that `zoo launch torchrun` writes."""
    assert reader.namespace["started"] == [["bash", "/shared/RECIPE.torchrun.sh"]]


CHECKS: dict[str, Callable[[Reader], None]] = {
    "docs/adding.md": check_adding,
    "docs/audit.md": check_audit,
    "docs/comparing.md": check_comparing,
    "docs/quickstart.md": check_quickstart,
    "docs/scale.md": check_scale,
}
"""What holds after a page was followed."""


@pytest.fixture(scope="session")
def run_store(tmp_path_factory):
    """A folder for runs of registered recipes that pages share."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def shallow(monkeypatch):
    """Let `zoo bench` check models of two layers, and whole ones only where these are refused."""

    def find(contender: Contender, workloads: Sequence[Workload]) -> str | None:
        few = [replace(one, shape=replace(one.shape, depth=2)) for one in workloads]
        return find_refusal(contender, few) and find_refusal(contender, workloads)

    monkeypatch.setattr(models, "find_refusal", find)


FIRST_PAGE = "README.md"
"""The page that a new user reads first; the others run at night."""


# peft calls a name of transformers that will be renamed.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page == FIRST_PAGE else pytest.mark.nightly)
        for page in PAGES
        if read_blocks(page)
    ],
)
def test_the_blocks_of_a_page_run(page, tmp_path, run_store, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("ZOO_PLUGINS", "")
    monkeypatch.setattr(webbrowser, "open", lambda address: True)
    reader = Reader(page, tmp_path, run_store, capsys)
    with reader.stack:
        PREPARE.get(page, lambda reader, monkeypatch: None)(reader, monkeypatch)
        for block in read_blocks(page):
            reader.follow(block)
        CHECKS.get(page, lambda reader: None)(reader)


def test_exclusions_are_few_and_needed():
    texts = []
    for page in PAGES:
        for block in read_blocks(page):
            texts += [(page, text) for text in [block.text, *read_commands(block)]]
    used = {find_exclusion(page, text) for page, text in texts}
    assert {*EXCLUDED} <= used, "remove what no longer matches a block"
    assert len(EXCLUDED) <= MOST_EXCLUDED


@pytest.mark.parametrize("page", PAGES)
def test_code_is_fenced(page):
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert UNFENCED.findall(text) == []


def find_globs(command: str) -> list[str]:
    """Words of a command that zsh would expand, or refuse where no file fits: brackets, globs."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", command)
    return [word for word in bare.split() if re.search(r"[][*?{}()]|^~(?!/)", word)]


@pytest.mark.parametrize("page", [*PAGES, "docs/claims.md"])
def test_commands_are_quoted_so_that_zsh_takes_them(page):
    commands = [
        command
        for block in read_blocks(page)
        if block.language in ("sh", "bash", "console")
        for command in read_commands(block)
        if re.match(rf"({PROGRAMS}) ", command)
    ]
    assert [command for command in commands if find_globs(command)] == []


def test_a_word_that_zsh_would_expand_is_found():
    assert find_globs("zoo eval RUN evaluate.lengths=[1x,2x]") == ["evaluate.lengths=[1x,2x]"]
    assert find_globs("zoo fit lm_rope ~model") == ["~model"]
    assert find_globs("zoo fit lm_rope data.files=letters/*.txt") == ["data.files=letters/*.txt"]
    assert find_globs("zoo eval RUN 'evaluate.lengths=[1x,2x]' '~model'") == []


def test_a_wrong_block_is_seen(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reader = Reader("page", tmp_path, tmp_path, capsys)
    wrong = {
        "python": "import zoo.no_such_module",
        "pycon": ">>> 1 + 1\n3\n",
        "sh": "zoo fit vit_comrope model.depht=2",
        "yaml": "trainer: {max_epoch: 3}",
        "toml": "a = ",
        "": "zoo fit vit_comrope",
        "js": "let a = 1",
    }
    for language, text in wrong.items():
        with pytest.raises((AssertionError, Exception)):
            reader.follow(Block("page", 1, language, text))
