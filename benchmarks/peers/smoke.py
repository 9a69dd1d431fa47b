"""Does every peer train as plain PyTorch does? `python -m benchmarks.peers.smoke [--device cuda]` takes a minute.

Trains small tables behind a small cache for 20 steps from the same first values, and compares them with
`nn.functional.embedding` with the same optimizer. It prints one line for each peer and optimizer: ok, missing with the
reason, WRONG, or an error with its traceback. The exit code is 1 if a peer is wrong or fails.
"""

import argparse
import sys
import time
import traceback

import torch
from torch import Tensor

from .base import Peer
from .host_rows import first_rows
from .registry import PEERS

SIZES = [20_000, 5_000, 300, 7]
DIM = 16
BATCH = 256
STEPS = 20
CACHE = 0.1
LEARNING_RATE = {"sgd": 0.002, "adam": 0.01}
LIMIT = {"sgd": 1e-5, "adam": 1e-4}  # of the largest difference between losses, and between weights


class Reference:
    """Plain PyTorch: whole tables on the device, sparse gradients."""

    def __init__(self, tables: list[Tensor], optimizer: str, device: torch.device) -> None:
        self.tables = [torch.nn.Parameter(table.to(device, copy=True)) for table in tables]
        kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.SparseAdam
        self.optimizer = kind(self.tables, lr=LEARNING_RATE[optimizer])

    def embed(self, ids: Tensor) -> Tensor:
        columns = [torch.nn.functional.embedding(ids[:, i], table, sparse=True) for i, table in enumerate(self.tables)]
        return torch.stack(columns, dim=1)

    def prefetch(self, ids: Tensor) -> None:
        pass

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def make_batches(device: torch.device) -> list[Tensor]:
    """Batches of skewed ids: a few ids are in every batch, many are in one batch only."""
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(STEPS, BATCH, len(SIZES), generator=generator, dtype=torch.float64)
    ids = (uniform**4 * torch.tensor(SIZES)).long()
    return list(ids.to(device).unbind())


def train(peer: Peer | Reference, batches: list[Tensor]) -> list[float]:
    """Train, and return the losses of a fixed non-linear function of the vectors.

    No gradient is near zero, because Adam's eps would decide such a step, and FBGEMM applies it differently than torch.
    """
    generator = torch.Generator().manual_seed(2)
    signs = torch.randint(2, (len(SIZES), DIM), generator=generator) * 2 - 1
    mix = (signs * (torch.rand(len(SIZES), DIM, generator=generator) + 0.5)).to(batches[0].device)
    losses = []
    for i, ids in enumerate(batches):
        if i + 1 < len(batches):
            peer.prefetch(batches[i + 1])
        score = (peer.embed(ids) * mix).sum(dim=(1, 2))
        loss = torch.nn.functional.softplus(score - 1).sum()
        loss.backward()
        peer.step()
        losses.append(loss.detach() / BATCH)
    return torch.stack(losses).tolist()


def check(key: str, optimizer: str, device: torch.device) -> str:
    """Check one peer, and return one line about it."""
    entry = PEERS[key]
    reason = entry.missing(optimizer, device)
    if reason is not None:
        return f"missing: {reason}"
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(size, DIM, generator=generator) * 0.1 for size in SIZES]
    batches = make_batches(device)
    reference = Reference(tables, optimizer, device)
    expected = train(reference, batches)
    starts = first_rows(SIZES, device)
    flat = torch.cat([ids + starts for ids in batches]).view(-1)
    frequencies = torch.bincount(flat, minlength=sum(SIZES))

    start = time.perf_counter()
    peer = entry.make(SIZES, DIM, CACHE, optimizer, LEARNING_RATE[optimizer], BATCH, device, frequencies)
    seconds = time.perf_counter() - start
    try:
        for i, table in enumerate(tables):
            peer.load_weight(i, table)
        peer.count(True)
        losses = train(peer, batches)
        peer.count(False)
        figures = peer.figures()
        loss_gap = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        weight_gap = max(
            float((peer.weight(i) - table.detach().cpu()).abs().max()) for i, table in enumerate(reference.tables)
        )
    finally:
        peer.close()
    verdict = "ok" if max(loss_gap, weight_gap) <= LIMIT[optimizer] else "WRONG"
    counted = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    return (
        f"{verdict}: largest difference of losses {loss_gap:.1e}, of weights {weight_gap:.1e}; "
        f"loss {losses[0]:.4f} → {losses[-1]:.4f}; made in {seconds:.1f} s; {counted or 'nothing counted'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    failed = False
    for optimizer in ("sgd", "adam"):
        for key in PEERS:
            try:
                line = check(key, optimizer, device)
            except Exception:  # the other peers are checked all the same
                line = f"error\n{traceback.format_exc()}"
            failed |= line.startswith(("error", "WRONG"))
            print(f"{optimizer:5} {key:24} {line}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
