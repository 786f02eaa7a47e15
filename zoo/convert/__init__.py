"""Layouts of published weights, and what each of their keys is here."""
