"""The page of a comparison: one screen that answers its question, and the details below it."""

from zoo.compare.page.writing import html

__all__ = ["html"]
