"""Evaluation of checkpoints, also past the sizes of training, and predictions."""
