"""Leave the caller's process as it was: random states, threads, warnings, logging, environment."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

from zoo.packages import explain_imports
from zoo.utils import EscapingFormatter

log = logging.getLogger("zoo")

LOCK = threading.RLock()
"""Commands change the state of the process while they run, so only one runs at a time."""
LIGHTNING_LOGS = ("lightning", "lightning.pytorch", "lightning.fabric")


@contextlib.contextmanager
def isolate_process(verbose: bool | None) -> Iterator[None]:
    """Show the log of the block if asked, and then restore what it changed of the process.

    Args:
        verbose: Whether to print messages of level INFO. None leaves logging to the caller.
    """
    import torch

    from zoo.run.checkpoint import get_random_state, set_random_state

    with LOCK, explain_imports(), warnings.catch_warnings(), show_log(verbose):
        # taken inside the lock: another thread may be within a command
        environment, generators = dict(os.environ), get_random_state()
        threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        benchmark = torch.backends.cudnn.benchmark
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
            torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
            torch.set_default_dtype(dtype)
            # setting the number starts a new pool of threads, even if it is the same
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            set_random_state(generators)
            # changed in place: C libraries do not see another mapping
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]
            os.environ.update(environment)


@contextlib.contextmanager
def show_log(verbose: bool | None) -> Iterator[None]:
    """Print messages of level INFO to standard error within the block, as the command line does.

    Handlers of the caller get none of them; only train.log receives messages of level DEBUG.
    """
    if verbose is None:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.INFO if verbose else logging.ERROR)
    handler.setFormatter(EscapingFormatter("%(message)s"))
    levels = {name: logging.getLogger(name).level for name in LIGHTNING_LOGS}
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    # handlers of the caller would print every line twice
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
