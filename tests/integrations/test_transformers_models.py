"""Models of transformers with encodings of zoo, against the models as they are."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import CheckpointError, OptionError  # noqa: E402

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
IMAGES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODERS = {
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 8},
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 32},
    "SmolLM3": {**GROUPED, **TOKENS},
    "Olmo2": {**GROUPED, **TOKENS},
    "Phi3": {**GROUPED, **TOKENS},
    "Granite": GROUPED,
    "GPTNeoX": {**SIZES, **TOKENS},
}
LONGER = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(name, kind="ForCausalLM", **options):
    """Build a tiny model with random weights, in evaluation mode."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}{kind}")(config).eval()


def build_gpt2():
    sizes = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return build("GPT2", "LMHeadModel", **sizes, **TOKENS)


def make_batch():
    """Two texts [2, 20], the first with five tokens of padding on the left."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 97, (2, 20), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


@torch.no_grad()
def generate(model, **options):
    batch = make_batch()
    del batch["position_ids"]
    return model.generate(**batch, max_new_tokens=6, do_sample=False, **options)


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_a_model_with_its_own_rope_computes_what_it_did(name):
    model = build(name, **DECODERS[name])
    batch = make_batch()
    seen = batch["attention_mask"].bool()
    before, beams = model(**batch).logits, generate(model, num_beams=3)
    static = generate(model, cache_implementation="static")

    zoo.equip(model, "rope")
    torch.testing.assert_close(model(**batch).logits[seen], before[seen], atol=1e-5, rtol=0)
    assert torch.equal(generate(model, num_beams=3), beams)
    assert torch.equal(generate(model, cache_implementation="static"), static)

    zoo.unequip(model)
    assert torch.equal(model(**batch).logits, before)


@torch.no_grad()
@pytest.mark.parametrize("rule", LONGER)
def test_rotary_scaling_is_taken_over(rule):
    scaled = {"rope_parameters": {"rope_theta": 10000.0, **LONGER[rule]}}
    model = build("Llama", **GROUPED, **scaled)
    ids = torch.arange(3, 63)[None]
    before = model(ids).logits
    report = zoo.equip(model, "rope")
    assert rule in str(report)
    torch.testing.assert_close(model(ids).logits, before, atol=2e-5, rtol=0)


@torch.no_grad()
def test_packed_texts_equal_texts_alone():
    model = build("Llama", **GROUPED)
    zoo.equip(model, "fox")
    ids = make_batch()["input_ids"][:1]
    packed = torch.cat([torch.arange(8), torch.arange(12)])[None]
    together = model(ids, position_ids=packed, use_cache=False).logits
    torch.testing.assert_close(together[:, :8], model(ids[:, :8]).logits)
    torch.testing.assert_close(together[:, 8:], model(ids[:, 8:]).logits)


@torch.no_grad()
def test_attention_dropout_is_on_in_training_alone():
    model = build("Llama", **GROUPED, attention_dropout=0.5)
    zoo.equip(model, "alibi")
    ids = make_batch()["input_ids"]
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["alibi", "t5", "learned", "rope", "comrope_ld", "liere"])
@pytest.mark.parametrize("name", ["Bert", "ModernBert"])
def test_padding_changes_nothing_in_encoders(name, encoding):
    options = {**SIZES, **TOKENS}
    if name == "ModernBert":
        options |= {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 32}
    model = build(name, "ForMaskedLM", **options)
    zoo.equip(model, {"name": encoding, "coordinates": "index"})
    ids = make_batch()["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, 15:] = 0
    padded = model(ids, attention_mask=mask).logits[:, :15]
    torch.testing.assert_close(padded, model(ids[:, :15]).logits, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["none", "learned", "alibi", "rope_axial", "comrope_ld"])
@pytest.mark.parametrize("name", ["ViT", "DINOv3ViT", "SiglipVision"])
def test_images_of_another_size(name, encoding):
    model = build(name, "Model", **IMAGES)
    zoo.equip(model, encoding)
    image = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(3))
    options = {} if name == "DINOv3ViT" else {"interpolate_pos_encoding": True}
    assert model(pixel_values=image, **options).last_hidden_state.isfinite().all()


@torch.no_grad()
def test_without_an_encoding_a_vit_is_blind_to_the_order_of_patches():
    model = build("ViT", "Model", **IMAGES)
    zoo.equip(model, "none")
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    flipped = image.unflatten(-1, (4, 8)).flip(-2).flatten(-2)  # columns of patches in reverse
    one, other = (model(pixel_values=x).last_hidden_state[:, 0] for x in (image, flipped))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)

    zoo.unequip(model)
    one, other = (model(pixel_values=x).last_hidden_state[:, 0] for x in (image, flipped))
    assert (one - other).abs().max() > 1e-3


def test_models_that_share_a_configuration_stay_apart():
    model = build("Llama", **GROUPED)
    other = transformers.LlamaForCausalLM(model.config).eval()
    zoo.equip(model, "alibi")
    ids = make_batch()["input_ids"]
    assert other(ids).logits.isfinite().all()
    assert other.config._attn_implementation != "zoo"


def test_a_copy_of_an_equipped_model_has_its_own_encodings():
    model = build("Llama", **GROUPED)
    zoo.equip(model, "kerple")
    twin = copy.deepcopy(model)
    ids = make_batch()["input_ids"]
    before = model(ids).logits
    with torch.no_grad():
        for parameter in twin.zoo_encoding.parameters():
            parameter.add_(1)
    assert (twin(ids).logits - before).abs().max() > 1e-4
    assert torch.equal(model(ids).logits, before)

    with pytest.raises(OptionError, match="a copy"):
        zoo.unequip(twin)
    assert torch.equal(model(ids).logits, before)


def test_gradient_checkpointing_gives_the_same_gradients():
    gradients = []
    for is_checkpointed in (False, True):
        model = build("Llama", **GROUPED)
        zoo.equip(model, "cope")
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        ids = make_batch()["input_ids"]
        loss = model.train()(ids, labels=ids).loss + model(ids[:, :7], labels=ids[:, :7]).loss
        loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", "alibi", "stickbreaking"])
def test_attention_weights_are_given_and_change_no_output(encoding):
    model = build("Llama", **GROUPED)
    zoo.equip(model, encoding)
    ids = make_batch()["input_ids"]
    out = model(ids, output_attentions=True)
    torch.testing.assert_close(out.logits, model(ids).logits, atol=1e-5, rtol=0)
    assert len(out.attentions) == 2
    sums = out.attentions[0].sum(-1)
    if encoding == "stickbreaking":  # leaves a remainder to no key
        assert ((sums >= 0) & (sums <= 1.00001)).all()
    else:
        torch.testing.assert_close(sums, torch.ones(2, 4, 20))


@pytest.mark.parametrize("encoding", ["rope", "fox"])
def test_a_compiled_model_computes_what_it_does_uncompiled(encoding):
    model = build("Llama", **GROUPED)
    zoo.equip(model, encoding)
    ids = make_batch()["input_ids"]
    compiled = torch.compile(model, backend="eager")
    found = []
    for one in (model, compiled):
        logits = one(input_ids=ids, use_cache=False).logits
        logits.square().mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([logits.detach(), *gradients])
        model.zero_grad()
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(plain, other, atol=1e-5, rtol=1e-4)


# rope only transforms queries and keys; path also has a bias of all pairs.
@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", pytest.param("path", marks=pytest.mark.nightly)])
def test_a_compiled_model_has_one_graph_for_all_lengths(encoding):
    model = build("Llama", **GROUPED | {"num_hidden_layers": 1})
    zoo.equip(model, encoding)
    torch._dynamo.reset()
    graphs = []

    def capture(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=capture, dynamic=True)
    for length in (19, 7, 13):
        batch = {name: one[:, -length:].contiguous() for name, one in make_batch().items()}
        found, expected = (one(**batch, use_cache=False).logits for one in (compiled, model))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert len(graphs) == 1


def make_adapted(encoding, targets):
    """An equipped Llama with adapters of peft, which also train the encodings."""
    peft = pytest.importorskip("peft")
    model = build("Llama", **GROUPED)
    zoo.equip(model, encoding)
    config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=["zoo_encoding"])
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
@pytest.mark.parametrize("encoding", ["fox", "carope", "learned", "rope"])
def test_adapters_of_peft_are_trained_saved_loaded_and_merged(encoding, targets, tmp_path):
    peft = pytest.importorskip("peft")
    adapted, ids = make_adapted(encoding, targets), make_batch()["input_ids"]
    with torch.no_grad():
        first = adapted.eval()(ids).logits
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(3):
        loss = adapted.train()(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]

    adapted.eval().save_pretrained(tmp_path / "adapter")
    zoo.save(adapted, tmp_path / "whole")
    base = build("Llama", **GROUPED)
    zoo.equip(base, encoding)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        before = adapted(ids).logits
        assert torch.equal(loaded(ids).logits, before)
        whole = zoo.load(tmp_path / "whole")
        torch.testing.assert_close(whole(ids).logits, before, atol=1e-5, rtol=0)
        with adapted.disable_adapter():
            torch.testing.assert_close(adapted(ids).logits, first, atol=1e-6, rtol=0)
        with pytest.raises(OptionError, match="adapter of peft"):
            zoo.unequip(adapted.get_base_model())
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, before, atol=1e-5, rtol=0)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    zoo.unequip(merged)


def test_wrappers_are_named_with_the_order_in_which_to_wrap():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    adapted = peft.get_peft_model(build("Llama", **GROUPED), config)
    with pytest.raises(
        OptionError, match=r"of peft .*equip the model first, then .*get_peft_model"
    ):
        zoo.equip(adapted, "fox")
    for wrap in (torch.nn.DataParallel, torch.compile):
        with pytest.raises(OptionError, match="equip the model before it is wrapped"):
            zoo.equip(wrap(build("Llama", **GROUPED)), "fox")


@pytest.mark.parametrize("targets", [["q_proj"], "all-linear"])
def test_adapters_that_would_be_saved_without_trained_encodings_are_refused(targets):
    peft = pytest.importorskip("peft")
    model = build("Llama", **GROUPED)
    zoo.equip(model, "fox")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets))
    ids = make_batch()["input_ids"]
    if targets != "all-linear":  # which puts adapters into the encodings too
        adapted(input_ids=ids)
        for name, parameter in adapted.named_parameters():
            parameter.requires_grad_(parameter.requires_grad or "zoo_encoding" in name)
    with pytest.raises(OptionError, match="modules_to_save"):
        adapted(input_ids=ids)


def test_the_trainer_of_transformers_trains_an_equipped_model(tmp_path):
    pytest.importorskip("accelerate")
    model = build("Llama", **GROUPED)
    zoo.equip(model, "fox")
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    samples = [{"input_ids": ids, "labels": ids} for ids in make_batch()["input_ids"]]
    options = {"max_steps": 2, "learning_rate": 0.01, "per_device_train_batch_size": 2}
    options |= {"use_cpu": True, "report_to": "none", "save_strategy": "no"}
    options |= {"disable_tqdm": True, "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(str(tmp_path), **options)
    trained = transformers.Trainer(model, arguments, train_dataset=samples).train()
    assert trained.global_step == 2
    assert not [name for name, one in model.named_parameters() if torch.equal(one, before[name])]


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("GPT2", {"n_embd": 32, "n_head": 4, "add_cross_attention": True}, "add_cross_attention"),
        ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 0}, "computes no attention"),
    ],
)
def test_models_that_cannot_be_equipped_are_refused_by_name(name, options, word):
    model = build(name, "LMHeadModel" if name == "GPT2" else "ForCausalLM", **options)
    with pytest.raises(OptionError, match=word):
        zoo.equip(model, "alibi")


def test_a_second_encoding_needs_the_first_taken_out():
    model = build("Llama", **GROUPED)
    zoo.equip(model, "alibi")
    with pytest.raises(OptionError, match="unequip"):
        zoo.equip(model, "fox")
    zoo.unequip(model)
    with pytest.raises(OptionError, match="not equipped"):
        zoo.unequip(model)


FRESH = """
import sys, torch, transformers, zoo
transformers.logging.set_verbosity_error()
for folder in sys.argv[1:]:
    model = zoo.load(folder)
    torch.save(model(torch.load(f"{folder}/ids.pt")).logits, f"{folder}/logits.pt")
    for cls in (transformers.AutoModelForCausalLM, type(model)):
        try:
            cls.from_pretrained(folder)
        except (ValueError, OSError) as error:
            print(folder, "refused", str(error).partition(chr(10))[0])
    try:
        zoo.unequip(model)
    except zoo.errors.OptionError as error:
        print(folder, error)
"""


@torch.no_grad()
def test_saved_models_compute_the_same_in_a_new_process_and_are_refused_elsewhere(tmp_path):
    models = {
        tmp_path / "llama": build("Llama", **DECODERS["Llama"]),
        tmp_path / "gpt2": build_gpt2(),
    }
    ids = make_batch()["input_ids"]
    for folder, model in models.items():
        zoo.equip(model, ["rope", {"name": "t5", "max_distance": 18}], backend="reference")
        for parameter in model.zoo_encoding.parameters():
            parameter.copy_(torch.randn(parameter.shape))
        zoo.save(model, folder)
        torch.save(ids, folder / "ids.pt")
    words = [sys.executable, "-W", "ignore", "-c", FRESH, *map(str, models)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for folder, model in models.items():
        assert torch.equal(torch.load(folder / "logits.pt"), model(ids).logits)
        *refused, unequipped = [line for line in done.stdout.splitlines() if str(folder) in line]
        assert len(refused) == 2
        assert all("refused" in line for line in refused)
        assert any("zoo.load" in line for line in refused)
        assert "cannot be unequipped" in unequipped


@torch.no_grad()
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_saved_model_is_tied_as_its_tensors_are(tmp_path, is_tied):
    """Its configuration may say otherwise: transformers leaves a head of its own alone."""
    model = build("Llama", **GROUPED, tie_word_embeddings=False)
    model.config.tie_word_embeddings = not is_tied
    if is_tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    zoo.equip(model, "alibi")
    zoo.save(model, tmp_path)
    ids = make_batch()["input_ids"]
    loaded = zoo.load(tmp_path)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == is_tied


def test_only_equipped_models_are_saved_and_loaded(tmp_path):
    model = build("Llama", **GROUPED)
    with pytest.raises(OptionError, match="not equipped"):
        zoo.save(model, tmp_path)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="not written by zoo"):
        zoo.load(tmp_path)


def test_patches_of_a_saved_model_move_in_training(tmp_path):
    pytest.importorskip("safetensors")
    model = build("ViT", "Model", **IMAGES)
    zoo.equip(model, "comrope_ld", position_augmentation={"jitter": 0.5})
    zoo.save(model, tmp_path)
    images = torch.randn(1, 3, 32, 32)
    loaded = zoo.load(tmp_path)
    for one in (model.eval(), loaded):
        assert torch.equal(one(images)[0], model(images)[0])
        for mode in (True, False):
            one.train(mode)
            assert torch.equal(one(images)[0], one(images)[0]) != mode


def test_positions_of_texts_cannot_move():
    model = build("Llama", **GROUPED)
    with pytest.raises(OptionError, match="the model reads text; leave it out"):
        zoo.equip(model, "rope", position_augmentation={"jitter": 0.5})
