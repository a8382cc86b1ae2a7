"""The NumPy dtype of each type of the policy language."""

import numpy as np
from numpy.typing import DTypeLike

from policysched.lang.types.kinds import TypeKind


def dtype_of(kind: TypeKind) -> DTypeLike:
    match kind:
        case TypeKind.BOOL:
            return np.bool_
        case TypeKind.STRING | TypeKind.LIST:
            return np.int32
        case TypeKind.FLOAT | TypeKind.BANDWIDTH | TypeKind.RATIO:
            return np.float64
        case _:
            return np.int64
