"""Images: decoding, tables, normalisation and augmentation."""
