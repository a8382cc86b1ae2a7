"""The memory held by an object: the bytes of everything reachable from it, by attribute path.

A path does not distinguish the entries of a container (`cache.pods{}`), so a leak shows as one path that grows.
The simulated cluster is not entered, nor are shared objects: modules, classes, functions (but closures are), tasks.
"""

import asyncio
import functools
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

_LEAVES = (str, bytes, int, float, bool, type(None), type, ModuleType, BuiltinFunctionType, ref)
_SHARED = (asyncio.AbstractEventLoop, asyncio.Task, asyncio.Handle)
_OUTSIDE = ("policysched.sandbox", "tests.")


def held_bytes(roots: Mapping[str, object]) -> Counter[str]:
    """Bytes by path. An object reachable by several paths counts once."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    # Breadth first: an object counts under its shortest path, which is stable between readings.
    queue = deque((name, root) for name, root in roots.items())
    while queue:
        path, one = queue.popleft()
        if id(one) in seen or isinstance(one, _SHARED) or _is_outside(one):
            continue
        seen.add(id(one))
        if not isinstance(one, type | ModuleType | FunctionType | BuiltinFunctionType):
            found[path] += sys.getsizeof(one)
        if not isinstance(one, _LEAVES):
            queue.extend(_parts(path, one))
    return found


def roots_of(app: object) -> dict[str, object]:
    """The app, and the module-level containers of policysched."""
    found: dict[str, object] = {"app": app}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("policysched.") and not name.startswith(_OUTSIDE[0]):
            for key, one in vars(module).items():
                if isinstance(one, dict | list | set) and not key.startswith("__"):
                    found[f"{name}.{key}"] = one
    return found


def _is_outside(one: object) -> bool:
    owner = one.__self__ if isinstance(one, MethodType) else one
    module = getattr(type(owner), "__module__", None)
    return isinstance(module, str) and module.startswith(_OUTSIDE)


def _parts(path: str, one: Any) -> Iterator[tuple[str, object]]:
    if isinstance(one, FunctionType):
        for cell in one.__closure__ or ():
            try:
                yield f"{path}()", cell.cell_contents
            except ValueError:  # an empty cell
                continue
    elif isinstance(one, MethodType):
        yield path, one.__self__
    elif isinstance(one, functools.partial):
        yield from ((f"{path}()", part) for part in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, Mapping) and type(one).__module__ in ("builtins", "collections", "mappingproxy"):
        for key, value in list(one.items()):
            yield f"{path}{{}}", key
            yield f"{path}{{}}", value
    elif isinstance(one, list | tuple | set | frozenset | deque):
        yield from ((f"{path}[]", part) for part in list(one))
    else:
        for name in _attributes(one):
            try:
                yield f"{path}.{name}", getattr(one, name)
            except AttributeError:  # an unset slot
                continue


def _attributes(one: object) -> Iterator[str]:
    yield from list(getattr(one, "__dict__", ()))
    for above in type(one).__mro__:
        slots = above.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            yield f"_{above.__name__.lstrip('_')}{name}" if name.startswith("__") else name
