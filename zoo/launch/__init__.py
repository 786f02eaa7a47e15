"""Launchers: scripts that start runs on clusters, one per file."""
