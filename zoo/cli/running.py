"""A command as it is run: its plug-ins, its faults in words, its exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from zoo import heap, registry
from zoo.cli.parsing import parser
from zoo.errors import Fault, RecipeError, ZooError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code. A fault of the user never shows a traceback."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("zoo").setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.INFO)
    try:
        known, more = parser().parse_known_args(arguments)
        known.words = sys.argv[1:] if arguments is None else list(arguments)
        if any(word.startswith("-") for word in more) or (more and not hasattr(known, "overrides")):
            raise RecipeError(Fault("command line", more[0], "unknown argument", "see zoo --help"))
        if more:  # overrides after a flag
            known.overrides += more
        if known.plugin:
            sys.path.insert(0, os.getcwd())  # a package beside the user is found like an installed one
            os.environ[registry.PLUGINS] = ",".join(known.plugin)
        heap.keep()
        known.run(known)
    except ZooError as error:
        if str(error) and not (isinstance(error, RecipeError) and _repeated()):
            print(f"zoo: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:  # as in: zoo list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a directory that cannot be written
        print(f"zoo: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("zoo: stopped by SIGINT", file=sys.stderr)
        return 130
    return 0


def _repeated() -> bool:
    """Whether this is one of several processes, all of which find the same faults before they know of each other."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


def entry() -> NoReturn:
    """The `zoo` command."""
    sys.exit(main())
