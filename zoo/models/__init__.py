"""Transformers as plain modules, independent of training and of any particular encoding."""
