"""Read the JSON files that zoo has written into dataclasses; what does not fit is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from zoo.errors import DataError
from zoo.options.signature import fields
from zoo.options.validation import Validator, read_data
from zoo.utils import read_json

T = TypeVar("T")


def read_stored(cls: type[T], path: Path, problem: str, *, takes_more: bool = False) -> T:
    """Read a JSON file into a dataclass.

    Args:
        cls: The dataclass.
        path: The file.
        problem: What a damaged file is, such as "holds no comparison".
        takes_more: Whether the file may have entries that the dataclass has not.

    Raises:
        DataError: The file cannot be read, is damaged, or is of something else.
    """
    return build_stored(cls, read_json(path, problem), path, problem, takes_more=takes_more)


def build_stored(
    cls: type[T], plain: Any, path: Path, problem: str, *, takes_more: bool = False
) -> T:
    """Build a dataclass from the content of a file, as `read_stored` does."""
    if takes_more and isinstance(plain, Mapping):
        plain = {key: plain[key] for key in fields(cls) if key in plain}
    try:
        return read_data(cls, plain)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{problem}: {error}", place=path) from None


def read_part(
    cls: type, plain: Mapping[str, Any], path: Path, problem: str, keys: Mapping[str, str]
) -> dict[str, Any]:
    """Return {field of a dataclass: value} of those entries of a file that are such fields.

    Args:
        cls: The dataclass.
        plain: The content of the file.
        path: The file.
        problem: What a damaged file is.
        keys: {key in the file: field of the dataclass}.

    Raises:
        DataError: A value does not have the type of its field.
    """
    declared, validator = fields(cls), Validator({}, interpolates=False)
    schema = {key: declared[name] for key, name in keys.items()}
    present = {key: plain[key] for key in keys if key in plain}
    typed = validator.validate_fields(schema, present, "", partial=True)
    if validator.issues:
        raise DataError(f"{problem}: {validator.issues[0]}", place=path)
    return {keys[key]: value for key, value in typed.items()}
