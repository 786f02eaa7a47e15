"""The page about equipped models: which encodings fit which models, and which models are known.

`python docs/build/equip_page.py` tries every encoding in a small model of each family (transformers
and timm are needed), and writes the table between the markers of docs/equip.md. A test does the
same and compares. `python docs/build/pages.py` writes the rest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zoo
from zoo.encodings.common.chains import build_shortest_chain
from zoo.errors import OptionError
from zoo.integrations.equipment import NAME

PAGE = Path(__file__).parents[1] / "equip.md"
BEGIN, END = "<!-- encodings and models -->\n", "<!-- end of encodings and models -->\n"

TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
GPT2 = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
SEEN, CHUNK, LENGTH = 10, 3, 16  # tokens: before the cache is used, at once from it, in all
TOLERANCE = 1e-4


def build_transformers(name: str, head: str, **options: Any) -> nn.Module:
    """Build a model of transformers with random weights."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}{head}")(config)


def build_timm() -> nn.Module:
    """Build a vision transformer of timm with random weights, which returns all tokens."""
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4}
    return VisionTransformer(**sizes, num_classes=0, global_pool="")


def build_encoder() -> nn.Module:
    """Build an encoder of torch with random weights."""
    layer = nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A family of models: how a small one is built and called."""

    build: Callable[[], nn.Module]
    """Builds a model with random weights."""

    inputs: Callable[[], Tensor]
    """Makes its input: ids, pixels or states."""

    has_cache: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `zoo.equip`."""


def make_ids() -> Tensor:
    """Return token ids [2, N]."""
    return torch.randint(3, 97, (2, LENGTH))


def make_images() -> Tensor:
    """Return images [2, 3, 32, 32]."""
    return torch.randn(2, 3, 32, 32)


def make_states() -> Tensor:
    """Return states [2, N, D]."""
    return torch.randn(2, LENGTH, 64)


def _decoder(name: str, head: str = "ForCausalLM", **options: Any) -> Column:
    return Column(
        build=lambda: build_transformers(name, head, **options), inputs=make_ids, has_cache=True
    )


def _encoder(name: str) -> Column:
    return Column(build=lambda: build_transformers(name, "ForMaskedLM", **TEXT), inputs=make_ids)


def _images(name: str) -> Column:
    # All tokens are read: what only patches see of the last layer reaches no class.
    return Column(build=lambda: build_transformers(name, "Model", **IMAGE), inputs=make_images)


COLUMNS: Mapping[str, Column] = {
    "Llama": _decoder("Llama", **GROUPED),
    "Qwen3": _decoder("Qwen3", **GROUPED, head_dim=32),
    "GPT-2": _decoder("GPT2", "LMHeadModel", **GPT2),
    "BERT": _encoder("Bert"),
    "ModernBERT": _encoder("ModernBert"),
    "ViT": _images("ViT"),
    "DINOv3": _images("DINOv3ViT"),
    "timm ViT": Column(build=build_timm, inputs=make_images),
    "`nn.TransformerEncoder`": Column(
        build=build_encoder, inputs=make_states, options={"length": LENGTH}
    ),
    "the same, causal": Column(
        build=build_encoder, inputs=make_states, options={"length": LENGTH, "causal": True}
    ),
}
"""The families of the table."""


class ModelOfTable:
    """A small model of a family, into which one encoding after another is put."""

    def __init__(self, column: Column) -> None:
        torch.manual_seed(0)
        self.column, self.model, self.inputs = column, column.build().eval(), column.inputs()
        self.before = self.compute(self.inputs)
        self.unused = {name for name, grad in self.find_gradients().items() if grad is None}

    @torch.no_grad()
    def compute(self, inputs: Tensor, **options: Any) -> Tensor:
        """Compute the output in evaluation mode."""
        return self.read(self.model.eval()(inputs, **options))

    def read(self, out: Any) -> Tensor:
        """Return the tensor of an output."""
        if isinstance(out, Tensor):
            return out
        return out.logits if "logits" in out else out.last_hidden_state

    def find_gradients(self) -> dict[str, Tensor | None]:
        """Compute the gradients of a random combination of outputs for what is trained."""
        out = self.read(self.model.train()(self.inputs))
        self.model.zero_grad()
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        (out * weights).sum().backward()
        parameters = self.model.named_parameters()
        found = {name: one.grad for name, one in parameters if one.requires_grad}
        self.model.zero_grad()
        return found

    def try_encoding(self, name: str) -> str:
        """Put an encoding in, check what it computes, and take it out again.

        Returns:
            "yes", "index" if it needs index coordinates, or why it is refused, without its name.

        Raises:
            AssertionError: The model computes something else than it should.
        """
        entries = [
            {"name": one.name, **one.options}
            for one in build_shortest_chain(zoo.encoding_class(name))
        ]
        answer = self._try(entries)
        if answer != "yes":
            indexed = [{**entry, "coordinates": "index"} for entry in entries]
            answer = "index" if self._try(indexed) == "yes" else answer
        return re.sub(rf"^{name}(: it)? ", "", answer).partition("; choose model")[0]

    def _try(self, entries: Sequence[Mapping[str, Any]]) -> str:
        torch.manual_seed(1)
        answer = "yes"
        try:
            zoo.equip(self.model, entries, **self.column.options)
            self.check()
        except OptionError as error:
            answer = str(error)
        if hasattr(self.model, NAME):
            zoo.unequip(self.model)
        assert torch.equal(self.compute(self.inputs), self.before), "not as before"
        return answer

    def check(self) -> None:
        """Check an equipped model: decoding, prefixes and gradients."""
        equipment: Any = self.model.get_submodule(NAME)
        with torch.no_grad():
            for parameter in equipment.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        full = self.compute(self.inputs)
        if equipment.causal:
            prefix = self.compute(self.inputs[:, :SEEN])
            torch.testing.assert_close(prefix, full[:, :SEEN], atol=TOLERANCE, rtol=0)
        if self.column.has_cache:
            torch.testing.assert_close(self.decode(), full, atol=TOLERANCE, rtol=0)

        zero = {f"{NAME}.{name}" for name in equipment.chains[0].zero_gradient}
        for key, gradient in self.find_gradients().items():
            if key in self.unused or key.endswith("tupe.reset"):
                continue
            assert gradient is not None, f"no gradient for {key}"
            assert gradient.isfinite().all(), key
            is_zero = NAME in key and re.sub(r"\.\d+\.", ".", key, count=1) not in zero
            assert not is_zero or gradient.any(), f"gradient 0 for {key}"

    @torch.no_grad()
    def decode(self) -> Tensor:
        """Compute the output in parts: a prompt, some tokens at once, then one by one."""
        ends = [SEEN, SEEN + CHUNK, *range(SEEN + CHUNK + 1, LENGTH + 1)]
        cache, parts, start = None, [], 0
        for end in ends:
            step: Any = self.model.eval()(
                self.inputs[:, start:end], past_key_values=cache, use_cache=True
            )
            cache, start = step.past_key_values, end
            parts.append(step.logits)
        return torch.cat(parts, dim=1)


def try_column(title: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Try encodings, by default all of them, in a family of models: {encoding: answer}."""
    model = ModelOfTable(COLUMNS[title])
    return {name: model.try_encoding(name) for name in names or zoo.encoding_names()}


def write_table(answers: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of answers by family and encoding, with reasons as footnotes."""
    reasons: dict[str, int] = {}
    rows = [f"| encoding | {' | '.join(answers)} |", f"|{'---|' * (len(answers) + 1)}"]
    for name in zoo.encoding_names():
        cells = [_write_cell(column[name], reasons) for column in answers.values()]
        rows.append(f"| [{name}](encodings/{name}.md) | {' | '.join(cells)} |")
    notes = [f"[^{number}]: {reason}." for reason, number in reasons.items()]
    return "\n".join([*rows, "", *notes]) + "\n"


def _write_cell(answer: str, reasons: dict[str, int]) -> str:
    if answer in ("yes", "index"):
        return answer
    return f"no[^{reasons.setdefault(answer, len(reasons) + 1)}]"


def read_table(page: str) -> str:
    """Return the table between the markers of a page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def read_answers(table: str) -> dict[str, dict[str, str]]:
    """Return the answers of a table, with the reasons of its footnotes in their place."""
    reasons = dict(re.findall(r"^(\[\^\d+\]): (.*)\.$", table, re.MULTILINE))
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    (_, *titles), *rows = lines
    found: dict[str, dict[str, str]] = {title: {} for title in titles}
    for link, *cells in rows:
        name = link[1:].partition("]")[0]
        for title, cell in zip(titles, cells, strict=True):
            found[title][name] = reasons.get(cell.removeprefix("no"), cell)
    return found


def main(titles: Sequence[str]) -> None:
    """Try every encoding in every family, and write the table; or print that of some families."""
    answers = {title: try_column(title) for title in titles or COLUMNS}
    table = write_table(answers)
    if titles:
        print(table)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
