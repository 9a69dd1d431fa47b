"""What a run leaves on disk: each file is whole, or it is not there."""

import contextlib
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hotrows.errors import NotFiniteError
from hotrows.json_text import json_text
from hotrows.runtime.defer_sigint import defer_sigint
from hotrows.stores.memory_checks import available_host_memory, readable, require_memory
from hotrows.train.diagnosis import check_saved
from hotrows.train.trainer import Parts

MODEL_FILE = "model.pt"
FAILURE = "failure.json"
SLACK_BYTES = 1 << 20  # for what torch.save adds to the tensors


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write to the path that is given inside. The file gets its own name when the block has ended without an error."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    with whole_file(path) as part:
        part.write_text(json_text(content, indent=2) + "\n")


def save_failure(directory: Path, error: NotFiniteError) -> NotFiniteError:
    """Write what is known about a failed training. Returns the error with a sentence on what is left of the training.

    The last good state of a run is the last one that was saved, because only finite values are saved.
    """
    path = directory / MODEL_FILE
    left = f"{path} is the model that was saved before" if path.is_file() else "No model is left of this run"
    message = f"{error}\n{left}. {directory / FAILURE} has these details."
    write_json(directory / FAILURE, {**error.details, "message": message})
    return NotFiniteError(message, error.details)


def check_room(directory: Path, parts: Parts) -> None:
    """Raise before training if the model could not be saved after it."""
    num_bytes = _model_bytes(parts)
    require_memory("a copy of the rows", _row_bytes(parts), available_host_memory(), "host memory", "set save = false")
    free = shutil.disk_usage(directory).free
    if num_bytes > free:
        raise ValueError(
            f"the model takes {readable(num_bytes)} and {directory} has {readable(free)} free: set save = false, or "
            f"choose another --out"
        )


def save_model(
    directory: Path, parts: Parts, dense: Sequence[str], vocabulary: Mapping[str, str] | None = None
) -> None:
    """Write everything that `evaluate_run` needs into the run directory.

    Args:
        dense: the dense columns, in the order of the model's inputs.
        vocabulary: what `vocabulary_of` says of the data that the model was trained on.

    Raises:
        NotFiniteError: a value is NaN or infinite. Then nothing is written, and an earlier model.pt stays.
    """
    check_room(directory, parts)
    model = parts.model.state_dict()
    bags = {name: weight.contiguous() for name, weight in parts.bags.state_dict().items()}
    for name, values in (*model.items(), *bags.items()):
        check_saved(name, values)
    with defer_sigint(), whole_file(directory / MODEL_FILE) as part:
        torch.save(
            {
                "model": model,
                "bags": bags,
                "tables": {table.name: table.num_rows for table in parts.bags.tables},
                "columns": list(parts.bags.features),
                "dense": list(dense),
                "vocabulary": None if vocabulary is None else dict(vocabulary),
            },
            part,
        )


def load_model(directory: Path) -> dict[str, Any]:
    """What `save_model` has written."""
    path = directory / MODEL_FILE
    if not path.is_file():
        if (directory / FAILURE).is_file():
            raise ValueError(f"{directory} has no {MODEL_FILE}: its training failed, {directory / FAILURE} says why")
        raise ValueError(f"{directory} has no {MODEL_FILE}: train with save = true to evaluate later")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums that torch.save has written
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(damaged)
        saved = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load has no exception of its own for files that it cannot read
        raise ValueError(
            f"{path} is damaged, or not a model that hotrows has saved ({type(error).__name__}): train it again"
        ) from error
    if not isinstance(saved, dict) or not _is_saved_model(saved):
        expected = ", ".join(_SAVED)
        raise ValueError(f"{path} is not a model that hotrows has saved, it must have {expected}: train it again")
    for name, num_rows in saved["tables"].items():
        if num_rows < 1:
            raise ValueError(
                f"{path} is damaged: its table {name!r} has {num_rows} rows, not 1 or more: train it again"
            )
    return saved


_SAVED: dict[str, type] = {"model": dict, "bags": dict, "tables": dict, "columns": list, "dense": list}


def _is_saved_model(saved: dict[Any, Any]) -> bool:
    if not all(isinstance(saved.get(key), kind) for key, kind in _SAVED.items()):
        return False
    vocabulary = saved.get("vocabulary") or {}  # earlier versions saved none
    if not isinstance(vocabulary, dict) or not all(isinstance(checksum, str) for checksum in vocabulary.values()):
        return False
    names = (*saved["model"], *saved["bags"], *saved["tables"], *saved["columns"], *saved["dense"])
    return all(isinstance(name, str) for name in names) and all(
        isinstance(num_rows, int) for num_rows in saved["tables"].values()
    )


def _row_bytes(parts: Parts) -> int:
    return sum(int(cache.store.num_rows * cache.dim * 4) for cache in parts.bags.caches)


def _model_bytes(parts: Parts) -> int:
    dense = sum(int(tensor.nbytes) for tensor in parts.model.state_dict().values())
    return _row_bytes(parts) + dense + SLACK_BYTES
