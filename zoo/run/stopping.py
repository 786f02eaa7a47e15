"""Signals while a trainer tests: Lightning ends the process then, by SIGINT with code 1 and by SIGTERM as if all were well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGTERM, Signals

import lightning as L
from lightning.pytorch.utilities.exceptions import SIGTERMException

from zoo.errors import Stopped, Told, ZooError


@contextmanager
def stoppable(trainer: L.Trainer) -> Iterator[None]:
    """Raises Stopped where SIGINT or SIGTERM came in the block, Told in other processes than the first."""
    try:
        yield
    except SIGTERMException:
        raise _stopped(trainer, SIGTERM) from None
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise _stopped(trainer, SIGINT) from None
    if trainer.received_sigterm:  # after the last batch, where nothing asks any more
        raise _stopped(trainer, SIGTERM)


def _stopped(trainer: L.Trainer, received: Signals) -> ZooError:
    told = f"stopped by {received.name} while testing; nothing was written"
    return Stopped(received, told) if trainer.is_global_zero else Told(128 + received)
