"""The options of a class: its keyword-only arguments. A signature is the one place where a default is written."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints


@dataclass(frozen=True)
class Option:
    """The type of an option and its default, which a required option does not have."""

    annotation: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def options(cls: type) -> dict[str, Option]:
    """The keyword-only arguments of a class, in the order of its signature."""
    if "__dataclass_fields__" in vars(cls):
        return fields(cls, keyword_only=True)
    hints = get_type_hints(cls.__init__, include_extras=True)  # type: ignore[misc]
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    keywords = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return {
        parameter.name: Option(hints[parameter.name], parameter.default) for parameter in keywords
    }


def fields(cls: type, keyword_only: bool = False) -> dict[str, Option]:
    """The fields that a dataclass is made with."""
    hints = get_type_hints(cls, include_extras=True)
    given = [
        field
        for field in dataclasses.fields(cls)
        if field.init and (field.kw_only or not keyword_only)
    ]
    return {field.name: Option(hints[field.name], _default(field)) for field in given}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


@dataclass(frozen=True, kw_only=True)
class EveryEncoding:
    """Options of every encoding, whatever its class; None leaves the fact that the class declares."""

    shared: bool | None = None
    coordinates: Literal["index", "fraction", "growing", "symmetric", "interpolated"] | None = None


def extras(kind: str) -> Mapping[str, Option]:
    """Options that members of a kind have beside their own."""
    return fields(EveryEncoding) if kind == "encodings" else {}
