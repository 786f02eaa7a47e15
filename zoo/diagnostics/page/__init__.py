"""The page of `zoo diagnose`: its sections, its style, and the script of the viewer, in one file that needs no network."""
