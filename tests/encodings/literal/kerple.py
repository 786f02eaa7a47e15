"""KERPLE: -p_h log(1 + a_h |p_i - p_j|), or -a_h |p_i - p_j|^p_h."""

from __future__ import annotations

from literal.call import Bias
from zoo.attention.encoding import Encoding


def kerple_log(encoding: Encoding) -> Bias:
    p, a = encoding.log_scale.exp(), encoding.log_rate.exp()
    return lambda h, i, j: -p[h] * (1 + a[h] * (i - j).abs()).log()


def kerple_power(encoding: Encoding) -> Bias:
    p, a = 2 / (1 + (-encoding.exponent).exp()), encoding.log_rate.exp()
    return lambda h, i, j: -a[h] * (i - j).abs() ** p[h]
