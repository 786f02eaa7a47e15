"""A page in one file that needs no network: its frame, its style, and what its figures tell under the pointer."""
