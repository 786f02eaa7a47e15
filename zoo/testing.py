"""Laws for the test suite of a plug-in, or of a project with models.

A test module of a plug-in package needs one line for each encoding:

    from zoo.testing import laws

    test_mine = laws("mine")

A test module of a project needs one line for each model:

    from zoo.testing import audit

    test_my_model = audit(lambda: MyModel(config))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from zoo import registry
from zoo.attention.chain import encoding_class
from zoo.encodings.common.chains import build_shortest_chain
from zoo.laws import LAWS, Case, Law
from zoo.packages import explain_imports


def laws(name: str, **options: Any) -> Callable[[Law, Case], None]:
    """Return a test that checks an encoding against every law, on each number of axes it takes.

    Args:
        name: A registered encoding. A plug-in that is not installed is named by ZOO_PLUGINS.
        options: Options of the encoding.

    Returns:
        A function for pytest, parametrized by law and case. Assign it to a name beginning with
        `test_`. A law that does not apply is skipped, with the reason.

    Raises:
        KeyError: There is no encoding of this name.
    """
    with explain_imports():
        import pytest

    choices = build_shortest_chain(encoding_class(name), options)
    classes = [registry.find("encodings", choice.name) for choice in choices]
    numbers = [axes for axes in (1, 2, 3) if all(axes in cls.axes for cls in classes)]
    cases = [Case.from_choices(name, choices, axes) for axes in numbers]

    @pytest.mark.parametrize("case", cases, ids=str)
    @pytest.mark.parametrize("law", LAWS, ids=[law.name for law in LAWS])
    def check(law: Law, case: Case) -> None:
        if reason := law.exempt(case):
            pytest.skip(reason)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            law(case)

    return check


def audit(build: Callable[[], Any], laws: Sequence[str] | None = None) -> Callable[[str], None]:
    """Return a test that asks a model the laws of `zoo.audit`, one by one.

    Args:
        build: Returns the model, or an `AuditSubject`. It is called once for each law.
        laws: Names of laws; by default all.

    Returns:
        A function for pytest, parametrized by law. Assign it to a name beginning with `test_`. A
        law that is not asked is skipped, with the reason.

    Raises:
        OptionError: There is no law of a name.
    """
    with explain_imports():
        import pytest

        from zoo.auditing.model_subjects import make_subject
        from zoo.auditing.run_laws import audit_subject, select_laws
        from zoo.auditing.subject import AuditSubject

    @pytest.mark.parametrize("law", list(select_laws(laws)))
    def check(law: str) -> None:
        subject = build()
        if not isinstance(subject, AuditSubject):
            subject = make_subject(subject)
        (result,) = audit_subject(subject, [law]).results
        if result.status == "not asked":
            pytest.skip(result.reason or "not asked")
        assert result.status == "kept", f"{result.statement}: {result.remark}"

    return check
