"""The page of `zoo diagnose`: sections, style and scripts."""
