"""Change one field of a configuration at a time, and compare zoo with transformers.

    python tests/benchmarks/configurations.py [family ...]

For each family and each field of its configuration, and for some that it does not list, several
values are tried. A model that transformers itself cannot build or run is left out. What `zoo.equip`
and `zoo convert` make of the others must compute the same to 1e-5, or refuse and name the field.
Everything is drawn from fixed seeds. The last lines count the outcomes; each fault has a line.
"""

import dataclasses
import json
import logging
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

import zoo
from zoo.api.tools import convert
from zoo.errors import OptionError, ZooError
from zoo.integrations.structure import find_structure

TOLERANCE = 1e-5
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT = {**SIZES, "vocab_size": 51, "max_position_embeddings": 64, "pad_token_id": 0}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2}
WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
SPECIAL = {**TEXT, "cls_token_id": 1, "sep_token_id": 2}
IMAGES = {**SIZES, "image_size": 32, "patch_size": 8}
GPT2 = {"vocab_size": 51, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


@dataclasses.dataclass(frozen=True)
class Case:
    """A family: its classes in transformers and the sizes of a small model.

    Attributes:
        model: Name of the class of models.
        sizes: The unchanged configuration.
        encoding: The encoding that computes what the model does once its tables are 0.
        is_converted: Whether `zoo convert` knows the family.
    """

    model: str
    sizes: dict
    encoding: str = "rope"
    is_converted: bool = False

    @property
    def config(self):
        """The class of configurations."""
        return getattr(transformers, self.model).config_class

    @property
    def is_image(self):
        """Whether the model reads images."""
        return "image_size" in self.sizes


CASES = {
    "llama": Case("LlamaForCausalLM", GROUPED, is_converted=True),
    "mistral": Case(
        "MistralForCausalLM", {**GROUPED, "sliding_window": 6, "head_dim": 8}, is_converted=True
    ),
    "qwen2": Case("Qwen2ForCausalLM", GROUPED, is_converted=True),
    "qwen3": Case("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, is_converted=True),
    "smollm3": Case("SmolLM3ForCausalLM", GROUPED),
    "olmo2": Case("Olmo2ForCausalLM", GROUPED),
    "granite": Case("GraniteForCausalLM", GROUPED),
    "phi3": Case("Phi3ForCausalLM", GROUPED),
    "gpt_neox": Case("GPTNeoXForCausalLM", TEXT),
    "gpt2": Case("GPT2LMHeadModel", GPT2, "none", is_converted=True),
    "bert": Case("BertModel", TEXT, "none", is_converted=True),
    "cohere2": Case("Cohere2ForCausalLM", {**GROUPED, **WINDOWS}),
    "exaone4": Case("Exaone4ForCausalLM", {**GROUPED, **WINDOWS, "sliding_window_pattern": 2}),
    "glm": Case("GlmForCausalLM", {**GROUPED, "head_dim": 8}),
    "mixtral": Case("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "stablelm": Case("StableLmForCausalLM", GROUPED),
    "roberta": Case("RobertaModel", TEXT, "none"),
    "distilbert": Case("DistilBertModel", TEXT, "none"),
    "dinov2": Case("Dinov2Model", IMAGES, "none"),
    "deit": Case("DeiTModel", IMAGES, "none"),
    "clip_vision_model": Case("CLIPVisionModel", IMAGES, "none"),
    "modernbert": Case("ModernBertModel", SPECIAL),
    "vit": Case("ViTForImageClassification", IMAGES, "none", is_converted=True),
    "dinov3_vit": Case("DINOv3ViTModel", IMAGES, "none", is_converted=True),
    "siglip_vision_model": Case("SiglipVisionModel", IMAGES, "none"),
}
ENCODERS = ("BertModel", "DistilBertModel", "ModernBertModel", "RobertaModel")
# Fields that say nothing about what is computed, or of which the caller decides.
IGNORED = {
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "transformers_version",
    "_name_or_path",
    "is_encoder_decoder",
    "torch_dtype",
    "vocab_size",
}
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh", "quick_gelu", "swish")
# Fields that a family may read without listing them, and values of those that are null.
OTHERS = {
    "add_cross_attention": [True],
    "attention_bias": [True],
    "attention_multiplier": [0.5],
    "attn_logit_softcapping": [2.0],
    "head_dim": [8, 16],
    "is_causal": [True, False],
    "is_decoder": [True],
    "layer_types": [
        ["full_attention", "full_attention"],
        ["full_attention", "sliding_attention"],
        ["sliding_attention", "sliding_attention"],
    ],
    "max_window_layers": [0, 1, 2],
    "mlp_bias": [True],
    "n_inner": [40],
    "no_rope_layers": [[1, 0], [1, 1]],
    "num_key_value_heads": [1, 4],
    "partial_rotary_factor": [0.25, 0.5],
    "position_embedding_type": ["relative_key", "relative_key_query"],
    "qk_layernorm": [True],
    "query_pre_attn_scalar": [4],
    "rope_scaling": [
        {"type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
    ],
    "rope_theta": [100.0],
    "rotary_pct": [0.5],
    "scale_attn_by_inverse_layer_idx": [True],
    "sliding_window": [5],
    "tie_word_embeddings": [True, False],
    "use_bidirectional_attention": [True],
    "use_qk_norm": [True],
    "use_sliding_window": [True],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
ROPES = [
    {"rope_theta": 100.0},
    {"partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "factor": 2.0},
    LLAMA3,
    {**LLAMA3, "factor": 8.0},
    {**LLAMA3, "low_freq_factor": 2.0},
    {**LLAMA3, "high_freq_factor": 8.0},
    {**LLAMA3, "original_max_position_embeddings": 32},
    YARN,
    {**YARN, "factor": 2.0},
    {**YARN, "attention_factor": 0.5},
    {**YARN, "attention_factor": 1.0},
    {**YARN, "mscale": 2.0, "mscale_all_dim": 1.0},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    {**YARN, "beta_fast": 2.0},
    {**YARN, "beta_slow": 8.0},
    {**YARN, "truncate": False},
]


# What a refusal may name in place of a field.
EPSILON, SHAPES = ("norm_eps",), ("head_dim", "heads", "dim", "rotary")
CONSEQUENCES = {
    "add_cross_attention": ("crossattention",),
    "hidden_size": SHAPES,
    "intermediate_size": ("mlp_ratio",),
    "layer_norm_eps": EPSILON,
    "layer_norm_epsilon": EPSILON,
    "layer_types": ("rope_parameters",),
    "image_size": ("patch_size",),
    "max_position_embeddings": ("length",),
    "n_embd": SHAPES,
    "n_head": SHAPES,
    "n_layer": ("depth", "layers"),
    "n_positions": ("length",),
    "num_attention_heads": SHAPES,
    "num_channels": ("channels",),
    "num_hidden_layers": ("depth", "layers"),
    "partial_rotary_factor": ("rotary",),
    "rms_norm_eps": EPSILON,
}


def list_keys(value: object) -> list[str]:
    """Return the keys of nested mappings."""
    if not isinstance(value, dict):
        return []
    return [*value, *(key for one in value.values() for key in list_keys(one))]


def propose_values(name: str, value: object) -> list:
    """Return other values of a field."""
    if name in ("hidden_act", "hidden_activation", "activation_function"):
        return list(ACTIVATIONS)
    if name == "rope_parameters" and isinstance(value, dict):
        if any(isinstance(one, dict) for one in value.values()):  # for each kind of layers
            return [
                {**value, kind: {**own, **rope}}
                for kind, own in value.items()
                if isinstance(own, dict)
                for rope in ROPES
            ]
        return [{**value, **rope} for rope in ROPES]
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [0, 1, 2, 3, 4, 8, value + 1, 2 * value, [value, 2 * value]]
    if isinstance(value, float):
        return [0.0, 0.5, 1.0, value / 2, 2 * value, value + 0.1]
    if value is None:
        return [True, 1, 4, 0.5]
    if isinstance(value, str):
        return ["eager", "other"]
    return []


def list_changes(case: Case) -> Iterator[tuple[str, object]]:
    """Yield the fields of a family and other values, in a fixed order."""
    plain = case.config(**case.sizes).to_dict()
    for name in sorted({*plain, *OTHERS} - IGNORED):
        seen = [plain.get(name, None)]
        for value in propose_values(name, plain.get(name)):
            # True equals 1, but is another value of a field.
            if all(type(value) is not type(one) or value != one for one in seen):
                seen.append(value)
                yield name, value


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one changed configuration.

    Attributes:
        command: equip or convert.
        kind: equal, refused, unnamed (refused without the field's name), different or crashed.
        text: The difference or the message.
    """

    command: str
    kind: str
    text: str

    @property
    def is_fault(self) -> bool:
        """Whether zoo is silently wrong or ends in a foreign exception."""
        return self.kind in ("different", "crashed")


def build(case: Case, name: str, value: object):
    """Build a model with large random weights and one changed field."""
    torch.manual_seed(0)
    config = case.config(**{**case.sizes, name: value})
    model = getattr(transformers, case.model)(config).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model


def make_inputs(model) -> dict:
    """Return a batch: two texts, the first padded on the left, or two images."""
    config, draw = model.config, torch.Generator().manual_seed(2)
    if getattr(config, "image_size", None) is not None:
        size = config.image_size
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {"pixel_values": torch.randn(2, config.num_channels, *sides, generator=draw)}
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, :4] = 0
    ids = torch.randint(3, 51, (2, 20), generator=draw)
    return {"input_ids": ids, "attention_mask": mask}


def read_output(out) -> torch.Tensor:
    """Return the tensor that is compared."""
    return out["logits"] if "logits" in out else out["last_hidden_state"]


@torch.no_grad()
def compute(model, inputs: dict) -> list[torch.Tensor]:
    """Compute a padded batch, one without padding, and one that a cache continues."""
    if "pixel_values" in inputs:
        return [read_output(model(**inputs))]
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    # BERT numbers padding too, zoo does not: only models that receive positions get the mask.
    given = {"position_ids": positions} if hasattr(model.config, "rope_parameters") else {}
    padded = read_output(model(ids, attention_mask=mask, **given))[mask.bool()]
    parts = [padded, read_output(model(ids))]
    if is_causal(model) and getattr(model.config, "use_cache", True):
        first = model(ids[:, :12], use_cache=True)
        rest = model(ids[:, 12:], past_key_values=first.past_key_values, use_cache=True)
        parts += [read_output(first), read_output(rest)]
    return parts


def is_causal(model) -> bool:
    """Return whether a model of text decodes with a cache."""
    if type(model).__name__ in ENCODERS:
        return bool(getattr(model.config, "is_decoder", False))
    return getattr(model.config, "is_causal", True) is not False


def find_gap(found: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """Return the largest difference relative to the size of the numbers."""
    gaps = [
        float((one - other).abs().max() / (1 + other.abs().max()))
        for one, other in zip(found, right, strict=True)
    ]
    return max(gaps) if all(gap == gap for gap in gaps) else float("inf")


def remove_positions(model, case: Case) -> None:
    """Set the model's own positions to 0, which is what the encoding `none` stands for."""
    if case.encoding == "rope":
        return
    structure = find_structure(model)
    with torch.no_grad():
        for path in structure.tables:
            parent, _, name = path.rpartition(".")
            table = getattr(model.get_submodule(parent), name)
            getattr(table, "weight", table).zero_()
        for rotary in structure.rotaries:
            model.get_submodule(rotary.path).inv_freq.zero_()


def judge(command: str, name: str, value: object, action) -> Outcome:
    """Call `action`, which returns a gap, and say what became of it."""
    try:
        gap = action()
    except (ZooError, OptionError) as error:
        # A rope is named by its keys, other fields perhaps by what follows from them.
        words = {name, *list_keys(value), *CONSEQUENCES.get(name, ())}
        # What zoo has no name for is found by comparing each attention with the model's own.
        words.add("would differ by")
        is_named = any(word in str(error) for word in words)
        return Outcome(command, "refused" if is_named else "unnamed", str(error))
    except Exception as error:
        return Outcome(command, "crashed", f"{type(error).__name__}: {error}"[:300])
    return Outcome(command, "equal" if gap < TOLERANCE else "different", f"{gap:.0e}")


def equip_model(case: Case, name: str, value: object, inputs: dict) -> float:
    """Return the gap between a model and the equipped model."""
    model = build(case, name, value)
    remove_positions(model, case)
    right = compute(model, inputs)
    zoo.equip(model, case.encoding)
    return find_gap(compute(model, inputs), right)


@torch.no_grad()
def convert_model(case: Case, name: str, value: object, inputs: dict) -> float:
    """Return the gap between a model and the run that it was converted to."""
    model = build(case, name, value)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/it")
        # What the file says of the field is what the model was built from.
        path = Path(folder, "it", "config.json")
        found = json.loads(path.read_text())
        if name not in found:
            path.write_text(json.dumps(found | {name: value}))
        task = zoo.load(convert(Path(folder, "it"), to=f"{folder}/run", verbose=False).run).eval()
    if case.is_image:
        pixels = inputs["pixel_values"]
        if "Classification" in case.model:
            return find_gap([task.model(pixels)], [model(pixels).logits])
        found = task.model.run_blocks(task.model.tokens(pixels)).x
        return find_gap([found], [model(pixels).last_hidden_state])
    ids = inputs["input_ids"]
    right = read_output(model(ids))
    is_encoder = case.model == "BertModel"
    found = task.model.run_blocks(task.model.tokens(ids)).x if is_encoder else task.model(ids)
    return find_gap([found], [right])


def try_change(family: str, name: str, value: object) -> list[Outcome]:
    """Return what zoo makes of one changed configuration; empty if transformers cannot run it."""
    case = CASES[family]
    try:
        model = build(case, name, value)
        inputs = make_inputs(model)
        if not all(one.isfinite().all() for one in compute(model, inputs)):
            return []
    except Exception:
        return []
    outcomes = [judge("equip", name, value, lambda: equip_model(case, name, value, inputs))]
    if case.is_converted:
        outcomes.append(
            judge("convert", name, value, lambda: convert_model(case, name, value, inputs))
        )
    return outcomes


def list_all(families: list[str]) -> list[tuple[str, str, object]]:
    """List all changes of some families."""
    return [(family, *change) for family in families for change in list_changes(CASES[family])]


def draw_changes(count: int, seed: int = 0) -> list[tuple[str, str, object]]:
    """Draw some changes of each family, the same for the same seed."""
    draw = random.Random(seed)
    return [change for family in CASES for change in draw.sample(list_all([family]), count)]


def main(families: list[str]) -> int:
    """Try all changes, print faults and counts, and return the number of faults."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("zoo").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    counts: Counter = Counter()
    changes, tried = list_all(families or [*CASES]), 0
    for family, name, value in changes:
        outcomes = try_change(family, name, value)
        tried += bool(outcomes)
        for one in outcomes:
            counts[f"{one.command} {one.kind}"] += 1
            if one.is_fault or one.kind == "unnamed":
                print(f"{one.kind}: {one.command} {family} {name}={value}: {one.text}", flush=True)
    print(f"{len(changes)} configurations, {tried} of which transformers runs")
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items())))
    return sum(count for kind, count in counts.items() if kind.endswith(("different", "crashed")))


if __name__ == "__main__":
    from arguments import make_parser, one_of

    parser = make_parser(__doc__)
    parser.add_argument("families", nargs="*", type=one_of(CASES), metavar="family")
    sys.exit(bool(main(parser.parse_args().families)))
