"""A bound on how deep a YAML text may nest, checked before it is parsed.

libyaml's composer calls itself for each level and overruns the stack of the process at some tens of thousands, which
no exception reports. Only brackets can nest that deep in a text of reasonable size: by indentation the size grows with
the square of the depth.
"""

import re

NESTING_MAX = 1000
_BRACKETS = re.compile(rb"[\[\]{}]")


def nests_too_deep(text: bytes) -> bool:
    """Whether brackets are open more than `NESTING_MAX` deep at any place. Brackets in strings count as well: a text
    with a thousand unclosed ones is refused, whatever they are."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] in b"[{":
            depth += 1
            if depth > NESTING_MAX:
                return True
        else:
            depth = max(0, depth - 1)
    return False
