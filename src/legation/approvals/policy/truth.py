"""Three truth values: what a policy does not know is neither yes nor no.

INV-P1  Where it is unknown whether a rule matches, both ways are followed and the stricter outcome counts.
        So leaving a field out, sending another type or hiding a command never reaches an allow and never
        escapes a deny.

The values are numbers, so that `and` is the least, `or` the greatest, and `not` the mirror image.
"""

from collections.abc import Iterable
from typing import Final, Literal

Truth = Literal[0, 1, 2]

NO: Final = 0
UNKNOWN: Final = 1
YES: Final = 2

_NOT: Final[tuple[Truth, Truth, Truth]] = (YES, UNKNOWN, NO)


def negate(value: Truth) -> Truth:
    return _NOT[value]


def truth(value: bool) -> Truth:
    return YES if value else NO


def of_each(values: Iterable[Truth]) -> Truth:
    """Join those of a list: yes if all are, no if none is; some of them, or an empty list, is unknown.

    With INV-P1 this is "every one" for an allow and "any one" for a deny, also under a `not`.
    """
    found = set(values)
    return found.pop() if len(found) == 1 else UNKNOWN
