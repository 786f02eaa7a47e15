"""Each test of a workflow imports plug-ins anew."""

import sys
from collections.abc import Iterator

import pytest

PLUGINS = {"my_zoo", "zoo_example", "zoo_series"}


@pytest.fixture(autouse=True)
def _import_plugins_anew() -> Iterator[None]:
    """Forget plug-ins before and after a test: others of the same names lie in other folders."""
    forget_plugins()
    yield
    forget_plugins()


def forget_plugins() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in PLUGINS]:
        del sys.modules[name]
