"""Every event survives its way through JSON, and every event is known to the snapshots."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.model.identifiers import NodeName
from policysched.recording import tracked_objects
from policysched.recording.event_codec import EVENT_TYPES, EventDecoder, decode_line, encode_event
from policysched.recording.format import RecordedSettings
from policysched.recording.value_codec import UndecodableValue, decoder, to_json
from policysched.scheduler import events as e
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME
from tests.scheduler.rig import bundle

_TYPED = sorted(set(EVENT_TYPES) - {"PoliciesUpdated", "SamplesArrived"})
_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(str, _TEXTS)
st.register_type_strategy(object, _TEXTS)


@pytest.mark.parametrize("name", _TYPED)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_event_is_the_same_after_it_was_recorded(name: str, data: Any) -> None:
    event = data.draw(st.from_type(EVENT_TYPES[name]))

    recorded, value = encode_event(event, lambda _: None)

    line = decode_line(b'{"kind":"event","value":%s}' % value)
    assert EventDecoder().decode(recorded, line["value"]) == event


@settings(max_examples=30, deadline=None)
@given(
    values=st.dictionaries(_TEXTS.map(NodeName), st.builds(Sample, st.floats(-1e9, 1e9), st.integers(0))),
    pairs=st.dictionaries(
        st.tuples(_TEXTS, _TEXTS), st.dictionaries(st.tuples(_TEXTS, _TEXTS), st.none() | st.floats(0, 1e9))
    ),
)
def test_samples_are_recorded_as_they_arrived_without_what_the_core_adds(values: Any, pairs: Any) -> None:
    arrived = MetricSamples(values, 7, pairs=pairs)
    with_load = replace(arrived, assumed={NodeName("a"): 5})

    name, value = encode_event(e.SamplesArrived("test", "load", with_load), lambda _: None)

    line = decode_line(b'{"kind":"event","value":%s}' % value)
    assert EventDecoder().decode(name, line["value"]) == e.SamplesArrived("test", "load", arrived)


def test_policies_are_rebuilt_from_their_texts() -> None:
    texts = {"main.policy": "policy test version 1\ninclude kube_default\n", "broken.policy": "policy {"}
    event = e.PoliciesUpdated(
        bundle(texts),
        resource_version="7",
        unread_teams=frozenset({"team-a"}),
        unchecked_texts={"ml-a": "text"},
    )

    name, value = encode_event(event, lambda _: None)
    decoded = EventDecoder().decode(name, decode_line(b'{"kind":"","value":%s}' % value)["value"])

    assert isinstance(decoded, e.PoliciesUpdated) and decoded.bundle is not None and event.bundle is not None
    for key, source in event.bundle.sources.items():
        assert decoded.bundle.sources[key].program == source.program
        assert decoded.bundle.sources[key].policy_name == source.policy_name
    assert decoded.unread_teams == {"team-a"} and decoded.unchecked_texts == {"ml-a": "text"}


def test_a_policy_that_this_version_compiles_otherwise_is_refused() -> None:
    name, value = encode_event(
        e.PoliciesUpdated(bundle({"main.policy": "policy test version 1\n"}), resource_version="1"),
        lambda _: None,
    )
    line = decode_line(b'{"kind":"","value":%s}' % value.replace(b'"sha256":"', b'"sha256":"0'))

    with pytest.raises(UndecodableValue, match=r"policy test has sha256 .* in this version and 0"):
        EventDecoder().decode(name, line["value"])


def test_settings_and_integers_of_any_size_are_kept() -> None:
    recorded = RecordedSettings(permissions=ANY_POLICY_NAME)
    value = decode_line(b'{"kind":"","value":%s}' % to_json(recorded))["value"]
    huge = decode_line(b'{"kind":"","value":%s}' % to_json({"cpu": 10**30}))["value"]

    assert decoder(RecordedSettings)(value) == recorded
    assert decoder(dict[str, int])(huge) == {"cpu": 10**30}


@pytest.mark.parametrize("text", ["1e9", "1/0", "0.5", "9" * 1001, "x"])
def test_a_fraction_has_digits_alone(text: str) -> None:
    """Of `1e999999999` Python would compute all digits."""
    with pytest.raises(UndecodableValue, match="expected a fraction"):
        decoder(Fraction)(text)

    assert [decoder(Fraction)(value) for value in ("-3/4", "7")] == [Fraction(-3, 4), 7]


def test_each_event_shows_an_object_deletes_one_or_does_neither() -> None:
    shown, deleted = set(tracked_objects._KEYS), set(tracked_objects._DELETED_KEYS)

    assert shown | deleted | tracked_objects.UNTRACKED == set(EVENT_TYPES.values())
    assert not shown & deleted and not (shown | deleted) & tracked_objects.UNTRACKED


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"node": {"name": "a"}}, "NodeUpdated: Node lacks addresses, allocatable"),
        ({"surprise": 1}, "NodeUpdated has no field surprise"),
        ([], "expected a dict"),
    ],
)
def test_a_value_of_another_form_is_refused_with_its_place(value: Any, reason: str) -> None:
    with pytest.raises(UndecodableValue) as refused:
        EventDecoder().decode("NodeUpdated", value)

    assert reason in str(refused.value)
