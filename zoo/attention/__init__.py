"""How attention is described, and how the description is computed. Nothing here knows an encoding's name."""
