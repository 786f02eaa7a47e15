"""Several processes without a launcher: forked off the test, in the surroundings that torchrun gives them."""

import os
import signal
import socket
import sys
import time
import traceback
import warnings
from contextlib import closing
from pathlib import Path

import torch

PATIENCE = 120  # seconds


def _port():
    with closing(socket.socket()) as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def torchrun(rank, count):
    """What torchrun tells a process."""
    return {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": 0,
        "RANK": rank,
        "LOCAL_RANK": rank,
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def slurm(rank, count):
    """What srun tells a task, here each on a node of its own."""
    return {
        "SLURM_JOB_ID": 7,
        "SLURM_JOB_NAME": "zoo",
        "SLURM_NTASKS": count,
        "SLURM_NNODES": count,
        "SLURM_PROCID": rank,
        "SLURM_NTASKS_PER_NODE": 1,
        "SLURM_LOCALID": 0,
        "SLURM_NODEID": rank,
        "SLURM_NODELIST": "localhost",
    }


def alone(rank, count):
    """Nothing: no launcher starts it."""
    return {}


def start(count, work, launcher=torchrun):
    """Processes that each do `work(rank)` and end with its exit code; what they tell goes to rank-N.log."""
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": _port()}
    return [_fork(rank, work, {**launcher(rank, count), **meeting}) for rank in range(count)]


def _fork(rank, work, around):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of threads, which the test does not use
        process = os.fork()
    if process:
        return process
    code = 1
    try:
        with Path(f"rank-{rank}.log").open("w") as log_file:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(log_file.fileno(), stream.fileno())
        os.environ.update({key: str(value) for key, value in around.items()})
        torch.set_num_threads(1)
        code = work(rank)
    except BaseException as error:
        traceback.print_exc()
        code = getattr(error, "code", 1)
    finally:
        os._exit(code or 0)


def codes(processes):
    """Their exit codes, negative for signals; those that do not end are killed."""
    ends, found = time.monotonic() + PATIENCE, {}
    while len(found) < len(processes):
        for process in set(processes) - found.keys():
            if time.monotonic() > ends:
                os.kill(process, signal.SIGKILL)
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                found[process] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return [found[process] for process in processes]


def run(count, work, launcher=torchrun):
    return codes(start(count, work, launcher))
