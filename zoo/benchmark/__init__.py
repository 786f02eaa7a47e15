"""Benchmarks: time and memory of encodings on this machine, side by side."""
