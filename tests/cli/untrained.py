"""Checkpoints of tiny models that nobody has trained."""

from zoo.build import build_task
from zoo.loading import load_recipe
from zoo.run import storage
from zoo.run.checkpoints import about


def made(run, name, overrides):
    """A checkpoint of random weights, so large that attention is not close to uniform."""
    recipe = load_recipe(name, overrides)
    task = build_task(recipe)
    for parameter in task.parameters():
        parameter.data.normal_(std=0.3)
    (run / "checkpoints").mkdir(parents=True)
    content = {"zoo": about(recipe, task.samples), "state_dict": task.state_dict()}
    storage.publish(storage.serialised(content), run / "checkpoints" / "best.ckpt")
