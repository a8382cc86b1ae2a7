"""A pod that is deleted before its bind is answered."""

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import node, pod
from tests.scheduler.rig import Rig


def test_its_bind_is_abandoned_and_nothing_of_it_is_kept() -> None:
    """In a namespace whose binds fail, a bind that is not abandoned has no answer, and keeps the pod for as long."""
    rig = Rig(None, node("a"), pod("p"), pod("other"))
    rig.apply_policies("policy test version 1\nfilter node_resources_fit\npreemption never\n")
    rig.settle()
    deleted, kept = rig.of(c.Bind)

    rig.handle(e.PodDeleted(deleted.uid))
    assert rig.of(c.AbandonBind) == [c.AbandonBind(deleted.uid)]
    rig.handle(e.BindLost(deleted.uid, "the pod was deleted"))

    assert rig.in_flight_binds() == [kept]
