"""Sources of data, one LightningDataModule per file."""
