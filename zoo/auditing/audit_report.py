"""The result of an audit: a result for each law, and the report."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from zoo.auditing.audit_figures import AuditFigures
from zoo.errors import OptionError, ZooError
from zoo.packages import explain_imports
from zoo.reporting.numbers import finite
from zoo.reporting.tables import format_markdown
from zoo.utils import write_file, write_json

ENDINGS = (".json", ".html")
"""Endings of files for a report."""
Status = Literal["kept", "broken", "not asked"]

EXPLANATIONS: Mapping[str, str] = {
    "bfloat16_positions": "angles are computed in bfloat16, which rounds positions above 256",
    "float16_positions": "angles are computed in float16, which rounds positions above 2,048",
    "tf32_positions": "angles are computed with 10 bits of mantissa (TF32), which rounds positions",
    "table_ends": "the table of angles ends: later positions read its last row",
    "table_wraps": "the table of angles repeats: later positions read its first rows again",
    "frequencies_rounded": "the frequencies were rounded to half precision",
    "does_not_turn": "the rotation does not turn: all its angles are 0",
    "base": "the rotation has another base than the configuration",
    "exponents": "the exponents of the frequencies have another denominator",
    "factor": "the frequencies are scaled by another factor than the configured one",
    "attention_factor": "cos and sin have another factor than the configured one",
    "original_length": "the rule of scaling reads another original length",
    "layout": "other pairs of channels turn than in the model type",
    "sections": "the channels of the axes differ from the configured sections",
    "frequencies": "the frequencies differ from the configured ones",
    "configuration_lost": "saving loses an entry of the configuration that the model follows",
    "positions_in_cache": "tokens that follow a cache have wrong positions",
    "positions_of_padding": "padding is counted in positions",
    "positions_of_documents": "positions run on from one packed text to the next",
    "positions_of_first_row": "all rows have the positions of the first row",
    "positions_of_another_row": "rows have the positions of other rows",
    "length_of_call": "angles depend on the number of tokens in a call",
    "mask_causal": "the causal mask is missing or shifted: tokens see later ones",
    "mask_in_cache": "the causal mask is misaligned where tokens follow a cache",
    "mask_of_documents": "packed texts see each other",
    "mask_of_padding": "tokens see padding",
    "mask_of_backend": "one attention implementation ignores the mask",
    "window": "a layer has another window than the configured one",
    "window_in_cache": "the window is not applied where tokens follow a cache",
    "keys_not_turned": "keys are not rotated as queries are",
    "keys_in_cache": "cached keys differ from those of one pass",
    "state_of_documents": "the state of a recurrence or convolution runs on into the next text",
    "rows_touch": "rows of a batch change each other",
    "gradients_mix": "gradients flow between packed texts",
    "checkpointing": "gradients differ with gradient checkpointing",
}
"""{id of an explanation: its sentence}."""


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """The result of one law.

    Attributes:
        law: Its name.
        statement: What it states.
        status: "kept", "broken" or "not asked".
        error: Largest difference of logits, relative to the largest absolute logit.
        bound: The largest error that rounding explains.
        since: The first position at which the law breaks, or None.
        module: The first module whose outputs differ although its inputs agree, or None.
        cause: One sentence about the cause, or None.
        explanation: A key of `EXPLANATIONS`, or None.
        reason: Why the law was not asked.
    """

    law: str
    statement: str
    status: Status
    error: float | None = None
    bound: float | None = None
    since: int | None = None
    module: str | None = None
    cause: str | None = None
    explanation: str | None = None
    reason: str | None = None

    @property
    def remark(self) -> str:
        """The cause and the place of a broken law, or why it was not asked."""
        if self.status != "broken":
            return self.reason or ""
        where = [] if self.module is None else [f"in {self.module}"]
        since = [] if self.since is None else [f"since position {self.since:,}"]
        return "; ".join([*([self.cause] if self.cause else []), *where, *since])


@dataclass(frozen=True)
class AuditReport:
    """The results of an audit.

    Attributes:
        results: One for each law, in the order of the laws.
        notes: What is worth knowing, and breaks no law.
        model: What was audited.
        versions: {package: version}.
        seconds: Duration of the audit.
        figures: Measurements that the page shows.
    """

    results: tuple[LawResult, ...]
    notes: tuple[str, ...]
    model: str
    versions: Mapping[str, str]
    seconds: float
    figures: AuditFigures = field(default_factory=AuditFigures)

    @property
    def is_sound(self) -> bool:
        """True if no law is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[LawResult, ...]:
        """The results of the broken laws."""
        return tuple(result for result in self.results if result.status == "broken")

    @property
    def problem(self) -> ZooError | None:
        """An error that names the broken laws; None if all laws are kept."""
        if self.is_sound:
            return None
        lines = [f"  {result.law}: {result.remark or result.statement}" for result in self.broken]
        count = len(lines)
        summary = "1 law is broken" if count == 1 else f"{count} laws are broken"
        return ZooError("\n".join([summary, *lines]))

    def table(self) -> str:
        """Return the table that `zoo audit` prints."""
        rows = []
        for result in self.results:
            numbers = [
                "" if number is None else f"{number:.1e}" for number in (result.error, result.bound)
            ]
            status = "BROKEN" if result.status == "broken" else result.status
            rows.append([result.law, status, *numbers, result.remark])
        titles = ["law", "status", "error", "bound", "remark"]
        table = format_markdown(titles, rows, ("law", "status", "remark"))
        notes = [f"Note: {note}" for note in self.notes]
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        head = f"{self.model}{f' ({versions})' if versions else ''}, {self.seconds:.0f} s"
        return "\n\n".join([head, table, *notes])

    def __str__(self) -> str:
        """Return the table."""
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "model": self.model,
            "is_sound": self.is_sound,
            "results": [asdict(result) for result in self.results],
            "notes": list(self.notes),
            "versions": dict(self.versions),
            "seconds": self.seconds,
            "figures": asdict(self.figures),
        }

    def save(self, path: str | Path) -> None:
        """Write the report.

        Args:
            path: A file that ends in .json or .html.

        Raises:
            OptionError: The ending is another one.
            ZooError: A page is written, and a package that draws it is not installed.
        """
        path = Path(path)
        check_ending(path)
        if path.suffix == ".json":
            write_json(finite(self.to_dict()), path)
            return
        with explain_imports():
            from zoo.auditing.audit_page import render_audit

            page = render_audit(self)
        write_file(io.BytesIO(page.encode()), path)


def check_ending(path: str | Path) -> None:
    """Check the name of a file for a report.

    Raises:
        OptionError: It ends neither in .json nor in .html.
    """
    if Path(path).suffix not in ENDINGS:
        raise OptionError("out", f"{Path(path).name} ends neither in .json nor in .html")
