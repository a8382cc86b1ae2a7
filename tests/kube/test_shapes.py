"""Each kind that is read, with each field of something else than it should be: the place and what was expected are said."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from policysched.from_files.cluster_files import ClusterFiles
from policysched.kube.decode import core_objects, storage
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.object_schemas import OBJECT_SCHEMAS
from policysched.kube.decode.pod_groups import decode_pod_group
from policysched.kube.decode.pods import decode_pod
from policysched.kube.decode.schema import (
    BOOLEAN,
    QUANTITY,
    TEXT,
    TIME,
    ListSchema,
    MapSchema,
    ObjectSchema,
    ScalarSchema,
    Schema,
    first_violation,
)

Path = tuple[str | int, ...]

READERS: Mapping[str, Callable[[Any], object]] = {
    "Pod": decode_pod,
    "Node": core_objects.decode_node,
    "Namespace": core_objects.decode_namespace,
    "PodDisruptionBudget": core_objects.decode_disruption_budget,
    "Service": lambda obj: core_objects.decode_selector_owner(obj, "Service"),
    "ReplicationController": lambda obj: core_objects.decode_selector_owner(obj, "ReplicationController"),
    "ReplicaSet": lambda obj: core_objects.decode_selector_owner(obj, "ReplicaSet"),
    "StatefulSet": lambda obj: core_objects.decode_selector_owner(obj, "StatefulSet"),
    **storage.STORAGE_DECODERS,
    "PodGroup.scheduling.k8s.io": lambda obj: decode_pod_group(
        obj, "scheduling.k8s.io", "v1beta1", is_validated=True
    ),
    "PodGroup.scheduling.x-k8s.io": lambda obj: decode_pod_group(obj, "scheduling.x-k8s.io", "v1alpha1"),
    "PodGroup.scheduling.volcano.sh": lambda obj: decode_pod_group(obj, "scheduling.volcano.sh", "v1beta1"),
}
WRONG: tuple[Any, ...] = ("Wrong", 7, 1.5, True, 2**70, [], {}, [7], ["Wrong"], [None], {"a": 7}, {7: "a"})
PYTHON = re.compile(
    r"\b(NoneType|dict|list|str|int|float|bool) object|object is not|has no attribute|unhashable|iterable|"
    r"subscript|literal|argument|isoformat|unpack|cannot be understood|Error\b|'"
)


def example(shape: Schema) -> Any:
    """A value that fits, with every field; of lists an element with all fields, and one with each alone."""
    match shape:
        case ScalarSchema():
            return _leaf(shape)
        case ListSchema(ObjectSchema(needed, free)):
            least = {name: example(field) for name, field in needed.items()}
            alone = [{**least, name: example(field)} for name, field in free.items()]
            return [*alone, {**least, **{name: example(field) for name, field in free.items()}}]
        case ListSchema(each):
            return [example(each)]
        case MapSchema(each):
            return {"a": example(each)}
        case ObjectSchema(needed, free):
            return {name: example(field) for name, field in {**needed, **free}.items()}


def _leaf(leaf: ScalarSchema) -> Any:
    if leaf is TIME:
        return "2026-01-31T12:00:00Z"
    if leaf in (TEXT, QUANTITY):
        return "1"
    if leaf is BOOLEAN:
        return True
    named = re.match("`([^`]*)`", leaf.expected)
    return 1 if named is None else named[1]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def around(value: Any, path: Path) -> tuple[Any, Path]:
    """Of each list only the element on the path behind another one, or elsewhere the last element: the readers read
    the other elements in the same way. The path there."""
    step, rest = (path[0], path[1:]) if path else (None, ())
    if isinstance(value, dict):
        kept = {name: around(item, rest if name == step else ()) for name, item in value.items()}
        return {name: item for name, (item, _) in kept.items()}, (step, *kept[step][1]) if step else ()
    if isinstance(value, list) and value:
        at = step if isinstance(step, int) else len(value) - 1
        before, (item, inside) = value[:at][-1:], around(value[at], rest)
        return ([*before, item], (len(before), *inside)) if path else ([item], ())
    return value, path


def changed(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = changed(value[path[0]], path[1:], new)
    return copied


def written(path: Path) -> str:
    return re.sub(r"^\.", "", "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path))


class Recording(dict[str, Any]):
    """Notes the fields that are asked for."""

    def __init__(self, value: Mapping[str, Any], shape: ObjectSchema, strange: set[str]) -> None:
        super().__init__(value)
        self._known = {**shape.required, **shape.optional}
        self._strange = strange

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self._known:
            self._strange.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        if key not in self._known:
            self._strange.add(key)
        return super().__getitem__(key)


def recording(value: Any, shape: Schema, strange: set[str]) -> Any:
    match shape:
        case ObjectSchema(needed, free):
            inside = {**needed, **free}
            return Recording(
                {name: recording(item, inside[name], strange) for name, item in value.items()}, shape, strange
            )
        case ListSchema(each):
            return [recording(item, each, strange) for item in value]
        case _:
            return value


def test_what_is_around_a_place_is_a_fitting_example_with_it() -> None:
    whole = example(OBJECT_SCHEMAS["Pod"])
    seen = set()

    for path in places(whole):
        near, near_path = around(whole, path)
        assert first_violation(OBJECT_SCHEMAS["Pod"], near) is None
        assert list(places(near)).count(near_path) == 1
        assert [step for step in near_path if isinstance(step, str)] == [
            s for s in path if isinstance(s, str)
        ]
        seen |= {step for step in near_path if isinstance(step, int)}

    assert seen == {0, 1}
    assert len(list(places(around(whole, ("metadata", "name"))[0]))) < len(list(places(whole))) / 2


def test_every_decoded_kind_has_a_schema() -> None:
    assert set(OBJECT_SCHEMAS) == set(READERS)


@pytest.mark.parametrize("kind", OBJECT_SCHEMAS)
def test_decoders_read_only_fields_of_their_schema(kind: str) -> None:
    strange: set[str] = set()

    whole = example(OBJECT_SCHEMAS[kind])
    READERS[kind](recording(whole, OBJECT_SCHEMAS[kind], strange))
    if kind == "PersistentVolume":
        del whole["spec"]["csi"]
        READERS[kind](recording(whole, OBJECT_SCHEMAS[kind], strange))

    assert strange == set()


def test_planted_schema_without_a_field_is_detected() -> None:
    strange: set[str] = set()
    whole = example(OBJECT_SCHEMAS["Namespace"])
    smaller = ObjectSchema({"metadata": ObjectSchema({"name": TEXT}, {})}, {})
    whole["metadata"] = {"name": "a"}

    core_objects.decode_namespace(recording(whole, smaller, strange))

    assert strange == {"labels", "annotations"}


@pytest.mark.parametrize("kind", OBJECT_SCHEMAS)
def test_a_field_of_the_wrong_type_is_reported_with_its_path_and_the_expected_type(kind: str) -> None:
    whole = example(OBJECT_SCHEMAS[kind])
    assert first_violation(OBJECT_SCHEMAS[kind], whole) is None

    for far_path in places(whole):
        near, path = around(whole, far_path)
        for wrong in WRONG:
            obj, place = changed(near, path, wrong), written(path)
            by_reader, of_file = _said_by_the_reader(kind, obj), _said_of_a_file(kind, obj)
            for violation in filter(None, (by_reader, of_file)):
                assert violation.field.startswith(place), f"{kind} {place}={wrong!r}: {violation}"
                assert not PYTHON.search(violation.reason), f"{kind} {place}={wrong!r}: {violation}"
            if of_file is None:
                was_read = f"{kind} {place}={wrong!r} was read from a file"
                assert first_violation(OBJECT_SCHEMAS[kind], obj) is None, was_read


@pytest.mark.parametrize(
    ("kind", "path", "wrong", "words"),
    [
        ("PersistentVolume", "spec.accessModes", "ReadWriteOnce", "is `ReadWriteOnce`, expected a list"),
        ("Pod", "spec.priority", 2**40, "is 1099511627776, expected an integer of at most 32 bits"),
        ("Pod", "metadata.name", None, "is missing"),
        ("Node", "status.capacity", [], "is a list, expected a map"),
        (
            "StorageClass",
            "volumeBindingMode",
            "Later",
            "is `Later`, expected `Immediate` or `WaitForFirstConsumer`",
        ),
    ],
)
def test_messages_of_schema_violations(kind: str, path: str, wrong: Any, words: str) -> None:
    obj = changed(example(OBJECT_SCHEMAS[kind]), tuple(path.split(".")), wrong)

    violation = _said_of_a_file(kind, obj)

    assert violation is not None
    assert (violation.field, violation.reason) == (path, words)


def _said_by_the_reader(kind: str, obj: Any) -> MalformedObject | None:
    try:
        READERS[kind](obj)
    except MalformedObject as error:
        return error
    return None


def _said_of_a_file(kind: str, obj: Any) -> MalformedObject | None:
    files = ClusterFiles()
    files.add({**obj, "kind": kind})
    return files.malformed[0] if files.malformed else None
