"""What sources of text share: a corpus, its vocabulary, and windows cut out of it."""
