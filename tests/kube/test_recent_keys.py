"""Who was seen lately."""

from random import Random

from policysched.kube.write.recent_keys import RecentKeys


def test_a_namespace_is_known_for_as_long_as_that_since_it_was_noted_last() -> None:
    recent = RecentKeys[str](60.0)
    recent.note("a", 0.0)
    recent.note("b", 10.0)
    recent.note("a", 30.0)

    assert recent.expire(70.0) == [] and "b" in recent
    assert recent.expire(71.0) == ["b"] and "b" not in recent and "a" in recent
    assert recent.expire(91.0) == ["a"] and "a" not in recent


def test_any_history_agrees_with_the_last_times() -> None:
    random, recent, last_s = Random(1), RecentKeys[int](60.0), dict[int, float]()
    seen, now_s = set[bool](), 0.0
    for _ in range(2_000):
        now_s += random.random() * 20.0
        recent.expire(now_s)
        for name in range(5):
            is_recent = name in last_s and now_s - last_s[name] <= 60.0
            assert (name in recent) == is_recent
            seen.add(is_recent)
        name = random.randrange(5)
        last_s[name] = now_s
        recent.note(name, now_s)
    assert seen == {False, True}
