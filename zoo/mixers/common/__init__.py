"""Parts that several mixers share."""
