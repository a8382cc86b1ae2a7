"""All garbage is collected when the memory has grown, since that stops everything for up to seconds."""

from policysched.gc_tuning import MemoryGrowth, peak_memory_bytes

MIB = 2**20


def test_everything_is_collected_after_growth_by_half_and_not_by_time() -> None:
    growth = MemoryGrowth(1_000 * MIB)

    assert not growth.is_due(1_499 * MIB)
    assert growth.is_due(1_500 * MIB)
    assert not growth.is_due(1_500 * MIB)  # an hour later
    assert not growth.is_due(2_249 * MIB)
    assert growth.is_due(2_250 * MIB)


def test_a_small_process_may_take_256_mib_more_before_everything_is_collected() -> None:
    growth = MemoryGrowth(100 * MIB)

    assert not growth.is_due(355 * MIB)
    assert growth.is_due(356 * MIB)


def test_the_peak_of_the_memory_is_in_bytes() -> None:
    taken = bytearray(64 * MIB)

    assert len(taken) <= peak_memory_bytes() < 1_024 * len(taken)
