"""What a soak test does to a pair of modules: each operation trains, reads or interrupts, and compares the two."""

import copy
import gc
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from types import FrameType
from typing import Any

import torch
from soak_pairs import Ids, Module, Outputs, Pair, Progress, WrongRowsError, same

import hotrows
from hotrows.runtime.defer_sigint import is_deferring

READER_SECONDS = 120  # after which a thread that reads is said to hang
MAX_READS = 200  # of each thread, so that comparing them stays short


class LoaderError(Exception):
    """What a loader raises."""


def look_ahead(pair: Pair, batches: Iterable[Ids], ids: Callable[[Any], Ids] = lambda ids: ids) -> Iterator[Any]:
    """A loop of a drawn depth and window over the batches."""
    draw = pair.random
    return hotrows.lookahead(batches, pair.subject, depth=draw.randint(0, 8), window=draw.randint(1, 24), ids=ids)


def some_batches(pair: Pair) -> list[Ids]:
    return pair.batches(pair.random.randint(1, 30))


def train_ahead(pair: Pair) -> None:
    """A whole loop that looks ahead."""
    pair.follow(pair.train(pair.subject, look_ahead(pair, some_batches(pair))))


def train_plainly(pair: Pair) -> None:
    """A loop that does not look ahead."""
    pair.follow(pair.train(pair.subject, some_batches(pair)))


def train_several_passes(pair: Pair) -> None:
    """Several forward passes for each backward pass, and several backward passes for one optimizer step."""
    batches = some_batches(pair)
    how: dict[str, Any] = {"passes": pair.random.randint(2, 3), "accumulates": pair.random.random() < 0.3}
    looks_ahead = pair.random.random() < 0.6
    pair.follow(pair.train(pair.subject, look_ahead(pair, batches) if looks_ahead else batches, **how), **how)


def train_graphed(pair: Pair) -> None:
    """Loops whose steps are replayed from CUDA graphs where that is possible."""

    def forward_and_backward(ids: Ids) -> Outputs:
        out = pair.read(pair.subject, ids)
        torch.autograd.backward(pair.loss(out))
        return tuple(part.detach() for part in out)

    step = hotrows.graphed(forward_and_backward, pair.subject)
    progress = Progress([], [])
    for _ in range(pair.random.randint(1, 3)):
        for ids in look_ahead(pair, pair.batches(pair.random.randint(8, 30))):
            progress.begun.append(ids)
            progress.outputs.append(tuple(part.clone() for part in step(ids)))
    if pair.random.random() < 0.7:  # otherwise it is dropped as it is
        step.close()
    pair.follow(progress)


def evaluate(pair: Pair) -> None:
    """Read batches in eval mode, in a loop that looks ahead or without one; the rows stay as they are."""
    pair.subject.eval()
    with torch.no_grad() if pair.random.random() < 0.5 else nullcontext():
        batches = some_batches(pair)
        for ids in look_ahead(pair, batches) if pair.random.random() < 0.5 else batches:
            with torch.no_grad():
                wanted = pair.read(pair.reference, ids)
            if not same(pair.read(pair.subject, ids), wanted):
                raise WrongRowsError("the pooled rows of an evaluated batch differ")
    pair.subject.train()


def read_between_steps(pair: Pair) -> None:
    """Read other batches without gradients within a loop, and drop forward passes that are never used."""
    batches, others = some_batches(pair), pair.batches(3)
    progress = Progress([], [])
    for number, ids in enumerate(look_ahead(pair, batches)):
        with torch.no_grad():
            pair.read(pair.subject, others[number % len(others)])
        if number % 4 == 1:
            pair.read(pair.subject, others[0])
        pair.train(pair.subject, [ids], progress)
    pair.follow(progress)


def save_and_load(pair: Pair) -> None:
    """Save, train on, and load what was saved."""
    assert pair.subject.optimizer is not None
    saved = copy.deepcopy(pair.subject.state_dict()), pair.subject.optimizer.state_dict()
    before = pair.everything(pair.reference)
    train_ahead(pair)
    pair.subject.load_state_dict(saved[0])
    pair.subject.optimizer.load_state_dict(saved[1])
    pair.restore(pair.reference, before)
    pair.compare()


def move_to_another_cache(pair: Pair) -> None:
    """Load the state into a new module with another cache, which then goes on; the old one is dropped."""
    assert pair.subject.optimizer is not None
    other = pair.make(pair.draw_setting())
    assert other.optimizer is not None
    other.load_state_dict(pair.subject.state_dict())
    other.optimizer.load_state_dict(pair.subject.optimizer.state_dict())
    pair.subject, pair.open_loop = other, None
    pair.compare()


def go_on_with_a_copy(pair: Pair) -> None:
    """Copy or pickle the module, and go on with the copy."""
    rates = [param_group["lr"] for param_group in _param_groups(pair.subject)]
    is_pickled = pair.random.random() < 0.5
    other: Module = pickle.loads(pickle.dumps(pair.subject)) if is_pickled else copy.deepcopy(pair.subject)
    assert [param_group["lr"] for param_group in _param_groups(other)] == rates
    pair.subject, pair.open_loop = other, None
    pair.compare()


def load_other_rows(pair: Pair) -> None:
    """Set all rows of a table from outside."""
    name = pair.random.choice(pair.shape.tables).name
    parts = pair.everything(pair.reference, [name])[name]
    parts["weight"] = torch.rand(parts["weight"].shape, generator=pair.generator)
    for module in (pair.subject, pair.reference):
        pair.restore(module, {name: parts})


def change_learning_rate(pair: Pair) -> None:
    factor = pair.random.choice([0.5, 1.25])
    for module in (pair.subject, pair.reference):
        for param_group in _param_groups(module):
            param_group["lr"] = min(max(param_group["lr"] * factor, 0.01), 0.4)
    train_ahead(pair)


def flush_and_ask(pair: Pair) -> None:
    """Write all rows back, and ask for the statistics and the rows in the cache."""
    pair.subject.flush()
    pair.subject.stats()
    cached = pair.subject.cached_rows()
    if sum(cached.values()) > sum(cache.num_slots for cache in pair.subject.caches):
        raise WrongRowsError(f"more rows are said to be in the cache than it has slots: {cached}")


def pin(pair: Pair) -> None:
    """Train with some rows pinned."""
    table = pair.random.choice(pair.shape.tables)
    ids = torch.randint(table.num_rows, (max(1, pair.subject.cache_of(table.name).num_slots // 4),))
    with suppress(ValueError):  # there may be no room for them beside an open loop
        if isinstance(pair.subject, hotrows.EmbeddingBag):
            pair.subject.pin(ids)
        else:
            pair.subject.pin(table.name, ids)
    train_ahead(pair)
    pair.subject.unpin()


def leave_early(pair: Pair) -> None:
    """Leave a loop before its end. It is kept open, dropped, or closed."""
    batches = some_batches(pair)
    loop = look_ahead(pair, batches)
    pair.follow(pair.train(pair.subject, islice(loop, pair.random.randint(0, len(batches)))))
    ending = pair.random.choice(["kept", "dropped", "closed"])
    if ending == "kept":
        pair.open_loop = loop
    elif ending == "closed":
        loop.close()  # type: ignore[attr-defined]


def go_on_with_open_loop(pair: Pair) -> None:
    """Go on with a loop that was left early, if there is one, whatever happened to the module meanwhile."""
    if pair.open_loop is None:
        leave_early(pair)
    loop, pair.open_loop = pair.open_loop or iter(()), None
    pair.follow(pair.train(pair.subject, islice(loop, pair.random.randint(0, 40))))


def meet_loader_error(pair: Pair) -> None:
    """The loader raises: the batches before it train, and then the loop raises the same."""
    batches = some_batches(pair)

    def loader() -> Iterator[Ids]:
        yield from batches
        raise LoaderError

    progress = Progress([], [])
    try:
        pair.train(pair.subject, look_ahead(pair, loader()), progress)
    except LoaderError:
        _expect_all(progress, batches, "a loader's error")
    else:
        raise WrongRowsError("the error of a loader was not raised")
    pair.follow(progress)


def meet_bad_id(pair: Pair) -> None:
    """A batch has an id that no table has: nothing of it is used."""
    batches, (last,) = some_batches(pair), pair.batches(1)
    bad = pair.with_bad_id(last)
    if bad is None:
        return
    progress = Progress([], [])
    num_raised = 0
    if pair.random.random() < 0.5:
        try:
            pair.train(pair.subject, look_ahead(pair, [*batches, bad, *batches]), progress)
        except hotrows.BadIdError:
            num_raised += 1
            _expect_all(progress, batches, "a bad id")
    else:
        pair.train(pair.subject, batches, progress)
        for _ in range(2):  # it is raised by the forward pass or by the next `flush`
            try:
                if num_raised == 0:
                    pair.train(pair.subject, [bad])
                pair.subject.flush()
            except hotrows.BadIdError:
                num_raised += 1
    if num_raised != 1:
        raise WrongRowsError(f"BadIdError was raised {num_raised} times")
    pair.follow(progress)


def fail_backward(pair: Pair) -> None:
    """A backward pass raises before it reaches the rows."""

    def fail(_: torch.Tensor) -> None:
        raise LoaderError

    for ids in look_ahead(pair, some_batches(pair)):
        loss = pair.loss(pair.read(pair.subject, ids))
        if loss.requires_grad:
            loss.register_hook(fail)  # type: ignore[no-untyped-call]
        with suppress(LoaderError):
            torch.autograd.backward(loss)
        break


def read_the_log(pair: Pair) -> None:
    """Train on a prepared log, whose loader reads ahead in threads; sometimes the loop is left early."""
    loader = pair.log.loader("train", pair.shape.batch_size, shuffle=True, seed=pair.random.randrange(100))
    loader.set_epoch(pair.random.randrange(5))
    loop = look_ahead(pair, islice(loader, pair.random.randint(1, 60)), ids=lambda batch: batch.ids)
    if pair.random.random() < 0.3:
        loop = islice(loop, pair.random.randint(0, 30))
    pair.follow(pair.train(pair.subject, (batch.ids for batch in loop)))


def train_beside_readers(pair: Pair) -> None:
    """Threads read while the main thread trains: each read gives the rows between two steps."""
    batches, (probe,) = some_batches(pair), pair.batches(1)
    ended = threading.Event()
    errors: list[BaseException] = []
    reads: list[list[Outputs]] = [[] for _ in range(pair.random.randint(1, 2))]

    def read(found: list[Outputs]) -> None:
        try:
            while not ended.is_set() and len(found) < MAX_READS:
                with torch.no_grad():
                    found.append(pair.read(pair.subject, probe))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(found,), name="soak-reader") for found in reads]
    for thread in threads:
        thread.start()
    progress = Progress([], [])
    try:
        pair.train(pair.subject, look_ahead(pair, batches) if pair.random.random() < 0.6 else batches, progress)
    finally:
        ended.set()
        for thread in threads:
            thread.join(READER_SECONDS)
    if any(thread.is_alive() for thread in threads):
        raise WrongRowsError(f"a thread that reads has not ended in {READER_SECONDS} s")
    if errors:
        raise errors[0]
    with torch.no_grad():
        states = [pair.read(pair.reference, probe)]
        for ids in progress.begun:
            with torch.enable_grad():
                pair.train(pair.reference, [ids])
            states.append(pair.read(pair.reference, probe))
    for found in reads:
        _expect_in_order(found, states)


def _expect_in_order(found: list[Outputs], states: list[Outputs]) -> None:
    """Each read gives the rows of a step, and none of an earlier step than the read before; each cache by itself."""
    for part in range(len(states[0])):
        step = 0
        for read in found:
            step = next((s for s in range(step, len(states)) if same((read[part],), (states[s][part],))), -1)
            if step < 0:
                raise WrongRowsError("a thread has read rows that are of no step")


def interrupt(pair: Pair) -> None:
    """A SIGINT at a random moment of a loop: the rows are those of a whole number of steps."""
    batches, draw = some_batches(pair), pair.random
    is_log = pair.shape.kind == "log" and draw.random() < 0.5
    progress, began = Progress([], []), time.perf_counter()
    pair.train(pair.subject, look_ahead(pair, batches), progress)  # how long one loop takes
    seconds = time.perf_counter() - began
    pair.follow(progress)

    def train() -> None:
        source: Iterable[Ids] = batches
        if is_log:
            loader = pair.log.loader("train", pair.shape.batch_size, shuffle=True, seed=draw.randrange(100))
            source = (batch.ids for batch in islice(loader, len(batches)))
        loop = look_ahead(pair, source) if draw.random() < 0.7 else source
        pair.train(pair.subject, loop, progress, step=pair.subject.exclusive if draw.random() < 0.5 else None)

    progress = Progress([], [])
    ended = Interrupts(seconds * draw.random() * 1.05 + 1e-6, draw.choice([1, 1, 2])).during(train)
    if is_deferring():
        raise WrongRowsError("after an interrupt, SIGINT is still deferred")
    if draw.random() < 0.5:
        gc.collect()
    pair.follow(progress)
    if not ended:
        return
    before = pair.everything(pair.reference)
    if len(progress.begun) == len(progress.outputs):
        return
    pair.train(pair.reference, [progress.begun[-1]])
    after, found = pair.everything(pair.reference), pair.everything(pair.subject)
    for cache in pair.reference.caches:  # a step may have ended in one cache and not in the other
        names = [t.name for t in pair.shape.tables if pair.reference.cache_of(t.name) is cache]
        states = [_choose(state, names) for state in (before, after)]
        if _equal(_choose(found, names), states[1]):
            continue
        if not _equal(_choose(found, names), states[0]):
            raise WrongRowsError("after an interrupt, the rows are of no step")
        pair.restore(pair.reference, states[0])


class Interrupts:
    """SIGINT after some seconds, and perhaps a second one while the first is still being handled."""

    def __init__(self, seconds: float, number: int) -> None:
        self._seconds = seconds
        self._number = number
        self.num_sent = 0

    def during(self, work: Callable[[], None]) -> bool:
        """Work until it ends or is interrupted. True if a signal was sent."""
        before = signal.signal(signal.SIGALRM, self._send)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self._seconds, 0.0003 if self._number > 1 else 0)
                work()
            except KeyboardInterrupt:
                time.sleep(0.001)  # the second one may arrive now
            except RuntimeError:  # of autograd, which an interrupt has ended
                if self.num_sent == 0:
                    raise
            self._stop()
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                self._stop()
        finally:
            signal.signal(signal.SIGALRM, before)
        return self.num_sent > 0

    def _send(self, number: int, frame: FrameType | None) -> None:
        if self.num_sent < self._number:
            self.num_sent += 1
            if self.num_sent == self._number:
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.raise_signal(signal.SIGINT)

    def _stop(self) -> None:
        """No signal is sent any more behind this."""
        self._number = self.num_sent
        signal.setitimer(signal.ITIMER_REAL, 0)


def is_sent_by_script(frame: FrameType | None) -> bool:
    """Whether a SIGINT that interrupted this frame was raised by this script, as opposed to the user's Ctrl-C.

    hotrows may raise it later, but with the frame that it interrupted at first.
    """
    return frame is not None and frame.f_code is Interrupts._send.__code__


def _expect_all(progress: Progress, batches: list[Ids], what: str) -> None:
    if len(progress.outputs) != len(batches):
        raise WrongRowsError(f"{what} behind {len(batches)} batches was raised behind {len(progress.outputs)}")


def _param_groups(module: Module) -> list[dict[str, Any]]:
    assert module.optimizer is not None
    return module.optimizer.param_groups


def _choose(state: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: state[name] for name in names}


def _equal(found: dict[str, dict[str, torch.Tensor]], wanted: dict[str, dict[str, torch.Tensor]]) -> bool:
    return all(same((found[name][part],), (wanted[name][part],)) for name in wanted for part in wanted[name])


OPERATIONS: dict[str, Callable[[Pair], None]] = {
    "train ahead": train_ahead,
    "train plainly": train_plainly,
    "train several passes": train_several_passes,
    "train graphed": train_graphed,
    "evaluate": evaluate,
    "read between steps": read_between_steps,
    "save and load": save_and_load,
    "move to another cache": move_to_another_cache,
    "go on with a copy": go_on_with_a_copy,
    "load other rows": load_other_rows,
    "change learning rate": change_learning_rate,
    "flush and ask": flush_and_ask,
    "pin": pin,
    "leave early": leave_early,
    "go on with open loop": go_on_with_open_loop,
    "loader error": meet_loader_error,
    "bad id": meet_bad_id,
    "fail backward": fail_backward,
    "read the log": read_the_log,
    "train beside readers": train_beside_readers,
    "interrupt": interrupt,
}
ONLY_FOR = {"read the log": ("log",)}  # kinds of pairs; other operations are for all of them
