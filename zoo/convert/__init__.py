"""Convert published weights: their layouts, and the name of each weight here."""
