"""A plug-in with stand-ins for models, data, tasks and encodings, and recipes of them in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from zoo import config
from zoo.config.command_line import parse_overrides
from zoo.errors import RecipeError

FILES = {
    "__init__.py": "",
    "models/toy_vit.py": '''
        """A model."""
        from __future__ import annotations

        from collections.abc import Mapping, Sequence
        from dataclasses import dataclass
        from typing import Annotated, Literal

        from zoo.errors import OptionError
        from zoo.registry import register
        from zoo.options import Choice, Choices

        @dataclass(frozen=True, kw_only=True)
        class Coordinates:
            jitter: float = 0.0
            stretch: tuple[float, float] | None = None

            def __post_init__(self) -> None:
                if self.jitter < 0:
                    raise OptionError("jitter", "must not be negative")

        @register
        class ToyVit:
            def __init__(
                self, size: int, *, dim: int, depth: int = 2,
                encoding: Annotated[tuple[Choice, ...], Choices("encodings")] = ("toy_learned",),
                position_augmentation: Coordinates = Coordinates(), rates: Mapping[str, float] | None = None,
                sizes: Sequence[int] = (1, 2), pool: Literal["mean", "class"] = "mean", limit: int | bool | str = 1,
            ) -> None: ...
    ''',
    "encodings/toy_learned.py": '''
        """Learned."""
        from zoo.registry import register

        @register
        class Learned:
            def __init__(self, dims: object) -> None: ...
    ''',
    "encodings/toy_rope.py": '''
        """Rope."""
        from zoo.registry import register

        @register
        class Rope:
            def __init__(self, dims: object, *, base: float = 100, block: int = 8) -> None: ...
    ''',
    "encodings/toy_liere.py": '''
        """Liere."""
        from zoo.registry import register

        @register
        class Liere:
            def __init__(self, dims: object, *, block: int = 2) -> None: ...
    ''',
    "data/toy_digits.py": '''
        """Digits."""
        from __future__ import annotations

        from dataclasses import dataclass, field

        from zoo.registry import register

        @register
        @dataclass
        class Digits:
            folder: str
            size: int = field(default=8, kw_only=True)
            note: str = field(default="", kw_only=True)
            splits: list[str] = field(default_factory=lambda: ["train"], kw_only=True)
    ''',
    "tasks/toy_classify.py": '''
        """Classify."""
        from zoo.registry import register

        @register
        class Classify:
            def __init__(self, model: object, *, label_smoothing: float = 0.0) -> None: ...
    ''',
    "optim/toy_adam.py": '''
        """Adam."""
        from zoo.registry import register

        @register
        class Adam:
            def __init__(self, parameters: object, *, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> None: ...
    ''',
    "optim/toy_sgd.py": '''
        """Sgd."""
        from zoo.registry import register

        @register
        class Sgd:
            def __init__(self, parameters: object, *, lr: float = 0.1, momentum: float = 0.9) -> None: ...
    ''',
    "configs/optim/toy_adam.yaml": """
        optim:
          name: toy_adam
          lr: 1e-3
    """,
    "recipes/toy.yaml": """
        extends: [optim/toy_adam]
        model: {name: toy_vit, dim: 16}
        data: {name: toy_digits}
        task: {name: toy_classify}
        trainer: {max_steps: 10}
    """,
}


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package `toy_recipes`."""
    folder = tmp_path_factory.mktemp("plugins") / "toy_recipes"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


@pytest.fixture(autouse=True)
def _workplace(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(plugin.parent)
    monkeypatch.setenv("ZOO_PLUGINS", plugin.name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., config.Recipe]:
    """The recipe `mine.yaml` of a text and overrides."""

    def load(text: str, *overrides: str) -> config.Recipe:
        (tmp_path / "mine.yaml").write_text(dedent(text))
        return config.load("mine.yaml", parse_overrides(overrides))

    return load


@pytest.fixture
def list_issues(load_text: Callable[..., config.Recipe]) -> Callable[..., list[str]]:
    """The faults of a text and overrides, each as its line."""

    def faults(text: str, *overrides: str) -> list[str]:
        with pytest.raises(RecipeError) as caught:
            load_text(text, *overrides)
        return [str(fault) for fault in caught.value.issues]

    return faults
