"""Train one small click model twice, with all embedding rows on the device and with 1.5% of them, and compare."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import hotrows

TABLE_SIZES = [1_000, 2_000, 5_000, 12_000, 30_000, 60_000, 100_000, 200_000]
DIM = 16
NUM_DENSE = 8
BATCH_SIZE = 256
EXPONENT = 1.2  # of the Zipf distribution: the id of rank k is drawn in proportion to k^-1.2
CACHE = "1.5%"
DEPTH = 4
WINDOW = 32
SEED = 0


class Clicks:
    """Synthetic clicks with Zipf-distributed ids and labels from a hidden model. Every pass has the same batches."""

    def __init__(self, num_batches: int, device: torch.device) -> None:
        self.num_batches = num_batches
        self.device = device
        generator = torch.Generator().manual_seed(SEED)
        self._cumulative, self._id_of_rank, self._effect = [], [], []
        for size in TABLE_SIZES:
            weight = torch.arange(1, size + 1, dtype=torch.float64) ** -EXPONENT
            self._cumulative.append(torch.cumsum(weight / weight.sum(), 0))
            self._id_of_rank.append(torch.randperm(size, generator=generator))
            self._effect.append(torch.randn(size, generator=generator))
        self._dense_effect = torch.randn(NUM_DENSE, generator=generator) / 2

    def __iter__(self) -> Iterator[hotrows.Batch]:
        for number in range(self.num_batches):
            yield self._draw(torch.Generator().manual_seed(SEED + 1 + number))

    def _draw(self, generator: torch.Generator) -> hotrows.Batch:
        dense = torch.randn(BATCH_SIZE, NUM_DENSE, generator=generator)
        score = dense @ self._dense_effect
        columns = []
        for cumulative, id_of_rank, effect in zip(self._cumulative, self._id_of_rank, self._effect, strict=True):
            drawn = torch.rand(BATCH_SIZE, dtype=torch.float64, generator=generator)
            ids = id_of_rank[torch.searchsorted(cumulative, drawn).clamp(max=len(id_of_rank) - 1)]
            columns.append(ids)
            score = score + effect[ids]
        label = torch.bernoulli(torch.sigmoid(score), generator=generator)
        return hotrows.Batch(dense.to(self.device), torch.stack(columns, 1).to(self.device), label.to(self.device))


class ClickModel(nn.Module):
    """A small DLRM: an MLP for the dense features, dot products between all features, and an MLP for the logit."""

    def __init__(self) -> None:
        super().__init__()
        num_vectors = len(TABLE_SIZES) + 1
        self.bottom = nn.Sequential(nn.Linear(NUM_DENSE, 32), nn.ReLU(), nn.Linear(32, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM * num_vectors + num_vectors**2, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense [B, NUM_DENSE], pooled [B, F, D] → logits [B]."""
        vectors = torch.cat([self.bottom(dense).unsqueeze(1), pooled], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([vectors.flatten(1), products.flatten(1)], 1)).squeeze(1)


@dataclass
class Run:
    """The results of a training run."""

    bags: hotrows.EmbeddingBagCollection
    model: ClickModel
    losses: Tensor  # [steps]
    samples_per_second: float  # without the first tenth of the steps, which compile kernels and fill the cache


def train(clicks: Clicks, cache: str, looks_ahead: bool) -> Run:
    torch.manual_seed(SEED)
    model = ClickModel().to(clicks.device)
    tables = [hotrows.Table(f"C{number}", size) for number, size in enumerate(TABLE_SIZES, 1)]
    bags = hotrows.EmbeddingBagCollection(
        tables, DIM, cache=cache, optimizer=hotrows.optim.Adagrad(lr=0.05), device=clicks.device, seed=SEED
    )
    dense_optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    batches: Iterable[hotrows.Batch] = clicks
    if looks_ahead:
        batches = hotrows.lookahead(clicks, bags, depth=DEPTH, window=WINDOW)

    losses: list[Tensor] = []
    report_every = -(-clicks.num_batches // 8)
    num_first = clicks.num_batches // 10
    begin = measured_from = time.perf_counter()
    for batch in batches:
        if len(losses) == num_first:
            measured_from = time.perf_counter()
        dense_optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch.dense, bags(batch.ids)), batch.label)
        loss.backward()  # the rows are updated here
        dense_optimizer.step()
        losses.append(loss.detach())
        if len(losses) % report_every == 0 or len(losses) == clicks.num_batches:
            recent = torch.stack(losses[-report_every:]).mean()
            seconds = time.perf_counter() - begin
            print(f"  step {len(losses):5d} of {clicks.num_batches}   loss {recent:.4f}   {seconds:5.1f} s", flush=True)
    bags.flush()
    seconds = time.perf_counter() - measured_from
    return Run(bags, model, torch.stack(losses).cpu(), (len(losses) - num_first) * BATCH_SIZE / seconds)


def differences(one: Run, other: Run) -> list[str]:
    """Names of the tables, optimizer states, parameters and losses whose bits differ."""
    different = []
    for table in one.bags.tables:
        if not torch.equal(one.bags.weight(table.name), other.bags.weight(table.name)):
            different.append(f"table {table.name}")
        state = other.bags.row_state(table.name)
        if not all(torch.equal(part, state[name]) for name, part in one.bags.row_state(table.name).items()):
            different.append(f"optimizer state of table {table.name}")
    parameters = dict(other.model.named_parameters())
    for name, parameter in one.model.named_parameters():
        if not torch.equal(parameter, parameters[name]):
            different.append(f"parameter {name}")
    if not torch.equal(one.losses, other.losses):
        different.append("losses")
    return different


def trained_rows(run: Run) -> int:
    """The number of rows that a batch has used. They have a squared gradient in their Adagrad state."""
    return sum(int(run.bags.row_state(table.name)["sum"].any(1).sum()) for table in run.bags.tables)


def readable_bytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def print_table(whole: Run, cached: Run) -> None:
    part = max(1, len(whole.losses) // 10)

    def column(run: Run) -> list[str]:
        stats = run.bags.stats()
        return [
            f"{sum(cache.num_slots for cache in run.bags.caches):,}",
            f"{run.losses[:part].mean():.4f}",
            f"{run.losses[-part:].mean():.4f}",
            f"{stats.hit_rate:.1%}",
            readable_bytes(stats.bytes_in),
            readable_bytes(stats.bytes_out),
            f"{stats.stalls:,} of {stats.batches:,}",
            f"{stats.overflow:,}",
            f"{run.samples_per_second:,.0f}",
        ]

    titles = [
        "rows on the device",
        f"loss, first {part} steps",
        f"loss, last {part} steps",
        "hit rate (unique rows of a batch)",
        "moved in (host memory → device)",
        "moved out (device → host memory)",
        "stalls (batches that waited for rows)",
        "overflow (rows without a slot)",
        "samples per second",
    ]
    print(f"\n{'':42}{'all rows':>16}{f'cache {CACHE}':>16}")
    for title, left, right in zip(titles, column(whole), column(cached), strict=True):
        print(f"{title:42}{left:>16}{right:>16}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="batches to train on, 256 samples each (default 300)")
    parser.add_argument("--device", default="cpu", help="where the cache and the model are: cpu (default) or cuda")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps is {arguments.steps}, give 1 or more")
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no CUDA device here, use --device cpu")

    clicks = Clicks(arguments.steps, torch.device(arguments.device))
    num_rows = sum(TABLE_SIZES)
    print(
        f"A small DLRM on synthetic clicks: {len(TABLE_SIZES)} tables, {num_rows:,} rows of {DIM} numbers in all,\n"
        f"{arguments.steps} batches of {BATCH_SIZE}, Adagrad, on {arguments.device}.\n"
    )
    print(f"1. All {num_rows:,} rows on the device, plain training loop:")
    whole = train(clicks, cache="100%", looks_ahead=False)
    print(f"\n2. Rows in host memory, a cache of {CACHE} of them on the device, rows moved {DEPTH} batches ahead:")
    cached = train(clicks, cache=CACHE, looks_ahead=True)

    print_table(whole, cached)
    print(f"\n{trained_rows(cached):,} rows were used. Each of them is moved in at least once, with any cache.")
    if arguments.device == "cpu":
        print("On a CPU the 'device' is host memory too: samples per second say nothing about a GPU.")
    different = differences(whole, cached)
    if different:
        print(f"\nNOT IDENTICAL: {', '.join(different)}")
        return 1
    print(
        f"\nIDENTICAL, bit by bit: all {len(TABLE_SIZES)} tables, their optimizer state, the model's parameters, and "
        f"the loss of every step.\nThe cache decides where rows are, never what they become."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
