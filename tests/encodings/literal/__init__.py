"""References: each encoding transcribed from its paper, pair by pair, slowly and in float64.

A reference takes an encoding, only for its parameters, and the options of it that the formula has.
"""
