"""What campaigns take as options, and their exit statuses.

It loads nothing of production: a mutation may have to change that first.
"""

from __future__ import annotations

import argparse
import math
from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """The exit statuses of campaigns."""

    HELD = 0
    WRONG = 1
    """A mistake was found, which is what a planted one is for, or the campaign gave up."""
    UNTRIED = 2
    """Nothing could be tried, or the command line is wrong."""
    NOT_FOUND = 3
    """What was planted, a mutation or a leak, was at work and was not found."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM ended it: 128 + SIGINT, as shells report it."""


STATUSES: Final = (
    f"Exit status: {Status.HELD:d} every promise held, {Status.WRONG:d} a mistake was found, or the campaign gave up, "
    f"{Status.UNTRIED:d} nothing could be tried, or wrong usage, {Status.NOT_FOUND:d} a planted mistake was not found, "
    f"{Status.INTERRUPTED:d} interrupted."
)
"""The last paragraph of a campaign's help."""


def whole_number(text: str) -> int:
    """Return the number that an option is given. Raises `ArgumentTypeError` if it is none."""
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error


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
