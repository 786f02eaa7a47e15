"""Text data: documents, vocabularies and windows of tokens."""
