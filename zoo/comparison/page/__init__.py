"""The page of a comparison: its answer on one screen, and the details below it."""
