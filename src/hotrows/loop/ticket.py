"""What goes through a group: the rows of a batch, its plan in flight, its gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from hotrows.cache.planning.planner import Counts, Placement, Plan
from hotrows.cache.stale_reads import StaleRead
from hotrows.errors import BadIdError
from hotrows.ops.segment_sum import segment_sum
from hotrows.ops.unique import UniqueRows
from hotrows.runtime.readback import Readback
from hotrows.runtime.streams import Event

NOTHING_BAD = 0


@dataclass
class Rows:
    """The rows a batch looks up, made in the planning lane.

    `bad` is int64 [3] (what, position, value), `what` being NOTHING_BAD if all is well; a batch that is not well has
    no rows at all, so that it changes nothing.
    """

    rows: Tensor  # int64 [N]
    bad: Tensor | None = None


@dataclass(slots=True)
class Request:
    """A batch's rows on their way to a plan."""

    unique: UniqueRows
    number: int | None  # under which it was announced to the policy
    made: Event | None  # None: not yet on its way
    num_rows: Readback
    bad: Readback | None  # what is, if anything
    describe: Callable[[list[int]], str] | None
    party: "Party | None" = None  # in the ring, until it is planned for good
    named: Tensor | None = None  # its rows numbered table after table, where the store has them in another order
    checked: bool = False
    failed: bool = False  # there was no room for it where victims were looked for
    error: BaseException | None = None  # why it could not be announced

    @property
    def named_distinct(self) -> UniqueRows:
        return self.unique if self.named is None else self.unique._replace(rows=self.named)

    def has_been_made(self) -> bool:
        return self.made is not None and self.made.query()

    def check(self) -> None:
        """Raise if the batch is bad; waits for the planning lane to have looked at it."""
        if self.bad is not None and not self.checked:
            self.checked = True
            found = self.bad.bad_id()
            if found[0] != NOTHING_BAD:
                assert self.describe is not None
                raise BadIdError(self.describe(found))


@dataclass(slots=True, eq=False)
class Party:
    """Batches that one turn of the ring announces together and another one plans together; often there is only one."""

    place: int  # in the ring
    number: int | None  # under which they were announced to the policy
    num_rows: Readback  # of all of them together
    members: list[Request] = field(default_factory=list)  # one after the other in the loop
    ids: list[Tensor] = field(default_factory=list)  # of each, until they are announced
    there: tuple[Event, ...] = ()  # when these are
    num_gone: int = 0  # members that no longer need the place


@dataclass(slots=True)
class Flight:
    """A plan in flight."""

    plan: Plan
    request: Request
    placement: Placement
    late: Readback
    planned: Event
    after: tuple[Event, ...]
    moved: Event | None = None
    seat: int | None = None  # in the ring
    leads: bool = True  # whether it is the first of those that were planned together
    counts: Counts | None = None
    used: Event | None = None  # by a backward pass
    used_up: bool = False  # nothing uses it after `used`
    holds: int = 1
    landed: bool = False
    stale_read: StaleRead | None = None  # what its batch reads in place of the records

    @property
    def named_rows(self) -> Tensor:
        """The plan's distinct rows, numbered table after table, whatever their order in the store."""
        return self.plan.unique.rows if self.request.named is None else self.request.named


@dataclass
class LookupGrads:
    """Gradients of the bags of one forward pass, and what each lookup has of its bag's; see `ops.add_up`."""

    grad: Tensor  # float32 or bfloat16 [bags, D]
    bag_of: Tensor | None = None
    scale: Tensor | None = None
    winner: Tensor | None = None

    def by_row(self, unique: UniqueRows) -> Tensor:
        """Added up for each distinct row, float32."""
        return segment_sum(self.grad.float(), unique.order, unique.starts, unique.num, self.bag_of, self.scale, self.winner)


@dataclass
class Contribution:
    """Gradients of one forward pass, by row, waiting to be applied together with others."""

    rows: Tensor  # int64 [N], distinct, numbered table after table, NO_ROW behind the last
    grads: Tensor  # float32 [N, D], as many as there are rows
