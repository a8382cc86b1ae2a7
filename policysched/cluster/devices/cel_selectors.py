"""CEL selectors over devices.

    device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))

CEL is evaluated by cel-expr-python (the C++ runtime of CEL's authors), imported at the start, or else with the first ResourceSlice (`load`). The
latest 256 compiled expressions are cached, fewer if they are large. An expression whose estimated cost for one device is over
a limit is an error, whatever the API server's own estimate allows (`selector_cost`). Source:
`cel/compile.go` in k8s.io/dynamic-resource-allocation v0.36.3.
"""

import contextlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from policysched.cluster.devices import cel_values as values
from policysched.cluster.devices.cel_environment import environment
from policysched.cluster.devices.cel_macros import MacroExpander
from policysched.cluster.devices.cel_time_zones import unusable_zone
from policysched.cluster.devices.cel_tree import size_with_copies, tree_of
from policysched.cluster.devices.optional_values import may_pass_optionals
from policysched.cluster.devices.selector_cost import EVALUATION, OPERATIONS_MAX, selector_operations
from policysched.model.devices import Device, DeviceAttribute

COMPILED_MAX = 256
TREE_BYTES_MAX = 2**20
"""Of the syntax trees of all that are kept. The runtime keeps 20 to 55 times as much."""
LENGTH_MAX = 10 * 1024
"""Source: `CELSelectorExpressionMaxLength` of k8s.io/api/resource/v1."""
SYMBOLS_MAX = 750
"""Of an expression. Compiling takes 10 to 30 microseconds for each, all in one piece."""

MESSAGE_MAX = 512
"""Of an error, which may quote a text of the expression. Hundreds of different ones are kept for each selector."""

_SYMBOL = re.compile(
    r"""//[^\n]* | `[^`\n]*`
      | [bB]?[rR]?(?:(["'])\1\1(?:[^\\]|\\.)*?(?:\1\1\1|\Z) | "(?:[^"\\\n\r]|\\.)*"? | '(?:[^'\\\n\r]|\\.)*'?)
      | \w+ | && | \|\| | [!<=>]= | [^\s\w,.:]""",
    re.DOTALL | re.VERBOSE,
)
"""A name (between backquotes it may have slashes), value, operator or bracket. A string without an end, which is an error, ends with
the line or the text: each character is visited once. The runtime takes no raw string whose last character is a backslash."""

_COPYING, _RENAMED = re.compile(r"opt(Flat)?Map"), re.compile(r"opt(Flat)?Mop")
_COPYING_CALLS = {"optMop": 10, "optFlatMop": 10}
"""The runtime writes what such a macro is called on twice before it limits the size of the tree, so a chain of 16 takes 3 s and 0.5 GB,
and each further one doubles that. Under another name it is the call of an unknown method, which the parser leaves as it is."""

_NO_KEY = re.compile(r'NOT_FOUND: Key not found in map : "(.*)"\Z', re.DOTALL)
_STATUS = re.compile(r"\A[A-Z_]+: ")
_DOMAIN = re.compile(r"""(?:attributes|capacity)\s*\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]""")

_TYPE_OF_UINT = tuple(
    re.compile(pattern)
    for pattern in (
        r"\btype\s*\(",
        r"\b(?:uint|\d+u|0x[\da-f]+u)\b",
        r"\.\s*(?:distinct|flatten|max|min|reverse|slice|sort|sum)\s*\(",
    )
)
"""An expression with all of them may ask for the type of a uint that a function on a list returned as an int."""
_TOO_MANY_COPIES = f"expression has more than {SYMBOLS_MAX} parts, since each optMap and optFlatMap repeats what it is called on"
_TOO_DEEP = "macros with two variables and sortBy are nested too deeply"
_NO_KEY_ADVICE = ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields"
"""As in kube-scheduler since 1.37."""


class CelSelectorError(Exception):
    """The selector cannot be evaluated for the device. `is_compile_error`: the expression is
    invalid for every device."""

    tree_bytes = 0

    def __init__(self, message: str, *, compiling: bool) -> None:
        super().__init__(message[:MESSAGE_MAX])
        self.is_compile_error = compiling

    def __str__(self) -> str:
        help_text = _NO_KEY_ADVICE if "no such key:" in self.args[0] and not self.is_compile_error else ""
        return f"CEL {'compile' if self.is_compile_error else 'runtime'} error: {self.args[0]}{help_text}"


class DeviceSelectors:
    """Compiles and caches selectors."""

    def __init__(self) -> None:
        self._environment: Any = None
        self._macros = MacroExpander(self._parse)
        self._compiled: OrderedDict[str, _Selector | CelSelectorError] = OrderedDict()
        self._tree_bytes = 0

    def load(self) -> None:
        """Import CEL, which takes 30 ms the first time, before a pod waits for it. Raises nothing."""
        with contextlib.suppress(ImportError):  # `matches` says it for each selector
            self._environment = self._environment or environment()

    def matches(self, expression: str, driver: str, device: Device) -> bool:
        """Whether the expression selects the device. Raises CelSelectorError."""
        selector = self._selector(expression)
        if isinstance(selector, CelSelectorError):
            raise CelSelectorError(str(selector.args[0]), compiling=True)
        return selector.matches(driver, device)

    def is_compiled(self, expression: str) -> bool:
        return expression in self._compiled

    def operations(self, expression: str) -> int:
        """What `matches` costs at most for one device (see `selector_cost`)."""
        selector = self._selector(expression)
        return EVALUATION if isinstance(selector, CelSelectorError) else selector.operations

    def _compiled_tree(self, expression: str, symbols: int) -> Any:
        """Raises RuntimeError."""
        try:
            expanded = self._macros.expand(expression, symbols)
            if expanded is not None:
                return self._environment.deserialize(expanded)
        except RecursionError:
            raise RuntimeError(_TOO_DEEP) from None
        except RuntimeError as error:
            raise RuntimeError(_TOO_DEEP if "Cannot parse serialized" in str(error) else error) from error
        return self._environment.compile(expression)

    def _repeats_too_much(self, expression: str) -> bool:
        """Whether it has more than `SYMBOLS_MAX` parts with the copies that macros make. Raises RuntimeError."""
        renamed, count = _COPYING.subn(r"opt\1Mop", expression)
        return bool(count) and size_with_copies(tree_of(self._parse(renamed)), _COPYING_CALLS) > SYMBOLS_MAX

    def _parse(self, expression: str) -> bytes:
        tree: bytes = self._environment.compile(expression, disable_check=True).serialize()
        return tree

    def _selector(self, expression: str) -> "_Selector | CelSelectorError":
        selector = self._compiled.get(expression)
        if selector is None:
            selector = self._compiled[expression] = self._compile(expression)
            self._tree_bytes += selector.tree_bytes
            while len(self._compiled) > 1 and (
                len(self._compiled) > COMPILED_MAX or self._tree_bytes > TREE_BYTES_MAX
            ):
                _, dropped = self._compiled.popitem(last=False)
                self._tree_bytes -= dropped.tree_bytes
        else:
            self._compiled.move_to_end(expression)
        return selector

    def _compile(self, expression: str) -> "_Selector | CelSelectorError":
        if len(expression) > LENGTH_MAX:
            return CelSelectorError(f"expression is longer than {LENGTH_MAX} characters", compiling=True)
        symbols = sum(1 for _ in _SYMBOL.finditer(expression))
        if symbols > SYMBOLS_MAX:
            message = f"expression has more than {SYMBOLS_MAX} names, values, operators and brackets"
            return CelSelectorError(message, compiling=True)
        if all(pattern.search(expression) for pattern in _TYPE_OF_UINT):
            message = "policysched does not know the type of a uint that a function on a list returns"
            return CelSelectorError(message, compiling=True)
        try:
            self._environment = self._environment or environment()
            if self._repeats_too_much(expression):
                return CelSelectorError(_TOO_MANY_COPIES, compiling=True)
            compiled = self._compiled_tree(expression, symbols)
            returned = compiled.return_type().name()
        except ImportError:
            message = "selectors cannot be evaluated: the package cel-expr-python is not installed"
            return CelSelectorError(message, compiling=True)
        except RuntimeError as error:
            written = _RENAMED.sub(r"opt\1Map", str(error))
            return CelSelectorError(_compile_message(written), compiling=True)
        if returned not in ("BOOL", "DYN"):
            message = f"must evaluate to bool or the unknown type, not {returned.lower()}"
            return CelSelectorError(message, compiling=True)
        tree = compiled.serialize()
        if may_pass_optionals(tree):
            message = "policysched does not pass optional values to functions on lists"
            return CelSelectorError(message, compiling=True)
        if (problem := unusable_zone(tree)) is not None:
            return CelSelectorError(problem, compiling=True)
        domains = frozenset(
            double_quoted or single_quoted for double_quoted, single_quoted in _DOMAIN.findall(expression)
        )
        operations = selector_operations(tree) * (1 + len(domains))
        if operations > OPERATIONS_MAX:
            message = (
                f"may take {operations} operations for one device, more than the limit of {OPERATIONS_MAX}: "
                "use shorter lists, strings and patterns"
            )
            return CelSelectorError(message, compiling=True)
        return _Selector(compiled, operations, domains, len(tree))


class _Selector:
    """`operations`: of one evaluation. `domains`: domains that the expression names. A device without
    attributes of a domain has an empty map there."""

    def __init__(self, compiled: Any, operations: int, domains: frozenset[str], tree_bytes: int) -> None:
        self._compiled = compiled
        self.operations, self.tree_bytes = operations, tree_bytes
        self._domains = domains

    def matches(self, driver: str, device: Device) -> bool:
        attributes = _by_domain(
            driver, {name: _attribute(name, value) for name, value in device.attributes.items()}
        )
        capacity = _by_domain(
            driver, {name: values.quantity_value(amount.amount) for name, amount in device.capacity.items()}
        )
        variables = {
            "driver": driver,
            "allowMultipleAllocations": device.shareable,
            "attributes": attributes,
            "capacity": capacity,
        }
        for _ in range(1 + len(self._domains)):
            kind, result = self._evaluate(variables)
            missing = _NO_KEY.match(str(result)) if kind == "ERROR" else None
            if missing is None or missing.group(1) not in self._domains:
                break
            # Only after a failed lookup, so that `"dom" in device.attributes` stays False.
            attributes.setdefault(missing.group(1), {})
            capacity.setdefault(missing.group(1), {})
        if kind == "ERROR":
            raise CelSelectorError(_runtime_message(str(result)), compiling=False)
        if not isinstance(result, bool):
            message = f"CEL result of type {kind.lower()} could not be converted to bool"
            raise CelSelectorError(message, compiling=False)
        return result

    def _evaluate(self, variables: Mapping[str, object]) -> tuple[str, object]:
        try:
            result = self._compiled.eval(data={"device": variables})
            kind: str = result.type().name()
            # Other values are refused, and not all of them can be converted.
            return kind, result.value() if kind in ("BOOL", "ERROR") else None
        except RuntimeError as error:
            return "ERROR", str(error)
        except TypeError:  # an optional value has no type in Python
            return "OPTIONAL", None


def _attribute(name: str, attribute: DeviceAttribute) -> object:
    if attribute.kind == "version":
        try:
            return values.semver_value(str(attribute.value))
        except ValueError as error:
            raise CelSelectorError(
                f"attribute {name}: parse semantic version: {error}", compiling=False
            ) from error
    if attribute.kind == "other":
        raise CelSelectorError(f"attribute {name}: unsupported attribute value", compiling=False)
    return attribute.value


def _by_domain(driver: str, values: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """A name without a domain belongs to the driver's domain."""
    domains: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        domain, mark, attribute_name = name.partition("/")
        domains.setdefault(domain if mark else driver, {})[attribute_name if mark else name] = value
    return domains


def _compile_message(error: str) -> str:
    """The first line of the error, without status codes."""
    return "compilation failed: " + _STATUS.sub("", error.splitlines()[0]).removesuffix(" [INVALID_ARGUMENT]")


def _runtime_message(error: str) -> str:
    """The error as cel-go words it, where it has a known message."""
    missing = _NO_KEY.match(error)
    if missing is not None:
        return f"no such key: {missing.group(1)}"
    return _STATUS.sub("", error)
