"""The base class of loaders: epochs, and resuming at an exact position."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from hotrows.batch import Batch
from hotrows.data.share import Share


class ResumableLoader(ABC):
    """A loader whose state is the epoch and the number of batches that were taken from it.

    `state_dict()["batches"]` is that number. A caller that takes batches ahead of training, such as `lookahead`, and
    wants to resume after the last one trained, stores the number of trained batches there instead.

    Only one iterator may be used at a time: a new one begins the epoch again, or resumes where `load_state_dict` says.
    """

    def __init__(self, share: Share, *, shuffle: bool, seed: int) -> None:
        self.share = share
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._num_taken = 0
        self._resume_at = 0

    @abstractmethod
    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """The batches of an epoch from batch `first` on."""

    def _identity(self) -> dict[str, Any]:
        """The settings that decide the batches. A state is valid only for a loader with equal settings."""
        share = self.share
        return {
            "num_samples": share.num_samples,
            "batch_size": share.batch_size,
            "rank": share.rank,
            "world_size": share.world_size,
            "drop_last": share.drop_last,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def __len__(self) -> int:
        return self.share.num_batches

    def __iter__(self) -> Iterator[Batch]:
        first, self._resume_at = self._resume_at, 0
        self._num_taken = first
        return self._count(self._batches(self.epoch, first))

    def _count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._num_taken += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, it must be 0 or more")
        if epoch != self.epoch:
            self.epoch = epoch
            self._num_taken = self._resume_at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batches": self._num_taken, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        identity = self._identity()
        differing = [
            f"{key} was {state.get(key)!r} and is {value!r}"
            for key, value in identity.items()
            if state.get(key) != value
        ]
        if differing:
            raise ValueError(
                f"this loader cannot go on from that state, its batches would be others: {'; '.join(differing)}"
            )
        epoch, batches = int(state["epoch"]), int(state["batches"])
        if epoch < 0 or not 0 <= batches <= len(self):
            raise ValueError(f"the state says batch {batches} of epoch {epoch}, but an epoch has {len(self)} batches")
        self.epoch, self._num_taken, self._resume_at = epoch, batches, batches
