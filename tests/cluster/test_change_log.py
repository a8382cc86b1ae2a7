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
    for key in ("a", "b", "c", "d", "e"):
        log.record(key, keys_max=4)
    version = log.version

    assert len(log) == 2
    assert log.since(version - 3) is None
    assert log.since(version - 2) == ["e", "d"]


def test_a_reader_that_keeps_up_never_starts_over() -> None:
    log: ChangeLog[int] = ChangeLog()
    version = log.version
    for key in range(100):
        log.record(key, keys_max=10)
        log.record(-key - 1, keys_max=10)
        assert log.reaches(version)
        assert log.since(version) == [-key - 1, key]
        assert len(log) <= 10
        version = log.version


def test_a_change_of_everything_makes_every_reader_start_over() -> None:
    log: ChangeLog[str] = ChangeLog()
    log.record("a")
    version = log.version

    log.record_all()

    assert log.since(version) is None
    assert log.since(log.version) == []
