"""What the command line does, one verb per file."""
