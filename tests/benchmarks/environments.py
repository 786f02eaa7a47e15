"""Install zoo in fresh environments: beside torch alone, with its required packages, and with each extra alone.

    python tests/benchmarks/environments.py [bare base EXTRA ... torchvision]
    python tests/benchmarks/environments.py --releases PYTHON=TORCH ... --to docs/records/environments.json

Takes pip's own configuration and constraints.txt. `base` is installed once; the environment of an extra sees it and has
nothing else but what the extra brings. `torchvision` installs one that belongs to another torch. Needs hatchling, and
`python -m twine` to check the files where that is installed.

`--releases` installs the wheel and no extra for each interpreter and release of torch, trains the main recipe for an
epoch, and runs the tests of encodings. It writes versions, sizes, seconds and results to a file, and keeps what the file
has of other pairs. Other packages are as released today; `PYTHON=constraints` takes constraints.txt instead of a release
of torch. `python docs/build/pages.py` then writes the table of docs/environments.md.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from zoo.version import __version__

ROOT = Path(__file__).parent.parent.parent
RECORD = Path("docs/records/environments.json")
TINY = ["model.dim=16", "model.depth=1", "model.heads=2", "trainer.accelerator=cpu"]
ONCE = [*TINY, "trainer.fast_dev_run=true"]
WORDS = ["lm_rope", *ONCE, "data.length=32", "data.batch_size=8"]
LAYERS = """
import torch, zoo
encoding = zoo.encoding("rope", zoo.Dims(64, 2, 1, (16,), 0, 2))
print(zoo.functional.attend(encoding, *torch.randn(3, 1, 2, 5, 32), torch.arange(5.)[:, None]).shape)
layer = zoo.Attention(zoo.Dims(64, 2, 1, (16,), 0, 1), "alibi", causal=True)
print(layer(torch.randn(1, 5, 64)).shape)
"""
PICTURES = """
import pathlib, PIL.Image
for part in ("train", "test"):
    for number in range(40):
        folder = pathlib.Path("pictures", part, "ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("RGB", (20, 20), (number * 5, 0, 0)).save(folder / f"{number}.png")
"""
IMAGES = "{name: images, path: pictures, size: 16, batch_size: 8, augment: {randaugment: 2}}"
ROWS = "import datasets; rows = {'text': ['a b c d e f g h'] * 90}; "
ROWS += "datasets.Dataset.from_dict(rows).to_parquet('rows.parquet')"
TEXTS = "{name: text_table, path: rows.parquet, val: 0.1, test: 0.1, tokens: subword, "
TEXTS += "vocabulary: 256, length: 8, batch_size: 4}"
# torchvision that pip brings beside a CPU build of torch may lack operators that it registers
TIMM = """
import torch
operators = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import timm, zoo
model = timm.create_model("vit_tiny_patch16_224", depth=1)
zoo.equip(model, "rope_mixed")
print(model(torch.zeros(1, 3, 224, 224)).shape)
"""
LLAMA = "import transformers as t, torch, zoo; model = t.LlamaForCausalLM(t.LlamaConfig("
LLAMA += "vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, "
LLAMA += "num_attention_heads=2)); zoo.equip(model, 'alibi'); print(model(torch.zeros(1, 4, dtype=int)).logits.shape)"
FIT = ["zoo", "fit", "vit_none", *ONCE, "--run-dir", "run"]

# commands that an extra is for
EXTRAS: dict[str, list[list[str]]] = {
    "images": [["python", "-c", PICTURES], ["zoo", "fit", "vit_none", *ONCE, f"data={IMAGES}"]],
    "text": [["python", "-c", ROWS], ["zoo", "fit", "lm_rope", *ONCE, f"data={TEXTS}"]],
    "compare": [["zoo", "compare", "vit_none", *ONCE, "encodings=[none,rope_mixed]", "seeds=1"]],
    "hf": [["python", "-c", LLAMA]],
    "timm": [["python", "-c", TIMM]],
    "export": [
        FIT,
        ["zoo", "export", "run", "to=safetensors", "weights"],
        ["zoo", "export", "run", "to=onnx", "onnx"],
    ],
    "slurm": [["python", "-c", "import submitit"]],
    "shell": [["zoo", "--print-completion", "bash"]],
    "notebooks": [["python", "-c", "import ipykernel, nbclient, nbformat"]],
}


class Environment:
    """A virtual environment; `beneath` is one whose packages it sees."""

    def __init__(
        self, folder: Path, beneath: "Environment | None" = None, python: str | None = None
    ) -> None:
        self.folder = folder
        if python is None:
            venv.create(folder, with_pip=True, symlinks=True)
        else:
            subprocess.run([python, "-m", "venv", str(folder)], check=True)
        (self.site,) = folder.glob("lib/python*/site-packages")
        if beneath is not None:
            (self.site / "beneath.pth").write_text(str(beneath.site))
        self.home = folder / "home"
        self.home.mkdir()

    def install(self, *words: str, constrained: bool = True) -> None:
        pip = ["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        self.run([*pip, *(["-c", str(ROOT / "constraints.txt")] if constrained else []), *words])

    def run(self, words: list[str], code: int = 0) -> str:
        """Run a program of the environment, and return what it prints."""
        done = self._start(words, code)
        return done.stdout + done.stderr

    def read(self, words: list[str]) -> dict:
        """Run a program of the environment, and return the JSON of its standard output."""
        return json.loads(self._start(words, 0).stdout)

    def _start(self, words: list[str], code: int) -> subprocess.CompletedProcess[str]:
        program = self.folder / "bin" / words[0]
        if words[0] == "zoo":  # the script may be of the environment beneath
            program, words = self.folder / "bin" / "python", ["python", "-m", "zoo", *words[1:]]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            [program, *words[1:]],
            cwd=self.home,
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"},
            capture_output=True,
            text=True,
        )
        message = done.stdout + done.stderr
        assert done.returncode == code, f"{' '.join(words)}\n{message[-3000:]}"
        return done

    def list_packages(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in self.site.glob("*.dist-info"))


def build_files(folder: Path) -> Path:
    """Build wheel and source distribution, check them with twine, and return the wheel."""
    words = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    files = sorted(map(str, folder.iterdir()))
    if importlib.util.find_spec("twine") is not None:
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    return next(folder.glob("*.whl"))


def try_release(wheel: str, folder: Path, python: str, torch: str) -> dict[str, object]:
    """Install the wheel for one Python and torch, train the main recipe, run the tests of encodings."""
    constrained = torch == "constraints"
    own = Environment(folder, python=python)
    own.install("--upgrade", "pip", constrained=False)
    begun = time.monotonic()
    words = [wheel] if constrained else [wheel, f"torch=={torch}"]
    own.install("--no-compile", *words, constrained=constrained)
    seconds = time.monotonic() - begun
    size = sum(path.lstat().st_size for path in own.site.rglob("*"))
    packages = own.list_packages()
    doctor = own.read(["zoo", "doctor", "--json"])
    versions = {one["name"]: re.split("[ ,]", one["detail"])[0] for one in doctor["checks"][:12]}

    fit = ["zoo", "fit", "vit_comrope", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    found = own.read([*fit, "--run-dir", "run", "--json"])
    own.install("pytest", "hypothesis", constrained=constrained)
    options = [
        "-p",
        "no:cacheprovider",
        "-q",
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    tests = own.run(["python", "-m", "pytest", *options, str(ROOT / "tests" / "encodings")])
    counted = next(line for line in reversed(tests.splitlines()) if " passed" in line)
    return {
        "versions": versions,
        "constrained": constrained,
        "packages": len(packages),
        "megabytes": round(size / 1e6),
        "seconds_to_install": round(seconds),
        "fit": {"command": " ".join(fit), "result": found},
        "tests": {"folder": "tests/encodings", "result": counted},
    }


def record_releases(pairs: list[tuple[str, str]], to: Path) -> None:
    """Try each pair of an interpreter and a torch, and write what was found to a file after every one."""
    releases = json.loads(to.read_text(encoding="utf-8"))["releases"] if to.exists() else {}
    with tempfile.TemporaryDirectory() as home:
        wheel = str(build_files(Path(home) / "dist"))
        for python, torch in pairs:
            word = f"{Path(python).name}={torch}"
            with tempfile.TemporaryDirectory() as folder:
                found = try_release(wheel, Path(folder) / "environment", python, torch)
            releases[word] = {
                "zoo_version": __version__,
                "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                "command": f"python tests/benchmarks/environments.py --releases {word} --to {to}",
                **found,
            }
            record = {"releases": dict(sorted(releases.items()))}
            to.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            print(word, found, flush=True)


def split_pair(word: str) -> tuple[str, str]:
    """Return the interpreter and the release of torch that `PYTHON=TORCH` names."""
    python, _, torch = word.rpartition("=")
    if shutil.which(python) is None:
        raise argparse.ArgumentTypeError(f"{word}: not PYTHON=TORCH with an interpreter to run")
    return python, torch


def main(chosen: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        wheel = str(build_files(home / "dist"))
        begun = time.monotonic()

        def report(name: str, text: str) -> None:
            print(f"{name:12} {time.monotonic() - begun:4.0f} s  {text}", flush=True)

        if "bare" in chosen:
            bare = Environment(home / "bare")
            bare.install("torch")
            bare.install("--no-deps", wheel)
            shapes = bare.run(["python", "-W", "ignore", "-c", LAYERS]).split("\n")
            count = len(bare.run(["zoo", "list", "encodings"]).splitlines())
            missing = bare.run(["zoo", "fit", "vit_comrope"], code=2).strip()
            report(
                "bare",
                f"{' '.join(shapes[:2])}, zoo list encodings: {count} lines; zoo fit: {missing}",
            )

        base = Environment(home / "base")
        base.install(wheel)
        if "base" in chosen:
            for words in (["vit_comrope", *ONCE], WORDS):
                base.run(["zoo", "fit", *words, "--run-dir", words[0]])
                base.run(["zoo", "eval", words[0]])
            text = base.run(["zoo", "generate", "lm_rope", "generate.tokens=20"])
            assert len(text) > 20, text
            report("base", "vit_comrope and lm_rope train and evaluate, lm_rope generates")

        if "torchvision" in chosen:
            own = Environment(home / "torchvision", base)
            # the operators of one that was built for another torch are not there
            package = own.site / "torchvision"
            package.mkdir()
            raises = (
                "import torch\n@torch.library.register_fake('torchvision::nms')\ndef nms(): ...\n"
            )
            (package / "__init__.py").write_text(f"__version__ = '0.1'\n{raises}")
            own.run(FIT)
            lines = own.run(["zoo", "doctor"], code=1).splitlines()
            report("doctor", next(line for line in lines if "torchvision::nms" in line))

        for name in (one for one in chosen if one in EXTRAS):
            own = Environment(home / name, base)
            own.install(f"transformer-zoo[{name}] @ {Path(wheel).as_uri()}")
            for words in EXTRAS[name]:
                own.run(words)
            report(name, f"ok, with {', '.join(own.list_packages())}")


if __name__ == "__main__":
    from arguments import make_parser, one_of

    parser = make_parser(__doc__)
    everything = ("bare", "base", *EXTRAS, "torchvision")
    parser.add_argument("names", nargs="*", type=one_of(everything), metavar="NAME")
    parser.add_argument("--releases", nargs="+", type=split_pair, metavar="PYTHON=TORCH")
    parser.add_argument("--to", type=Path, metavar="FILE", default=RECORD)
    known = parser.parse_args()
    if known.releases:
        record_releases(known.releases, known.to)
    else:
        main(known.names or everything)
