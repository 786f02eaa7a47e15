"""Ask a subject each law, and describe what is broken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from types import MappingProxyType

import torch
from torch import Tensor, nn

from zoo.auditing.audit_figures import measure_figures
from zoo.auditing.audit_report import EXPLANATIONS, AuditReport, LawResult, Status
from zoo.auditing.causes import (
    do_rows_touch,
    find_explanation,
    find_ignoring_backend,
    find_later_tokens,
    find_other_keys,
    find_running_state,
    is_kept_by_another_backend,
)
from zoo.auditing.comparisons import (
    LENGTH,
    MASK,
    RESTARTS,
    ModelComparison,
    compare_batch,
    compare_cache,
    compare_future,
    compare_packing,
    compare_padding,
    compare_past_original,
    compare_shift,
    follows_length,
    list_shifts,
    shift_text,
)
from zoo.auditing.model_laws import (
    check_checkpointing,
    check_long,
    check_packed_gradients,
    check_windows,
    compare_backends,
    compare_packed_gradients,
    compare_reference,
    compute_saved,
    find_lost_entry,
    measure_half_precision,
)
from zoo.auditing.model_subjects import find_options, replace_model
from zoo.auditing.places import find_place
from zoo.auditing.rotations import check_rotations
from zoo.auditing.subject import (
    REFUSALS,
    AuditSubject,
    NotAskedError,
    copy_in_float64,
    measure_error,
)
from zoo.auditing.twins import build_twin
from zoo.errors import OptionError, escape_text
from zoo.integrations.evaluating import evaluating
from zoo.suggestions import nearest

SAFETY = 16  # a bound is this many times the rounding that was measured
LOWEST = 1e-5  # bound of a model that rounds less than float32 usually does
LARGEST = 2.0**13  # rounding of a pass, in units of the dtype's resolution
HIDES_ALL = 1.0  # a bound that no error exceeds: logits differ by themselves
EXACT = 1e-6  # bound in float64; models compute angles and softmax in float32
ANGLES = 16 * 2.0**-24  # error by rounded angles in float32, for each position
USUAL = 32  # rounding of a pass of most models, in units of the dtype's resolution
MOST_SENSITIVE = 4  # by how much more rounded angles may change a model that rounds more
SEPARABLE = 64  # times the usual rounding, beyond which a model enlarges that of angles, too


@dataclass
class LawFinding:
    """The outcome of one law.

    Attributes:
        error: The largest error.
        bound: The largest error that rounding explains.
        comparison: The passes that differ most, if the law compares passes.
        since: The first position at which it breaks.
        module: Where it breaks, if the law knows.
        cause: A sentence about the cause.
        explanation: A key of `EXPLANATIONS`.
        broken: The comparisons that differ, in the order in which they were made.
    """

    error: float
    bound: float
    comparison: ModelComparison | None = None
    since: int | None = None
    module: str | None = None
    cause: str | None = None
    explanation: str | None = None
    broken: list[ModelComparison] = field(default_factory=list)

    @property
    def is_broken(self) -> bool:
        """True if the error exceeds the bound."""
        return not self.error <= self.bound


@dataclass
class Auditor:
    """Asks the laws of a subject.

    Args:
        subject: What is asked.

    Attributes:
        findings: What the laws gave so far.
        notes: What is worth knowing, and breaks no law.
    """

    subject: AuditSubject
    findings: dict[str, LawFinding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.twin is not None:
            # What the installed class follows must change this model, too.
            self.subject = replace(self.subject, options=self.twin.options)

    @cached_property
    def double(self) -> AuditSubject | None:
        """The subject in float64; None if it has no such copy."""
        if self.subject.model is None:
            return None
        try:
            double = replace_model(self.subject, copy_in_float64(self.subject.model))
            double.logits(double.draw_ids(1, 4))
        except REFUSALS as refusal:
            self.notes.append(f"no copy in float64: {describe_refusal(refusal)}")
            return None
        return double

    @cached_property
    def twin(self) -> AuditSubject | None:
        """The installed class, built anew with the same weights; None for an unknown class."""
        if self.subject.model is None:
            return None
        twin = build_twin(self.subject.model)
        if twin is None:
            return None
        subject = replace_model(self.subject, twin)
        return replace(subject, options=self.subject.options | find_options(subject))

    @cached_property
    def rounding(self) -> float:
        """Error of a pass by rounding, measured against float64."""
        ids = self.subject.draw_ids(2, LENGTH)
        logits = self.subject.logits(ids)
        eps = torch.finfo(logits.dtype).eps
        if self.double is not None:
            error = measure_error(logits, self.double.logits(ids))
            if error <= LARGEST * eps:
                return error
            # Experts chosen otherwise, or a model that computes something else in float64.
            self.notes.append(f"float64 changes logits by {error:.1e}, more than by rounding")
        return 16 * eps

    @cached_property
    def sensitivity(self) -> float:
        """How many times the usual rounding of its dtype a pass of the model has."""
        logits = self.subject.logits(self.subject.draw_ids(1, 4))
        return self.rounding / (USUAL * torch.finfo(logits.dtype).eps)

    @property
    def angles(self) -> float:
        """Error by rounded angles for each position; large scores let it grow, as all rounding."""
        return ANGLES * min(max(self.sensitivity, 1), MOST_SENSITIVE)

    @cached_property
    def rows_touch(self) -> bool:
        """True if a row's logits depend on other rows, by gradients."""
        return do_rows_touch(self.subject)

    @property
    def bound(self) -> float:
        """The largest error of a law that rounding explains."""
        return max(SAFETY * self.rounding, LOWEST)

    def compare(
        self,
        comparisons: Iterator[ModelComparison],
        bound: Callable[[ModelComparison], float] | None = None,
    ) -> LawFinding:
        """Return the comparison with the largest error relative to its bound.

        Raises:
            NotAskedError: Nothing can be compared.
        """
        if self.bound > HIDES_ALL:
            size = f"rounding changes logits by {self.rounding:.1e}"
            raise NotAskedError(f"{size}, which hides what the law asks")
        worst, refusals = LawFinding(0.0, self.bound), []
        broken: list[ModelComparison] = []
        count = 0
        for comparison in comparisons:
            limit = self.bound if bound is None else bound(comparison)
            try:
                error = self.measure(self.subject, comparison)
            except NotAskedError as refusal:
                if not comparison.is_optional:
                    raise
                self.notes.append(f"{comparison.way}: {refusal}")
                continue
            except REFUSALS as refusal:
                sentence = f"{comparison.way}: {describe_refusal(refusal)}"
                if comparison.is_optional:
                    self.notes.append(sentence)
                else:
                    refusals.append(sentence)
                continue
            count += 1
            if error > limit and self.is_rounding(comparison):
                continue
            if error > limit:
                broken.append(comparison)
            if error / limit >= worst.error / worst.bound:
                worst = LawFinding(error, limit, comparison, comparison.since)
            if error > limit and comparison.since is not None:
                break
        if not count:
            raise NotAskedError(refusals[0] if refusals else "nothing to compare")
        if refusals and not broken:
            # A way that crashes keeps nothing.
            raise NotAskedError(f"could be asked in part only: {refusals[0]}")
        self.notes += refusals
        worst.broken = broken
        return worst

    def is_rounding(self, comparison: ModelComparison) -> bool:
        """Return whether an error vanishes in float64."""
        if self.double is None or comparison.since is not None:
            return False
        try:
            return self.measure(self.double, comparison) <= EXACT
        except REFUSALS:
            return False

    def measure(self, subject: AuditSubject, comparison: ModelComparison) -> float:
        """Return the error of a comparison."""
        reference = comparison.select_reference(comparison.reference(subject))
        return measure_error(comparison.select(comparison.tested(subject)), reference)


def describe_refusal(error: Exception) -> str:
    """Return a class of errors and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:100]}" if lines else type(error).__name__


def ask_future(auditor: Auditor) -> LawFinding:
    """Ask `future`."""
    return auditor.compare(compare_future(auditor.subject))


def ask_batch(auditor: Auditor) -> LawFinding:
    """Ask `batch`."""
    return auditor.compare(compare_batch(auditor.subject))


def ask_cache(auditor: Auditor) -> LawFinding:
    """Ask `cache`."""
    return auditor.compare(compare_cache(auditor.subject))


def ask_left_padding(auditor: Auditor) -> LawFinding:
    """Ask `left_padding`."""
    return auditor.compare(compare_padding(auditor.subject, left=True))


def ask_right_padding(auditor: Auditor) -> LawFinding:
    """Ask `right_padding`."""
    return auditor.compare(compare_padding(auditor.subject, left=False))


def ask_packing(auditor: Auditor) -> LawFinding:
    """Ask `packing`; a way that the installed class does not offer is noted only."""
    findings = {}
    refusals = []
    for comparison in compare_packing(auditor.subject):
        try:
            findings[comparison.way] = auditor.compare(iter([comparison]))
        except NotAskedError as refusal:
            refusals.append(str(refusal))
    if not findings:
        raise NotAskedError("; ".join(refusals) or "nothing to compare")
    for way, finding in list(findings.items()):
        if not finding.is_broken or len(findings) == 1 or auditor.twin is None:
            continue
        assert finding.comparison is not None
        if auditor.measure(auditor.twin, finding.comparison) > finding.bound:
            auditor.notes.append(f"packing: {way} do not separate texts in this model type")
            del findings[way]
    note_cached_packing(auditor, findings)
    worst = max(findings.values(), key=lambda finding: finding.error / finding.bound)
    worst.broken = [one for finding in findings.values() for one in finding.broken]
    if not worst.is_broken and auditor.subject.model is not None:
        error = check_packed_gradients(auditor.subject, next(iter(findings)))
        if error > EXACT:
            cause = "in training mode, gradients flow from one packed text to another one"
            return LawFinding(error, EXACT, cause=cause, explanation="gradients_mix")
        subject, bound = auditor.subject, 10 * auditor.bound
        error, name = compare_packed_gradients(subject, next(iter(findings)), bound)
        if error > bound and auditor.double is not None:
            subject, bound = auditor.double, 10 * EXACT
            error, name = compare_packed_gradients(subject, next(iter(findings)), bound)
        if error > bound and name is not None:
            cause = f"in training mode, the gradient of {name} is another one for a packed text"
            module = name.rpartition(".")[0]
            return LawFinding(error, bound, None, None, module, cause, "gradients_mix")
    return worst


def note_cached_packing(auditor: Auditor, findings: dict[str, LawFinding]) -> None:
    """Note that texts are separated without a cache only, where the default is to have one."""
    finding, subject = findings.get(RESTARTS), auditor.subject
    if finding is None or finding.is_broken or finding.comparison is None:
        return
    scene, cached = finding.comparison.scene, subject.cached
    if scene is None or cached is None or subject.model is None:
        return
    comparison = replace(
        finding.comparison,
        tested=lambda subject: cached(scene.ids, None, positions=scene.positions)[0],
    )
    try:
        error = auditor.measure(subject, comparison)
    except (*REFUSALS, NotAskedError):
        return
    if error > auditor.bound and getattr(subject.model.config, "use_cache", False):
        auditor.notes.append(f"packing: {RESTARTS} separate texts with use_cache=False only")


def ask_shift(auditor: Auditor) -> LawFinding:
    """Ask `shift`, and find the first position at which it breaks."""
    subject = auditor.subject
    subject.require("positions")
    ids = subject.draw_ids(1, LENGTH)

    def find_bound(comparison: ModelComparison) -> float:
        return auditor.bound + auditor.angles * ((comparison.since or 0) + LENGTH)

    # Tables and scales by position are no fault.
    for shift in (1, 3):
        comparison = shift_text(ids, shift)
        try:
            error = auditor.measure(subject, comparison)
        except REFUSALS as refusal:
            raise NotAskedError(describe_refusal(refusal)) from refusal
        if error > find_bound(comparison):
            raise NotAskedError(f"positions are not relative: a shift by {shift} changes logits")
    if auditor.double is not None and changes_evenly(auditor.double, ids):
        raise NotAskedError("positions are not relative: logits change evenly with the shift")
    finding = auditor.compare(compare_shift(subject), find_bound)
    if finding.is_broken and auditor.sensitivity > SEPARABLE:
        # Such a model enlarges the rounding of angles as it does all other.
        enlarged = ANGLES * auditor.sensitivity

        def find_bound(comparison: ModelComparison) -> float:
            return auditor.bound + enlarged * ((comparison.since or 0) + LENGTH)

        finding = auditor.compare(compare_shift(subject), find_bound)
        if not finding.is_broken:
            size = f"rounding changes logits by {auditor.rounding:.1e}"
            raise NotAskedError(f"{size}, which hides what far positions change")
    if finding.is_broken and finding.comparison is not None:
        bad = finding.comparison.since or 0
        good = max((shift for shift in list_shifts(subject.length) if shift < bad), default=0)
        while bad - good > 1:
            middle = (good + bad) // 2
            comparison = shift_text(ids, middle)
            if auditor.measure(subject, comparison) > find_bound(comparison):
                bad = middle
            else:
                good = middle
        finding.since = bad + LENGTH - 1
    return finding


def ask_order(auditor: Auditor) -> LawFinding:
    """Ask `order`: the last logits must change when two earlier tokens are exchanged."""
    subject = auditor.subject
    ids = subject.draw_ids(1, LENGTH)
    exchanged = ids.clone()
    exchanged[:, [2, 9]] = ids[:, [9, 2]]
    subject.logits(ids)
    difference = measure_error(subject.logits(exchanged)[:, -1:], subject.logits(ids)[:, -1:])
    # A law about a difference that must be seen: the error is 1 if it is not.
    error = 1.0 if difference <= auditor.rounding else 0.0
    return LawFinding(error, 0.5, cause="exchanging two tokens changes nothing" if error else None)


def ask_rotary(auditor: Auditor) -> LawFinding:
    """Ask `rotary`."""
    error, bound, fault = check_rotations(auditor.subject, auditor.twin, auditor.notes)
    if fault is None:
        return LawFinding(error, bound)
    return LawFinding(
        error,
        bound,
        since=fault.since,
        module=fault.path,
        cause=fault.cause,
        explanation=fault.explanation,
    )


def ask_backends(auditor: Auditor) -> LawFinding:
    """Ask `backends`."""
    return auditor.compare(compare_backends(auditor.subject))


def ask_window(auditor: Auditor) -> LawFinding:
    """Ask `window`."""
    # Gradients are exact zeros in any precision, but vanish in none of float64.
    subject = auditor.double or auditor.subject
    fault = check_windows(subject, auditor.notes)
    if fault is None:
        return LawFinding(0.0, 0.5)
    path, since, cause, explanation = fault
    return LawFinding(1.0, 0.5, None, since, path, cause, explanation)


def ask_checkpointing(auditor: Auditor) -> LawFinding:
    """Ask `checkpointing`."""
    bound = 10 * auditor.bound
    error, name = check_checkpointing(auditor.subject, bound)
    if error <= bound:
        return LawFinding(error, bound)
    module = None if name is None else name.rpartition(".")[0]
    cause = f"the gradient of {name} is another one with gradient checkpointing"
    return LawFinding(error, bound, module=module, cause=cause, explanation="checkpointing")


def ask_save(auditor: Auditor) -> LawFinding:
    """Ask `save`."""
    subject = auditor.subject
    if subject.model is None:
        raise NotAskedError("functions cannot be saved")
    ids = subject.draw_ids(1, 2 * LENGTH)
    logits, loaded = compute_saved(subject, ids)
    error = measure_error(logits, subject.logits(ids))
    finding = LawFinding(error, auditor.bound, cause="the loaded model computes other logits")
    if finding.is_broken:
        entry = find_lost_entry(subject, loaded, ids, auditor.bound)
        if entry is not None:
            finding.cause = f"the saved configuration lacks {entry}, which the model follows"
            finding.explanation = "configuration_lost"
    return finding


def ask_reference(auditor: Auditor) -> LawFinding:
    """Ask `reference`."""
    if auditor.twin is None:
        raise NotAskedError("no installed class has this name and these weights")
    finding = auditor.compare(compare_reference(auditor.subject, auditor.twin))
    finding.comparison = None  # its passes are of two models
    finding.cause = "the installed class computes other logits with the same weights"
    return finding


def ask_precision(auditor: Auditor) -> LawFinding:
    """Ask `precision`."""
    if "shift" in auditor.findings and auditor.findings["shift"].is_broken:
        raise NotAskedError("positions are not relative, see shift")
    near, far, position = measure_half_precision(auditor.subject)
    bound = max(4 * near, 0.02)
    since = position if far > bound else None
    cause = f"bfloat16 rounds {far / max(near, 1e-9):.0f} times more there than near position 0"
    return LawFinding(far, bound, since=since, cause=cause)


def ask_long(auditor: Auditor) -> LawFinding:
    """Ask `long`."""
    change = compare_past_original(auditor.subject)
    if change is not None:
        finding = auditor.compare(iter([change]))
        if finding.is_broken and follows_length(auditor.subject):
            sentence = "the frequencies follow the length of the text, and cached keys keep theirs"
            auditor.notes.append(f"{change.way}: {sentence}")
        elif finding.is_broken:
            return finding
    error, start = check_long(auditor.subject)
    return LawFinding(error, 0.5, since=start, cause="logits are not finite")


@dataclass(frozen=True)
class AuditLaw:
    """A law.

    Attributes:
        statement: What it states.
        ask: Asks it. Raises NotAskedError where it cannot be asked.
    """

    statement: str
    ask: Callable[[Auditor], LawFinding]


LAWS: Mapping[str, AuditLaw] = MappingProxyType(
    {
        "future": AuditLaw("changing a token changes no earlier logit", ask_future),
        "batch": AuditLaw("a row is computed as alone, in any company", ask_batch),
        "cache": AuditLaw("parts of any size with a cache equal one pass", ask_cache),
        "left_padding": AuditLaw("padding on the left changes no logit", ask_left_padding),
        "right_padding": AuditLaw("padding on the right changes no logit", ask_right_padding),
        "packing": AuditLaw("texts packed into a row are computed as alone", ask_packing),
        "shift": AuditLaw("shifting all positions changes nothing", ask_shift),
        "order": AuditLaw("exchanging two tokens is seen", ask_order),
        "rotary": AuditLaw("rotary modules turn what the configuration says", ask_rotary),
        "precision": AuditLaw("far positions are rounded no more than near ones", ask_precision),
        "backends": AuditLaw("eager and sdpa agree on all tokens but padding", ask_backends),
        "window": AuditLaw("a layer sees exactly the tokens of its window", ask_window),
        "checkpointing": AuditLaw(
            "gradients agree with and without gradient checkpointing", ask_checkpointing
        ),
        "save": AuditLaw("saved and loaded, a model computes the same", ask_save),
        "reference": AuditLaw("the installed class computes the same", ask_reference),
        "long": AuditLaw("past the trained length logits are finite", ask_long),
    }
)


def select_laws(names: Sequence[str] | None) -> dict[str, AuditLaw]:
    """Return laws by name, all by default.

    Raises:
        OptionError: There is no law of a name.
    """
    if names is None:
        return dict(LAWS)
    for name in names:
        if name not in LAWS:
            raise OptionError("laws", f"no law {name!r}; {nearest(name, list(LAWS))}")
    if not names:
        raise OptionError("laws", "empty list; omit it to ask all laws")
    return {name: law for name, law in LAWS.items() if name in names}


def audit_subject(subject: AuditSubject, laws: Sequence[str] | None = None) -> AuditReport:
    """Ask a subject laws.

    Args:
        subject: What is asked.
        laws: Names of laws; all by default.

    Raises:
        OptionError: There is no law of a name, or a function returns no logits.
    """
    chosen = select_laws(laws)
    if subject.model is None:
        check_logits(subject)
    start = time.perf_counter()
    model = subject.model if subject.model is not None else nn.Identity()
    results = []
    with evaluating(model):
        auditor = Auditor(subject)
        for name, law in chosen.items():
            results.append(ask_law(auditor, name, law))
        for name, finding in auditor.findings.items():
            if finding.is_broken and subject.model is not None:
                explain(auditor, name, finding)
        for finding in auditor.findings.values():
            adopt_explanation(auditor, finding, ("window", "cache", "future"))
        figures = measure_figures(
            auditor.subject, auditor.twin, auditor.bound, auditor.angles, set(auditor.findings)
        )
    results = [describe(result, auditor.findings.get(result.law)) for result in results]
    return AuditReport(
        tuple(results),
        tuple(dict.fromkeys(auditor.notes)),
        subject.name,
        {name: version(name) for name in ("torch", "transformers")},
        time.perf_counter() - start,
        figures,
    )


def changes_evenly(subject: AuditSubject, ids: Tensor) -> bool:
    """Return whether small shifts change logits in proportion, as a scale by position does.

    Rounding changes them by chance, and a fault at far positions not at all.

    Args:
        subject: The subject in float64.
        ids: Token ids [1, N].
    """
    changes = []
    for shift in (1, 3):
        comparison = shift_text(ids, shift)
        change = comparison.tested(subject) - comparison.reference(subject)
        changes.append(change.double().flatten() / shift)
    size = max(float(one.norm()) for one in changes)
    return size > 0 and float((changes[1] - changes[0]).norm()) < 0.1 * size


def check_logits(subject: AuditSubject) -> None:
    """Check that a function returns logits of token ids.

    Raises:
        OptionError: It returns something else, or fails.
    """
    ids = subject.draw_ids(2, 8)
    try:
        logits = subject.logits(ids)
    except REFUSALS as refusal:
        problem = f"fails for token ids [2, 8]: {describe_refusal(refusal)}"
        raise OptionError("logits", escape_text(problem)) from None
    expected = "must return a tensor of floats [B, N, V] for token ids [B, N]"
    if not isinstance(logits, Tensor):
        raise OptionError("logits", f"{expected}, and returns {type(logits).__name__}")
    if logits.dim() != 3 or logits.shape[:2] != ids.shape or not logits.is_floating_point():
        returned = f"{logits.dtype} {[*logits.shape]} for {[*ids.shape]}"
        raise OptionError("logits", f"{expected}, and returns {returned}")


def ask_law(auditor: Auditor, name: str, law: AuditLaw) -> LawResult:
    """Ask one law."""
    result = LawResult(law=name, statement=law.statement, status="not asked")
    try:
        finding = law.ask(auditor)
    except NotAskedError as reason:
        return replace(result, reason=str(reason))
    except REFUSALS as error:
        return replace(result, reason=f"could not be asked: {describe_refusal(error)}")
    auditor.findings[name] = finding
    status: Status = "broken" if finding.is_broken else "kept"
    return replace(result, status=status, error=finding.error, bound=finding.bound)


def describe(result: LawResult, finding: LawFinding | None) -> LawResult:
    """Return a result with place and cause, if the law is broken."""
    if finding is None or not finding.is_broken:
        return result
    cause = finding.cause
    if cause is None and finding.explanation is not None:
        cause = EXPLANATIONS[finding.explanation]
    if cause is None and finding.comparison is not None:
        cause = f"with {finding.comparison.way}" if finding.module is None else None
    return replace(
        result,
        since=finding.since,
        module=finding.module,
        cause=cause,
        explanation=finding.explanation,
    )


def explain(auditor: Auditor, law: str, finding: LawFinding) -> None:
    """Find the place and the cause of a broken law."""
    subject, comparison = auditor.subject, finding.comparison
    if finding.explanation is not None or comparison is None:
        return
    bound = auditor.bound
    # Angles differ between the passes of `shift`, and modules do not between backends.
    if law not in ("shift", "backends"):
        finding.module, _ = find_place(subject, comparison, bound)
    rotary = auditor.findings.get("rotary")
    if (
        rotary is not None
        and rotary.is_broken
        and (finding.module == rotary.module or (law == "shift" and rotary.since is not None))
    ):
        finding.module, finding.cause = rotary.module, rotary.cause
        finding.explanation = rotary.explanation
        return
    adopt_explanation(auditor, finding, ("window",))
    if finding.explanation is not None:
        return
    for broken in finding.broken:
        try:
            explanation = _find_cause(auditor, law, finding, broken)
        except (*REFUSALS, NotAskedError):
            continue  # the place is known
        if explanation is not None:
            finding.explanation, finding.cause = explanation
            return


def adopt_explanation(auditor: Auditor, finding: LawFinding, laws: Sequence[str]) -> None:
    """Take the explanation that other laws measured in the same module, for lack of another one."""
    if not finding.is_broken or finding.explanation is not None or finding.module is None:
        return
    for law in laws:
        other = auditor.findings.get(law)
        if (
            other is not None
            and other.is_broken
            and other.explanation in ("window", "window_in_cache", "keys_in_cache", "mask_causal")
            and other.module == finding.module
        ):
            finding.explanation, finding.cause = other.explanation, other.cause
            return


def _find_cause(
    auditor: Auditor, law: str, finding: LawFinding, comparison: ModelComparison
) -> tuple[str, str] | None:
    """Return the explanation of a broken law and its sentence, if one gives the numbers."""
    subject, bound = auditor.subject, auditor.bound
    sound = auditor.twin or subject
    if law == "backends":
        return find_ignoring_backend(subject, sound, comparison, bound)
    backends = auditor.findings.get("backends")
    if (
        law != "future"
        and backends is not None
        and backends.is_broken
        and (is_kept_by_another_backend(subject, comparison, bound))
    ):
        explain(auditor, "backends", backends)
        if backends.explanation is not None and backends.cause is not None:
            return backends.explanation, backends.cause
    if law in ("batch", "left_padding", "right_padding") and auditor.rows_touch:
        return "rows_touch", "the logits of a row depend on the tokens of other rows"
    batch = auditor.findings.get("batch")
    if (
        law in ("left_padding", "right_padding")
        and batch is not None
        and batch.module == finding.module
        and (batch.explanation or "").startswith("positions_of")
    ):
        # Padded rows alone do not tell the first row from another one.
        return str(batch.explanation), str(batch.cause)
    if law == "packing" and finding.module is not None:
        # Before masks and positions, which a state does not follow.
        kind = find_running_state(subject, comparison, bound, finding.module)
        if kind is not None:
            return "state_of_documents", f"the state of {kind} runs on into the next text of a row"
    explanation = find_explanation(
        law,
        subject,
        sound,
        comparison,
        bound,
        finding.module,
        may_ignore_positions="positions" in subject.options
        and not any(
            auditor.findings[other].is_broken
            for other in ("future", "batch", "cache", "right_padding", "window")
            if other in auditor.findings
        ),
    )
    if explanation is not None:
        is_by_mask = comparison.way == MASK and len(finding.broken) == 1
        if explanation[0] == "positions_of_documents" and is_by_mask:
            # Restarting positions are followed without a mask.
            return "positions_of_padding", "position ids are ignored where a mask is given"
        return explanation
    if law == "future" and comparison.scene is not None:
        later = find_later_tokens(auditor.double or subject, comparison.scene.ids)
        if later is not None:
            finding.module = later[0]
            return later[1:]
    if law == "cache":
        module = find_other_keys(subject, comparison, 10 * bound)
        if module is not None:
            finding.module = module
            return "keys_in_cache", "keys after a cache are not those of one pass"
    return None
