"""The report of `zoo diagnose`: what it holds, and the page and the JSON that are written of it."""
