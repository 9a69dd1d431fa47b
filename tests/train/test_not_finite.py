"""A loss or a prediction that is not finite ends a run: what it says, what it leaves, and that it costs no waiting."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hotrows.batch import Batch
from hotrows.cli.main import app
from hotrows.data.dataset import open_dataset
from hotrows.data.schema import DataSet, Loader
from hotrows.errors import NotFiniteError
from hotrows.runtime.streams import CompletedEvent
from hotrows.strategies import DataKnowledge
from hotrows.train import loss_check, run
from hotrows.train.config import RunConfig
from hotrows.train.loss_check import BadStep, BatchPosition, LossCheck, TrainedStep
from hotrows.train.save import save_model
from hotrows.train.timeline import Timeline
from hotrows.train.trainer import Trainer
from tests.test_json_text import refuse
from tests.train.test_run import DATA, train

Change = Callable[[int, Batch], Batch]


class ChangedLoader:
    """A loader whose batches are changed. They are numbered from 1."""

    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self._loader, start=1):
            yield self._change(number, batch)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class ChangedDataSet:
    """The synthetic data set of these tests, with changed batches in one split."""

    def __init__(self, split: str, change: Change) -> None:
        self._data = open_dataset(DATA)
        self._split = split
        self._change = change

    def loader(self, split: str, batch_size: int, **options: Any) -> Loader:
        loader = self._data.loader(split, batch_size, **options)
        return ChangedLoader(loader, self._change) if split == self._split else loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)


def nan_in_batch(wanted: int) -> Change:
    def change(number: int, batch: Batch) -> Batch:
        if number == wanted:
            batch.dense[17, 2] = math.nan
        return batch

    return change


def use(monkeypatch: pytest.MonkeyPatch, data: ChangedDataSet) -> None:
    monkeypatch.setattr(run, "open_dataset", lambda name: data)


def strict(path: Path) -> Any:
    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_learning_rate_that_diverges(tmp_path: Path, device: torch.device) -> None:
    with pytest.raises(NotFiniteError, match="training stopped: the loss of step") as raised:
        train(
            tmp_path / "run",
            device=device.type,
            optimizer={"name": "sgd", "lr": 1e4},
            dense_optimizer={"name": "sgd", "lr": 1e4},
            train={"log_every": 1},
        )
    directory = tmp_path / "run"
    assert not (directory / "model.pt").exists()
    assert not (directory / "summary.json").exists()
    failure = strict(directory / "failure.json")
    assert failure["epoch"] == 1
    assert failure["batch"] == failure["step"] > 1
    assert failure["first_sample"] == 256 * (failure["step"] - 1) + 1
    assert failure["last_sample"] == 256 * failure["step"]
    assert all(math.isfinite(loss) for loss in failure["losses_before"])
    assert failure["losses_before"][-1] > 10
    assert "in the step before, the largest is" in failure["found"]["logits"]
    assert failure["message"] == str(raised.value)
    for words in ("all are finite, the largest is", "the rows SGD with lr = 10000", "a tenth: --lr 1000", "warm-up"):
        assert words in str(raised.value)
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    report = (directory / "report.html").read_text()
    assert "failed: see below" in report
    assert "training stopped" in report
    with pytest.raises(ValueError, match=r"no model.pt: its training failed, .*failure.json says why"):
        run.evaluate_run(directory)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_nan_in_an_input(precision: str, graphs: bool, device: torch.device) -> None:
    data = ChangedDataSet("train", nan_in_batch(4))
    content = {"data": DATA, "model": {"name": "dlrm:rmc2", "dim": 4}, "device": device.type}
    settings = {"batch_size": 256, "graphs": graphs, "precision": precision}
    trainer = trainer_of(RunConfig.from_dict({**content, "train": settings}, "test"), data)
    kept: list[str] = []
    trainer.after_training = lambda: kept.append("a model")
    with pytest.raises(NotFiniteError) as raised:
        trainer.train()
    message = str(raised.value)
    # In bf16 on an H200 the loss has stayed finite, and the weights have not.
    what = r"(the loss of step 4 is nan|the weights of the dense part are not finite after step 4)"
    assert re.search(what + r" \(epoch 1, batch 4 of ", message)
    assert "samples 769 to 1,024 of the train split" in message
    assert "not finite in I3 (1); the first is nan in sample 786" in message
    assert "try: mend column I3" in message
    assert "learning rates" not in message  # they are not the reason
    assert not kept


def trainer_of(config: RunConfig, data: Any) -> Trainer:
    device = run.choose_device(config.device)
    strategy = run.strategy_of(config, DataKnowledge(data))
    parts = run.build(config, data.schema, device, strategy)
    found: DataSet = data
    return Trainer(config, found, parts, strategy, [], Timeline())


@pytest.mark.parametrize(("change", "words"), [
    (lambda batch: batch.label.fill_(2.0).mul_(math.inf), "mend the labels: each must be from 0 to 1"),
    (lambda batch: batch.dense[:, 4].fill_(1e38), "scale column I5, whose values go up to 1e[+]38"),
])  # fmt: skip
def test_other_bad_inputs(change: Callable[[Batch], Any], words: str) -> None:
    def every(number: int, batch: Batch) -> Batch:
        change(batch)
        return batch

    content = {
        "data": DATA, "model": {"name": "dlrm:rmc2", "dim": 4}, "device": "cpu", "train": {"batch_size": 256},
        "dense_optimizer": {"name": "sgd"},
    }  # fmt: skip
    with pytest.raises(NotFiniteError, match=words):
        trainer_of(RunConfig.from_dict(content, "test"), ChangedDataSet("train", every)).train()


class LateEvent:
    """The copy of some losses, which is never complete when it is asked."""

    def query(self) -> bool:
        return False

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...


def copies_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_check, "record_event", lambda device: LateEvent())


def test_steps_that_ran_meanwhile_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies_are_late(monkeypatch)
    use(monkeypatch, ChangedDataSet("train", nan_in_batch(7)))
    with pytest.raises(NotFiniteError, match=r"the loss of step 7 is nan .* 3 more steps ran before this was known"):
        train(tmp_path / "run")  # every fifth step is logged
    assert strict(tmp_path / "run" / "failure.json")["steps_trained"] == 10
    assert not (tmp_path / "run" / "model.pt").exists()


def test_ctrl_c_keeps_nothing_that_came_after_a_bad_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies_are_late(monkeypatch)

    def change(number: int, batch: Batch) -> Batch:
        if number == 9:
            raise KeyboardInterrupt
        return nan_in_batch(3)(number, batch)

    use(monkeypatch, ChangedDataSet("train", change))
    with pytest.raises(NotFiniteError, match="the loss of step 3 is nan"):
        train(tmp_path / "run", strategy="device", cache={"depth": 0}, train={"log_every": 100})
    assert not (tmp_path / "run" / "model.pt").exists()


def test_an_evaluation_before_the_copy_has_arrived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copies_are_late(monkeypatch)
    use(monkeypatch, ChangedDataSet("train", nan_in_batch(2)))
    with pytest.raises(NotFiniteError, match="the loss of step 2 is nan"):
        train(tmp_path / "run", train={"log_every": 100, "eval_every": 3})


def trained(step: int, loss: float, device: str = "cpu") -> TrainedStep:
    numbers = torch.full((2,), loss, device=device)
    return TrainedStep(
        step, BatchPosition(1, step, 100, 2 * step), numbers[0], numbers, torch.zeros(2, 1), torch.zeros(2)
    )


def test_losses_are_read_some_steps_at_a_time_and_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late copy names the first bad step, whichever step it is found in."""
    events: list[Any] = []

    class Event(LateEvent):
        complete = False

        def query(self) -> bool:
            return self.complete

        def synchronize(self) -> None:
            raise AssertionError("a step must not wait")

    def record(device: torch.device) -> Event:
        events.append(Event())
        return events[-1]

    monkeypatch.setattr(loss_check, "record_event", record)
    check = LossCheck(torch.device("cuda"))
    found: BadStep | None = None
    for step in range(1, 30):
        if step == 25:
            for event in events:
                event.complete = True
        found = check.add(trained(step, math.nan if step in (11, 13) else float(step)))
        if found is not None:
            break
    assert found is not None
    assert (found.trained.step, found.num_steps) == (11, 25)
    assert found.losses_before == (6, 7, 8, 9, 10)
    assert found.before is not None
    assert found.before.step == 10
    assert len(events) == 25 // loss_check.STEPS_AT_A_TIME


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_check_does_not_synchronize() -> None:
    device = torch.device("cuda")
    check = LossCheck(device, [torch.ones(3, 4, device=device), torch.ones(4, device=device)])
    steps = [trained(step, 0.5 * step, "cuda") for step in range(1, 65)]
    for each in steps[:32]:
        assert check.add(each) is None  # allocates
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for each in steps[32:]:
            assert check.add(each) is None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    check.add(trained(65, math.inf, "cuda"))
    found = check.finish()
    assert found is not None
    assert found.trained.step == 65


def test_weights_that_are_not_finite_while_all_losses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_check, "record_event", lambda device: CompletedEvent())
    weights = [torch.ones(3, 4), torch.ones(4)]
    for bad_input, blamed in ((11, 11), (None, 16)):
        weights[1].fill_(1.0)
        check = LossCheck(torch.device("cuda"), weights)
        found = None
        for step in range(1, 17):
            if step == 11:
                weights[1][2] = math.nan
            one = trained(step, float(step))
            if step == bad_input:
                one.dense[0] = math.nan
            found = check.add(one)
            assert (found is None) == (step < 16)
        assert found is not None
        assert (found.trained.step, found.loss, found.num_steps) == (blamed, float(blamed), 16)


def test_a_prediction_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is good and stays; the evaluation names the sample."""
    use(monkeypatch, ChangedDataSet("test", nan_in_batch(1)))
    with pytest.raises(NotFiniteError) as raised:
        train(tmp_path / "run")
    message = str(raised.value)
    assert "the test split cannot be evaluated: the model's prediction for sample 18 of it is not finite" in message
    assert "mend column I3" in message
    assert f"{tmp_path / 'run' / 'model.pt'} is the model that was saved before" in message
    assert strict(tmp_path / "run" / "failure.json")["split"] == "test"
    assert run.evaluate_run(tmp_path / "run", split="valid")["valid"]["auc"] > 0


def test_a_model_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    config = RunConfig.from_dict({"data": DATA, "model": {"name": "dlrm:rmc2", "dim": 4}, "device": "cpu"}, "test")
    data = open_dataset(DATA)
    parts = run.build(config, data.schema, torch.device("cpu"), run.strategy_of(config, DataKnowledge(data)))
    save_model(tmp_path, parts, data.schema.dense)
    good = (tmp_path / "model.pt").read_bytes()
    table = parts.bags.tables[2]
    weight = parts.bags.weight(table.name)
    weight[-1, 1] = math.inf
    parts.bags.load_weight(table.name, weight)
    with pytest.raises(NotFiniteError, match=f"not saved: {table.name}.weight has values that are NaN or infinite"):
        save_model(tmp_path, parts, data.schema.dense)
    assert (tmp_path / "model.pt").read_bytes() == good


def test_samples_of_one_class_have_no_auc_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(number: int, batch: Batch) -> Batch:
        return batch._replace(label=torch.zeros_like(batch.label))

    use(monkeypatch, ChangedDataSet("valid", change))
    directory = train(tmp_path / "run").directory
    assert strict(directory / "summary.json")["valid"]["auc"] is None
    lines = [json.loads(line, parse_constant=refuse) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert {line["auc"] for line in lines if line["kind"] == "valid"} == {None}


def test_the_exit_code(tmp_path: Path) -> None:
    arguments = ["train", "--data", DATA, "--dim", "4", "--lr", "1e6", "--optimizer", "sgd", "--device", "cpu"]
    found = CliRunner().invoke(app, [*arguments, "--batch-size", "256", "--out", str(tmp_path / "run")])
    assert found.exit_code == 3
    assert "hotrows: training stopped: the loss of step" in found.stderr
    assert "No model is left of this run" in found.stderr
    assert "Traceback" not in found.output
