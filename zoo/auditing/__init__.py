"""Laws of positions for models of other libraries, and for plain functions."""
