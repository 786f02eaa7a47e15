"""Measured on this machine: time, memory and throughput of models that differ in their encoding alone."""
