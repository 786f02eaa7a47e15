"""Synthetic tasks: samples are generated from the seed, nothing is downloaded."""
