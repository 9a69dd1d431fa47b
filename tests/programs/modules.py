"""The embedding modules of a program: what they are, how their rows are cached, and their batches."""

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hotrows
from hotrows.cache.tier import Cached
from tests.programs.naive import Array, Bags, Batch, NaiveModule, NaiveOptimizer, TableShape
from tests.stores.dict_store import Dict

Module = hotrows.EmbeddingBag | hotrows.EmbeddingBagCollection


@dataclass(frozen=True)
class Spec:
    """One module, whatever its cache.

    Args:
        kind: "bag" for an `EmbeddingBag` of the only table, or "collection".
        form: of a batch. For a bag "rows" ([B, L]) or "offsets"; for a collection "columns" ([B, F]) or "jagged".
        shared: the module uses the optimizer of the module before it.
    """

    kind: str
    tables: tuple[TableShape, ...]
    mode: str
    form: str
    optimizer: str | None
    numbers: tuple[tuple[str, Any], ...]
    init: str
    seed: int
    batches: tuple[Batch, ...]
    padding: int | None = None
    last_offset: bool = False
    int32: bool = False
    shared: bool = False

    @property
    def tables_of_features(self) -> list[TableShape]:
        return [table for table in self.tables for _ in range(table.num_features)]

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    def __str__(self) -> str:
        shapes = [
            tuple([bags.ids.tolist(), bags.lengths.tolist()] for bags in batch) for batch in self.batches
        ]  # fmt: skip
        lines = [f"{replace(self, batches=())!r}", *(f"    batch {i}: {shape}" for i, shape in enumerate(shapes))]
        return "\n".join(lines)


@dataclass(frozen=True)
class Setting:
    """How the rows of one module are cached. No result may depend on it."""

    cache: int | str
    policy: str = "lookahead"
    index: str = "auto"
    store: str = "ram"
    transfer: int | None = None  # rows of a block; None: zero copy
    row_order: bool = False
    coalesce: int | None = None
    on_device: bool = False  # ids come as tensors on the device


STORES: dict[str, Any] = {"ram": "ram", "device": "device", "tier": Cached("ram", num_slots=9), "dict": Dict()}


def draw_spec(rng: random.Random, before: Spec | None, device: str) -> Spec:
    """One module and its batches.

    On a GPU there are few dims and batch sizes: each dim is another compilation of many kernels, and only batches of
    one shape are planned and trained in CUDA graphs.
    """
    kind = rng.choice(["bag", "collection", "collection"])
    dims = [4, 8] if device == "cuda" else [1, 3, 4, 8]
    dims = dims if rng.random() < 0.3 else [rng.choice(dims)]
    num_tables = 1 if kind == "bag" else rng.randint(1, 3)
    tables = tuple(
        TableShape(
            "weight" if kind == "bag" else f"t{i}",
            rng.choice([rng.randint(1, 10), rng.randint(10, 40)]),
            rng.choice(dims),
            1 if kind == "bag" else rng.choice([1, 1, 2]),
        )
        for i in range(num_tables)
    )
    mode = rng.choice(["sum", "sum", "mean", "max"])
    shared = before is not None and before.optimizer is not None and rng.random() < 0.25
    optimizer, numbers = (before.optimizer, before.numbers) if before and shared else draw_optimizer(rng)
    spec = Spec(
        kind=kind,
        tables=tables,
        mode=mode,
        form=rng.choice(["rows", "offsets"] if kind == "bag" else ["columns", "columns", "jagged"]),
        optimizer=optimizer if shared or rng.random() < 0.97 else None,
        numbers=numbers,
        init=rng.choice(["uniform", "normal"]),
        seed=rng.randint(0, 1000),
        batches=(),
        padding=rng.randrange(tables[0].num_rows) if kind == "bag" and rng.random() < 0.3 else None,
        last_offset=rng.random() < 0.3,
        int32=rng.random() < 0.2,
        shared=shared,
    )
    size = rng.randint(1, 6) if rng.random() < (0.8 if device == "cuda" else 0.4) else None
    length = rng.choice([1, 1, 2, 3]) if rng.random() < 0.7 else None
    weighted = mode == "sum" and rng.random() < 0.4 and spec.form != "columns"
    batches = [draw_batch(rng, spec, size, length, weighted) for _ in range(rng.randint(2, 8))]
    return replace(spec, batches=tuple(batches))


def draw_batch(rng: random.Random, spec: Spec, size: int | None, length: int | None, weighted: bool) -> Batch:
    """One batch, a few of whose ids are frequent."""
    num_samples = rng.choice([0, 1, 2, 3, 4, 6]) if size is None else size
    rows_length = rng.choice([0, 1, 2, 3]) if length is None else length
    features = []
    for table in spec.tables_of_features:
        if spec.form in ("columns", "rows"):
            lengths = [1 if spec.form == "columns" else rows_length] * num_samples
        else:
            lengths = [rng.choice([0, 1, 1, 2, 4]) for _ in range(num_samples)]
        ids = [int(rng.random() ** 2.5 * table.num_rows) for _ in range(sum(lengths))]
        weights = np.array([rng.choice([-0.5, 0.0, 0.25, 1.0, 1.3]) for _ in ids], np.float32) if weighted else None
        features.append(Bags(np.array(ids, np.int64), np.array(lengths, np.int64), weights))
    return tuple(features)


def draw_optimizer(rng: random.Random) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """The numbers under the roots stay away from zero, where a rounding error of a gradient would decide the step."""
    kind = rng.choice(["SGD", "Adagrad", "RowWiseAdagrad", "Adam"])
    lr = rng.choice([0.02, 0.05, 0.1])
    accumulator, eps = rng.choice([(0.1, 1e-10), (0.5, 1e-3), (0.0, 0.1)])
    numbers: dict[str, Any] = {
        "SGD": {"lr": lr, "weight_decay": rng.choice([0.0, 0.05])},
        "Adagrad": {
            "lr": lr, "lr_decay": rng.choice([0.0, 0.1]), "initial_accumulator_value": accumulator, "eps": eps,
        },
        "RowWiseAdagrad": {"lr": lr, "initial_accumulator_value": accumulator, "eps": eps},
        "Adam": {"lr": lr, "betas": rng.choice([(0.9, 0.999), (0.8, 0.9), (0.0, 0.5)]), "eps": 0.05},
    }[kind]  # fmt: skip
    return kind, tuple(numbers.items())


def draw_setting(rng: random.Random, spec: Spec) -> Setting:
    cache = rng.choice(
        [1, 2, rng.randint(1, max(1, spec.num_rows // 3)), rng.randint(1, spec.num_rows), "30%", "60%", "2KB", "100%"]
    )
    return Setting(
        cache=cache,
        policy=rng.choice(["lookahead", "lookahead", *sorted(hotrows.POLICIES)]),
        index=rng.choice(["auto", *sorted(hotrows.INDEXES)]),
        store=rng.choice(["ram", "ram", "ram", "ram", "tier", "dict", "device"]),
        transfer=rng.choice([None, None, None, 2, 7]),
        row_order=rng.random() < 0.15,
        coalesce=rng.choice([None, None, 2, 4]),
        on_device=rng.random() < 0.5,
    )


def make_optimizer(spec: Spec) -> hotrows.optim.RowOptimizer | None:
    return None if spec.optimizer is None else getattr(hotrows.optim, spec.optimizer)(**dict(spec.numbers))


def make_module(
    spec: Spec, setting: Setting, optimizer: hotrows.optim.RowOptimizer | None, device: str
) -> Module:  # fmt: skip
    """The module of the library."""
    cached: dict[str, Any] = {
        "mode": spec.mode, "cache": setting.cache, "policy": setting.policy, "index": setting.index,
        "store": STORES[setting.store], "device": device, "seed": spec.seed, "optimizer": optimizer,
    }  # fmt: skip
    module: Module
    if spec.kind == "bag":
        table = spec.tables[0]
        module = hotrows.EmbeddingBag(
            table.num_rows, table.dim, include_last_offset=spec.last_offset, padding_idx=spec.padding, init=spec.init,
            **cached,
        )  # fmt: skip
    else:
        tables = [
            hotrows.Table(
                table.name, table.num_rows, table.dim,
                features=None if table.num_features == 1 else tuple(f"{table.name}{part}" for part in "ab"),
                init=spec.init,
            )
            for table in spec.tables
        ]  # fmt: skip
        counts = np.random.default_rng(spec.seed)
        order = {table.name: torch.from_numpy(counts.integers(0, 9, table.num_rows)) for table in spec.tables}
        module = hotrows.EmbeddingBagCollection(
            tables,
            row_order=hotrows.RowOrder(order) if setting.row_order else None,
            transfer=None if setting.transfer is None else hotrows.BlockTransmitter(buffer_rows=setting.transfer),
            **cached,
        )
    for scheduler in module.schedulers:
        scheduler.coalesce = setting.coalesce
    return module


def make_naive(spec: Spec, optimizer: NaiveOptimizer | None, weights: dict[str, Array]) -> NaiveModule:
    return NaiveModule(spec.tables, spec.mode, optimizer, weights, spec.padding)


@dataclass(frozen=True, eq=False)
class LibraryBatch:
    """The tensors of one batch as a module takes them.

    Args:
        structure: offsets [bags], or lengths [F, B]; None where every bag has one length.
        weights: of the lookups, float32 [N].
    """

    spec: Spec
    values: Tensor
    structure: Tensor | None
    weights: Tensor | None

    @classmethod
    def of(cls, spec: Spec, batch: Batch, device: str) -> "LibraryBatch":
        dtype = np.int32 if spec.int32 else np.int64
        features = [torch.from_numpy(bags.ids.astype(dtype)) for bags in batch]
        values, structure, weights = torch.cat(features), None, None
        if spec.form == "columns":
            values = torch.stack(features, 1)
        elif spec.form == "rows":
            num_samples = batch[0].lengths.size
            values = values.view(num_samples, batch[0].ids.size // max(1, num_samples))
        elif spec.form == "jagged":
            structure = torch.from_numpy(np.stack([bags.lengths for bags in batch])).to(device)
        else:
            offsets = torch.from_numpy(np.concatenate([[0], batch[0].lengths.cumsum()]))
            structure = (offsets if spec.last_offset else offsets[:-1]).to(device)
        if batch[0].weights is not None:
            found = [torch.from_numpy(bags.weights) for bags in batch if bags.weights is not None]
            weights = torch.cat(found).to(device)
        return cls(spec, values.to(device), structure, weights)

    @property
    def ids(self) -> Any:
        """What `hotrows.lookahead` is told of the batch."""
        if self.spec.form == "jagged":
            assert self.structure is not None
            return hotrows.Jagged(self.values, self.structure, self.weights)
        return (self.values, self.structure) if self.spec.form == "offsets" else self.values

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The batch as a step of `hotrows.graphed` gets it."""
        return tuple(part for part in (self.values, self.structure, self.weights) if part is not None)

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> "LibraryBatch":
        """A batch of the same form with these tensors."""
        given = iter(tensors)
        parts = (None if part is None else next(given) for part in (self.values, self.structure, self.weights))
        return LibraryBatch(self.spec, *parts)  # type: ignore[arg-type]

    def with_bad_id(self, position: int) -> "LibraryBatch":
        """The same batch with an id that its table does not have. The batch has at least one id."""
        values = self.values.flatten().cpu().clone()
        position %= values.numel()
        tables = self.spec.tables_of_features
        if self.spec.form == "columns":
            table = tables[position % len(tables)]
        elif self.spec.form == "jagged":
            assert self.structure is not None
            ends = self.structure.sum(1).cumsum(0).cpu()
            table = tables[int(torch.searchsorted(ends, position, right=True))]
        else:
            table = tables[0]
        values[position] = (table.num_rows, -1, 2**31 - 1 if self.spec.int32 else 2**40)[position % 3]
        return replace(self, values=values.to(self.values.device).view(self.values.shape))

    def look_up(self, module: Module) -> list[Tensor]:
        """Call a module with this batch: the output of each feature, [B, D]."""
        if self.spec.kind == "bag":
            assert isinstance(module, hotrows.EmbeddingBag)
            weights = None if self.weights is None else self.weights.view(self.values.shape)
            return [module(self.values, self.structure, per_sample_weights=weights)]
        out = module(self.ids)
        return list(out) if isinstance(out, tuple) else list(out.unbind(1))

    def look_up_in_torch(self, plain: dict[str, torch.nn.EmbeddingBag]) -> list[Tensor]:
        """The same with plain PyTorch modules on the CPU, one for each table."""
        tables = self.spec.tables_of_features
        values, structure = self.values.cpu(), None if self.structure is None else self.structure.cpu()
        if self.spec.form == "columns":
            return [plain[table.name](values[:, [column]]) for column, table in enumerate(tables)]
        weights = None if self.weights is None else self.weights.detach().cpu()
        if self.spec.form == "rows":
            (bag,) = plain.values()
            if values.numel() == 0:  # PyTorch cannot look bags up that have no ids
                return [torch.zeros(values.shape[0], bag.embedding_dim)]
            return [bag(values, per_sample_weights=None if weights is None else weights.view(values.shape))]
        assert structure is not None
        if self.spec.form == "offsets":
            (bag,) = plain.values()
            return [bag(values, structure.to(values.dtype), per_sample_weights=weights)]
        found, stop = [], 0
        for table, lengths in zip(tables, structure, strict=True):
            start, stop = stop, stop + int(lengths.sum())
            mine = None if weights is None else weights[start:stop]
            offsets = (lengths.cumsum(0) - lengths).to(values.dtype)
            found.append(plain[table.name](values[start:stop], offsets, per_sample_weights=mine))
        return found
