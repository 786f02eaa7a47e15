"""Controlled comparisons: cells that differ in what varies alone, and what they show."""
