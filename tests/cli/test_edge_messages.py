"""What plausible mistakes are answered with, in Python and on the command line alike."""

from __future__ import annotations

import pytest

import zoo
from zoo import config
from zoo.cli.edge import COMMAND_LINE
from zoo.config.command_line import parse_overrides
from zoo.config.tree import parse
from zoo.errors import RecipeError

MISTAKES = {
    # whose fault it is: that of the caller, not of a line of the recipe
    "bogus.x=1": "bogus: unknown key; known are seed, init_from, model, data, task, optim, trainer",
    "~model": "model: missing, as it was removed; expected {name: ..., options} with a name of",
    "~optim.lr": "optim.lr: missing, as it was removed; expected a finite number",
    "~model.name": "model.name: missing, as it was removed; known are decoder, encoder,",
    "~seed.x": "seed.x: cannot be removed, it is not there",
    "optim=sgd": "optim.lr: missing; expected a finite number, since a new name drops the options "
    "of the old one",
    "trainer.early_stopping.min_delta=1": "trainer.early_stopping.patience: missing; expected an",
    "extend=[a]": "extend: unknown key; did you mean extends?",
    # a slip of the finger
    "model.nmae=vit": "model.nmae: unknown key; did you mean model.name?",
    "model={nmae: vit}": "model.nmae: unknown key; did you mean model.name?",
    "optim.nmae=sgd": "optim.nmae: unknown key; did you mean optim.name?",
    "model.encoding={nmae: rope}": "model.encoding.0.nmae: unknown key; did you mean "
    "model.encoding.0.name?",
    "model={type: vit}": "model.type: unknown key; did you mean model.name?",
    "model.Depth=3": "model.Depth: unknown key; did you mean model.depth?",
    "model.kv-heads=3": "model.kv-heads: unknown key; did you mean model.kv_heads?",
    "optim.learning_rte=1": "optim.learning_rte: unknown key; did you mean optim.lr?",
    # words of other libraries
    "optim.learning_rate=1": "optim.learning_rate: unknown key; did you mean optim.lr?",
    "optim.wd=1": "optim.wd: unknown key; did you mean optim.weight_decay?",
    "optim.warmup_steps=100": "did you mean optim.warmup_ratio (a fraction of all steps)?",
    "optim.betas=[0.9,0.99]": "did you mean optim.beta1 or optim.beta2?",
    "trainer.epochs=1": "trainer.epochs: unknown key; did you mean trainer.max_epochs?",
    "trainer.grad_clip=1": "did you mean trainer.gradient_clip_val?",
    "trainer.gradient_accumulation_steps=2": "did you mean trainer.accumulate_grad_batches?",
    "trainer.device=cpu": "did you mean trainer.accelerator or trainer.devices?",
    "trainer.limit_train_batches=3": "did you mean trainer.max_steps?",
    "trainer.patience=3": "did you mean trainer.early_stopping (a mapping {patience: ...})?",
    "data.bs=8": "data.bs: unknown key; did you mean data.batch_size?",
    "data.seq_len=8": "data.seq_len: unknown key; did you mean data.length?",
    "data.block_size=8": "data.block_size: unknown key; did you mean data.length?",
    "data.num_workers=8": "data.num_workers: unknown key; did you mean data.workers?",
    "model.n_layers=2": "model.n_layers: unknown key; did you mean model.depth?",
    "model.hidden_size=8": "model.hidden_size: unknown key; did you mean model.dim?",
    "model.d_model=8": "model.d_model: unknown key; did you mean model.dim?",
    "model.num_attention_heads=8": "did you mean model.heads?",
    "model.ff_dim=8": "did you mean model.block.mlp_ratio (a multiple of dim)?",
    "model.dropout=0.1": "model.dropout: unknown key; did you mean model.block.dropout?",
    "model.pos_emb=rope": "model.pos_emb: unknown key; did you mean model.encoding?",
    "model.encoding.0.theta=1": "did you mean model.encoding.0.base?",
    "generate.max_new_tokens=1": "did you mean generate.tokens?",
    "optimizer.lr=1": "optimizer: unknown key; did you mean optim?",
    "train.max_epochs=1": "train: unknown key; did you mean trainer?",
    # the right key of another section, or without its section
    "trainer.lr=1": "trainer.lr: unknown key; did you mean optim.lr?",
    "optim.batch_size=1": "optim.batch_size: unknown key; did you mean data.batch_size?",
    "model.theta=1": "model.theta: unknown key; did you mean model.encoding.0.base?",
    "epochs=3": "epochs: unknown key; did you mean trainer.max_epochs?",
    "bs=3": "bs: unknown key; did you mean data.batch_size?",
    "learning_rate=3": "learning_rate: unknown key; did you mean optim.lr?",
    "tokens=3": "tokens: unknown key; did you mean data.tokens or generate.tokens?",
    # an option of another member
    "model.encoding.0.block=4": "model.encoding.0.block: unknown key; it is an option of "
    "comrope_ap, comrope_ld and liere; rope has base, rotary_fraction",
    "model.encoding.block=4": "it is an option of comrope_ap, comrope_ld and liere; rope has base",
    "model.encoding={name: liere, base: 3}": "liere has block, init_std, turn_values, shared,",
    "model.encoding.0.blok=4": "block is an option of comrope_ap, comrope_ld and liere; rope has",
    "data.size=3": "it is an option of digits, image_masks, images and 3 others; "
    "python_docs has library, val,",
    "model.patch_size=3": "it is an option of timm and vit; decoder has dim, depth,",
    "optim.momentum=3": "it is an option of muon, rmsprop and sgd; adamw has lr,",
    "task.label_smoothing=0.1": "it is an option of classification; causal_lm has metrics",
    "data.length={a: 1}": "data.length: expected an integer, got {'a': 1}",
    "trainer.seed=3": "trainer.seed: unknown key; did you mean seed, which is in no section?",
    "model.max_position_embeddings=9": "did you mean data.length?",
    "model.encoding.scaling.type=yarn": "did you mean model.encoding.0.scaling.rule?",
    "model/dim=3": "model/dim: unknown key; did you mean model.dim?",
    "pretrained=run": "pretrained: unknown key; did you mean init_from?",
    # values
    "trainer.max_epochs=null": "trainer: neither max_epochs nor max_steps is given; set one",
    "trainer=cpu": "expected a mapping, got 'cpu'; give its keys, such as max_epochs, max_steps",
    "trainer.early_stopping=true": "got true; give its keys, such as patience, min_delta",
    "trainer.logger=none": "got 'none'; write [] for none",
    "trainer.logger=null": "got null; write [] for none",
    "trainer.compile=yes": "expected a boolean or 'blocks', got 'yes'; write true",
    "trainer.gradient_clip_val=none": "expected a finite number or null, got 'none'; write null",
    "optim.lr=0,001": "got '0,001'; write 0.001",
    "optim.lr=1e\u22123": "; write 1e-3",
    "optim.warmup_ratio=10%": "got '10%'; write 0.1",
    "optim={lr:0.1}": "no space after the colon of 'lr:0.1'; write lr: 0.1",
    "evaluate.lengths=2x": "got '2x'; write ['2x']",
    "data.tokens=bpe": "got 'bpe'; did you mean subword?",
    "~model.encoding.0": "model.encoding: a list of no encodings; known are alibi",
    "model.encoding.1=alibi": "has 1 entry, counted from 0; write the whole list to add one",
    # names
    "data=wikitext": "data/wikitext103 is a fragment, which a recipe names in `extends`",
    "data=foo.txt": "write {name: text, files: [foo.txt]}",
    "optim.schedule=none": "did you mean constant?",
    "model.encoding=sin": "did you mean sinusoidal?",
    "model.encoding=yarn": "did you mean rope (with its option scaling)?",
    "model.encoding=comrope": "did you mean comrope_ap or comrope_ld?",
    "data=cifar10": "there is no 'cifar10' among data; data/cifar10 is a fragment, which a recipe "
    "names in `extends`",
    "model=rope": "there is no 'rope' among models; rope is one of encodings; known are decoder",
    "model=gpt": "there is no 'gpt' among models; did you mean decoder?",
    "model.encoding=RoPE": "there is no 'RoPE' among encodings; did you mean rope?",
    "model.encoding=nope": "there is no 'nope' among encodings; did you mean none?",
    "optim=AdamW": "there is no 'AdamW' among optim; did you mean adamw?",
    "task=lm": "there is no 'lm' among tasks; did you mean causal_lm?",
    "trainer.precision=fp16": "got 'fp16'; did you mean 16-mixed?",
}
"""Of each word a recipe of a language model is changed with, what is told."""


@pytest.mark.parametrize("word", MISTAKES)
def test_a_plausible_mistake_is_one_issue_of_the_caller(word: str) -> None:
    with pytest.raises(RecipeError) as caught:
        config.load("lm_rope", parse_overrides([word]))
    (issue,) = caught.value.issues
    assert MISTAKES[word] in str(issue)
    assert str(issue).startswith("argument: ")
    assert issue.spell(COMMAND_LINE).startswith("command line: ")
    assert issue.spell(COMMAND_LINE)[len("command line: ") :] == str(issue)[len("argument: ") :]


KEYWORDS = {
    "resumme": "resumme: unknown key; did you mean resume?",
    "output_dir": "output_dir: unknown key; did you mean run_dir?",
    "model": 'model: unknown key; it is a key of the recipe: write overrides={"model": ...}',
    "lr": 'lr: unknown key; it is a key of the recipe: write overrides={"optim.lr": ...}',
    "learning_rate": 'a key of the recipe: write overrides={"optim.lr": ...}',
    "epochs": 'a key of the recipe: write overrides={"trainer.max_epochs": ...}',
    "batch_size": 'a key of the recipe: write overrides={"data.batch_size": ...}',
    "encoding": 'a key of the recipe: write overrides={"model.encoding": ...}',
}
"""Of each keyword of `zoo.fit` that it does not have, what is told."""


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_that_is_a_key_of_the_recipe_is_told_where_it_belongs(keyword: str) -> None:
    with pytest.raises(RecipeError) as caught:
        zoo.fit("lm_rope", **{keyword: 1})  # type: ignore[arg-type]
    (issue,) = caught.value.issues
    assert KEYWORDS[keyword] in str(issue)


SPECS = {
    "RoPE": "no encodings named 'RoPE'; did you mean rope?",
    "rope+alibi": "no encodings named 'rope+alibi'; write [rope,alibi]",
    "comrope": "did you mean comrope_ap or comrope_ld?",
    "{rope: {base: 3}}": "write {name: rope, base: 3}",
    "{type: rope}": "no name in {'type': 'rope'}; did you mean name?",
    "{name: rope, theta: 3}": "rope: theta: unknown key; did you mean base?",
    "{name: rope, block: 3}": "it is an option of comrope_ap, comrope_ld and liere; rope has base,",
}
"""Of each encoding as YAML, what `zoo.encoding` tells."""


@pytest.mark.parametrize("text", SPECS)
def test_an_encoding_of_a_python_program_is_answered_as_in_a_recipe(text: str) -> None:
    with pytest.raises(zoo.OptionError) as caught:
        zoo.encoding(parse(text, str, []).data, zoo.Dims(64, 4, 1, 16, 0, 1))
    assert SPECS[text] in str(caught.value)


def test_what_zoo_does_not_have_is_answered_with_what_it_has() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'train'; did you mean fit\?"):
        zoo.train  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        zoo.nothing  # noqa: B018


PAIRS = {
    ("model.dim", 3): 'write {"model.dim": 3}',
    "model.dim=3": 'write {"model.dim": 3}',
    "rope": 'write {"model.encoding": "rope"}, or encodings=[...] in a comparison',
}


@pytest.mark.parametrize("entry", PAIRS)
def test_what_is_no_override_is_answered_with_one(entry: object) -> None:
    with pytest.raises(RecipeError) as caught:
        zoo.load_recipe("lm_rope", [entry])  # type: ignore[list-item]
    assert PAIRS[entry] in str(caught.value)  # type: ignore[index]
