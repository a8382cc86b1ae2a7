"""Typed values as JSON and back, by their type annotations.

A dataclass is an object of its fields, a tuple (also a named one) an array, a frozenset a sorted array, a Fraction a
text, and a mapping an object, or an array of pairs where a key is not a text. Nothing says the class: the annotation
does, and of a union the fields do.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import orjson

from policysched.text.sanitize import sanitize_line

Decode = Callable[[Any], Any]


class UndecodableValue(Exception):
    """A value does not have the form that its annotation requires; the message says where."""


def to_json(value: Any) -> bytes:
    """The JSON of a value, on one line."""
    try:
        return orjson.dumps(value, default=_special, option=_OPTIONS)
    except TypeError:  # keys that are not texts, or integers of more than 64 bits
        return orjson.dumps(_plain(value), option=_OPTIONS)


_BIG_INTEGER_DIGITS_MAX = 1000
_INTEGER = re.compile(r"-?[0-9]+")
_FRACTION = re.compile(r"-?[0-9]+(/[0-9]+)?")
"""Not `1e999999999`, for which Python computes all digits."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY
BIG_INTEGER = "__integer__"
"""Key of the object that stands for an integer of more than 64 bits, with its digits."""


def _special(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value, key=str)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Fraction):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is not recorded")


def _plain(value: Any) -> Any:
    """The same with JSON's own types only."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return {BIG_INTEGER: str(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            spec.name: _plain(getattr(value, spec.name))
            for spec in fields(value)
            if not spec.name.startswith("_")
        }
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): _plain(item) for key, item in value.items()}
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset | set):
        return [_plain(item) for item in sorted(value, key=str)]
    if isinstance(value, Fraction):
        return str(value)
    return value


@cache
def decoder(annotation: Any) -> Decode:
    """What makes a value of this type of its JSON. It raises UndecodableValue."""
    if isinstance(annotation, NewType):
        return decoder(annotation.__supertype__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _union_decoder(arguments)
    if annotation in (NoneType, Any, object) or origin is Literal:
        return _scalar
    if isinstance(annotation, type) and annotation in _SCALAR_DECODERS:
        return _SCALAR_DECODERS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _dataclass_decoder(annotation)
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        return _named_tuple_decoder(annotation)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is frozenset:
        item = decoder(arguments[0])
        return lambda value: frozenset(map(item, _a(list, value)))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(*map(decoder, arguments))
    raise TypeError(f"values of {annotation} are not recorded")


def _a(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise UndecodableValue(f"expected a {kind.__name__}, got {sanitize_line(value):.80}")
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {BIG_INTEGER}:
        return _number(value)
    return value


def _number(value: Any) -> int | float:
    """Of any type of numbers: one that should be a float may be an integer."""
    if isinstance(value, dict) and value.keys() == {BIG_INTEGER}:
        digits = _a(str, value[BIG_INTEGER])
        if len(digits) > _BIG_INTEGER_DIGITS_MAX or not _INTEGER.fullmatch(digits):
            raise UndecodableValue(f"expected an integer, got {sanitize_line(digits):.80}")
        return int(digits)
    if type(value) not in (int, float):
        raise UndecodableValue(f"expected a number, got {sanitize_line(value):.80}")
    number: int | float = value
    return number


def _fraction(value: Any) -> Fraction:
    digits = _a(str, value)
    try:
        if len(digits) <= _BIG_INTEGER_DIGITS_MAX and _FRACTION.fullmatch(digits):
            return Fraction(digits)
    except ZeroDivisionError:
        pass
    raise UndecodableValue(f"expected a fraction, got {sanitize_line(value):.80}")


def _text(value: Any) -> Any:
    return _a(str, value)


def _flag(value: Any) -> Any:
    return _a(bool, value)


_SCALAR_DECODERS: Mapping[type, Decode] = {
    str: _text,
    bool: _flag,
    int: _number,
    float: _number,
    Fraction: _fraction,
}


def _tuple_decoder(arguments: tuple[Any, ...]) -> Decode:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = decoder(arguments[0])
        return lambda value: tuple([item(part) for part in _a(list, value)])
    items = tuple(map(decoder, arguments))
    return lambda value: tuple([item(part) for item, part in zip(items, _a(list, value), strict=True)])


def _named_tuple_decoder(annotation: type) -> Decode:
    items = [decoder(hint) for hint in get_type_hints(annotation).values()]
    return lambda value: annotation(*[item(part) for item, part in zip(items, _a(list, value), strict=True)])


def _mapping_decoder(key: Decode, item: Decode) -> Decode:
    def decode(value: Any) -> dict[Any, Any]:
        pairs = value.items() if isinstance(value, dict) else _a(list, value)
        return {key(name): item(part) for name, part in pairs}

    return decode


def _union_decoder(options: tuple[Any, ...]) -> Decode:
    """None, scalars and mappings by their JSON type; of several dataclasses the one with these fields."""
    classes = {
        frozenset(_field_names(option)): decoder(option)
        for option in options
        if isinstance(option, type) and is_dataclass(option)
    }
    assert len(classes) == sum(is_dataclass(option) for option in options), f"{options} have the same fields"
    others = [option for option in options if option is not NoneType and not is_dataclass(option)]
    only = decoder(next(option for option in options if option is not NoneType))
    if len(classes) + len(others) == 1:
        return lambda value: None if value is None else only(value)
    scalars = (_scalar, *_SCALAR_DECODERS.values())
    arrays = [decoder(option) for option in others if decoder(option) not in scalars]
    assert len(arrays) <= 1, f"{options} cannot be told apart"

    def decode(value: Any) -> Any:
        if isinstance(value, dict) and classes:
            names = frozenset(value)
            decode_object = classes.get(names) or next(
                (decode_class for known, decode_class in classes.items() if names <= known), None
            )
            if decode_object is None:
                raise UndecodableValue(f"no known type has the fields {', '.join(sorted(names))}")
            return decode_object(value)
        return arrays[0](value) if isinstance(value, list | dict) and arrays else _scalar(value)

    return decode


def _field_names(annotation: Any) -> list[str]:
    return [spec.name for spec in fields(annotation) if spec.init]


def _dataclass_decoder(annotation: type) -> Decode:
    hints = get_type_hints(annotation)
    names = _field_names(annotation)
    required = {
        spec.name
        for spec in fields(annotation)
        if spec.init and spec.default is MISSING and spec.default_factory is MISSING
    }
    decoders: dict[str, Decode] = {}

    def decode(value: Any) -> Any:
        if not decoders:  # a type may refer to itself
            decoders.update({name: decoder(hints[name]) for name in names})
        _a(dict, value)
        try:
            return annotation(**{name: decoders[name](part) for name, part in value.items()})
        except KeyError as unknown:
            raise UndecodableValue(f"{annotation.__name__} has no field {unknown.args[0]}") from None
        except UndecodableValue as error:
            raise UndecodableValue(f"{annotation.__name__}: {error}") from None
        except (TypeError, ValueError) as error:
            missing = sorted(required - value.keys())
            reason = f"lacks {', '.join(missing)}" if missing else str(error)
            raise UndecodableValue(f"{annotation.__name__} {reason}") from None

    return decode
