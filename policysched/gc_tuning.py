"""How often a process looks for garbage that counting references does not free: hardly ever.

What our programs make in numbers either stays (syntax trees, parsed pods, columns) or is freed at once. Python's own
thresholds look through it every 700 new objects: a sixth of what `lint` costs, a tenth of a pod's way through the
core, and with 50,000 pods 0.1 s at a time in which nothing is decided.
"""

import gc

GEN0_THRESHOLD, GEN1_THRESHOLD, GEN2_THRESHOLD = 20_000, 20, 50


def raise_gc_thresholds() -> None:
    """For the whole process. It is for whoever owns it, not for a library, to say this."""
    gc.set_threshold(GEN0_THRESHOLD, GEN1_THRESHOLD, GEN2_THRESHOLD)


def freeze_live_objects() -> None:
    """Nothing that lives now is looked through again, though it is still freed when nobody refers to it: for the time
    after the first whole lists of a cluster are read."""
    gc.collect()
    gc.freeze()
