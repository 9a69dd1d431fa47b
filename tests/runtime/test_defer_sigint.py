"""A block that Ctrl-C does not interrupt, and the handler that is there before and after it."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hotrows.runtime.defer_sigint import defer_sigint


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_the_signal_is_delivered_once_when_the_outermost_block_ends() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012, SIM117
        with defer_sigint():
            with defer_sigint():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")
    assert done == ["inner", "outer"]


def test_without_a_signal_nothing_happens() -> None:
    with defer_sigint():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_an_exception_the_handler_is_back_and_the_signal_is_not_lost() -> None:
    with pytest.raises(ValueError, match="the user's"), defer_sigint():
        raise ValueError("the user's")
    with pytest.raises(KeyboardInterrupt) as caught:  # noqa: PT012, SIM117
        with defer_sigint():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("the user's")
    assert isinstance(caught.value.__context__, ValueError)


def test_the_users_own_handler_gets_the_signal() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with defer_sigint():
        signal.raise_signal(signal.SIGINT)
        assert seen == []
    assert seen == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_is_installed_inside_stays() -> None:
    def mine(number: int, frame: object) -> None:
        pass

    with defer_sigint():
        signal.signal(signal.SIGINT, mine)
    assert signal.getsignal(signal.SIGINT) is mine
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_in_another_thread_it_does_nothing() -> None:
    failed = []

    def work() -> None:
        try:
            with defer_sigint():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


@pytest.mark.parametrize(
    ("handler", "code", "output"), [("signal.SIG_IGN", 0, "inside\nbehind\n"), ("signal.SIG_DFL", -2, "inside\n")]
)
def test_a_handler_that_is_not_a_function(handler: str, code: int, output: str) -> None:
    program = f"""
import signal
signal.signal(signal.SIGINT, {handler})
from hotrows.runtime.defer_sigint import defer_sigint
with defer_sigint():
    signal.raise_signal(signal.SIGINT)
    print("inside", flush=True)
print("behind", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, output), done.stderr
