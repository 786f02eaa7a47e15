"""The table of families: what works in an equipped model of each, measured in small models.

`python docs/build/equip_families.py` builds a model of each family of transformers, several kinds
of timm and the modules of torch, runs every check, and writes docs/equip/families.json and the
table of docs/equip.md. With names of rows it prints them and writes nothing. A test repeats the
cheap checks of each family and compares them with the file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zoo
from zoo.errors import OptionError
from zoo.integrations.equipment import NAME
from zoo.integrations.structure import find_structure

PAGE, RECORD = (
    Path(__file__).parents[1] / "equip.md",
    Path(__file__).parents[1] / "equip/families.json",
)
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"
TOLERANCE = 1e-4  # of outputs in float32, relative to the largest

TEXT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
GROUPED = {"num_key_value_heads": 2}
WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2}
NO_GROUPS = {"gpt_neox", "gpt2", "modernbert", "opt", "persimmon"}
DECODERS = (
    "apertus",
    "arcee",
    "bitnet",
    "cohere",
    "cohere2",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "llama",
    "llama4_text",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)
"""The decoders that every check runs in; equip_types.py has all others."""
ENCODERS = (
    "bert",
    "camembert",
    "distilbert",
    "electra",
    "ernie",
    "eurobert",
    "modernbert",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
)
"""The encoders of text."""
IMAGES = (
    "clip_vision_model",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "ijepa",
    "siglip_vision_model",
    "vit",
)
"""The encoders of images."""
ROTATED = {*DECODERS, "modernbert", "eurobert"} - {"gpt2", "opt"}
"""The families that rotate queries and keys; others add tables."""

# What a small model of a family needs besides the sizes.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "cohere2": WINDOWS,
    "dots1": {
        **EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "ernie4_5": {"head_dim": 8},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_intermediate_size": 32,
        "moe_k": 2,
        "moe_layer_start_index": 1,
    },
    "exaone4": {**WINDOWS, "sliding_window_pattern": 2},
    "flex_olmo": {**EXPERTS, "num_experts": 4},
    "gemma": {"head_dim": 16},
    "gemma2": {**WINDOWS, "head_dim": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**WINDOWS, "head_dim": 16},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "glm4_moe": {
        **EXPERTS,
        "head_dim": 8,
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {**WINDOWS, **EXPERTS, "num_local_experts": 4, "head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "granitemoe": {**EXPERTS, "num_local_experts": 4},
    "granitemoeshared": {**EXPERTS, "num_local_experts": 4, "shared_intermediate_size": 32},
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "llama4_text": {
        "num_experts_per_tok": 1,
        "num_local_experts": 4,
        "intermediate_size_mlp": 48,
        "interleave_moe_layer_step": 2,
        "head_dim": 8,
        "attention_chunk_size": 6,
        "no_rope_layers": [1, 0],
        "floor_scale": 4,
    },
    "ministral": {**WINDOWS, "head_dim": 8},
    "ministral3": {"head_dim": 8},
    "mistral": {"sliding_window": 6},
    "mixtral": {"num_local_experts": 4},
    "olmo3": WINDOWS,
    "olmoe": {**EXPERTS, "num_experts": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phimoe": {"num_local_experts": 4},
    "qwen2": {**WINDOWS, "use_sliding_window": True},
    "qwen2_moe": {
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16},
    "seed_oss": {"head_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
}
WIDTHS = {"llama, wide heads": {"head_dim": 16}, "llama, narrow heads": {"head_dim": 4}}
"""Llamas whose heads together are wider or narrower than the model."""
TIMM = (
    "deit3_small_patch16_224",
    "deit_tiny_patch16_224",
    "eva02_tiny_patch14_224",
    "flexivit_small",
    "vit_base_patch16_clip_224",
    "vit_base_patch16_siglip_224",
    "vit_medium_patch16_gap_240",
    "vit_mediumd_patch16_reg4_gap_256",
    "vit_pe_core_tiny_patch16_384",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
    "vit_small_patch16_rope_224",
    "vit_small_patch16_rope_mixed_224",
    "vit_tiny_patch16_224",
)
COLUMNS: Mapping[str, str] = {
    "equal": "same numbers",
    "cache": "cache",
    "padding": "padding",
    "inner": "inner mask",
    "packed": "packed",
    "static": "static cache",
    "save": "save, load",
    "lora": "LoRA",
    "compile": "compile",
    "unequip": "unequip",
}
# The checks that a test repeats; the others need generation, adapters or a compiler.
CHEAP = ("equal", "cache", "padding", "inner", "packed", "unequip")


class NotApplicableError(Exception):
    """A check that has no meaning for a kind of models."""


class LimitError(Exception):
    """What the model itself, which is not equipped, does not do either."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A family: how a small model is built, and what is checked in it.

    Attributes:
        library: transformers, timm or torch.
        build: Builds a model with random weights, in evaluation mode.
        kind: decoder, encoder, images or states (an encoder of torch).
        encoding: The encoding of all checks but the first.
        own: The encoding that equals the model's own positions, once its tables are 0.
        options: Options of `zoo.equip`.
    """

    library: str
    build: Callable[[], nn.Module]
    kind: str
    encoding: str
    own: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build_equipped(self) -> nn.Module:
        """Build an equipped model whose encoding has left its initial values."""
        model = self.build()
        zoo.equip(model, self.encoding, **self.options)
        draw = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.get_submodule(NAME).parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
        return model


def build_transformers(kind: str, **changes: Any) -> nn.Module:
    """Build a model of transformers by its model_type, with changes of its configuration."""
    import transformers

    torch.manual_seed(0)
    sizes = {**IMAGE} if kind in IMAGES else {**TEXT}
    if kind in ROTATED and kind not in NO_GROUPS:
        sizes |= GROUPED
    config = transformers.CONFIG_MAPPING[kind](**{**sizes, **OPTIONS.get(kind, {}), **changes})
    heads = [transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM]
    # Encoders such as BERT have a causal head too, which would turn off nothing of what is checked.
    if kind in ENCODERS:
        heads = heads[1:]
    if kind in IMAGES:
        heads = [transformers.AutoModel]
    model: nn.Module = heads[0].from_config(config).eval()
    return model


def build_timm(arch: str) -> nn.Module:
    """Build a small model of timm by the name of its architecture."""
    import timm

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
    model: nn.Module = timm.create_model(arch, num_classes=7, **sizes).eval()
    return model


def build_torch(name: str) -> nn.Module:
    """Build a module of torch by its name."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    if name == "TransformerEncoder":
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    return layer.eval() if name == "TransformerEncoderLayer" else layer.self_attn.eval()


def list_rows() -> dict[str, Row]:
    """List all rows by their titles."""
    rows: dict[str, Row] = {}
    for name in sorted((*DECODERS, *ENCODERS, *IMAGES)):
        kind = "encoder" if name in ENCODERS else "decoder"
        kind = "images" if name in IMAGES else kind
        encoding = {"decoder": "fox", "encoder": "t5", "images": "rope_mixed"}[kind]
        own = "rope" if name in ROTATED else "none"
        rows[name] = Row(
            library="transformers",
            build=lambda name=name: build_transformers(name),  # type: ignore[misc]
            kind=kind,
            encoding=encoding,
            own=own,
        )
    for title, changes in WIDTHS.items():
        build = partial(build_transformers, "llama", **changes)
        rows[title] = replace(rows["llama"], build=build)
    for arch in TIMM:
        rows[arch] = Row(
            library="timm",
            build=lambda arch=arch: build_timm(arch),  # type: ignore[misc]
            kind="images",
            encoding="rope_mixed",
            own="none",
        )
    for name in ("TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention"):
        for causal in (False, True):
            rows[f"nn.{name}" + (", causal" if causal else "")] = Row(
                library="torch",
                build=lambda name=name: build_torch(name),  # type: ignore[misc]
                kind="states",
                encoding="fox" if causal else "t5",
                own="none",
                options={"causal": causal},
            )
    return rows


def read(out: Any) -> Tensor:
    """Return the tensor of an output."""
    if isinstance(out, Tensor):
        return out
    if isinstance(out, tuple):  # of an attention of torch
        return out[0]
    return out.logits if "logits" in out else out.last_hidden_state


def make_ids(count: int = 12) -> Tensor:
    """Return token ids [2, N]."""
    return torch.randint(3, 97, (2, count), generator=torch.Generator().manual_seed(1))


def make_inputs(row: Row) -> Tensor:
    """Return the inputs of a kind of models: ids, images or states."""
    draw = torch.Generator().manual_seed(2)
    if row.kind == "images":
        return torch.randn(2, 3, 32, 32, generator=draw)
    return torch.randn(2, 12, 32, generator=draw) if row.kind == "states" else make_ids()


def run(row: Row, model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute outputs; a mask is True for tokens [B, N] that are there."""
    if row.kind == "states":
        name = "key_padding_mask" if isinstance(model, nn.MultiheadAttention) else ""
        name = name or "src_key_padding_mask"
        given = {} if mask is None else {name: ~mask}
        if isinstance(model, nn.MultiheadAttention):
            return read(model(inputs, inputs, inputs, **given))
        return read(model(inputs, **given))
    if row.kind == "images":
        return read(model(inputs))
    options = {} if mask is None else {"attention_mask": mask.long()}
    # Encoders with a table number their tokens themselves.
    if mask is not None and (row.kind == "decoder" or row.own == "rope"):
        options["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return read(model(inputs, **options))


def compare(found: Tensor, right: Tensor) -> None:
    """Compare outputs. Raises AssertionError if they differ by more than rounding."""
    error = float((found - right).abs().max() / (1 + right.abs().max()))
    assert error < TOLERANCE, f"differs by {error:.0e}"


def check_equal(row: Row) -> None:
    """The model's own rope, or no encoding where its positions are taken out, changes nothing."""
    model, inputs = row.build(), make_inputs(row)
    mask = None
    if row.own == "rope" and row.kind == "decoder":
        mask = torch.ones(2, 12, dtype=torch.bool)
        mask[0, :4] = False
    if row.own == "none":
        remove_positions(row, model)
    if row.library == "torch":
        right = run_torch(row, model, inputs)
    else:
        right = run(row, model, inputs, mask)
    zoo.equip(model, row.own, **row.options)
    found = run(row, model, inputs, mask)
    compare(*(one if mask is None else one[mask] for one in (found, right)))


def run_torch(row: Row, model: nn.Module, inputs: Tensor) -> Tensor:
    """Compute the outputs of a module of torch itself, with a causal mask if the row has one."""
    if not row.options["causal"]:
        return run(row, model, inputs)
    mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
    if isinstance(model, nn.MultiheadAttention):
        return read(model(inputs, inputs, inputs, attn_mask=mask))
    return read(model(inputs, mask))


def remove_positions(row: Row, model: Any) -> None:
    """Set the tables and frequencies of a model to 0, so that it has no positions."""
    with torch.no_grad():
        if row.library == "timm":
            if model.pos_embed is not None:
                model.pos_embed.zero_()
            model.rope = None
        if row.library != "transformers":
            return
        structure = find_structure(model)
        for path in structure.tables:
            parent, _, name = path.rpartition(".")
            table = getattr(model.get_submodule(parent), name)
            getattr(table, "weight", table).zero_()
        for rotary in structure.rotaries:
            model.get_submodule(rotary.path).inv_freq.zero_()


def require_kind(row: Row, *kinds: str) -> None:
    """Raise NotApplicableError for other kinds of models."""
    if row.kind not in kinds:
        raise NotApplicableError


def check_cache(row: Row) -> None:
    """Decoding with a cache, in parts of several sizes, equals one pass."""
    require_kind(row, "decoder")
    model, ids = row.build_equipped(), make_ids()
    right, parts, cache, start = run(row, model, ids), [], None, 0
    for end in (7, 10, 11, 12):
        out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
        cache, start = out.past_key_values, end
        parts.append(out.logits)
    compare(torch.cat(parts, 1), right)


def check_masked(row: Row, masks: Sequence[Sequence[int]]) -> None:
    """Masked tokens change nothing."""
    require_kind(row, "decoder", "encoder", "states")
    compare_masked(row, row.build_equipped(), masks)


def compare_masked(row: Row, model: nn.Module, masks: Sequence[Sequence[int]]) -> None:
    """Compare texts with masked tokens with texts without them."""
    inputs = make_inputs(row)
    for one in masks:
        mask = torch.tensor([one, [1] * 12]) > 0
        found = run(row, model, inputs, mask)
        compare(found[0, mask[0]], run(row, model, inputs[:1, mask[0]])[0])
        compare(found[1], run(row, model, inputs[1:])[0])


def check_padding(row: Row) -> None:
    """Padding on the left and on the right changes nothing."""
    check_masked(row, [[0] * 4 + [1] * 8, [1] * 8 + [0] * 4])


def check_inner(row: Row) -> None:
    """Masked tokens inside a text change nothing."""
    masks = [[1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 1]]
    if row.library == "transformers" and row.own == "rope":
        try:
            compare_masked(row, row.build(), masks)
        except AssertionError:
            raise LimitError("windows of transformers count masked tokens") from None
    check_masked(row, masks)


def check_packed(row: Row) -> None:
    """Texts packed into one row compute what they compute alone."""
    require_kind(row, "decoder", "encoder")
    if row.kind == "encoder":
        raise NotApplicableError
    try:
        compare_packed(row, row.build())
    except AssertionError:
        raise LimitError("transformers does not keep packed texts of this family apart") from None
    compare_packed(row, row.build_equipped())


def compare_packed(row: Row, model: Any) -> None:
    """Compare packed texts with texts alone."""
    ids, positions = make_ids()[:1], torch.cat([torch.arange(5), torch.arange(7)])[None]
    found = read(model(ids, position_ids=positions, use_cache=False))
    compare(found[:, :5], run(row, model, ids[:, :5]))
    compare(found[:, 5:], run(row, model, ids[:, 5:]))


def check_static(row: Row) -> None:
    """Generating with the static cache gives the tokens of the dynamic one."""
    require_kind(row, "decoder")
    model: Any = row.build_equipped()
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    options["attention_mask"] = torch.ones_like(make_ids())
    right = model.generate(make_ids(), **options)
    found = model.generate(make_ids(), cache_implementation="static", **options)
    assert torch.equal(found, right), "other tokens"


def check_save(row: Row) -> None:
    """A saved model computes the same once it is loaded."""
    model, inputs = row.build_equipped(), make_inputs(row)
    right = run(row, model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        if row.library == "transformers":
            zoo.save(model, folder)
            loaded: Any = zoo.load(folder)
        else:
            torch.save(model.state_dict(), f"{folder}/weights.pt")
            loaded = row.build()
            zoo.equip(loaded, row.encoding, **row.options)
            loaded.load_state_dict(torch.load(f"{folder}/weights.pt"))
        compare(run(row, loaded.eval(), inputs), right)


def check_lora(row: Row) -> None:
    """Adapters of peft are trained, and change the encoded outputs only then."""
    from peft import LoraConfig, get_peft_model

    if isinstance(row.build(), nn.MultiheadAttention):
        raise NotApplicableError
    model, inputs = row.build_equipped(), make_inputs(row)
    right = run(row, model, inputs)
    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D") and NAME not in name and "head" not in name
    } - {"out_proj"}
    config = LoraConfig(r=2, target_modules=sorted(names & TARGETS or names))
    adapted: Any = get_peft_model(model, config) if hasattr(model, "config") else None
    if adapted is None:
        from peft import inject_adapter_in_model

        adapted = inject_adapter_in_model(config, model)
    compare(run(row, adapted.eval(), inputs), right)
    with torch.enable_grad():
        run(row, adapted, inputs).square().mean().backward()
    gradients = [one.grad for name, one in adapted.named_parameters() if "lora_B" in name]
    assert gradients, "no adapters"
    assert any(one is not None and bool(one.any()) for one in gradients), "no gradient"


TARGETS = {
    "c_attn",
    "fc1",
    "k_proj",
    "key",
    "k_lin",
    "linear1",
    "q_lin",
    "q_proj",
    "qkv",
    "qkv_proj",
    "query",
    "query_key_value",
    "v_proj",
    "value",
    "Wqkv",
}


def check_compile(row: Row) -> None:
    """A compiled model computes the same."""
    model, inputs = row.build_equipped(), make_inputs(row)
    right = run(row, model, inputs)
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, backend="eager")
    if isinstance(model, nn.MultiheadAttention):
        compare(read(compiled(inputs, inputs, inputs)), right)
        return
    options = {"use_cache": False} if row.kind == "decoder" else {}
    compare(read(compiled(inputs, **options)), right)


def check_unequip(row: Row) -> None:
    """The model without its encodings computes what it did before, to the bit."""
    model, inputs = row.build(), make_inputs(row)
    before = run(row, model, inputs)
    zoo.equip(model, row.encoding, **row.options)
    changed = run(row, model, inputs)
    assert not torch.equal(changed, before), "the encoding changes nothing"
    zoo.unequip(model)
    assert torch.equal(run(row, model, inputs), before), "not as before"


def measure(row: Row, columns: Sequence[str]) -> dict[str, str]:
    """Run checks of one row.

    Returns:
        {column: "yes", "-" where it has no meaning, or the reason of a refusal}.

    Raises:
        AssertionError: A model computes something else than it should.
    """
    answers = {}
    for column in columns:
        try:
            with torch.no_grad():
                globals()[f"check_{column}"](row)
            answers[column] = "yes"
        except NotApplicableError:
            answers[column] = "-"
        except (OptionError, LimitError) as error:
            answers[column] = str(error)
    return answers


def write_table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of answers, with reasons as footnotes."""
    reasons: dict[str, int] = {}
    lines = [f"| model | {' | '.join(COLUMNS.values())} |", f"|{'---|' * (len(COLUMNS) + 1)}"]
    for title, answers in rows.items():
        cells = []
        for column in COLUMNS:
            answer = answers[column]
            if answer not in ("yes", "-"):
                answer = f"no[^f{reasons.setdefault(answer, len(reasons) + 1)}]"
            cells.append(answer)
        lines.append(f"| `{title}` | {' | '.join(cells)} |")
    notes = [f"[^f{number}]: {reason}." for reason, number in reasons.items()]
    return "\n".join([*lines, "", *notes]) + "\n"


def write_page(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Write the table between the markers of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    page = f"{before}{BEGIN}\n{write_table(rows)}\n{END}{rest.partition(END)[2]}"
    PAGE.write_text(page, encoding="utf-8")


def read_record() -> dict[str, Any]:
    """Return the recorded answers: versions of the libraries, and rows by title."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def main(titles: Sequence[str]) -> None:
    """Measure all rows, or some of them again, and write the record and the table."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows, answers, faults = list_rows(), {}, 0
    for title in titles or rows:
        answers[title] = {}
        for column in COLUMNS:
            try:
                answers[title] |= measure(rows[title], [column])
            except Exception as error:  # every fault is listed before the command fails
                faults += 1
                print(f"{title}: {column}: {type(error).__name__}: {error}", flush=True)
        print(title, " ".join(answers[title].values()), flush=True)
    if faults:
        sys.exit(f"{faults} faults; nothing was written")
    if titles:
        answers = {title: {**read_record()["rows"], **answers}[title] for title in rows}
    libraries = {name: version(name) for name in ("torch", "transformers", "timm", "peft")}
    record = {
        "command": "python docs/build/equip_families.py",
        "versions": libraries,
        "rows": answers,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write_page(answers)


if __name__ == "__main__":
    main(sys.argv[1:])
