"""The limit of the nesting depth of a YAML text, checked before parsing.

libyaml's composer recurses per level and overflows the stack of the process at some tens of thousands, without an
exception. Only brackets can nest that deep in a text of reasonable size: with indentation the size grows with the
square of the depth.
"""

import re

NESTING_MAX = 1000
_BRACKETS = re.compile(rb"[\[\]{}]")


def nests_too_deep(text: bytes) -> bool:
    """Whether more than `NESTING_MAX` brackets are open at any point. Brackets in strings count as well."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] in b"[{":
            depth += 1
            if depth > NESTING_MAX:
                return True
        else:
            depth = max(0, depth - 1)
    return False
