"""File formats of other programs: export of trained models to them, and conversion from them."""
