"""What several encodings are made of: rotations, bases, tables, sums along a text."""
