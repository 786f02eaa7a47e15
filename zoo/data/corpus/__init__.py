"""Text: documents, vocabularies, and windows of tokens."""
