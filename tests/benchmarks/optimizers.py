"""Train vit_none for 20 steps with each optimizer of torch.optim, kill it, and resume it to the bit.

    python tests/benchmarks/optimizers.py [optimizer ...]

Every run saves after each 5 steps and is killed (SIGKILL) after 12 of its 20 steps; resumed, it must end with the weights
and the optimizer's state of a run that nobody killed. An optimizer that cannot train is refused with its reason. At the
end one run saves after each 50 steps, is killed after 70, and must go on from step 50.
"""

import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from kill import same, wait_for_end
from tiny import TINY
from training import fit

from zoo import load_recipe
from zoo.config.command_line import parse_overrides
from zoo.errors import RecipeError
from zoo.run import checkpoint
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.run.resume import find_resume_point

RECIPE = [*TINY, "model.encoding=none", "trainer.max_epochs=null", "diagnostics.every_n_steps=null"]
RATES = {"sgd": 0.1, "muon": 0.001}


def start(run: Path, words: list[str], killed_at: int | None = None) -> int:
    """Start a run in a process of its own, which kills itself when a step begins."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        with Path(f"{run}.log").open("a") as log_file:
            os.dup2(log_file.fileno(), sys.stderr.fileno())

        def die(self, trainer, *_):
            if trainer.global_step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

        StopOnSignal.on_train_batch_start = die
        fit("vit_none", words, run, "auto")
        code = 0
    finally:
        os._exit(code)


def resume_killed(words: list[str], killed_at: int) -> tuple[Path, int]:
    """Kill a run, resume it, and return its folder and the step from which it went on."""
    run = Path(tempfile.mkdtemp(dir=".")) / "run"
    _, status = os.waitpid(start(run, words, killed_at), 0)
    assert os.WIFSIGNALED(status), Path(f"{run}.log").read_text()
    step = find_resume_point(load_recipe("vit_none", parse_overrides(words)), run, "auto").step
    wait_for_end(start(run, words), run)
    return run, step


def try_optimizer(name: str) -> str:
    """Return what an optimizer did."""
    lr = RATES.get(name, 0.001)
    words = [*RECIPE, f"optim={{name: {name}, lr: {lr}}}", "trainer.max_steps=20"]
    words.append("trainer.save_every_n_steps=5")
    whole = Path(tempfile.mkdtemp(dir=".")) / "run"
    try:
        load_recipe("vit_none", parse_overrides(words))
    except RecipeError as error:
        return f"refused: {error.issues[0].problem}"
    wait_for_end(start(whole, words), whole)
    broken, step = resume_killed(words, 12)
    one, two = (checkpoint.read(run / "checkpoints/last.ckpt") for run in (whole, broken))
    assert one["global_step"] == two["global_step"] == 20
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "rng_states", "loader"):
        assert same(one[key], two[key]), f"{name}: {key} differs"
    return f"20 steps, killed after 12, resumed from {step}: the same to the bit"


def list_optimizers() -> list[str]:
    """Return the names that recipes have for the optimizers of torch.optim."""
    kinds = [cls for cls in vars(torch.optim).values() if inspect.isclass(cls)]
    classes = [cls.__name__ for cls in kinds if issubclass(cls, torch.optim.Optimizer)]
    names = {"SparseAdam": "sparse_adam"}
    return [names.get(cls, cls.lower()) for cls in classes if cls != "Optimizer"]


def main(chosen: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        for name in chosen:
            print(f"{name:12} {try_optimizer(name)}", flush=True)
        words = [*RECIPE, "trainer.max_steps=80", "trainer.save_every_n_steps=50"]
        words.append("data.batch_size=2")  # an epoch is longer than the run
        _, step = resume_killed(words, 70)
        assert step >= 50, step
        print(f"save_every_n_steps=50: killed after 70 steps, went on from step {step}")


if __name__ == "__main__":
    from arguments import make_parser, one_of

    parser = make_parser(__doc__)
    optimizers = list_optimizers()
    parser.add_argument("optimizers", nargs="*", type=one_of(optimizers), metavar="optimizer")
    main(parser.parse_args().optimizers or optimizers)
