"""Audit models of other libraries from Python: `zoo.audit`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.api.guard import guard
from zoo.config.arguments import validate_options
from zoo.errors import ARGUMENT, ConfigIssue, OptionError, RecipeError
from zoo.packages import explain_imports

if TYPE_CHECKING:
    from zoo.auditing.audit_report import AuditReport


@guard
def audit(
    subject: Any,
    *,
    laws: Sequence[str] | None = None,
    size: str | None = None,
    dtype: str | None = None,
    out: str | Path | None = None,
    verbose: bool | None = True,
) -> AuditReport:
    """Ask a model the laws of positions: whether padding, caches, packing and shifts change it.

    Args:
        subject: A decoder or encoder of transformers, an `AuditSubject` with functions of token
            ids, or a folder with a model of transformers.
        laws: Names of laws, as docs/audit.md lists them; by default all.
        size: Of a folder, "small" for the same architecture with few layers and random weights.
            By default the weights are loaded, if there are any.
        dtype: Of a folder, "float32", "bfloat16" or "float16"; by default that of its weights.
        out: File for the report, which ends in .json.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        A result for each law. `is_sound` is true if none is broken.

    Raises:
        RecipeError: An argument is wrong.
        CheckpointError: The folder holds no model that loads.
    """
    from zoo.auditing.model_folder import AuditOptions, check_folder, load_folder

    options = validate_options(
        AuditOptions, {"laws": laws, "size": size, "dtype": dtype, "out": out}
    )
    is_folder = isinstance(subject, str | os.PathLike)
    if not is_folder and (size is not None or dtype is not None):
        problem = "only a folder has a size and a dtype to choose"
        raise RecipeError(ConfigIssue(ARGUMENT, "size" if size else "dtype", problem))
    if is_folder:
        check_folder(subject)
    with explain_imports():
        from zoo.auditing.run_laws import audit_subject, select_laws
        from zoo.auditing.subject import AuditSubject

    try:
        select_laws(options.laws)
        if options.out is not None and not options.out.endswith(".json"):
            raise OptionError("out", f"{options.out} does not end in .json")
        if is_folder:
            subject = load_folder(subject, options)
        if not isinstance(subject, AuditSubject):
            subject = AuditSubject.from_model(subject)
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, error.message)) from None
    report = audit_subject(subject, options.laws)
    if options.out is not None:
        report.save(options.out)
    return report
