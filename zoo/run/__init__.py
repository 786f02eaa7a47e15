"""A run: its directory, its checkpoints, and what watches over it while it trains."""
