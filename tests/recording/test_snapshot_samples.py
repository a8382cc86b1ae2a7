"""The samples in a snapshot are those that count then."""

from pathlib import Path

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.lang.ir.program import removed_program
from policysched.model.identifiers import NodeName
from policysched.recording.reader import Recording, open_recording
from policysched.recording.recorder import RecordedSnapshot
from policysched.recording.replay import replay
from policysched.scheduler import events as e
from tests.builders import node
from tests.recording.recorded import Recorded
from tests.scheduler.rig import bundle

TEXT = """\
policy {name} version 1
metric load: ratio {{ query = "{query}" unit = "1" join = node every = 15s stale = 90s }}
include kube_default
filter idle require load < 50% missing pass
"""


def apply_policies(recorded: Recorded, version: int, *texts: str, removed: str = "") -> None:
    offered = bundle({f"{number}.policy": text for number, text in enumerate(texts)})
    fallbacks = {removed: removed_program(removed, f"policy {removed} is removed")} if removed else {}
    recorded.handle(e.PoliciesUpdated(offered, str(version), fallbacks=fallbacks))
    decide(recorded)


def put_samples(recorded: Recorded, policy: str, **values: float) -> None:
    samples = {NodeName(name): Sample(value, recorded.now_ns) for name, value in values.items()}
    recorded.handle(e.SamplesArrived(policy, "load", MetricSamples(samples, recorded.now_ns)))


def decide(recorded: Recorded) -> None:
    while recorded.scheduler.ready(recorded.now_ns):
        recorded.decide()


def sampled_policies(recorded: Recorded) -> list[str]:
    """Of the next snapshot."""
    recorded.recorder.wants_snapshot = True
    recorded.handle(e.NodeUpdated(node("a", cpu="4")))
    snapshot = next(call for call in reversed(recorded.recorder.queue) if isinstance(call, RecordedSnapshot))
    return [event.policy for event in snapshot.events if isinstance(event, e.SamplesArrived)]


def test_samples_of_a_policy_that_is_gone_are_not_kept(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.add_pod()
    decide(recorded)
    for number in range(12):
        name, before = f"p-{number}", f"p-{number - 1}" if number else ""
        apply_policies(recorded, 2 + number, TEXT.format(name=name, query="load"), removed=before)
        put_samples(recorded, name, a=0.1)

    assert sampled_policies(recorded) == ["p-11"]


def test_samples_of_another_query_are_not_kept(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.add_pod()
    decide(recorded)
    apply_policies(recorded, 2, TEXT.format(name="test", query="load"))
    put_samples(recorded, "test", a=0.1)
    assert sampled_policies(recorded) == ["test"]

    apply_policies(recorded, 3, TEXT.format(name="test", query="other"))

    assert sampled_policies(recorded) == []


def test_samples_count_in_a_snapshot_after_a_poll_failed(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    apply_policies(recorded, 2, TEXT.format(name="test", query="load"))
    put_samples(recorded, "test", a=0.9)
    recorded.handle(e.SamplesFailed("test", "load"))
    recorded.writer.write_all()
    recorded.recorder.wants_snapshot = True
    recorded.place_pods(1)
    recorded.writer.write_all()

    whole = open_recording(tmp_path)
    report = replay(Recording(tuple(file for file in whole.files if not file.header.is_start)))

    assert report.same["snapshot"] == 1
    assert (report.different, report.problems) == (0, [])
