"""What belongs to one attempt of a gang. That of another gang may interrupt it, with a state of its own."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from policysched.scheduler.gangs.counted_members import CountedMembers
from policysched.scheduler.gangs.gang_search_result import SearchPauses
from policysched.scheduler.gangs.member_classes import MemberKeys


@dataclass(slots=True, eq=False)
class GangAttemptState:
    """`has_failed`: whether the attempt has ended, or is about to end, with no member placed. `member_keys`: None: to be made again."""

    pauses: SearchPauses = field(default_factory=SearchPauses)
    counted: CountedMembers = field(default_factory=CountedMembers)
    member_keys: MemberKeys | None = None
    class_numbers: dict[Hashable, int] = field(default_factory=dict)
    has_failed: bool = False
