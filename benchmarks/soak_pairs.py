"""A module with a small cache beside one with all rows in the cache: both are trained alike, and must stay equal."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import hotrows
from hotrows.cache.tier import Cached
from hotrows.data.schema import DataSet

KINDS = ("collection", "jagged", "bag", "log", "large")
OPTIMIZERS: dict[str, Callable[[], hotrows.optim.RowOptimizer]] = {
    "sgd": lambda: hotrows.optim.SGD(lr=0.3),
    "sgd-decay": lambda: hotrows.optim.SGD(lr=0.3, weight_decay=0.05),
    "adagrad": lambda: hotrows.optim.Adagrad(lr=0.2, lr_decay=0.1, initial_accumulator_value=0.1),
    "row-wise-adagrad": lambda: hotrows.optim.RowWiseAdagrad(lr=0.2, initial_accumulator_value=0.1),
    "adam": lambda: hotrows.optim.Adam(lr=0.05, betas=(0.8, 0.95), eps=1e-2),
}
TIER_SLOTS, BUFFER_ROWS = 40, 16

Ids = Any  # what a module is called with: a tensor, a `Jagged`, or the tuple (input, offsets) of an `EmbeddingBag`
Outputs = tuple[Tensor, ...]
Module = hotrows.EmbeddingBag | hotrows.EmbeddingBagCollection


class WrongRowsError(AssertionError):
    """A module has other values than the one with all rows in the cache."""


@dataclass(frozen=True)
class Shape:
    """What is trained on, the same for both modules."""

    kind: str  # one of KINDS
    tables: tuple[hotrows.Table, ...]
    mode: str
    optimizer: str
    batch_size: int
    seed: int

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)


@dataclass(frozen=True)
class Setting:
    """How the rows are cached. No value that a user sees depends on it."""

    cache: int | str
    policy: str = "lookahead"
    index: str = "auto"
    coalesce: int | None = None  # how many batches are planned as one
    in_blocks: bool = False  # rows are moved through a buffer
    row_order: bool = False  # the store has the rows in an order of its own
    tier: bool = False  # a cache in host memory is in front of the store


@dataclass
class Progress:
    """How far a training loop has come."""

    begun: list[Ids]
    outputs: list[Outputs]  # of the batches whose step has ended


class Pair:
    """A module with a cache as its setting says, and the reference: the same module with all rows in the cache.

    Everything is drawn from (seed, number), so a pair's life can be repeated.
    """

    def __init__(self, seed: int, number: int, device: str, log: DataSet) -> None:
        self.number = number
        self.device = device
        self.log = log
        self.random = random.Random(f"{seed} {number}")
        self.generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        self.shape = self._draw_shape()
        self.setting = self.draw_setting()
        self.subject = self.make(self.setting)
        self.reference = self.make(Setting("100%"))
        self.num_steps = 0  # of either module
        self.num_operations = self.random.randint(3, 30)  # after which it is deleted
        self.open_loop: Iterator[Ids] | None = None  # a loop that was left early and is kept
        self.history: deque[str] = deque(maxlen=40)
        self._mixing: dict[int, Tensor] = {}

    def make(self, setting: Setting) -> Module:
        """A module of this shape with its initial values."""
        shape = self.shape
        common: dict[str, Any] = {
            "mode": shape.mode, "cache": setting.cache, "policy": setting.policy, "index": setting.index,
            "optimizer": OPTIMIZERS[shape.optimizer](), "device": self.device, "seed": shape.seed,
            "store": Cached("ram", num_slots=TIER_SLOTS) if setting.tier else "ram",
        }  # fmt: skip
        module: Module
        if shape.kind == "bag":
            (table,) = shape.tables
            assert table.dim is not None
            module = hotrows.EmbeddingBag(table.num_rows, table.dim, **common)
        else:
            module = hotrows.EmbeddingBagCollection(
                shape.tables,
                transfer=hotrows.BlockTransmitter(buffer_rows=BUFFER_ROWS) if setting.in_blocks else None,
                row_order=hotrows.RowOrder(self._counts()) if setting.row_order else None,
                **common,
            )
        for scheduler in module.schedulers:
            scheduler.coalesce = setting.coalesce
        return module

    def _draw_shape(self) -> Shape:
        draw = self.random
        kind = draw.choice(KINDS)
        dims = draw.choice([(8,), (8, 4), (16, 5)])
        batch_size = draw.choice([1, 7, 32, 64])
        if kind == "log":
            tables = tuple(hotrows.Table(name, num, dim=draw.choice(dims)) for name, num in self._log_tables().items())
            batch_size = draw.choice([32, 256])
        elif kind == "large":
            tables = tuple(hotrows.Table(f"t{i}", num, dim=16) for i, num in enumerate((20_000, 4_000, 50)))
            batch_size = 1_000
        elif kind == "bag":
            tables = (hotrows.Table("weight", draw.randint(5, 2_000), dim=dims[0]),)
        else:
            tables = tuple(
                hotrows.Table(
                    f"t{i}",
                    draw.randint(5, 2_000),
                    dim=draw.choice(dims),
                    features=draw.choice([None, (f"a{i}", f"b{i}")]),
                )
                for i in range(draw.randint(1, 3))
            )
        mode = draw.choice(["sum", "mean", "max"])
        return Shape(kind, tables, mode, draw.choice(sorted(OPTIMIZERS)), batch_size, draw.randrange(1_000))

    def _log_tables(self) -> dict[str, int]:
        return dict(self.log.schema.tables)

    def draw_setting(self) -> Setting:
        """A cache from a few rows, so that batches overflow, to nearly all."""
        draw, num_rows = self.random, self.shape.num_rows
        is_small = self.shape.kind != "large"
        is_collection = self.shape.kind != "bag"
        return Setting(
            cache=draw.randint(1, max(1, num_rows // draw.choice([1, 3, 10]))),
            policy=draw.choice(sorted(hotrows.POLICIES)),
            index=draw.choice(["auto", *sorted(hotrows.INDEXES)]),
            coalesce=draw.choice([None, 2, 4]),
            in_blocks=is_collection and is_small and draw.random() < 0.2,
            row_order=is_collection and draw.random() < 0.2,
            tier=is_small and draw.random() < 0.2,
        )

    def _counts(self) -> dict[str, Tensor]:
        """How often each id is said to occur, which orders the rows of the store."""
        generator = torch.Generator().manual_seed(self.shape.seed)
        return {t.name: torch.randint(0, 50, (t.num_rows,), generator=generator) for t in self.shape.tables}

    def batches(self, num: int) -> list[Ids]:
        """New batches, some of them on the device already."""
        found = [self._batch() for _ in range(num)]
        if self.device != "cpu":
            found = [ids.to(self.device) if hasattr(ids, "to") and i % 3 == 0 else ids for i, ids in enumerate(found)]
        return found

    def _batch(self) -> Ids:
        shape, size = self.shape, self.shape.batch_size
        sizes = [table.num_rows for table in shape.tables for _ in table.feature_names]
        if shape.kind == "bag":
            lengths = torch.randint(0, 4, (size,), generator=self.generator)
            return self._skewed(sizes[0], int(lengths.sum())), lengths.cumsum(0) - lengths
        if shape.kind == "jagged":
            lengths = torch.randint(0, 4, (len(sizes), size), generator=self.generator)
            values = [self._skewed(num, int(n)) for num, n in zip(sizes, lengths.sum(1).tolist(), strict=True)]
            weighted = shape.mode == "sum" and self.random.random() < 0.5
            weights = torch.rand(int(lengths.sum()), generator=self.generator) if weighted else None
            return hotrows.Jagged(torch.cat(values), lengths, weights)
        return torch.stack([self._skewed(num, size) for num in sizes], 1)

    def _skewed(self, num_rows: int, count: int) -> Tensor:
        """Ids, a few of which are frequent."""
        return (torch.rand(count, generator=self.generator).pow(3) * num_rows).long()

    def with_bad_id(self, ids: Ids) -> Ids | None:
        """The batch with an id that no table has; None if the batch has no ids."""
        values = ids[0] if isinstance(ids, tuple) else ids.values if isinstance(ids, hotrows.Jagged) else ids
        if values.numel() == 0:
            return None
        bad = values.clone()
        bad.view(-1)[self.random.randrange(bad.numel())] = self.random.choice([-1, 10**6])
        if isinstance(ids, tuple):
            return bad, ids[1]
        return hotrows.Jagged(bad, ids.lengths, ids.weights) if isinstance(ids, hotrows.Jagged) else bad

    def read(self, module: Module, ids: Ids) -> Outputs:
        """The pooled rows of a batch."""
        out = module(*ids) if isinstance(ids, tuple) else module(ids)
        return out if isinstance(out, tuple) else (out,)

    def loss(self, out: Outputs) -> Tensor:
        """A smooth loss that gives every row of a bag its own gradient, and with which training converges."""
        flat = torch.cat([part.flatten(1) for part in out], 1)
        width = flat.shape[1]
        if width not in self._mixing:
            generator = torch.Generator().manual_seed(self.shape.seed)
            self._mixing[width] = torch.rand(width, 2, generator=generator).to(self.device)
        return (flat @ self._mixing[width] / width - 0.3).square().mean()

    def train(
        self,
        module: Module,
        batches: Iterable[Ids],
        progress: Progress | None = None,
        passes: int = 1,
        accumulates: bool = False,
        step: AbstractContextManager[Any] | None = None,
    ) -> Progress:
        """Train on the batches, with one backward pass for each `passes` of them.

        Args:
            accumulates: all backward passes are one step of the optimizer.
            step: what each step is done in.
        """
        progress = Progress([], []) if progress is None else progress
        losses: list[Tensor] = []
        with module.accumulate() if accumulates else nullcontext():
            for ids in batches:
                progress.begun.append(ids)
                self.num_steps += 1
                with nullcontext() if step is None else step:
                    out = self.read(module, ids)
                    losses.append(self.loss(out))
                    if len(losses) == passes:
                        torch.autograd.backward(torch.stack(losses).sum())
                        losses.clear()
                progress.outputs.append(tuple(part.detach().clone() for part in out))
                del out
            if losses:
                torch.autograd.backward(torch.stack(losses).sum())
        return progress

    def follow(self, progress: Progress, **how: Any) -> None:
        """Train the reference on the batches of the subject, and compare the pooled rows of every one."""
        expected = self.train(self.reference, progress.begun[: len(progress.outputs)], **how)
        for number, (found, wanted) in enumerate(zip(progress.outputs, expected.outputs, strict=True)):
            if not same(found, wanted):
                raise WrongRowsError(f"the pooled rows of batch {number} of {len(progress.outputs)} differ")

    def compare(self) -> None:
        """Compare every row and the state of its optimizer."""
        for name, wanted in self.everything(self.reference).items():
            found = self.everything(self.subject, [name])[name]
            for part, values in wanted.items():
                if not same((found[part],), (values,)):
                    raise WrongRowsError(f"{part} of table {name!r} differs in {_differing(found[part], values)} rows")

    def everything(self, module: Module, names: Sequence[str] | None = None) -> dict[str, dict[str, Tensor]]:
        """The weights and the optimizer state of each table."""
        return {
            name: {"weight": _weight(module, name), **module.row_state(name)}
            for name in (names or [table.name for table in module.tables])
        }

    def restore(self, module: Module, tables: dict[str, dict[str, Tensor]]) -> None:
        """Set what `everything` returned."""
        for name, parts in tables.items():
            if isinstance(module, hotrows.EmbeddingBag):
                module.load_weight(parts["weight"])
            else:
                module.load_weight(name, parts["weight"])
            module.load_row_state(name, {part: values for part, values in parts.items() if part != "weight"})

    def describe(self) -> str:
        """What is needed to repeat its life."""
        shape = {**asdict(self.shape), "tables": [(t.name, t.num_rows, t.dim) for t in self.shape.tables]}
        return f"pair {self.number}, {shape}, {self.setting}, operations: {', '.join(self.history)}"


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Every bit is the same; NaN equals NaN."""
    return all(
        torch.equal(a.contiguous().view(torch.int32), b.to(a.device).contiguous().view(torch.int32))
        for a, b in zip(found, wanted, strict=True)
    )


def _weight(module: Module, name: str) -> Tensor:
    return module.weight() if isinstance(module, hotrows.EmbeddingBag) else module.weight(name)


def _differing(found: Tensor, wanted: Tensor) -> str:
    if found.dim() < 2:
        return f"({found.tolist()} instead of {wanted.tolist()})"
    return str(int((found != wanted).any(1).sum()))
