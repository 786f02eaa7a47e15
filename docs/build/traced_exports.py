"""Export every encoding to ONNX and torch.export, by `python docs/build/traced_exports.py`.

A decoder of texts, an encoder of texts and a vision transformer of each encoding, with random
weights, are exported by `zoo export`, computed by ONNX Runtime and by the loaded graph of PyTorch,
and compared with the model at three lengths or resolutions that were not captured. The table is
written into docs/export.md, between its markers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

import zoo
from zoo import registry
from zoo.config.command_line import parse_overrides
from zoo.encodings.common.chains import build_shortest_chain
from zoo.errors import RecipeError, ZooError
from zoo.formats.outputs import measure_difference
from zoo.run import checkpoint
from zoo.run.build import Experiment
from zoo.run.checkpoint import build_metadata
from zoo.run.load import load_recipe
from zoo.tasks.base import Task

PAGE = Path(__file__).parents[1] / "export.md"
BEGIN, END = "<!-- traced exports -->\n", "<!-- end of traced exports -->\n"
SMALL = ("model.dim=32", "model.depth=2", "model.heads=2", "trainer.accelerator=cpu")
RECIPES = {
    "decoder": "lm_rope",
    "encoder": "mlm_tupe",
    "ViT": "vit_comrope",
    "ViT of clips": "clip_comrope",
}
TEXTS = ((1, 5), (3, 29), (2, 60))
IMAGES = ((1, 1, 16, 16), (3, 1, 24, 16), (2, 1, 40, 32))
CLIPS = ((1, 1, 4, 16, 16), (3, 1, 6, 24, 16), (2, 1, 8, 32, 24))
SHAPES = {"ViT": IMAGES, "ViT of clips": CLIPS}


def list_models(name: str) -> Iterator[str]:
    """Yield the kinds of models that an encoding can be part of."""
    classes = [registry.find("encodings", one.name) for one in build_shortest_chain(_find(name))]
    if all(1 in cls.axes for cls in classes):
        yield "decoder"
    if not any(cls.causal_only for cls in classes):
        if all(1 in cls.axes for cls in classes):
            yield "encoder"
        if all(2 in cls.axes for cls in classes):
            yield "ViT"
        elif all(3 in cls.axes for cls in classes):
            yield "ViT of clips"


def _find(name: str) -> type:
    return registry.find("encodings", name)


def choose_overrides(name: str, kind: str, text: Path) -> list[str]:
    """Return the overrides of a recipe that make a small model with an encoding."""
    entries = []
    for choice in build_shortest_chain(_find(name)):
        convention = ", coordinates: index" if kind == "decoder" else ""
        entries.append(f"{{name: {choice.name}{convention}}}")
    words = [*SMALL, f"model.encoding=[{', '.join(entries)}]"]
    if kind == "ViT of clips":
        return words
    if kind == "ViT":
        # lookhere has no groups of directions for two heads
        heads = ["model.heads=4"] if name == "lookhere" else []
        return [*words, *heads, "model.patch_size=4"]
    return [*words, "data.name=text", f"data.files=[{text}]", "data.length=64"]


def make_run(folder: Path, recipe_name: str, overrides: Sequence[str]) -> Task:
    """Write a checkpoint of random weights, so large that attention is not close to uniform."""
    recipe = load_recipe(recipe_name, parse_overrides(overrides))
    torch.manual_seed(0)
    task = Experiment(recipe).build_task().eval()
    for parameter in task.parameters():
        parameter.data.normal_(std=0.3)
    (folder / "checkpoints").mkdir(parents=True)
    content = {"zoo": build_metadata(recipe, task.spec), "state_dict": task.state_dict()}
    checkpoint.write_sealed(checkpoint.serialise(content), folder / "checkpoints" / "best.ckpt")
    return task


@torch.no_grad()
def compare(run: Path, task: Task, target: str, inputs: Sequence[Tensor]) -> str:
    """Export and return the largest difference, relative to 1 + |logit|, or why it is refused."""
    folder = run.with_name(f"{run.name}-{target}")
    try:
        zoo.export(run, folder, target)
    except RecipeError as error:
        return f"refused: {error.issues[0].problem}"
    except ZooError as error:
        return f"refused: {error}"

    if target == "onnx":
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        results = [session.run(None, {"inputs": one.numpy()})[0] for one in inputs]
    else:
        graph = torch.export.load(folder / "model.pt2").module()
        results = [graph(one) for one in inputs]

    worst = 0.0
    for one, result in zip(inputs, results, strict=True):
        worst = max(worst, measure_difference(torch.as_tensor(result), task.model(one)))
    return f"{worst:.0e}"


def write_table(names: Sequence[str]) -> str:
    """Return the table of all encodings, and a sentence on how it was made."""
    lines = ["| encoding | model | ONNX Runtime | torch.export |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as outer:
        text = Path(outer) / "text.txt"
        text.write_text("abcdefgh \n" * 400, encoding="utf-8")
        for name in names:
            for kind in list_models(name):
                run = Path(outer) / f"{name}-{kind}"
                task = make_run(run, RECIPES[kind], choose_overrides(name, kind, text))
                if kind in SHAPES:
                    inputs = [torch.randn(shape) for shape in SHAPES[kind]]
                else:
                    inputs = [torch.randint(10, shape) for shape in TEXTS]
                found = [compare(run, task, target, inputs) for target in ("onnx", "torch_export")]
                lines.append(f"| {name} | {kind} | {' | '.join(found)} |")
                print(lines[-1], flush=True)
    versions = f"zoo {zoo.__version__}, torch {torch.__version__}"
    versions += f", onnxruntime {onnxruntime.__version__}"
    return "\n".join(
        [*lines, "", f"Recorded by `python docs/build/traced_exports.py` ({versions})."]
    )


def main(names: Sequence[str]) -> None:
    """Print the rows of some encodings, or write the table of all of them."""
    table = write_table(names or zoo.encoding_names())
    if not names:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
