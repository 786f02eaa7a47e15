"""Training tasks, one LightningModule per file."""
