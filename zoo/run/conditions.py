"""Evaluation conditions (sizes, data variants, extrapolation methods): listed, and validated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn

from zoo.attention.chain import list_links
from zoo.attention.encoding import Encoding
from zoo.attention.layer import find_encoded
from zoo.config import Recipe
from zoo.config.schema import format_size, parse_length, parse_sides
from zoo.data.spec import DataSpec, get_sides
from zoo.encodings.common.scaling import GridScaling, Scaling
from zoo.errors import OptionError
from zoo.options import Choice
from zoo.options.validation import explain_misfit
from zoo.run.build import Experiment, build_task
from zoo.run.processes import compute_batch_size
from zoo.run.resized import ResizedInputs, explain_unresizable
from zoo.run.sliding_window import SlidingWindow, explain_unslidable
from zoo.run.truncation import TruncatedContext, explain_untruncated
from zoo.suggestions import join_words, nearest
from zoo.tasks.base import Task

ConditionKind = Literal["trained", "size", "data_variant", "extrapolation"]

SIZE_OPTIONS = {"resolutions": "size", "lengths": "length"}  # the option of the data that varies
TRAINED = "trained"
"""The name of the first condition: the test data as the recipe describes it."""
NONE = "none"
"""The extrapolation method that leaves the encodings unchanged."""
NO_ENCODING = "none"
"""The encoding that encodes nothing."""
DROP = "drop"
"""The extrapolation method that drops the encodings and keeps all other weights."""
TRUNCATE = "truncate"
"""The baseline of extrapolation methods: no token is predicted from more than the training
length."""
SLIDING_WINDOW = "sliding_window"
"""The baseline of segmentation: an image is read in windows of the training size."""
RESIZE = "resize"
"""The baseline of images: each is resized to the training size before the model reads it."""
SCALINGS = (Scaling, GridScaling)
"""Options of encodings that have a factor."""

Changes = Sequence[tuple[Encoding, Mapping[str, Any]]]
"""Encodings of a model, each with the options that change."""


@dataclass(frozen=True)
class Condition:
    """A condition under which a model is evaluated.

    Attributes:
        name: Unique within an evaluation, and stable: "trained", "256", "16x32", "256 by yarn", or
            the name of a data variant.
        kind: What differs from the test data of the recipe.
        size: Tokens `(length,)`, or pixels `(height, width)`; None for a data variant, which may
            change it, and where it is unknown.
        extrapolation: The method by which the encodings are changed, if any.
        data_variant: The name of the data variant in the recipe, if it is one.
        factor: The factor of the method; None for the one that the size requires.
    """

    name: str
    kind: ConditionKind
    size: tuple[int, ...] | None = None
    extrapolation: str | None = None
    data_variant: str | None = None
    factor: float | None = None

    @property
    def method(self) -> str | None:
        """The extrapolation method with its factor, for people: yarn, yarn x4; None without one."""
        if self.extrapolation is None:
            return None
        return _name_method(self.extrapolation, self.factor)

    @property
    def unit(self) -> str:
        """The unit of the size: tokens or pixels; empty without a size."""
        # one number is a length, two are height and width
        return {0: "", 1: "tokens", 2: "pixels"}[len(self.size or ())]

    def describe(self) -> str:
        """Return the label for people: 24 pixels, 256 tokens by yarn, rotated."""
        if self.data_variant is not None:
            return self.data_variant
        if self.size is None:
            return "the training size"
        label = f"{format_size(self.size)} {self.unit}"
        return f"{label} by {self.method}" if self.extrapolation else label

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_dict` reads it."""
        plain = {**asdict(self), "size": None if self.size is None else [*self.size]}
        # most conditions have no factor of their own, and files from before have no such key
        if self.factor is None:
            del plain["factor"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned, from a mapping that may have other keys too.

        Raises:
            KeyError: A key is missing.
            ValueError: The kind is unknown.
            TypeError: A value has another type.
        """
        kind, size = plain["kind"], plain["size"]
        texts = [plain["name"], plain["extrapolation"] or "", plain["data_variant"] or ""]
        if not all(isinstance(string, str) for string in texts):
            raise TypeError("name, extrapolation and data_variant of a condition are strings")
        if kind not in get_args(ConditionKind):
            raise ValueError(f"unknown kind of condition {kind!r}")
        factor = plain.get("factor")
        # the type itself, since isinstance would take true for a number
        if factor is not None and not (type(factor) in (int, float) and factor >= 1):
            raise TypeError("the factor of a condition is a number of at least 1")
        if size is not None and not (1 <= len(size) <= 2 and all(type(n) is int for n in size)):
            raise TypeError("the size of a condition is a list of one or two integers")
        return cls(
            name=plain["name"],
            kind=kind,
            size=None if size is None else tuple(size),
            extrapolation=plain["extrapolation"],
            data_variant=plain["data_variant"],
            factor=None if factor is None else float(factor),
        )


def list_conditions(recipe: Recipe, spec: DataSpec) -> tuple[Condition, ...]:
    """List the conditions of a recipe's evaluation: trained, sizes, data variants, extrapolations.

    Args:
        recipe: The recipe.
        spec: The samples of training, of which sizes such as "2x" are multiples.

    Raises:
        OptionError: A size is not an integer number of pixels or tokens.
    """
    trained = spec.size
    sizes = dict.fromkeys(list_sizes(recipe, spec))
    methods = dict.fromkeys(
        (method, factor)
        for method in recipe.evaluate.extrapolation or ()
        for factor in recipe.evaluate.factors or (None,)
        # those of the unchanged model are the sizes themselves
        if method != NONE
    )
    names = {format_size(size) for size in sizes} | {TRAINED}

    conditions = [Condition(TRAINED, "trained", trained)]
    conditions += [Condition(format_size(size), "size", size) for size in sizes]
    for variant in recipe.evaluate.data_variants or {}:
        # a data variant may be called "256" too
        name = f"variant {variant}" if variant in names else variant
        conditions.append(Condition(name, "data_variant", data_variant=variant))
    for method, factor in methods:
        title = _name_method(method, factor)
        conditions += [
            Condition(
                f"{format_size(size)} by {title}", "extrapolation", size, method, factor=factor
            )
            for size in sizes
            if applies_at(method, compute_factors(spec, size))
        ]
    return tuple(conditions)


def _name_method(method: str, factor: float | None) -> str:
    """Name an extrapolation method with its factor; all digits tell two factors apart."""
    return method if factor is None else f"{method} x{str(factor).removesuffix('.0')}"


def applies_at(method: str, factors: Sequence[float]) -> bool:
    """Return whether a method changes anything at a size.

    Extrapolation changes nothing within the training size; smaller images are resized too.

    Args:
        method: The extrapolation method.
        factors: The size, divided by the training size along each axis.
    """
    if method == RESIZE:
        return any(factor != 1 for factor in factors)
    return max(factors) > 1


def list_sizes(recipe: Recipe, spec: DataSpec) -> list[tuple[int, ...]]:
    """Return the sizes to evaluate at; data has resolutions or lengths, never both.

    Raises:
        OptionError: A size is not an integer number of pixels or tokens.
    """
    evaluate = recipe.evaluate
    if spec.size_key == "resolutions":
        height, width = spec.size
        return [
            parse_sides(word, (height, width), f"resolutions.{index}")
            for index, word in enumerate(evaluate.resolutions or ())
        ]
    (length,) = spec.size
    return [
        (parse_length(word, length, f"lengths.{index}"),)
        for index, word in enumerate(evaluate.lengths or ())
    ]


def choose_data_options(recipe: Recipe, condition: Condition) -> dict[str, Any]:
    """Return the options of the data that give the samples of a condition."""
    if condition.data_variant is not None:
        return dict((recipe.evaluate.data_variants or {})[condition.data_variant])
    if condition.kind == "trained" or condition.size is None:
        return {}
    if len(condition.size) == 2:
        height, width = condition.size
        # data accepts one number for squares, and reports it so
        changes: dict[str, Any] = {"size": height if height == width else condition.size}
        if (pack := recipe.data.options.get("pack")) is not None:
            # rows hold as many images as in training, or one if its size is that of the samples
            before = recipe.data.options["size"]
            area = math.prod(get_sides(before)) if before else 0
            changes["pack"] = max(pack, -(-pack * height * width // area)) if area else None
        return changes

    # a batch has about as many tokens as in training
    (length,) = condition.size
    options = recipe.data.options
    trained = compute_batch_size(recipe) or 1
    batch_size = max(1, options["length"] * trained // length)
    stride = {"stride": recipe.evaluate.stride} if recipe.evaluate.stride else {}
    return {"length": length, "batch_size": batch_size, **stride}


def check_data(experiment: Experiment) -> Iterator[OptionError]:
    """Yield why the data cannot be given under some condition, whatever the model."""
    evaluate = experiment.recipe.evaluate
    slides = bool(evaluate.resolutions) and SLIDING_WINDOW in (evaluate.extrapolation or ())
    if evaluate.stride and slides:
        # pixels between windows would not be predicted
        side = min(experiment.spec.size)
        if evaluate.stride > side:
            message = f"windows of {side} pixels leave gaps; write {side} or less"
            yield OptionError("stride", message)
    elif evaluate.stride and not evaluate.lengths:
        subject = "other lengths; add evaluate.lengths"
        if experiment.spec.target_unit == "pixel":
            subject = "larger images; add sliding_window to evaluate.extrapolation"
        yield OptionError("stride", f"a stride applies to windows of {subject}")
    if evaluate.resolutions:
        yield from _check_sizes(experiment, "resolutions")
    if evaluate.lengths:
        yield from _check_sizes(experiment, "lengths")
    for name, changes in (evaluate.data_variants or {}).items():
        refusal = _find_refusal(experiment, changes, changes)
        if refusal:
            yield OptionError(f"data_variants.{name}", str(refusal))


def _check_sizes(experiment: Experiment, key: str) -> Iterator[OptionError]:
    recipe, spec, option = experiment.recipe, experiment.spec, SIZE_OPTIONS[key]
    if option not in recipe.data.options:
        message = f"data {recipe.data.name} has no option {option}, so it cannot vary"
        yield OptionError(key, message)
        return
    if spec.size_key != key:
        message = f"data {recipe.data.name} yields {spec.noun}, which have none"
        yield OptionError(key, message)
        return

    try:
        conditions = list_conditions(recipe, spec)
    except OptionError as error:
        yield error
        return
    for condition in conditions:
        if condition.kind == "size":
            options = choose_data_options(recipe, condition)
            chosen = {name: options[name] for name in (option, "stride") if name in options}
            refusal = _find_refusal(experiment, chosen, options)
            if refusal:
                # other refusals concern the sizes, whatever option of the data they name
                yield OptionError("stride" if refusal.key == "stride" else key, str(refusal))


def _find_refusal(
    experiment: Experiment, chosen: Mapping[str, Any], options: Mapping[str, Any]
) -> OptionError | None:
    """Return why the data refuses options, of which a user chose some; reads no data yet."""
    data = experiment.recipe.data
    for option, value in chosen.items():
        if option not in data.options:
            message = f"data {data.name} has no option {option}, so it cannot vary"
            return OptionError(option, message)
        if message := explain_misfit(data, option, value):
            return OptionError(option, message)
    try:
        experiment.data_variant(options)
    except OptionError as error:
        return error
    return None


def check_model(experiment: Experiment) -> Iterator[OptionError]:
    """Yield why the model cannot follow some condition; called within torch's meta device."""
    recipe, model, spec = experiment.recipe, experiment.meta_model, experiment.spec
    sizes = list_sizes(recipe, spec)
    if spec.size_key == "resolutions":
        for size in sizes:
            # a sample of the training size has passed already
            if size == spec.size:
                continue
            try:
                model(*spec.with_size(size).build_inputs())
            except OptionError as error:
                yield OptionError("resolutions", str(error))

    methods = recipe.evaluate.extrapolation or ()
    for method in (SLIDING_WINDOW, RESIZE):
        if method in methods and recipe.data.options.get("aspect") == "keep":
            message = f"{method} reads images of one size, and data.aspect keeps that of each"
            yield OptionError("extrapolation", f"{message}; leave {method} out")
            return
    all_factors = [compute_factors(spec, size) for size in sizes]
    for index, method in enumerate(methods):
        factors = next(
            (candidate for candidate in all_factors if applies_at(method, candidate)), None
        )
        if factors is None:
            verb = "differs from" if method == RESIZE else "exceeds"
            message = (
                f"{method}: no size {verb} the training size; add evaluate.{spec.size_key}=[2x]"
            )
            yield OptionError(f"extrapolation.{index}", message)
        elif message := explain_unknown(model, spec, method, factors):
            yield OptionError(f"extrapolation.{index}", message)
        elif recipe.evaluate.factors and method != NONE and not _has_factor(model, method, factors):
            message = f"extrapolation {method} has no factor; leave evaluate.factors out"
            yield OptionError("factors", message)
    if recipe.evaluate.factors and not methods:
        message = "factors are those of extrapolation methods; add evaluate.extrapolation=[yarn]"
        yield OptionError("factors", message)


def compute_factors(spec: DataSpec, size: Sequence[int]) -> tuple[float, ...]:
    """Divide a size by the training size, along each axis of the model.

    Args:
        spec: The samples of training.
        size: A length, or height and width; the frames of videos stay.
    """
    before = spec.grid
    # videos are extended along height and width only
    after = (*before[: len(before) - len(size)], *size)
    return tuple(now / then for now, then in zip(after, before, strict=True))


def find_methods(model: nn.Module, factors: tuple[float, ...]) -> dict[str, Changes]:
    """Return the extrapolation methods of a model's encodings, with the options they change."""
    methods: dict[str, list[tuple[Encoding, Mapping[str, Any]]]] = {}
    for link in _list_encodings(model):
        if _has_other_coordinates(link):
            continue
        for method, options in link.extrapolations(factors).items():
            methods.setdefault(method, []).append((link, options))
    return dict(methods)


def find_changes(
    model: nn.Module, method: str, factors: tuple[float, ...], factor: float | None = None
) -> Changes:
    """Return the options that an extrapolation method changes; empty if it is unknown.

    Args:
        model: The model.
        method: The method.
        factors: The size, divided by the training size along each axis.
        factor: The factor of the method; None for the one that the size requires.
    """
    changes = find_methods(model, factors).get(method, [])
    if factor is None:
        return changes
    return [
        (
            link,
            {
                key: value.with_factor(factor) if isinstance(value, SCALINGS) else value
                for key, value in options.items()
            },
        )
        for link, options in changes
    ]


def _has_factor(model: nn.Module, method: str, factors: tuple[float, ...]) -> bool:
    changes = find_methods(model, factors).get(method, [])
    return any(isinstance(value, SCALINGS) for _, options in changes for value in options.values())


def changes_model(model: nn.Module, method: str, factors: tuple[float, ...]) -> bool:
    """Return whether a model computes something else by a method."""
    if method in (TRUNCATE, SLIDING_WINDOW, RESIZE):
        return True
    if method == DROP:
        return any(link.name != NO_ENCODING for link in _list_encodings(model))
    return any(options for _, options in find_changes(model, method, factors))


def _list_encodings(model: nn.Module) -> list[Encoding]:
    return [link for part in find_encoded(model) for link in list_links(part.chains)]


def _has_other_coordinates(link: Encoding) -> bool:
    """Return whether the recipe chose other coordinates than the encoding declares.

    Extrapolation methods assume the declared ones, and would stretch other ones twice.
    """
    return link.coordinates != type(link).coordinates


def _name_with_obstacle(link: Encoding) -> str:
    """Name an encoding, with the option that leaves no extrapolation method to it."""
    if _has_other_coordinates(link):
        return f"{link.name} with coordinates {link.coordinates}"
    scaling = getattr(link, "scaling", None)
    return (
        f"{link.name} with scaling {scaling.rule}" if isinstance(scaling, SCALINGS) else link.name
    )


def explain_unknown(
    model: nn.Module, spec: DataSpec, method: str, factors: tuple[float, ...]
) -> str:
    """Return why a method cannot be tried; empty if an encoding of the model has it."""
    methods = find_methods(model, factors)
    if method in (NONE, DROP) or method in methods:
        return ""
    if method == TRUNCATE:
        return explain_untruncated(model)
    if method == SLIDING_WINDOW:
        return explain_unslidable(spec)
    if method == RESIZE:
        return explain_unresizable(spec)
    names = [_name_with_obstacle(link) for link in _list_encodings(model)]
    hint = "it knows none; leave evaluate.extrapolation out"
    if methods:
        hint = nearest(method, [NONE, *methods, DROP, TRUNCATE, SLIDING_WINDOW, RESIZE])
    encodings = join_words(dict.fromkeys(names)) or "none"
    return f"the encoding of the model, {encodings}, knows no extrapolation {method}; {hint}"


def change_recipe(
    recipe: Recipe,
    model: nn.Module,
    method: str,
    factors: tuple[float, ...],
    factor: float | None = None,
) -> Recipe:
    """Return a recipe whose encodings follow an extrapolation method.

    Method, factors and factor are those of `find_changes`, and the model that of the recipe.
    """
    changes = find_changes(model, method, factors, factor)

    def change(encodings: tuple[Choice, ...]) -> tuple[Choice, ...]:
        return (Choice(NO_ENCODING, {}),) if method == DROP else _change_options(encodings, changes)

    # built anew, since options of an encoding are fixed when it is made
    options = _change_encodings(recipe.model.options, change)
    return replace(recipe, model=Choice(recipe.model.name, options))


def divide_frequencies(
    recipe: Recipe, model: nn.Module, factors: tuple[float, ...], divisors: Sequence[float]
) -> Recipe:
    """Return a recipe whose rotations follow the rule longrope past the trained length.

    Args:
        recipe: The recipe.
        model: Its model, whose rotations have the rule `dynamic`.
        factors: The size, divided by the training size along each axis.
        divisors: A divisor for each pair of channels.
    """
    changes = []
    for link, options in find_changes(model, "dynamic", factors):
        scalings = {key: value for key, value in options.items() if isinstance(value, Scaling)}
        longer = {
            key: Scaling(
                rule="longrope",
                factor=value.factor,
                original=value.original,
                length=value.length,
                short_factor=(1.0,) * len(divisors),
                long_factor=tuple(divisors),
                # a factor of cos and sin is no part of the search
                attention_factor=1.0,
            )
            for key, value in scalings.items()
        }
        changes.append((link, {**options, **longer}))
    options = _change_encodings(recipe.model.options, lambda links: _change_options(links, changes))
    return replace(recipe, model=Choice(recipe.model.name, options))


def append_encoding(recipe: Recipe, name: str) -> Recipe:
    """Return a recipe with another encoding, without options, after those of each layer."""

    def append(links: tuple[Choice, ...]) -> tuple[Choice, ...]:
        kept = tuple(choice for choice in links if choice.name != NO_ENCODING)
        return (*kept, Choice(name, {}))

    options = _change_encodings(recipe.model.options, append)
    return replace(recipe, model=Choice(recipe.model.name, options))


def build_extended_task(
    recipe: Recipe,
    task: Task,
    weights: Mapping[str, Tensor],
    method: str,
    factors: tuple[float, ...],
    factor: float | None = None,
) -> Task:
    """Build a task that follows an extrapolation method, with the same weights.

    Method, factors and factor are those of `find_changes`.
    """
    changed = change_recipe(recipe, task.model, method, factors, factor)
    extended = build_task(changed, task.spec, is_trained=False)
    if method == DROP:
        weights = {name: weights[name] for name in extended.state_dict()}
    extended.load_state_dict(weights, strict=True)
    if method == TRUNCATE:
        (length,) = task.spec.size
        extended.model = TruncatedContext(extended.model, length)
    if method == SLIDING_WINDOW:
        height, width = task.spec.size
        stride = recipe.evaluate.stride
        extended.model = SlidingWindow(extended.model, (height, width), stride)
    if method == RESIZE:
        height, width = task.spec.size
        is_dense = task.spec.target_unit == "pixel"
        extended.model = ResizedInputs(extended.model, (height, width), is_dense=is_dense)
    return extended.eval()


def _change_encodings(
    value: Any, change: Callable[[tuple[Choice, ...]], tuple[Choice, ...]]
) -> Any:
    """Change encodings, wherever an option of the model has a list of them."""
    if isinstance(value, Mapping):
        return {word: _change_encodings(entry, change) for word, entry in value.items()}
    if not isinstance(value, tuple) or not all(isinstance(entry, Choice) for entry in value):
        return value
    return change(value)


def _change_options(encodings: tuple[Choice, ...], changes: Changes) -> tuple[Choice, ...]:
    # Layers may have the same encoding with other options, which change in their own way.
    changed = []
    for choice in encodings:
        options = [options for link, options in changes if link.entry == choice]
        changed.append(Choice(choice.name, {**choice.options, **(options[0] if options else {})}))
    return tuple(changed)
