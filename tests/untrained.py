"""Checkpoints of tiny models that nobody has trained."""

from zoo.config.command_line import parse_overrides
from zoo.run import checkpoint
from zoo.run.build import Experiment
from zoo.run.checkpoint import build_metadata
from zoo.run.load import load_recipe


def write_checkpoint(run, name, overrides):
    """A checkpoint of random weights, so large that attention is not close to uniform."""
    recipe = load_recipe(name, parse_overrides(overrides))
    task = Experiment(recipe).build_task()
    for parameter in task.parameters():
        parameter.data.normal_(std=0.3)
    (run / "checkpoints").mkdir(parents=True)
    content = {"zoo": build_metadata(recipe, task.spec), "state_dict": task.state_dict()}
    checkpoint.write_sealed(checkpoint.serialise(content), run / "checkpoints" / "best.ckpt")
