"""Diagnosis of trained models: what attention does, on one page."""
