"""How often the garbage of the whole process is collected."""

from policysched.runtime.program import next_collection_after_s


def test_the_more_garbage_is_left_the_sooner_the_next_collection_of_all_comes() -> None:
    quiet_s = next_collection_after_s(300.0, 1_000)
    busy_s = next_collection_after_s(3_600.0, 360_000)

    assert quiet_s == 3_600.0
    assert busy_s == 500.0
    assert next_collection_after_s(busy_s, 50_000) == busy_s
    assert next_collection_after_s(busy_s, 10**7) == 300.0
    assert next_collection_after_s(busy_s, 0) == 3_600.0
