"""Student's t distribution and the chi-square distribution, by their standard series. A library would be larger than the need."""

from __future__ import annotations

import math

_TINY = 1e-300
_ROUNDS = 300


def _fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (modified Lentz)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _ROUNDS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            value *= d * c
        if abs(d * c - 1.0) < 1e-14:
            break
    return value


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1 - x) / b


def t_two_sided(t: float, freedom: float) -> float:
    """Return the probability of a Student t at least as far from 0 as ``t``."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def t_quantile(two_sided: float, freedom: float) -> float:
    """Return the t that is exceeded on either side with probability ``two_sided`` (0.05: the 95 % interval)."""
    low, high = 0.0, 2.0
    while t_two_sided(high, freedom) > two_sided:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if t_two_sided(middle, freedom) > two_sided else (low, middle)
    return (low + high) / 2


def chi2_above(value: float, freedom: float) -> float:
    """Return the probability that a chi-square exceeds ``value`` (Wilson and Hilferty, good to some 0.001)."""
    if value <= 0:
        return 1.0
    z = ((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))
