"""Scripts that start runs on clusters: run here, with stand-ins for what a cluster has."""

import os
import subprocess

import pytest
from lightning.pytorch.plugins.environments import SLURMEnvironment
from tables import corpus
from tiny import TINY
from torch.distributed.run import parse_args

from zoo.config.command_line import parse_overrides
from zoo.data.corpus.tokenizer import train_bpe

STANDINS = {
    "srun": 'printf "%s\\0" "$@" > srun.words; exit ${CODE:-0}',
    "scontrol": 'printf "%s " "$@" > scontrol.words',
    "torchrun": 'printf "%s\\0" "$@" > torchrun.words; exit ${CODE:-0}',
}
AWKWARD = [
    "data.val=0.2",
    "model.encoding=[learned, {name: rope_axial, base: 50.0}]",
    "generate.prompt=it's $HOME\n`x`",
]


ENGINE = """
from zoo.registry import register


@register
class Shout:
    def __init__(self, *, times: int = 1) -> None:
        self.times = times

    def write_script(self, job):
        return job.command + "!" * self.times
"""


@pytest.fixture
def script(zoo):
    """script(engine, *words) -> what `zoo launch --print` prints, which bash can read."""

    def run(*words):
        code, out, message = zoo("launch", *words, "print=true")
        assert (code, message) == (0, ""), message
        subprocess.run(["bash", "-n"], input=out, text=True, check=True, capture_output=True)
        return out

    return run


@pytest.fixture
def run_script(tmp_path):
    """run_script(script, **environment) -> (exit code, words that each stand-in was given), from another folder."""
    there = tmp_path / "bin"
    there.mkdir()
    for name, body in STANDINS.items():
        (there / name).write_text(f"#!/bin/bash\n{body}\n")
        (there / name).chmod(0o755)

    def run(text, **environment):
        for old in tmp_path.glob("*.words"):
            old.unlink()
        known = {"PATH": os.environ["PATH"], "ZOO_BIN": str(there), **environment}
        done = subprocess.run(
            ["bash"], input=text, text=True, cwd="/", env=known, capture_output=True, timeout=60
        )
        words = {
            path.stem: path.read_text().rstrip("\0").split("\0")
            for path in tmp_path.glob("*.words")
        }
        return done.returncode, words, done.stderr

    return run


def options(text):
    """The options of sbatch in a script."""
    lines = [
        line.removeprefix("#SBATCH --")
        for line in text.splitlines()
        if line.startswith("#SBATCH --")
    ]
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


# slurm


def test_sbatch_is_told_what_the_run_needs(script):
    found = options(
        script(
            "slurm",
            "vit_comrope",
            "nodes=4",
            "devices=8",
            "time=2-00",
            "partition=gpu",
            "account=a1",
            "cpus=6",
        )
    )
    assert found == {
        "requeue": "",
        "job-name": "zoo-vit_comrope",
        "nodes": "4",
        "ntasks-per-node": "8",
        "gpus-per-node": "8",
        "cpus-per-task": "6",
        "time": "2-00",
        "partition": "gpu",
        "account": "a1",
        "signal": "TERM@180",
        "open-mode": "append",
        "output": "zoo-vit_comrope-%j.out",
    }


def test_processes_on_the_cpu_ask_for_no_gpu(script):
    found = options(
        script("slurm", "vit_comrope", "devices=2", "trainer.accelerator=cpu", "data.workers=3")
    )
    assert "gpus-per-node" not in found
    assert (found["ntasks-per-node"], found["cpus-per-task"]) == ("2", "4")


def test_workers_that_encode_text_get_cpus(script, tmp_path):
    corpus(tmp_path / "set")
    (tmp_path / "words.json").write_text(train_bpe(["row your boat"], 300).json)
    files = [f"data.path={tmp_path / 'set'}", f"data.tokenizer={tmp_path / 'words.json'}"]
    found = options(script("slurm", "lm_rope_124m", "devices=8", *files))
    assert found["cpus-per-task"] == "9"


def test_each_task_gets_the_same_command(script, run_script):
    text = script(
        "slurm", "vit_comrope", "nodes=4", "devices=8", "run_dir=runs/my run", "seed=3", *AWKWARD
    )
    code, words, _ = run_script(text, SLURM_JOB_ID="7")
    assert code == 0
    flags, command = words["srun"][:2], words["srun"][2:]
    assert flags == ["--kill-on-bad-exit=1", "--cpus-per-task=1"]
    last = [
        "trainer.num_nodes=4",
        "trainer.devices=8",
        "--run-dir",
        "runs/my run",
        "--resume",
        "auto",
        "--wait",
    ]
    assert command[:4] == ["zoo", "fit", "vit_comrope", "seed=3"]
    assert parse_overrides(command[4:7]) == parse_overrides(AWKWARD)
    assert command[7:] == last
    assert "scontrol" not in words
    assert "\nexport OMP_NUM_THREADS=1 " in text


def test_the_command_is_one_that_fit_takes(script, run_script, zoo, tmp_path):
    text = script("slurm", "vit_none", *TINY)
    _, words, _ = run_script(text, SLURM_JOB_ID="7")
    for _ in range(2):  # a second start finds it done
        code, _, message = zoo(*words["srun"][3:])
        assert code == 0, message
    (run,) = (tmp_path / "runs" / "vit_none").iterdir()
    assert (run / "checkpoints" / "last.ckpt").is_file()


def test_a_job_goes_back_into_the_queue_only_where_it_was_stopped(script, run_script):
    text = script("slurm", "vit_comrope")
    for code in (0, 1, 2, 3, 4, 5, 130, 137, 143):
        found, words, message = run_script(text, CODE=str(code), SLURM_JOB_ID="4711")
        assert (found, message) == (code, "")
        assert words.get("scontrol") == (["requeue 4711 "] if code == 143 else None)


def test_lightning_finds_its_place_in_such_a_job(script, monkeypatch):
    found = options(script("slurm", "vit_comrope", "nodes=4", "devices=8"))
    message = {
        "JOB_NAME": found["job-name"],
        "NTASKS_PER_NODE": found["ntasks-per-node"],
        "NNODES": found["nodes"],
        "NTASKS": "32",
        "JOB_ID": "1234567",
        "NODELIST": "gpu[07-10]",
        "PROCID": "9",
        "LOCALID": "1",
    }
    for key, value in message.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    for key in ("MASTER_ADDR", "MASTER_PORT"):  # which it sets
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)
    assert SLURMEnvironment.detect()
    environment = SLURMEnvironment()
    environment.validate_settings(num_devices=8, num_nodes=4)
    assert (environment.main_address, environment.main_port, environment.world_size()) == (
        "gpu07",
        19567,
        32,
    )


def test_a_run_directory_depends_on_the_recipe_and_not_on_where_it_runs(script):
    def run(*words):
        return script("slurm", "vit_comrope", *words).partition("--run-dir ")[2].split()[0]

    assert run() == run("nodes=4", "devices=8") != run("seed=1")
    assert run().startswith("runs/vit_comrope/")


def test_the_recipe_may_say_how_many_there_are(script):
    found = options(script("slurm", "vit_comrope", "trainer.num_nodes=3", "trainer.devices=2"))
    assert (found["nodes"], found["ntasks-per-node"]) == ("3", "2")


def test_what_a_strategy_needs_may_be_on_the_cluster_alone(script):
    assert "trainer.strategy=fsdp" in script(
        "slurm", "vit_comrope", "trainer.strategy=fsdp", "trainer.accelerator=gpu"
    )


# torchrun


def test_torchrun_is_told_where_to_meet(script, run_script):
    text = script(
        "torchrun", "vit_comrope", "nodes=2", "devices=4", "port=29600", "restarts=1", *AWKWARD
    )
    code, words, _ = run_script(text, MASTER="node7")
    assert code == 0
    at = words["torchrun"].index("-m")
    assert words["torchrun"][:at] == [
        "--nnodes=2",
        "--nproc-per-node=4",
        "--rdzv-backend=c10d",
        "--rdzv-id=zoo-vit_comrope",
        "--rdzv-endpoint=node7:29600",
        "--max-restarts=1",
    ]
    assert words["torchrun"][at : at + 4] == ["-m", "zoo", "fit", "vit_comrope"]
    assert words["torchrun"][-7:-5] == ["trainer.num_nodes=2", "trainer.devices=4"]
    assert words["torchrun"][-3:] == ["--resume", "auto", "--wait"]
    assert parse_overrides(words["torchrun"][at + 4 : at + 7]) == parse_overrides(AWKWARD)


def test_several_nodes_have_to_know_one_of_them(script, run_script):
    code, words, message = run_script(script("torchrun", "vit_comrope", "nodes=2"))
    assert code != 0
    assert not words
    assert "MASTER: must name one of the nodes" in message
    code, words, _ = run_script(script("torchrun", "vit_comrope"), CODE="3")
    assert code == 3
    assert "--rdzv-endpoint=localhost:29500" in words["torchrun"]


def test_torchrun_reads_its_words(script, run_script):
    _, words, _ = run_script(script("torchrun", "vit_comrope", "devices=2"))
    found = parse_args(words["torchrun"])
    assert (found.training_script, found.module, found.training_script_args[0]) == (
        "zoo",
        True,
        "fit",
    )


# files


def test_a_script_is_written_and_what_to_do_with_it_is_told(zoo, tmp_path, caplog):
    code, out, _ = zoo("launch", "slurm", "vit_comrope", "nodes=2", "devices=4")
    assert (code, out) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["vit_comrope.slurm.sh"]
    message = caplog.messages
    assert message[0] == "written: vit_comrope.slurm.sh"
    assert message[1] == "8 processes: 4 on each of 2 nodes"
    assert message[2].startswith("run directory: runs/vit_comrope/")
    assert message[-1] == "next: sbatch vit_comrope.slurm.sh"


def test_nothing_is_lost_where_a_script_is_written_again(zoo, tmp_path, caplog):
    zoo("launch", "slurm", "vit_comrope")
    first = (tmp_path / "vit_comrope.slurm.sh").read_text()
    zoo("launch", "slurm", "vit_comrope")
    assert not any("another script" in message for message in caplog.messages)
    zoo("launch", "slurm", "vit_comrope", "nodes=2")
    assert (
        "vit_comrope.slurm.sh existed already; the old script is now vit_comrope.slurm.sh.before"
        in caplog.messages
    )
    assert (tmp_path / "vit_comrope.slurm.sh.before").read_text() == first


def test_names_and_folders_may_be_awkward(zoo, tmp_path, run_script, monkeypatch, caplog):
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    (folder / "my recipe; x.yaml").write_text("extends: vit_comrope\n")
    monkeypatch.chdir(folder)
    assert zoo("launch", "slurm", "my recipe; x.yaml")[0] == 0
    assert caplog.messages[-1] == "next: sbatch my-recipe-x.slurm.sh"
    text = (folder / "my-recipe-x.slurm.sh").read_text()
    assert options(text)["job-name"] == "zoo-my-recipe-x"
    assert run_script(text, SLURM_JOB_ID="7")[0] == 0
    words = (folder / "srun.words").read_text().split("\0")
    assert words[4] == "my recipe; x.yaml"
    assert words[words.index("--run-dir") + 1].startswith("runs/my recipe; x/")


def test_plug_ins_are_named_to_the_run_too(zoo, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    _, out, message = zoo("launch", "slurm", "vit_comrope", "print=true", "--plugin", "mine")
    assert "--plugin mine --run-dir" in out, message


def test_a_plug_in_may_bring_an_engine(zoo, tmp_path, monkeypatch):
    (tmp_path / "clusters" / "launch").mkdir(parents=True)
    (tmp_path / "clusters" / "__init__.py").write_text("")
    (tmp_path / "clusters" / "launch" / "shout.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    _, out, message = zoo(
        "launch", "shout", "vit_comrope", "times=2", "print=true", "--plugin", "clusters"
    )
    assert out.startswith("fit vit_comrope trainer.num_nodes=1"), message
    assert out.endswith("!!")


# wrong inputs

WRONG = {
    "no engine": ([], ["slurm|torchrun", "required"]),
    "an unknown engine": (["slrum", "vit_comrope"], ["slrum", "did you mean slurm?"]),
    "no recipe": (["slurm"], ["RECIPE"]),
    "an unknown recipe": (["slurm", "vit_comrop"], ["vit_comrop", "did you mean vit_comrope?"]),
    "a misspelt option": (["slurm", "vit_comrope", "node=2"], ["node", "did you mean nodes?"]),
    "an option of another engine": (
        ["torchrun", "vit_comrope", "partition=gpu"],
        ["partition", "unknown key"],
    ),
    "no nodes": (["slurm", "vit_comrope", "nodes=0"], ["nodes", "at least 1", "0"]),
    "a word for a number": (
        ["slurm", "vit_comrope", "devices=all"],
        ["devices", "an integer", "'all'"],
    ),
    "an option without a value": (["slurm", "vit_comrope", "nodes="], ["nodes", "no value"]),
    "no time": (["slurm", "vit_comrope", "time=soon"], ["time", "'soon'", "hours:minutes:seconds"]),
    "too little time": (
        ["slurm", "vit_comrope", "time=00:04:00"],
        ["time", "00:04:00", "240 seconds"],
    ),
    "a partition that is none": (["slurm", "vit_comrope", "partition=a b"], ["partition", "'a b'"]),
    "an account with a line of its own": (
        ["slurm", "vit_comrope", "account=a\nrm -r x"],
        ["account"],
    ),
    "a port that is none": (
        ["torchrun", "vit_comrope", "port=80"],
        ["port", "at least 1024", "80"],
    ),
    "a misspelt key": (["slurm", "vit_comrope", "model.depht=2"], ["model.depht", "model.depth?"]),
    "heads that do not divide": (["slurm", "vit_comrope", "model.heads=5"], ["model.heads", "5"]),
    "a batch that does not divide": (
        ["slurm", "vit_comrope", "data.global_batch_size=512", "nodes=2", "devices=3"],
        ["data.global_batch_size", "not divisible by 6", "of 512: 4 or 8", "of 6: 510 or 516"],
    ),
    "a strategy that is none": (
        ["slurm", "vit_comrope", "trainer.strategy=dpd"],
        ["trainer", "dpd"],
    ),
    "told twice": (
        ["slurm", "vit_comrope", "devices=2", "trainer.devices=4"],
        ["trainer.devices", "devices", "leave one"],
    ),
    "devices by number": (
        ["slurm", "vit_comrope", "trainer.devices='0,1'"],
        ["trainer.devices", "devices=COUNT"],
    ),
    "a word alone": (["slurm", "vit_comrope", "nodes"], ["'nodes'", "key=value"]),
    "an unknown flag": (["slurm", "vit_comrope", "--nodes", "4"], ["--nodes"]),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_nothing_is_written_for_what_is_wrong(case, zoo, tmp_path):
    arguments, words = WRONG[case]
    code, out, message = zoo("launch", *arguments)
    assert (code, out) == (2, ""), message
    assert 1 <= len(message.strip().splitlines()) <= 6, message
    assert "Traceback" not in message
    for word in words:
        assert word in message
    assert not [*tmp_path.iterdir()]


def test_data_that_is_missing_is_told_before_anything_is_queued(zoo, tmp_path):
    code, _, message = zoo(
        "launch", "slurm", "lm_rope", "data.name=text", "data.files=[nowhere.txt]"
    )
    assert code == 4
    assert "nowhere.txt: no such file" in message
    assert not [*tmp_path.iterdir()]


def test_a_script_is_printed_before_there_is_data_and_not_written(zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "slurm", "vit_s16_comrope_imagenet", "nodes=1", "devices=8"]
    code, out, _ = zoo(*words, "print=true")
    assert code == 0
    assert "zoo fit vit_s16_comrope_imagenet data.path=FOLDER trainer.num_nodes=1" in out
    code, _, error = zoo(*words)
    assert code == 2
    assert "data.path: missing" in error
    assert not [*tmp_path.iterdir()]
