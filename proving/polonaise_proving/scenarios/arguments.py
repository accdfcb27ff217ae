"""What campaigns take as options. It loads nothing of production: a mutation may have to change that first."""

from __future__ import annotations

import argparse
import math


def at_least_one(text: str) -> int:
    """Return the number that an option is given. Raises `ArgumentTypeError` if it is below 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more: nothing would be tried")
    return number


def whole(text: str) -> int:
    """Return the number that an option is given. Raises `ArgumentTypeError` if it is not a whole one."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def above_zero(text: str) -> float:
    """Return the number that an option is given. Raises `ArgumentTypeError` if it is not above 0, or without end."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0: nothing would be tried")
    return number
