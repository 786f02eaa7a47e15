"""The page of `zoo diagnose`.

Its sections, its style, and the script of the viewer, in one file that needs no network.
"""
