"""Tasks: what a model is trained to do, one LightningModule per file."""
