"""Panels as figures in a page: SVG made of numbers, coloured by the page's own style, so that it prints and turns dark."""
