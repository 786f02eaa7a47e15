"""Engines that start runs elsewhere, as scripts for them, one per file."""
