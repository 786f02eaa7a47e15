"""The option `--zoo-audit FOLDER` of pytest: a test for each law of `zoo audit`.

pytest imports this module at its start: nothing heavy is imported before the option is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("zoo").addoption(
        "--zoo-audit",
        action="append",
        default=[],
        metavar="FOLDER",
        help="ask the model of a folder all laws of `zoo audit`, a test for each; may be repeated",
    )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each law and folder."""
    for folder in config.getoption("--zoo-audit"):
        items += list_items(session, folder)


def list_items(session: pytest.Session, folder: str) -> Iterator[pytest.Item]:
    """Yield a test for each law.

    Raises:
        UsageError: There is no such folder, or no config.json in it.
    """
    from zoo.auditing.model_folder import check_folder
    from zoo.auditing.run_laws import LAWS
    from zoo.errors import ZooError

    try:
        check_folder(folder)
    except ZooError as error:
        raise pytest.UsageError(f"--zoo-audit: {error}") from None
    for law in LAWS:
        name = f"zoo-audit[{Path(folder).name}-{law}]"
        item: pytest.Item = AuditItem.from_parent(session, name=name, folder=folder, law=law)
        yield item


class AuditFailure(Exception):
    """A law is broken, or the folder holds no model that loads; the message says which."""


class AuditItem(pytest.Item):
    """A test that asks the model of a folder one law.

    Args:
        folder: The folder.
        law: The name of the law.
        **options: Those of `pytest.Item`.
    """

    def __init__(self, *, folder: str, law: str, **options: Any) -> None:
        super().__init__(**options)
        self.folder, self.law = folder, law

    def runtest(self) -> None:
        from zoo.auditing.model_folder import AuditOptions, load_folder
        from zoo.auditing.model_subjects import make_subject
        from zoo.auditing.run_laws import audit_subject
        from zoo.errors import OptionError, ZooError

        try:
            subject = make_subject(load_folder(self.folder, AuditOptions()))
        except (OptionError, ZooError) as error:
            raise AuditFailure(str(error)) from None
        (result,) = audit_subject(subject, [self.law]).results
        if result.status == "not asked":
            pytest.skip(result.reason or "not asked")
        if result.status == "broken":
            raise AuditFailure(f"{result.statement}: {result.remark}")

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        # A traceback through this library says nothing about the model.
        if isinstance(excinfo.value, AuditFailure):
            return f"{self.law}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return Path(self.folder), None, self.name
