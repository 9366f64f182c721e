"""Orders reach workers, words reach the driver, and each does without the other."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from braided.orders.address import LineAddress
from braided.orders.line import OrderLine, line_to
from braided.orders.messages import TaskWord
from braided.orders.post import OrderPost
from support.order_peers import HOST, WorkerProcess, answering, becomes, patience, patient_post

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

WORD = TaskWord("t", "op", 3, "3.0", 7, 1_000, 0.25, False)


@pytest.fixture
def patient() -> Iterator[None]:
    with patience():
        yield


@pytest.fixture
def post(patient: None) -> Iterator[OrderPost]:
    opened = patient_post()
    yield opened
    opened.close()


@contextlib.contextmanager
def line(address: LineAddress | None, retry_s: float = 10.0) -> Iterator[OrderLine]:
    """A line as another process would have it."""
    opened = OrderLine(address, retry_s)
    opened.reach()
    yield opened
    opened.close()


def unused_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


# -- orders ------------------------------------------------------------------------------------


def test_an_order_to_stop_reaches_a_worker_that_is_connected(post: OrderPost) -> None:
    with WorkerProcess(post.address) as worker:
        assert worker.ask("is_stopped", "t") is False
        post.stop("t")
        assert worker.ask("await_stop", "t") is True
        assert worker.ask("is_stopped", "other") is False
    assert post.is_stopped("t") and not post.is_stopped("other")


def test_a_worker_that_connects_later_knows_at_once_what_was_ordered(post: OrderPost) -> None:
    post.stop("t")
    with line(post.address) as first:
        assert first.agree("t", "op", 1, 80, timeout_s=30) == 80
    with WorkerProcess(post.address) as worker:
        assert worker.ask("is_stopped", "t") is True
        assert worker.ask("cut_of", "t", "op", 1) == 80
        assert worker.ask("cut_of", "t", "op", 2) is None


def test_a_worker_that_connects_later_is_told_of_many_cuts(post: OrderPost) -> None:
    with line(post.address) as first:
        for channel in range(3_000):
            assert first.agree("t", "op", channel, channel, timeout_s=30) == channel
    with line(post.address) as second:
        assert [second.cut_of("t", "op", channel) for channel in range(3_000)] == list(range(3_000))
    assert len(post.cuts("t")) == 3_000


def test_attempts_of_a_channel_agree_on_the_first_ones_cut(post: OrderPost) -> None:
    with WorkerProcess(post.address) as one, line(post.address) as twin:
        post.stop("t")
        assert one.ask("agree", "t", "op", 1, 80, 30) == 80
        assert twin.agree("t", "op", 1, 100, timeout_s=30) == 80
        assert one.ask("agree", "t", "op", 1, 120, 30) == 80
        assert twin.agree("t", "op", 2, 100, timeout_s=30) == 100
        assert becomes(lambda: post.cuts("t") == {("op", 1): 80, ("op", 2): 100})


def test_attempts_that_ask_at_the_same_time_agree(post: OrderPost) -> None:
    with contextlib.ExitStack() as opened:
        lines = [opened.enter_context(line(post.address)) for _ in range(6)]
        for channel in range(50):
            answers: list[int] = []

            def ask(number: int, channel: int = channel, into: list[int] = answers) -> None:
                into.append(lines[number].agree("t", "op", channel, number, timeout_s=30))

            asking = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
            assert answers == [post.cuts("t")["op", channel]] * 6


def test_a_cut_is_known_to_workers_that_did_not_ask(post: OrderPost) -> None:
    with line(post.address) as one, line(post.address) as other:
        assert one.agree("t", "op", 1, 80, timeout_s=30) == 80
        assert becomes(lambda: other.cut_of("t", "op", 1) == 80)


def test_a_try_that_is_over_is_forgotten_by_workers_too(post: OrderPost) -> None:
    with line(post.address) as worker:
        post.stop("t")
        assert worker.agree("t", "op", 1, 80, timeout_s=30) == 80
        post.forget("t")
        assert becomes(lambda: not worker.is_stopped("t"))
        assert worker.cut_of("t", "op", 1) is None
        assert not post.is_stopped("t") and post.cuts("t") == {}
        began_s = time.monotonic()
        assert worker.agree("t", "op", 1, 100, timeout_s=30) == 100  # a task that outlived it
        assert time.monotonic() - began_s < 10
        assert post.cuts("t") == {}


def test_tries_are_apart(post: OrderPost) -> None:
    with line(post.address) as worker:
        post.stop("a")
        assert worker.agree("b", "op", 1, 7, timeout_s=30) == 7
        assert worker.is_stopped("a") and not worker.is_stopped("b")
        assert worker.agree("a", "op", 1, 9, timeout_s=30) == 9
        post.forget("a")
        assert becomes(lambda: not worker.is_stopped("a"))
        assert worker.cut_of("b", "op", 1) == 7


# -- words -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_words_of_tasks_are_heard_one_at_a_time_and_in_order() -> None:
    heard: list[TaskWord] = []
    threads: set[int] = set()

    def hear(word: TaskWord) -> None:
        threads.add(threading.get_ident())
        heard.append(word)

    post = patient_post(hear)
    with WorkerProcess(post.address) as worker, line(post.address) as near:
        for rows in range(20):
            worker.ask("tell", "t", "far", 1, "1.0", 7, rows, 0.5, rows == 19)
            near.tell(TaskWord("t", "near", 1, "1.0", 7, rows, 0.5, rows == 19))
        assert becomes(lambda: len(heard) == 40)
    post.close()
    for operator in ("far", "near"):
        said = [word for word in heard if word.operator == operator]
        assert [word.rows for word in said] == list(range(20))
        assert said[-1] == TaskWord("t", operator, 1, "1.0", 7, 19, 0.5, True)
    assert len(threads) == 1 and threads != {threading.get_ident()}


@pytest.mark.usefixtures("patient")
def test_an_ear_that_fails_hears_the_next_word(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    def hear(word: TaskWord) -> None:
        heard.append(word.rows)
        raise RuntimeError("no use for it")

    post = patient_post(hear)
    with line(post.address) as worker:
        for rows in range(3):
            worker.tell(TaskWord("t", "op", 1, "1.0", 7, rows, 0.5, False))
        assert becomes(lambda: len(heard) == 3)
        assert worker.agree("t", "op", 1, 5, timeout_s=30) == 5
    post.close()
    assert caplog.text.count("WARNING") == 1 and "no use for it" in caplog.text


@pytest.mark.usefixtures("patient")
def test_an_ear_that_hangs_holds_up_no_agreement() -> None:
    gate = threading.Event()
    post = patient_post(lambda word: gate.wait(30) and None)
    with line(post.address) as worker:
        for _ in range(10_000):  # more than wait anywhere
            worker.tell(WORD)
        assert worker.agree("t", "op", 1, 5, timeout_s=30) == 5
        assert post.cuts("t") == {("op", 1): 5}
    gate.set()
    post.close()


def test_a_word_that_can_not_be_sent_is_lost_and_nothing_else(post: OrderPost) -> None:
    with line(post.address) as worker:
        worker.tell(TaskWord("t", "op", 1, "1.0", 7, 2**80, 0.5, False))
        worker.tell(TaskWord("t", "op", 1, "\ud800", 7, 1, 0.5, False))
        worker.tell(TaskWord("t", "op" * 100_000, 1, "1.0", 7, 1, 0.5, False))
        assert worker.agree("t", "op", 1, 5, timeout_s=30) == 5
        assert post.cuts("t") == {("op", 1): 5}


@pytest.mark.usefixtures("patient")
def test_who_hears_may_order() -> None:
    post = patient_post(lambda word: post.stop(word.token))
    with line(post.address) as worker:
        worker.tell(WORD)
        assert becomes(lambda: worker.is_stopped("t"))
    post.close()


# -- without each other ------------------------------------------------------------------------


def test_without_an_address_nobody_orders_anything() -> None:
    nobody = line_to(None)
    assert nobody is line_to(None)
    assert not nobody.is_stopped("t")
    assert nobody.cut_of("t", "op", 1) is None
    assert nobody.agree("t", "op", 1, 80, timeout_s=30) == 80
    nobody.tell(WORD)


def test_a_driver_that_can_not_be_reached_orders_nothing_and_costs_no_time() -> None:
    address = LineAddress(HOST, unused_port(), b"k" * 32)
    began_s = time.monotonic()
    with line(address) as worker:
        assert not worker.is_stopped("t")
        assert worker.agree("t", "op", 1, 80, timeout_s=30) == 80
        worker.tell(WORD)
    assert time.monotonic() - began_s < 20


def test_a_driver_that_accepts_and_says_nothing_delays_a_task_once() -> None:
    release = threading.Event()
    with answering(lambda client: release.wait(30) and None) as port:
        began_s = time.monotonic()
        with line(LineAddress(HOST, port, b"k" * 32)) as worker:
            assert time.monotonic() - began_s < 20
            began_s = time.monotonic()
            for _ in range(100):
                worker.reach()
                worker.tell(WORD)
                assert worker.agree("t", "op", 1, 80, timeout_s=30) == 80
            assert time.monotonic() - began_s < 20
        release.set()


def test_a_driver_that_is_not_there_is_not_asked_again_at_once() -> None:
    tries: list[float] = []
    with (
        answering(lambda client: tries.append(time.monotonic())) as port,
        line(LineAddress(HOST, port, b"k" * 32), retry_s=2) as worker,
    ):
        assert becomes(lambda: worker.tell(WORD) or len(tries) == 4)
    gaps_s = [after - before for before, after in pairwise(tries)]
    assert min(gaps_s) > 1


def test_a_driver_that_vanishes_orders_nothing_more(post: OrderPost) -> None:
    with line(post.address, retry_s=1000) as worker:
        post.stop("t")
        assert worker.agree("t", "op", 1, 80, timeout_s=30) == 80
        post.close()
        assert becomes(lambda: worker.agree("t", "op", 2, 5, timeout_s=0.01) == 5)
        assert worker.is_stopped("t")  # what was ordered holds
        assert worker.agree("t", "op", 1, 100, timeout_s=30) == 80
        began_s = time.monotonic()
        assert worker.agree("t", "op", 3, 6, timeout_s=30) == 6
        worker.tell(WORD)
        assert time.monotonic() - began_s < 10


def test_a_driver_that_vanishes_while_it_is_asked_is_not_waited_for(post: OrderPost) -> None:
    def vanish(client: socket.socket) -> None:
        """Passes on what the driver says until the worker has asked; then it is gone."""
        with socket.create_connection((post.address.host, post.address.port)) as driver:
            driver.settimeout(0.01)
            client.settimeout(0.01)
            while b"wish" not in (said := _some(client)):
                driver.sendall(said)
                client.sendall(_some(driver))

    with answering(vanish) as port:
        address = LineAddress(HOST, port, post.address.key)
        with line(address, retry_s=1000) as worker:
            post.stop("t")
            assert becomes(lambda: worker.is_stopped("t"))  # it was connected
            began_s = time.monotonic()
            assert worker.agree("t", "op", 1, 5, timeout_s=60) == 5
            assert time.monotonic() - began_s < 30


def _some(connected: socket.socket) -> bytes:
    try:
        return connected.recv(4096)
    except TimeoutError:
        return b""


def test_a_connection_that_broke_is_made_again_and_knows_what_changed(post: OrderPost) -> None:
    pipes: list[socket.socket] = []

    def pass_on(client: socket.socket) -> None:
        with socket.create_connection((post.address.host, post.address.port)) as driver:
            pipes.append(client)
            driver.settimeout(0.01)
            client.settimeout(0.01)
            while True:
                driver.sendall(_some(client))
                client.sendall(_some(driver))

    with answering(pass_on) as port:
        address = LineAddress(HOST, port, post.address.key)
        with line(address, retry_s=0.2) as worker:
            post.stop("a")
            assert becomes(lambda: worker.is_stopped("a"))
            pipes[0].shutdown(socket.SHUT_RDWR)
            post.forget("a")
            post.stop("b")
            assert becomes(lambda: worker.tell(WORD) or worker.is_stopped("b"))
            assert not worker.is_stopped("a")
            assert len(pipes) >= 2
            for pipe in pipes:
                with contextlib.suppress(OSError):
                    pipe.shutdown(socket.SHUT_RDWR)


def test_a_worker_that_is_stopped_holds_up_nobody(
    post: OrderPost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "braided")
    with WorkerProcess(post.address) as frozen, line(post.address) as worker:
        assert frozen.ask("is_stopped", "t") is False
        os.kill(frozen.process.pid, signal.SIGSTOP)
        slowest_s = 0.0
        name = "t" * 10_000  # so that what nobody reads is much: more than the kernel takes
        for number in range(3_000):
            began_s = time.monotonic()
            post.stop(f"{name}{number}")
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            if number % 100 == 0:
                assert becomes(lambda number=number: worker.is_stopped(f"{name}{number}"))
        assert slowest_s < 20
        assert "is left to itself" in caplog.text  # so there was something to be held up by
        assert worker.agree("t", "op", 1, 5, timeout_s=30) == 5
        assert post.cuts("t") == {("op", 1): 5}
        began_s = time.monotonic()
        post.close()
        assert time.monotonic() - began_s < 20


# -- the lines of a process --------------------------------------------------------------------


def test_a_process_has_one_line_to_a_driver(post: OrderPost) -> None:
    same = LineAddress(post.address.host, post.address.port, bytes(post.address.key))
    assert line_to(post.address) is line_to(same)
    line_to(post.address).close()


@pytest.mark.usefixtures("patient")
def test_a_process_keeps_the_lines_that_it_used_last() -> None:
    posts = [patient_post() for _ in range(9)]
    lines = [line_to(post.address) for post in posts[:8]]
    assert line_to(posts[0].address) is lines[0]  # used again, so another is the oldest
    lines.append(line_to(posts[8].address))
    for post in posts:
        post.stop("t")
    assert all(becomes(lambda n=n: lines[n].is_stopped("t")) for n in (0, *range(2, 9)))
    assert not lines[1].is_stopped("t")
    for post in posts:
        post.close()


def test_a_forked_worker_has_a_line_of_its_own(post: OrderPost) -> None:
    post.stop("before")
    with WorkerProcess(post.address) as worker:
        assert worker.ask("await_stop", "before") is True
        assert worker.ask("fork") == "child"
        assert worker.ask("is_stopped", "before") is True
        post.stop("child")
        assert worker.ask("await_stop", "child") is True
        assert worker.ask("agree", "child", "op", 1, 80, 30) == 80
        worker.begin("end")
        assert worker.answer() == "parent"
        assert worker.ask("agree", "child", "op", 1, 100, 30) == 80
        post.stop("parent")  # whose connection the child's end has not closed
        assert worker.ask("await_stop", "parent") is True


# -- the post itself ---------------------------------------------------------------------------


def test_an_address_travels_and_does_not_show_its_key(post: OrderPost) -> None:
    assert pickle.loads(pickle.dumps(post.address)) == post.address
    assert post.address.host == HOST and len(post.address.key) == 32
    assert "key" not in repr(post.address) and str(post.address.key) not in repr(post.address)


@pytest.mark.usefixtures("patient")
def test_a_closed_post_leaves_no_thread_and_no_listener() -> None:
    before = set(threading.enumerate())
    post = patient_post(lambda word: None)
    with line(post.address) as worker:
        post.stop("t")
        assert becomes(lambda: worker.is_stopped("t"))
        post.close()
        post.close()
        with pytest.raises(OSError):
            socket.create_connection((post.address.host, post.address.port), 5)
        post.stop("later")
        post.forget("t")
    assert becomes(lambda: set(threading.enumerate()) <= before)


@pytest.mark.usefixtures("patient")
def test_an_ear_may_close_the_post() -> None:
    closed = threading.Event()

    def hear(word: TaskWord) -> None:
        post.close()
        closed.set()

    post = patient_post(hear)
    with line(post.address) as worker:
        worker.tell(WORD)
        assert closed.wait(30)


def test_no_host_is_not_every_interface() -> None:
    with pytest.raises(ValueError, match="every interface"):
        OrderPost("")
