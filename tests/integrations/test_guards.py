"""What is done to an equipped model of transformers afterwards works, or raises by name."""

import copy
import importlib
import io
import sys
import warnings
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402
from zoo.integrations import guards  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
families = importlib.import_module("equip_families")
sys.path.pop(0)

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
IDS = torch.randint(3, 97, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_llama(encoding="fox"):
    """A small Llama whose encodings are moved off their initial values."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    return equip(model, encoding) if encoding else model


def make_gpt2(encoding="alibi"):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    return equip(model, encoding) if encoding else model


def equip(model, encoding):
    zoo.equip(model, encoding)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.zoo_encoding.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model


def compute(model, ids=IDS):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def reload(model, folder):
    model.save_pretrained(folder)
    return zoo.load(folder)


def pickle_and_read(model, folder):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def load_state(model, folder):
    state = copy.deepcopy(model.state_dict())
    other = make_llama("fox")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(state)
    return other


def resize_twice(model, folder):
    model.resize_token_embeddings(120)
    model.resize_token_embeddings(97)
    return model


def run(change):
    """Return a function that changes a model and returns the same model."""

    def call(model, folder):
        change(model)
        return model

    return call


WORKING = {
    "save_pretrained": reload,
    "torch.save": pickle_and_read,
    "copy.deepcopy": lambda model, folder: copy.deepcopy(model),
    "load_state_dict": load_state,
    "resize_token_embeddings": resize_twice,
    "to": run(lambda model: model.to(torch.float64).to(torch.float32)),
    "double, float": run(lambda model: model.double().float()),
    "tie_weights": run(lambda model: model.tie_weights()),
    "gradient_checkpointing_enable": run(lambda model: model.gradient_checkpointing_enable()),
    "enable_input_require_grads": run(lambda model: model.enable_input_require_grads()),
    "train, eval": run(lambda model: model.train().eval()),
    "requires_grad_": run(lambda model: model.requires_grad_(False).requires_grad_(True)),
    "set_input_embeddings": run(lambda m: m.set_input_embeddings(m.get_input_embeddings())),
    "set_attn_implementation of zoo": run(lambda model: model.set_attn_implementation("zoo")),
    "share_memory": run(lambda model: model.share_memory()),
    "to_empty, load_state_dict": run(
        lambda m: (state := copy.deepcopy(m.state_dict()), m.to_empty(device="cpu"))[
            1
        ].load_state_dict(state)
    ),
}
REFUSED = {
    "init_weights": lambda model, folder: model.init_weights(),
    "initialize_weights": lambda model, folder: model.initialize_weights(),
    "post_init": lambda model, folder: model.post_init(),
    "attn_implementation": lambda model, folder: model.set_attn_implementation("eager"),
    "add_adapter": lambda model, folder: model.add_adapter(None),
    "load_adapter": lambda model, folder: model.load_adapter("folder"),
    "push_to_hub": lambda model, folder: model.save_pretrained(folder, push_to_hub=True),
    "variant": lambda model, folder: model.save_pretrained(folder, variant="fp16"),
    "part of an equipped model": lambda model, folder: model.model.save_pretrained(folder),
    "the model is a part": lambda model, folder: zoo.equip(model.model, "none"),
    "equipped already": lambda model, folder: zoo.equip(model, "none"),
}


@pytest.mark.parametrize("name", WORKING)
def test_an_equipped_model_computes_the_same_after(name, tmp_path):
    model = make_llama()
    # A pass with gradients leaves nothing behind that hinders a copy.
    model(input_ids=IDS, labels=IDS).loss.backward()
    before = compute(model)
    after = WORKING[name](model, tmp_path)
    torch.testing.assert_close(compute(after), before, atol=1e-6, rtol=1e-5)
    assert zoo.integrations.equipment.is_equipped(after)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_the_encodings_is_refused_by_name(name, tmp_path):
    model = make_llama()
    before = compute(model)
    with pytest.raises(OptionError, match=name):
        REFUSED[name](model, tmp_path)
    assert torch.equal(compute(model), before)


def test_plain_models_are_not_guarded(tmp_path):
    make_llama()
    model = make_llama(None)
    before = compute(model)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(compute(found), before)


def test_no_family_overrides_a_guarded_method():
    for kind in (*families.DECODERS, *families.ENCODERS, *families.IMAGES):
        config = transformers.CONFIG_MAPPING[kind]
        for mapping in (transformers.MODEL_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING):
            if config not in mapping:
                continue
            for name in guards.MODEL_GUARDS:
                own = getattr(mapping[config], name)
                assert own is getattr(transformers.PreTrainedModel, name), (kind, name)


def test_what_save_pretrained_writes_is_refused_by_transformers(tmp_path):
    model = make_llama()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"zoo\.load"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(OSError, match="no file named"):
        transformers.LlamaForCausalLM.from_pretrained(tmp_path)


def test_half_precision_stays_near():
    model = make_llama()
    before = compute(model)
    torch.testing.assert_close(compute(model.bfloat16()).float(), before, atol=0.02, rtol=0.1)


def test_an_equipped_part_is_neither_equipped_again_nor_saved_as_a_whole(tmp_path):
    model = make_llama(None)
    before = compute(model)
    zoo.equip(model.model, "alibi")
    with pytest.raises(OptionError, match="its part model is equipped"):
        zoo.equip(model, "none")
    with pytest.raises(OptionError, match="equipped part"):
        model.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="attn_implementation"):
        model.model.set_attn_implementation("eager")
    zoo.unequip(model.model)
    assert torch.equal(compute(model), before)


def test_another_implementation_in_the_configuration_is_refused_at_the_next_pass():
    model = make_llama()
    model.config._attn_implementation = "eager"
    with pytest.raises(OptionError, match="attn_implementation"):
        compute(model)
    model.config._attn_implementation = "zoo"
    compute(model)


def test_edits_of_the_configuration_stay_after_unequip(tmp_path):
    model = make_llama()
    model.resize_token_embeddings(120)
    model.config.pad_token_id = 7
    zoo.unequip(model)
    assert (model.config.vocab_size, model.config.pad_token_id) == (120, 7)
    assert model.model.config is model.config
    model.save_pretrained(tmp_path)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(compute(found), compute(model))


def test_without_edits_the_configuration_is_the_same_object_after_unequip():
    model = make_llama(None)
    config = model.config
    zoo.unequip(equip(model, "fox"))
    assert model.config is config
    assert not [key for one in model.modules() for key in vars(one) if key.startswith("zoo")]


def test_a_table_of_positions_stays_zero_while_the_model_is_trained():
    model = make_gpt2(None)
    table, before = model.transformer.wpe.weight, compute(model)
    equip(model, "alibi").requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()
    assert not model.transformer.wpe.weight.any()

    model.load_state_dict(make_gpt2(None).state_dict(), strict=False)
    assert not model.transformer.wpe.weight.any()
    zoo.unequip(model)
    assert model.transformer.wpe.weight is table
    assert torch.equal(compute(model), before)


def test_values_of_a_checkpoint_are_kept_for_the_model_without_encodings():
    model = make_gpt2()
    state = make_gpt2(None).state_dict()
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"] + 1
    model.load_state_dict(state, strict=False)
    zoo.unequip(model)
    assert torch.equal(model.transformer.wpe.weight, state["transformer.wpe.weight"])


def test_a_table_that_was_written_to_is_refused_at_the_next_pass():
    model = make_gpt2()
    compute(model)
    model.apply(model._init_weights)
    with pytest.raises(OptionError, match="wpe was written to"):
        compute(model)


def test_a_trainer_writes_resumes_and_finds_its_best_checkpoint(tmp_path):
    pytest.importorskip("accelerate")
    samples = [{"input_ids": ids, "labels": ids} for ids in IDS]
    options = {"learning_rate": 0.1, "per_device_train_batch_size": 2, "use_cpu": True}
    options |= {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no"}
    options |= {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps"}
    options |= {"eval_steps": 1, "load_best_model_at_end": True, "greater_is_better": True}

    # The best is the first checkpoint, because the loss falls and a greater one counts as better.
    def train(steps, **given):
        model = make_llama()
        arguments = transformers.TrainingArguments(str(tmp_path), max_steps=steps, **options)
        trainer = transformers.Trainer(
            model, arguments, train_dataset=samples, eval_dataset=samples
        )
        trainer.train(**given)
        return model

    model = train(2)
    first, last = (zoo.load(tmp_path / f"checkpoint-{step}") for step in (1, 2))
    assert torch.equal(compute(model), compute(first))
    assert not torch.equal(compute(first), compute(last))

    # Resuming from the first checkpoint gives the second again.
    train(2, resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    again = zoo.load(tmp_path / "checkpoint-2")
    torch.testing.assert_close(compute(again), compute(last), atol=1e-5, rtol=1e-4)
