"""What launchers say of the processes they started."""

import pytest
import several
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

import zoo
from zoo.run import processes
from zoo.run.build import build_trainer


def message(monkeypatch, said):
    for key, value in said.items():
        monkeypatch.setenv(key, str(value))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, None),
        (several.torchrun(0, 1), None),
        (several.torchrun(1, 4), (4, 1)),
        ({**several.torchrun(5, 4), "WORLD_SIZE": 8}, (4, 2)),
        (several.slurm(1, 3), (1, 3)),
        ({"SLURM_NTASKS": 8, "SLURM_NNODES": 2, "SLURM_JOB_NAME": "zoo"}, (4, 2)),
        ({"SLURM_NTASKS": 8, "SLURM_NNODES": 2, "SLURM_JOB_NAME": "bash"}, None),
        ({"SLURM_NTASKS": 1, "SLURM_JOB_NAME": "zoo"}, None),
        ({**several.slurm(1, 3), **several.torchrun(1, 4)}, (4, 1)),
    ],
    ids=range(9),
)
def test_processes_and_nodes_are_those_of_the_launcher(said, found, monkeypatch):
    message(monkeypatch, said)
    assert processes.detect_launcher() == found


@pytest.mark.parametrize("launcher", [several.torchrun, several.slurm])
def test_they_go_before_the_recipe(launcher, monkeypatch):
    message(
        monkeypatch, launcher(0, 2)
    )  # the first: Lightning remembers the rank for the rest of the process
    trainer = build_trainer(zoo.load_recipe("vit_comrope", {"trainer.accelerator": "cpu"}))
    assert (trainer.world_size, trainer.global_rank) == (2, 0)
    assert isinstance(trainer.strategy, DDPStrategy)


@pytest.mark.parametrize(
    ("replicas", "sizes"), [(1, (4, 1)), (2, (2, 2))], ids=["one copy", "two copies"]
)
def test_weights_are_dealt_out_to_all_processes(replicas, sizes, monkeypatch):
    message(monkeypatch, several.torchrun(0, 4))
    options = {"accelerator": "cpu", "strategy": "fsdp", "replicas": replicas}
    recipe = zoo.load_recipe(
        "vit_comrope", {f"trainer.{key}": value for key, value in options.items()}
    )
    strategy = build_trainer(recipe).strategy
    assert isinstance(strategy, ModelParallelStrategy)
    assert (strategy._data_parallel_size, strategy._tensor_parallel_size) == sizes


def test_copies_that_processes_cannot_share_are_refused(monkeypatch):
    for count, replicas in ((4, 3), (2, 2), (3, 2)):
        message(monkeypatch, several.torchrun(0, count))
        options = {"trainer.accelerator": "cpu", "trainer.strategy": "fsdp"}
        problem = f"trainer.replicas: {count} processes cannot shard {replicas} copies"
        with pytest.raises(zoo.errors.RecipeError, match=problem):
            zoo.load_recipe("vit_comrope", {**options, "trainer.replicas": replicas})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "fsdp", "compile": True}, "trainer.compile: .*write blocks"),
        (
            {"strategy": "fsdp", "compile": "blocks", "reshard_after_forward": False},
            "trainer.reshard_after_forward: compiled blocks whose weights stay gathered",
        ),
        ({"replicas": 2}, "trainer.replicas: strategy auto has a whole copy in each process"),
        ({"sharded_checkpoints": True}, "trainer.sharded_checkpoints: strategy auto has no shards"),
        (
            {"strategy": "fsdp", "sharded_checkpoints": True, "async_checkpoint": True},
            "trainer.async_checkpoint: folders of shards are not written in the background",
        ),
    ],
)
def test_what_does_not_go_with_shards_is_told(options, words):
    given = {f"trainer.{key}": value for key, value in options.items()}
    with pytest.raises(zoo.errors.RecipeError, match=words):
        zoo.load_recipe("vit_comrope", given)
