"""Transformers as plain modules: they know nothing of training, and no encoding's name."""
