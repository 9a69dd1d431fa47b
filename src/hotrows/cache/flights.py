"""What goes through a group: the rows of a batch, its plan in flight, its gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from hotrows.cache.early_reads import EarlyRead
from hotrows.cache.lanes import Mark
from hotrows.cache.late import LateNumbers
from hotrows.cache.planner import Counts, Placing, Plan
from hotrows.errors import BadIdError
from hotrows.ops.add_up import add_up
from hotrows.ops.distinct import Distinct

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

    distinct: Distinct
    number: int | None  # under which it was announced to the policy
    made: Mark | None  # None: not yet on its way
    num_rows: LateNumbers
    bad: LateNumbers | None  # what is, if anything
    describe: Callable[[list[int]], str] | None
    party: "Party | None" = None  # in the ring, until it is planned for good
    named: Tensor | None = None  # its rows numbered table after table, where the store has them in another order
    checked: bool = False
    failed: bool = False  # there was no room for it where victims were looked for
    error: BaseException | None = None  # why it could not be announced

    @property
    def named_distinct(self) -> Distinct:
        return self.distinct if self.named is None else self.distinct._replace(rows=self.named)

    def has_been_made(self) -> bool:
        return self.made is not None and self.made.passed()

    def check(self) -> None:
        """Raise if the batch is bad; waits for the planning lane to have looked at it."""
        if self.bad is not None and not self.checked:
            self.checked = True
            found = self.bad.bad()
            if found[0] != NOTHING_BAD:
                assert self.describe is not None
                raise BadIdError(self.describe(found))


@dataclass(slots=True, eq=False)
class Party:
    """Batches that one turn of the ring announces together and another one plans together; often there is only one."""

    place: int  # in the ring
    number: int | None  # under which they were announced to the policy
    num_rows: LateNumbers  # of all of them together
    members: list[Request] = field(default_factory=list)  # one after the other in the loop
    ids: list[Tensor] = field(default_factory=list)  # of each, until they are announced
    there: tuple[Mark, ...] = ()  # when these are
    num_gone: int = 0  # members that no longer need the place


@dataclass(slots=True)
class Flight:
    """A plan in flight."""

    plan: Plan
    request: Request
    placing: Placing
    late: LateNumbers
    planned: Mark
    after: tuple[Mark, ...]
    moved: Mark | None = None
    seat: int | None = None  # in the ring
    leads: bool = True  # whether it is the first of those that were planned together
    counts: Counts | None = None
    used: Mark | None = None  # by a backward pass
    used_up: bool = False  # nothing uses it after `used`
    holds: int = 1
    landed: bool = False
    early: EarlyRead | None = None  # what its batch reads in place of the records

    @property
    def named_rows(self) -> Tensor:
        """The plan's distinct rows, numbered table after table, whatever their order in the store."""
        return self.plan.distinct.rows if self.request.named is None else self.request.named


@dataclass
class LookupGrads:
    """Gradients of the bags of one forward pass, and what each lookup has of its bag's; see `ops.add_up`."""

    grad: Tensor  # float32 or bfloat16 [bags, D]
    bag_of: Tensor | None = None
    scale: Tensor | None = None
    winner: Tensor | None = None

    def by_row(self, unique: Distinct) -> Tensor:
        """Added up for each distinct row, float32."""
        return add_up(self.grad.float(), unique.order, unique.starts, unique.num, self.bag_of, self.scale, self.winner)


@dataclass
class Contribution:
    """Gradients of one forward pass, by row, waiting to be applied together with others."""

    rows: Tensor  # int64 [N], distinct, numbered table after table, NO_ROW behind the last
    grads: Tensor  # float32 [N, D], as many as there are rows
