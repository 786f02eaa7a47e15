"""Guess what an unknown word means: the nearest by spelling, or another word for it.

Recipes, the command line and Python share one table of words that mean the same in other libraries
and in papers, so that `learning_rate` is answered with `lr` wherever it is written.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

MAX_LENGTH = 100
"""Longer words are no slip of the finger, and comparing them takes time."""
CUTOFFS = ((2, 0.5), (7, 0.6), (MAX_LENGTH, 0.7))
"""Up to so many letters, how similar two words must be: one of two letters may be wrong."""
TYPO = 0.78
"""From here on two words are the same but for a slip of the finger."""
SAME, SYNONYM = 1.0, 0.99
LEAST_SLIP = 4
"""In words of fewer letters, another letter is another word."""
ALTERNATIVES = 3
WIDTH = 110

_OTHER_WORDS: Mapping[str, str] = MappingProxyType(
    {
        # sections
        "seed": "random_seed manual_seed rng_seed rng random_state",
        "init_from": "checkpoint ckpt init_checkpoint load_from finetune_from init_weights "
        "from_checkpoint pretrained_from pretrained_path "
        "pretrained weights",
        "model": "network net architecture",
        "data": "dataset datasets datamodule data_module ds",
        "task": "objective loss criterion loss_fn problem",
        "optim": "optimizer optimiser opt optimization",
        "trainer": "training train train_args training_args training_arguments fit",
        "evaluate": "eval evaluation validation testing",
        "generate": "generation sampling sample generation_config",
        "predict": "prediction predictions inference",
        "diagnostics": "diagnose diagnosis diagnostic",
        "extends": "extend inherit inherits base _base_ defaults include includes import imports "
        "parent parents",
        "name": "type class kind _target_ target class_name class_path id",
        # training
        "max_epochs": "epochs epoch num_epochs n_epochs nb_epochs num_train_epochs train_epochs "
        "total_epochs training_epochs",
        "max_steps": "steps num_steps n_steps max_iters iters iterations num_iterations "
        "max_iterations limit_train_batches train_steps training_steps total_steps "
        "num_train_steps num_training_steps train_iters num_iters",
        "accelerator": "device use_cuda use_gpu cuda gpu",
        "devices": "device gpus num_gpus n_gpus ngpus num_devices nproc_per_node gpu_ids",
        "num_nodes": "nodes nnodes n_nodes",
        "strategy": "distributed distributed_strategy parallel parallelism ddp fsdp",
        "precision": "dtype torch_dtype amp use_amp mixed_precision fp16 bf16 half float16 "
        "bfloat16",
        "gradient_clip_val": "grad_clip clip clip_grad max_grad_norm gradient_clip clip_norm "
        "grad_clip_norm clip_grad_norm gradient_clipping grad_norm_clip grad_clip_val max_norm",
        "accumulate_grad_batches": "gradient_accumulation_steps grad_accum accumulation_steps "
        "grad_accum_steps gradient_accumulation accum accum_steps accumulate grad_accumulation "
        "accumulate_steps",
        "log_every_n_steps": "log_interval logging_steps log_every log_freq print_every "
        "log_every_steps",
        "val_every_n_steps": "eval_interval eval_steps val_check_interval eval_every "
        "eval_every_n_steps val_interval validate_every eval_freq val_every "
        "check_val_every_n_epoch",
        "save_every_n_steps": "save_steps save_interval save_every checkpoint_interval "
        "checkpoint_every ckpt_every ckpt_interval every_n_train_steps",
        "save_top_k": "save_total_limit keep_checkpoints max_to_keep",
        "early_stopping": "patience early_stop early_stopping_patience",
        "patience": "early_stopping_patience",
        "compile": "torch_compile use_compile",
        "float32_matmul": "tf32 allow_tf32 float32_matmul_precision matmul_precision",
        "fused": "fused_adam fused_adamw use_fused",
        "activation_checkpointing": "gradient_checkpointing grad_checkpointing checkpointing remat",
        "ema_decay": "ema ema_rate ema_momentum",
        "num_threads": "threads n_threads cpu_threads torch_threads cpus",
        "overfit_batches": "overfit",
        "fast_dev_run": "dry_run dev_run smoke_test debug",
        "logger": "loggers report_to tracker wandb tensorboard",
        "callbacks": "callback",
        # data
        "batch_size": "bs batch batchsize train_batch_size per_device_train_batch_size "
        "per_device_batch_size mini_batch_size minibatch minibatch_size micro_batch_size "
        "batch_sz",
        "global_batch_size": "total_batch_size effective_batch_size batch_size_global",
        "prefetch_factor": "prefetch prefetch_batches dataloader_prefetch_factor",
        "workers": "num_workers n_workers nworkers dataloader_num_workers loader_workers",
        "length": "seq_len seqlen seq_length sequence_length context context_length context_size "
        "ctx ctx_len n_ctx max_length max_len max_seq_len max_seq_length block_size block_len "
        "n_positions max_position_embeddings bptt tokens_per_sample num_tokens",
        "lengths": "seq_lens seq_lengths sequence_lengths eval_lengths test_lengths contexts "
        "context_lengths",
        "size": "image_size img_size input_size im_size imgsz resolution crop_size max_tokens "
        "max_patches max_num_patches",
        "aspect": "keep_aspect keep_aspect_ratio keep_ratio aspect_ratio naflex navit "
        "native_resolution",
        "pack": "packing packed patch_n_pack",
        "stretch": "rescale rescale_coords",
        "resolutions": "image_sizes img_sizes sizes resolution eval_resolutions",
        "path": "root folder data_dir data_path dataset_path dir directory data_root file source",
        "files": "file path paths text_file text_files train_file corpus",
        "val": "valid validation val_split validation_split val_fraction val_size n_val num_val "
        "dev",
        "test": "test_split test_fraction test_size n_test num_test",
        "train": "train_split train_size n_train num_train train_samples num_samples n_samples",
        "classes": "num_classes n_classes nb_classes num_labels n_labels",
        "channels": "in_channels in_chans num_channels n_channels",
        "frames": "num_frames n_frames",
        "vocabulary": "vocab_size vocab n_vocab",
        "tokenizer": "tokeniser tokenizer_path tokenizer_name tokenizer_file",
        "augment": "augmentation augmentations aug transform transforms",
        # models
        "dim": "hidden_size d_model dmodel hidden_dim embed_dim embedding_dim emb_dim n_embd "
        "model_dim width embed_size emb_size embedding_size n_embed hidden_units hidden",
        "depth": "n_layers num_layers n_layer nlayers num_hidden_layers layers n_blocks num_blocks "
        "num_encoder_layers num_decoder_layers nlayer layer_count",
        "heads": "n_heads num_heads n_head nhead nheads num_attention_heads attention_heads "
        "num_q_heads n_attn_heads",
        "kv_heads": "n_kv_heads num_kv_heads n_kv_head num_key_value_heads n_head_kv kv_groups "
        "num_query_groups",
        "head_dim": "head_size d_head dim_head d_k",
        "logit_softcap": "final_logit_softcapping logits_soft_cap final_softcap",
        "encoding": "encodings positional_encoding position_encoding pos_encoding pos_enc posenc "
        "pe positional_encodings pos_embed pos_emb pos_embedding position_embedding "
        "positional_embedding position_embedding_type positional position positions rope",
        "mlp_ratio": "ff_mult ffn_mult mlp_mult ffn_dim_multiplier intermediate_size ff_dim "
        "ffn_dim d_ff dim_feedforward feedforward_dim mlp_dim ffn_hidden_size hidden_mult ff ffn "
        "ff_ratio ffn_ratio",
        "mlp": "activation act hidden_act activation_function act_layer activation_fn act_fn",
        "norm": "norm_layer normalization norm_type layer_norm rms_norm rmsnorm layernorm",
        "norm_position": "prenorm pre_norm norm_first postnorm post_norm",
        "norm_eps": "layer_norm_eps rms_norm_eps layer_norm_epsilon",
        "dropout": "drop drop_rate dropout_rate resid_pdrop hidden_dropout_prob dropout_p "
        "p_dropout hidden_dropout resid_dropout",
        "attention_dropout": "attn_dropout attn_pdrop attn_drop attention_probs_dropout_prob "
        "attn_drop_rate attention_drop",
        "drop_path": "drop_path_rate stochastic_depth droppath",
        "layer_scale": "layerscale init_values ls_init layer_scale_init",
        "qk_norm": "qknorm use_qk_norm qk_layernorm query_key_norm",
        "mlp_bias": "bias use_bias",
        "tie_embeddings": "tie_word_embeddings weight_tying tie_weights tied_embeddings "
        "share_embeddings tied",
        "memory_length": "mem_len memory mem memory_len",
        "window": "window_size sliding_window attention_window local_window",
        "attention": "attn attention_type attn_type",
        "backend": "attn_implementation attention_backend attn_backend kernel flash "
        "flash_attention use_flash_attention",
        "cls_token": "class_token use_cls_token cls",
        "arch": "model_name timm_name variant timm_model",
        "patch_size": "patch patchsize patch_dim",
        "pool": "pooling global_pool",
        "registers": "num_registers n_registers reg_tokens register_tokens num_register_tokens",
        "tubelet": "tubelet_size",
        "lora_rank": "lora_r lora",
        "lora_targets": "target_modules lora_target_modules",
        "label_smoothing": "smoothing ls label_smooth",
        "metrics": "metric eval_metrics",
        "monitor": "monitor_metric metric_for_best_model",
        "mask_ratio": "mlm_probability mask_prob mask_probability mask_rate masking_ratio",
        # optimization
        "lr": "learning_rate learningrate base_lr max_lr peak_lr initial_lr lrate eta "
        "base_learning_rate",
        "weight_decay": "wd weightdecay decay l2 l2_reg weight_decay_rate",
        "schedule": "scheduler lr_scheduler lr_schedule lr_scheduler_type sched lr_decay_style",
        "warmup_ratio": "warmup warmup_steps num_warmup_steps warmup_iters warmup_epochs "
        "warmup_fraction lr_warmup",
        "min_lr_ratio": "min_lr end_lr final_lr lr_end eta_min min_learning_rate lr_min "
        "final_div_factor",
        "encoding_lr": "pe_lr pos_lr encoding_learning_rate positional_lr",
        "param_groups": "parameter_groups groups params layer_decay",
        "beta1": "betas adam_beta1 b1",
        "beta2": "betas adam_beta2 b2",
        "eps": "epsilon adam_epsilon adam_eps",
        "momentum": "mom",
        # encodings
        "base": "theta rope_theta rope_base base_frequency freq_base rotary_base max_period "
        "rotary_emb_base emb_base",
        "rotary_fraction": "partial_rotary_factor rotary_pct rotary_percent rotary_dim "
        "partial_rotary rope_fraction",
        "scaling": "rope_scaling",
        "num_buckets": "buckets n_buckets relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance max_relative_position max_dist clip "
        "max_relative_positions",
        "block": "block_size group_size",
        "max_positions": "max_position_embeddings n_positions npos_max",
        "init_std": "initializer_range",
        "shared": "share share_layers shared_layers",
        # generation and evaluation
        "tokens": "max_new_tokens max_tokens num_tokens n_tokens new_tokens max_length length",
        "temperature": "temp",
        "top_k": "topk",
        "top_p": "topp nucleus",
        "stop": "stop_token stop_sequence stop_sequences eos stop_at",
        "samples": "num_samples n_samples num_return_sequences",
        "cache": "use_cache kv_cache",
        "prompt": "text input prefix",
        "top": "topk top_k",
        # commands
        "run_dir": "output_dir output out out_dir save_dir log_dir logdir workdir exp_dir "
        "default_root_dir experiment_dir rundir",
        "to": "output out out_dir output_dir output_folder dest destination target save_to format",
        "resume": "resume_from resume_from_checkpoint ckpt_path continue continue_from",
        "seeds": "num_seeds n_seeds",
        "fit": "train training",
        "eval": "evaluate test evaluation",
        "compare": "sweep ablate ablation grid",
        "list": "ls encodings recipes",
        "show": "describe info print cat help",
        "bench": "benchmark profile",
        "doctor": "env info check versions",
        "verify": "test check validate",
        # registered names
        "rope": "rotary rotary_embedding roformer rope_1d yarn ntk longrope rope_scaling",
        "rope_axial": "axial_rope rope_2d rope2d 2d_rope axial rope_3d",
        "rope_mixed": "mixed_rope",
        "learned": "absolute ape learnable learned_absolute learned_embedding trainable",
        "sinusoidal": "sin sinusoid sincos sin_cos sine fourier vaswani",
        "none": "nope no_pe null off no",
        "t5": "t5_bias relative_bias rpb relative_position_bias",
        "shaw": "relative relative_key",
        "transformer_xl": "xl relative_xl",
        "decoder": "gpt gpt2 llama lm transformer causal language_model",
        "encoder": "bert transformer",
        "vit": "vision_transformer visiontransformer deit",
        "transformers": "hf huggingface auto_model automodel",
        "causal_lm": "lm clm language_modeling next_token language_model",
        "masked_lm": "mlm masked masked_language_modeling",
        "classification": "classify cross_entropy image_classification",
        "text": "txt text_file",
        "images": "imagefolder image_folder",
        "wsd": "trapezoidal",
        "cuda": "gpu gpus nvidia",
        "constant": "none no off fixed",
        "subword": "bpe wordpiece sentencepiece unigram word words",
        "character": "char chars characters letter letters",
        "byte": "bytes utf8 utf-8",
        "rule": "type rope_type kind method",
        "factor": "scale scaling_factor",
        "original": "original_max_position_embeddings original_length",
        "32-true": "32 fp32 float32 float full single",
        "16-mixed": "16 fp16 float16 half amp mixed",
        "bf16-mixed": "bf16 bfloat16 mixed",
        "64-true": "64 fp64 float64 double",
        "gelu_tanh": "gelu_new gelu_pytorch_tanh quick_gelu",
        "swiglu": "silu swish glu",
        "rms": "rmsnorm rms_norm",
        "layer": "layernorm layer_norm ln",
        "pre": "prenorm pre_norm",
        "post": "postnorm post_norm",
        "sdpa": "flash_attention_2 flash flash_attention",
        "reference": "eager naive",
    }
)
SYNONYMS: Mapping[str, frozenset[str]] = MappingProxyType(
    {word: frozenset(others.split()) for word, others in _OTHER_WORDS.items()}
)
"""Of each of zoo's words, those of other libraries, of papers and of the field."""

NOTES: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "warmup_ratio": (re.compile("step|iter|epoch"), "a fraction of all steps"),
        "min_lr_ratio": (re.compile("^(?!min_lr_ratio)"), "a fraction of lr"),
        "mlp_ratio": (re.compile("dim|size|^d_ff|feed"), "a multiple of dim"),
        "rotary_fraction": (re.compile("dim"), "a fraction of the width of a head"),
        "early_stopping": (re.compile("patience"), "a mapping {patience: ...}"),
        "val_every_n_steps": (re.compile("epoch"), "epochs end with a validation anyway"),
        "rope": (re.compile("yarn|ntk|longrope|scaling"), "with its option scaling"),
        "base": (re.compile("max_period"), "the base of the wavelengths"),
    }
)
"""What to say of a key that an other word means with another unit, by a pattern of that word."""


def list_synonyms(word: str) -> frozenset[str]:
    """Return the words that other libraries have for one of zoo's."""
    return SYNONYMS.get(word, frozenset())


def _normalise(word: str) -> str:
    """Write a word in lower case with underscores; `LearningRate` and `learning-rate` are one."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word.strip())
    return re.sub(r"[-\s]+", "_", snake.lstrip("-")).lower()


def measure(word: str, known: str) -> float:
    """Return how likely a word means a known one: 1 for the same, 0 for nothing in common."""
    if "." in known and "." not in word:
        # a key without its section
        return measure(word, known.rpartition(".")[2])
    if "." in known and "." in word:
        (one, _, tail), (other, _, known_tail) = word.rpartition("."), known.rpartition(".")
        if one == other:
            return measure(tail, known_tail)
    given, target = _normalise(word), _normalise(known)
    if given == target or given.replace("_", "") == target.replace("_", ""):
        return SAME
    others = list_synonyms(known)
    if given in others:
        return SYNONYM
    score = _compare_spelling(given, target)
    # a misspelt synonym must be close, since there are many of them
    slips = [near for other in others if (near := _compare_spelling(given, other)) >= 0.9]
    return max([score, *(0.98 * near for near in slips if len(given) > 5)])


def _compare_spelling(one: str, other: str) -> float:
    """Return the similarity of two words, a transposition of two letters counted as one slip."""
    score = difflib.SequenceMatcher(None, one, other).ratio()
    if len(one) == len(other) and sorted(one) == sorted(other):
        different = [i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        if len(different) == 2 and different[1] == different[0] + 1:
            return max(score, 1 - 0.5 / len(one))
    return min(score, 0.97)


def is_slip(word: str, known: str) -> bool:
    """Return whether words differ by one letter, or by two neighbours that changed places."""
    one, other = _normalise(word.rpartition(".")[2]), _normalise(known.rpartition(".")[2])
    if min(len(one), len(other)) < LEAST_SLIP or abs(len(one) - len(other)) > 1:
        return False
    if len(one) == len(other):
        places = [at for at in range(len(one)) if one[at] != other[at]]
        is_swap = len(places) == 2 and one[places[0]] + one[places[1]] == (
            other[places[1]] + other[places[0]]
        )
        return len(places) == 1 or (is_swap and places[1] == places[0] + 1)
    short, long = sorted((one, other), key=len)
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def find_meant(word: str, known: Iterable[str], least: float | None = None) -> list[str]:
    """Return the known words that a word is likeliest to mean; several if they mean the same.

    A slip of one letter is likelier than another word for the same.

    Args:
        word: The word.
        known: The words that could stand in its place, those that are preferred first.
        least: How likely the words must be, as of `measure`.
    """
    if not 0 < len(word) <= MAX_LENGTH:
        return []
    if least is None:
        least = next(cutoff for length, cutoff in CUTOFFS if len(word) <= length)
    scores = {one: measure(word, one) for one in known if one != word}
    best = max(scores.values(), default=0.0)
    slips = {one: score for one, score in scores.items() if score >= TYPO and is_slip(word, one)}
    # device is a slip of devices, and another word for accelerator and devices
    if slips and max(slips.values()) < best < SAME:
        scores, best = slips, max(slips.values())
    if best < least:
        return []
    found = [one for one, score in scores.items() if score == best]
    # words that look alike by chance are no choice to offer
    return found[:ALTERNATIVES] if best >= SYNONYM else found[:1]


def offer(word: str, meant: Sequence[str], parent: str = "") -> str:
    """Return the question whether one of some words was meant, as keys below `parent`."""
    full = [f"{parent}.{one}" if parent else one for one in meant]
    question = f"did you mean {' or '.join(full)}"
    tail = meant[0].rpartition(".")[2]
    if len(meant) == 1 and tail in NOTES and NOTES[tail][0].search(_normalise(word)):
        question = f"{question} ({NOTES[tail][1]})"
    return f"{question}?"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a remedy: the nearest known word, or the known words."""
    known = tuple(known)
    if meant := find_meant(word, known):
        return offer(word, meant)
    return f"known are {', '.join(known)}" if known else "there is none"


def list_words(names: Iterable[str]) -> str:
    """Write words as a list that is cut off where it would be too long."""
    return textwrap.shorten(", ".join(names), WIDTH, placeholder=" ...")


def join_words(names: Sequence[str], most: int = 4) -> str:
    """Write words as a sentence does: a, b and c; those beyond `most` as their number."""
    names = [*names]
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
