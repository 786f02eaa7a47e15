"""Export trained models to formats that other programs read."""
