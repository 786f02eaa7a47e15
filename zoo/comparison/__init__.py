"""Comparisons of variants: planning, training, verdicts, reports."""
