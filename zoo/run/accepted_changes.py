"""Changes of a recipe that a run may resume with, if the user accepts them.

This module imports no torch: a wrong argument is refused before that takes time.
"""

from __future__ import annotations

from collections.abc import Sequence

from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError, Setting

ACCEPTABLE = ("data.batch_size", "data.global_batch_size")
"""Keys that may differ from the checkpoint's, where the user says so; one stands for both."""


def check_accepted(accepted: Sequence[str], resume: str) -> None:
    """Raise RecipeError for keys that no run can change on its way."""
    issues = []
    for key in accepted:
        if key not in ACCEPTABLE:
            hint = Message("it can be ", *ACCEPTABLE, "; start anew from the weights with ")
            hint = Message(hint, Setting("init_from"))
            message = f"{key} cannot change while a run goes on"
            issues.append(ConfigIssue(ARGUMENT, "accept_changes", message, hint))
    if accepted and resume == "never":
        hint = Message("add ", Setting("resume", "auto"), ", or leave it out")
        issues.append(ConfigIssue(ARGUMENT, "accept_changes", "nothing is resumed", hint))
    if issues:
        raise RecipeError(*issues)
