"""The log of changed keys that caches catch up from."""

from policysched.cluster.change_log import ChangeLog


def test_each_key_changed_since_a_version_is_reported_once_the_latest_first() -> None:
    log: ChangeLog[str] = ChangeLog()
    log.record("a")
    version = log.version
    for key in ("b", "c", "b"):
        log.record(key)

    assert log.since(version) == ["b", "c"]
    assert log.since(0) == ["b", "c", "a"]
    assert log.since(log.version) == []


def test_beyond_the_limit_earlier_changes_are_forgotten() -> None:
    log: ChangeLog[str] = ChangeLog()
    for key in ("a", "b", "c"):
        log.record(key, keys_max=2)
    version = log.version
    log.record("d", keys_max=2)

    assert len(log) == 1
    assert log.since(version - 1) is None
    assert log.since(version) == ["d"]


def test_a_change_of_everything_makes_every_reader_start_over() -> None:
    log: ChangeLog[str] = ChangeLog()
    log.record("a")
    version = log.version

    log.record_all()

    assert log.since(version) is None
    assert log.since(log.version) == []
