"""The systems of benchmarks/step.py: hotrows, its ceiling and peers, and the comparison of the first two."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from peers import PEERS, Peer
from step_parts import (
    LEARNING_RATE,
    NUM_DENSE,
    REPETITIONS,
    Case,
    DensePart,
    Memory,
    Options,
    Schedule,
    Timed,
    Traffic,
    time_steps,
)
from torch import Tensor

import hotrows
from hotrows.models import make_model

CACHED_EMBEDDING = [key for key in PEERS if key.startswith("cached-embedding")]
COUNTED_STEPS = 5  # a peer counts after its timing
COMPARED_BYTES = 1 << 28  # this much is compared at a time


class Ours:
    """hotrows, or the ceiling: `store="device"`."""

    def __init__(self, case: Case, key: str, options: Options) -> None:
        self._case, self._key, self._options = case, key, options
        self.memory = Memory(options.device)
        self.bags = make_bags(case, options, store="device" if key == "device" else "ram")
        self.memory.end()
        self.losses = torch.empty(0)
        self.dense: list[Tensor] = []

    def run(self, traffic: Traffic, schedule: Schedule) -> dict[str, Any]:
        self.memory.begin()
        result = self._train(traffic, schedule)
        self.bags.flush()
        self.memory.end()
        return result

    def _train(self, traffic: Traffic, schedule: Schedule) -> dict[str, Any]:
        bags, depth = self.bags, self._options.depth
        dense = DensePart(self._case, self._options)
        step = hotrows.graphed(lambda batch: dense.train(batch.dense, bags(batch.ids), batch.label), bags)
        window = depth + 1 if self._key == "device" else self._options.window
        batches = hotrows.lookahead(traffic.stream(fill=True, on_host=True), bags, depth, window)
        with closing(batches):
            timed = time_steps(batches, step, schedule, self._options.device, lambda: bags.stats().as_dict())
        self.losses = torch.stack(timed.losses).cpu()
        self.dense = [parameter.detach().cpu() for parameter in dense.model.parameters()]
        graphs = {"replayed": step.num_replayed, "eager": step.num_eager, "reason": step.reason}
        return {
            **timed.figures(traffic.batch_size),
            **(self._counted(timed) if self._key == "hotrows" else {}),
            "gpu_bytes": self.memory.peak(),
            "index": bags.index,
            "graphs": graphs,
        }

    def _counted(self, timed: Timed) -> dict[str, Any]:
        assert timed.schedule.steps is not None
        steps = REPETITIONS * timed.schedule.steps
        each = {name: (timed.after[name] - timed.before[name]) / steps for name in timed.after if name != "hit_rate"}
        return {
            "hit_rate": each["hits"] / each["unique"] if each["unique"] else None,
            "bytes_in": each["bytes_in"],
            "bytes_out": each["bytes_out"],
            "cache_full": timed.before["evictions"] > 0,
            "each_step": each,
        }


class Other:
    """A peer with the same model."""

    def __init__(self, case: Case, key: str, options: Options, frequencies: Tensor | None) -> None:
        self._case, self._key, self._options = case, key, options
        self.memory = Memory(options.device)
        row_dim = make_model(case.model, NUM_DENSE, len(case.sizes), case.dim).embedding_dim
        self._peer: Peer = PEERS[key].make(
            list(case.sizes), row_dim, case.slots / case.num_rows, case.optimizer, LEARNING_RATE[case.optimizer],
            max(case.batch_sizes), options.device, frequencies if key in CACHED_EMBEDDING else None,
        )  # fmt: skip
        self.memory.end()

    def run(self, traffic: Traffic, schedule: Schedule) -> dict[str, Any]:
        self.memory.begin()
        result = self._train(traffic, schedule)
        self.memory.end()
        return result

    def _train(self, traffic: Traffic, schedule: Schedule) -> dict[str, Any]:
        peer = self._peer
        dense = DensePart(self._case, self._options)

        def step(batch: hotrows.Batch) -> Tensor:
            loss = dense.train(batch.dense, peer.embed(batch.ids), batch.label)
            peer.step()
            return loss

        stream = traffic.stream(fill=self._key != "naive")
        batches = prefetched(stream, peer)
        timed = time_steps(batches, step, schedule, self._options.device)
        result = {**timed.figures(traffic.batch_size), "gpu_bytes": self.memory.peak()}
        peer.count(True)
        for _ in range(1 if self._key == "naive" else COUNTED_STEPS):
            step(next(batches))
        peer.count(False)
        stream.end()
        for batch in batches:  # the batch that was prefetched
            step(batch)
        counted = peer.figures()
        if counted.get("batches"):
            result["hit_rate"] = counted.get("hit_rate")
            result["bytes_in"] = counted["bytes_in"] / counted["batches"]
            result["bytes_out"] = counted["bytes_out"] / counted["batches"]
        return result

    def close(self) -> None:
        self._peer.close()


def prefetched(stream: Iterator[hotrows.Batch], peer: Peer) -> Iterator[hotrows.Batch]:
    """The same batches. The peer prefetches each of them before the batch ahead of it is embedded."""
    current = next(stream)
    for following in stream:
        peer.prefetch(following.ids)
        yield current
        current = following
    yield current


def make_bags(
    case: Case, options: Options, store: str = "ram", index: str = "auto", dim: int | None = None
) -> hotrows.EmbeddingBagCollection:
    kind = {"sgd": hotrows.optim.SGD, "adam": hotrows.optim.Adam}[case.optimizer]
    return hotrows.EmbeddingBagCollection(
        [hotrows.Table(f"C{i}", size) for i, size in enumerate(case.sizes, 1)],
        dim or make_model(case.model, NUM_DENSE, len(case.sizes), case.dim).embedding_dim,
        cache=min(case.slots, case.num_rows), optimizer=kind(lr=LEARNING_RATE[case.optimizer]), index=index,
        store=store, device=options.device, seed=0,
    )  # fmt: skip


def compare(ours: Ours, ceiling: Ours, device: torch.device) -> dict[str, Any]:
    """Compare what hotrows and the ceiling have trained, bit for bit."""
    reason = (
        _difference_of_losses(ours.losses, ceiling.losses)
        or _difference_of_dense(ours.dense, ceiling.dense)
        or _difference_of_rows(ours.bags, ceiling.bags, device)
    )
    return {
        "identical": reason is None,
        "reason": reason,
        "num_steps": len(ours.losses),
        "num_rows": sum(cache.store.num_rows for cache in ours.bags.caches),
        "losses_are_finite": bool(ours.losses.isfinite().all()),
    }


def _difference_of_losses(ours: Tensor, ceiling: Tensor) -> str | None:
    if len(ours) != len(ceiling):
        return f"{len(ours)} steps and {len(ceiling)}"
    differ = (_bits(ours) != _bits(ceiling)).nonzero()
    if not len(differ):
        return None
    step = int(differ[0])
    return f"{len(differ)} losses, the first of step {step}: {float(ours[step])!r} and {float(ceiling[step])!r}"


def _difference_of_dense(ours: list[Tensor], ceiling: list[Tensor]) -> str | None:
    for i, (one, other) in enumerate(zip(ours, ceiling, strict=True)):
        if not torch.equal(_bits(one), _bits(other)):
            return f"dense parameter {i}"
    return None


def _difference_of_rows(
    ours: hotrows.EmbeddingBagCollection, ceiling: hotrows.EmbeddingBagCollection, device: torch.device
) -> str | None:
    for one, other in zip(ours.schedulers, ceiling.schedulers, strict=True):
        if one.updater.steps != other.updater.steps:
            return f"{one.updater.steps} steps of the rows' optimizer and {other.updater.steps}"
        layout, rows, expected = one.cache.store.layout, one.cache.store.records, other.cache.store.records
        step = max(1, COMPARED_BYTES // layout.num_bytes)
        for start in range(0, len(rows), step):
            found, wanted = (records[start : start + step].to(device) for records in (rows, expected))
            for field in layout.fields:
                words = layout.columns(field.name)
                differ = _bits(found[:, words]) != _bits(wanted[:, words])
                if bool(differ.any()):
                    row = start + int(differ.any(1).nonzero()[0])
                    return f"{field.name} of {_name_of_row(ours, row)}, and perhaps more after it"
    return None


def _name_of_row(bags: hotrows.EmbeddingBagCollection, row: int) -> str:
    """The table and row of a row of the store. All tables have one dim, so they share a store, in their order."""
    for each in bags.tables:
        if row < each.num_rows:
            return f"table {each.name}, row {row}"
        row -= each.num_rows
    raise AssertionError(row)


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32)
