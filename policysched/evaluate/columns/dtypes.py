"""How the values of a type stand in an array."""

import numpy as np
from numpy.typing import DTypeLike

from policysched.lang.types.kinds import Kind


def held_dtype(kind: Kind) -> DTypeLike:
    match kind:
        case Kind.BOOL:
            return np.bool_
        case Kind.STRING | Kind.LIST:
            return np.int32
        case Kind.FLOAT | Kind.BANDWIDTH | Kind.RATIO:
            return np.float64
        case _:
            return np.int64
