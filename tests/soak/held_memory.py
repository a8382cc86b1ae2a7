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
    sizes: Counter[str] = Counter()
    for path, obj in walk(roots):
        if not isinstance(obj, type | ModuleType | FunctionType | BuiltinFunctionType):
            sizes[path] += sys.getsizeof(obj)
    return sizes


def walk(roots: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Every object reachable from the roots, once, with its path."""
    visited: set[int] = set()
    # Breadth first: an object counts under its shortest path, which is stable between readings.
    queue = deque((name, root) for name, root in roots.items())
    while queue:
        path, obj = queue.popleft()
        if id(obj) in visited or isinstance(obj, _SHARED) or _is_outside(obj):
            continue
        visited.add(id(obj))
        yield path, obj
        if not isinstance(obj, _LEAVES):
            queue.extend(_parts(path, obj))


def roots_of(app: object) -> dict[str, object]:
    """The app, and the module-level containers of policysched."""
    roots: dict[str, object] = {"app": app}
    for name, module in sorted(sys.modules.items()):
        if name.startswith("policysched.") and not name.startswith(_OUTSIDE[0]):
            for key, value in vars(module).items():
                if isinstance(value, dict | list | set) and not key.startswith("__"):
                    roots[f"{name}.{key}"] = value
    return roots


def _is_outside(obj: object) -> bool:
    owner = obj.__self__ if isinstance(obj, MethodType) else obj
    module = getattr(type(owner), "__module__", None)
    return isinstance(module, str) and module.startswith(_OUTSIDE)


def _parts(path: str, obj: Any) -> Iterator[tuple[str, object]]:
    if isinstance(obj, FunctionType):
        for cell in obj.__closure__ or ():
            try:
                yield f"{path}()", cell.cell_contents
            except ValueError:  # an empty cell
                continue
    elif isinstance(obj, MethodType):
        yield path, obj.__self__
    elif isinstance(obj, functools.partial):
        yield from ((f"{path}()", part) for part in (obj.func, *obj.args, *obj.keywords.values()))
    elif isinstance(obj, Mapping) and type(obj).__module__ in ("builtins", "collections", "mappingproxy"):
        for key, value in list(obj.items()):
            yield f"{path}{{}}", key
            yield f"{path}{{}}", value
    elif isinstance(obj, list | tuple | set | frozenset | deque):
        yield from ((f"{path}[]", part) for part in list(obj))
    else:
        for name in _attributes(obj):
            try:
                yield f"{path}.{name}", getattr(obj, name)
            except AttributeError:  # an unset slot
                continue


def _attributes(obj: object) -> Iterator[str]:
    yield from list(getattr(obj, "__dict__", ()))
    for above in type(obj).__mro__:
        slots = above.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            yield f"_{above.__name__.lstrip('_')}{name}" if name.startswith("__") else name
