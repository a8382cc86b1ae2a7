"""What columns keep of the past is bounded by its size, not by the number of values alone."""

from policysched.evaluate.columns.column_kinds import PortSetColumn
from policysched.evaluate.columns.columns import Columns
from tests.builders import node, placed, pod, world


def test_large_sets_of_host_ports_of_the_past_are_dropped() -> None:
    """A pod with thousands of ports on a node, and small ones that come and go beside it: 6 MB for each of these, 16 for a row."""
    cache = world([node("a")], [placed(pod("large", host_ports=range(1, 2_001)), "a")])
    columns = Columns(cache)

    for number in range(400):
        small = pod(f"p{number}", host_ports=[10_000 + number])
        cache.put_pod(placed(small, "a"))
        columns.refresh()
        columns.array(PortSetColumn())
        cache.drop_pod(small.uid)

    assert sum(map(len, columns.codes.ports.values)) < 200_000
