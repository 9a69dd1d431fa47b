"""Observers of a run: a metrics file, TensorBoard, a progress bar."""

from pathlib import Path
from typing import Any

from hotrows.json_text import json_text
from hotrows.report.units import fixed


class MetricsFile:
    """Writes one JSON object per line. Each is written at once, so that a killed run keeps its metrics."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def begin(self, num_steps: int) -> None:
        pass

    def trained(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json_text(record) + "\n")

    def evaluated(self, record: dict[str, Any]) -> None:
        self.trained(record)

    def end(self) -> None:
        pass


class TensorBoard:
    """Writes scalars for TensorBoard."""

    def __init__(self, path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(path))

    def begin(self, num_steps: int) -> None:
        pass

    def trained(self, record: dict[str, Any]) -> None:
        for name in ("loss", "lr", "samples_per_second", "hit_rate", "stalls", "bytes_in", "bytes_out"):
            self._writer.add_scalar(f"train/{name}", record[name], record["step"])
        for name, milliseconds in record["stages"].items():
            self._writer.add_scalar(f"stages/{name}_ms", milliseconds, record["step"])

    def evaluated(self, record: dict[str, Any]) -> None:
        for name in ("auc", "logloss", "accuracy"):
            self._writer.add_scalar(f"{record['kind']}/{name}", record[name], record["step"])

    def end(self) -> None:
        self._writer.close()


class ProgressBar:
    """Shows steps, samples per second, loss, hit rate and stalls in a bar on the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._stalls = 0
        self._progress = Progress(
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("training", total=None, note="")

    def begin(self, num_steps: int) -> None:
        self._progress.update(self._task, total=num_steps)
        self._progress.start()

    def trained(self, record: dict[str, Any]) -> None:
        self._stalls += record["stalls"]
        note = (
            f"{record['samples_per_second'] / 1000:,.1f}k/s loss {record['loss']:.4f} "
            f"hits {record['hit_rate']:.1%} stalls {self._stalls}"
        )
        self._progress.update(self._task, completed=record["step"], note=note)

    def evaluated(self, record: dict[str, Any]) -> None:
        self._progress.console.print(
            f"step {record['step']}: {record['kind']} AUC {fixed(record['auc'], 5)}, "
            f"log loss {record['logloss']:.5f}, accuracy {record['accuracy']:.4f}"
        )

    def end(self) -> None:
        self._progress.stop()
