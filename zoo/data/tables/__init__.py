"""What sources that read tables share: opening them, their parts, streams, and samples that are corrupt."""
