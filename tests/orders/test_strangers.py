"""Who has no key gets nowhere, who talks nonsense is hung up on, and workers do not notice."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError

import msgspec
import pytest

from braided.orders.address import LineAddress
from braided.orders.line import OrderLine
from braided.orders.messages import CutWish, TaskWord, encode
from braided.orders.post import OrderPost
from braided.orders.wire import MESSAGE_BYTES_MAX, Wire
from support.order_peers import (
    DEADLINE_S,
    HOST,
    Recorder,
    WorkerProcess,
    answering,
    becomes,
    framed,
    last_words,
    patience,
    patient_post,
    proven,
)

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

WORD = TaskWord("t", "op", 3, "3.0", 7, 1_000, 0.25, False)


@pytest.fixture
def heard() -> list[TaskWord]:
    return []


@pytest.fixture
def post(heard: list[TaskWord]) -> Iterator[OrderPost]:
    opened = patient_post(heard.append)
    yield opened
    opened.close()


@pytest.fixture
def worker(post: OrderPost) -> Iterator[OrderLine]:
    """A good worker, which was there before the others came."""
    line = OrderLine(post.address)
    with patience():
        line.reach()
    yield line
    line.close()


def connected(post: OrderPost) -> socket.socket:
    return socket.create_connection((post.address.host, post.address.port))


def assert_all_is_well(post: OrderPost, worker: OrderLine) -> None:
    """For the worker that was there before, and for one that comes now."""
    post.stop("well")
    assert becomes(lambda: worker.is_stopped("well"))
    with WorkerProcess(post.address) as later:
        assert later.ask("is_stopped", "well") is True
        assert later.ask("agree", "well", "op", 1, 5, 30) == 5
    assert becomes(lambda: worker.cut_of("well", "op", 1) == 5)


# -- without the key ---------------------------------------------------------------------------


def test_a_wrong_key_is_refused(post: OrderPost, worker: OrderLine, heard: list[TaskWord]) -> None:
    post.stop("t")
    wrong = LineAddress(post.address.host, post.address.port, b"k" * 32)
    with pytest.raises(AuthenticationError):
        proven(wrong)
    stranger = OrderLine(wrong)
    stranger.reach()
    assert not stranger.is_stopped("t")
    stranger.tell(WORD)
    assert stranger.agree("t", "op", 1, 80, timeout_s=0.1) == 80
    assert post.cuts("t") == {} and heard == []
    stranger.close()
    assert_all_is_well(post, worker)


def test_a_driver_without_the_key_is_not_obeyed(post: OrderPost) -> None:
    impostor = OrderPost(HOST)
    impostor.stop("t")
    line = OrderLine(LineAddress(HOST, impostor.address.port, post.address.key))
    line.reach()
    assert not line.is_stopped("t")
    assert line.agree("t", "op", 1, 80, timeout_s=0.1) == 80
    line.close()
    impostor.close()


def test_a_recorded_session_is_refused_when_it_is_played_again(
    post: OrderPost, worker: OrderLine, heard: list[TaskWord]
) -> None:
    post.stop("t")
    recorder = Recorder(post.address)
    line = OrderLine(recorder.address)
    line.reach()
    assert line.is_stopped("t")
    line.tell(WORD)
    assert line.agree("t", "op", 1, 80, timeout_s=30) == 80
    assert becomes(lambda: len(heard) == 1)
    line.close()
    recorder.close()
    assert encode(WORD) in recorder.to_driver and b"#WELCOME#" in recorder.to_worker

    with connected(post) as stranger:
        stranger.sendall(recorder.to_driver)
        answer = last_words(stranger)
    assert b"#FAILURE#" in answer and b"#WELCOME#" not in answer and b"stop" not in answer
    post.forget("t")
    assert_all_is_well(post, worker)
    assert heard == [WORD] and post.cuts("t") == {}

    def play(client: socket.socket) -> None:
        client.sendall(recorder.to_worker)
        last_words(client)

    with answering(play) as port:
        fooled = OrderLine(LineAddress(HOST, port, post.address.key))
        fooled.reach()
        assert not fooled.is_stopped("t")
        fooled.close()


HALVES = {
    "nothing": b"",
    "part of a length": b"\0",
    "half a message": framed(b"x" * 16)[:10],
    "part of a long one": b"\xff\xff\xff\xff\0\0",
    "a giant": b"\x7f\xff\xff\xff" + b"x" * 100,
}


@contextlib.contextmanager
def strangers_who_wait(post: OrderPost) -> Iterator[dict[str, socket.socket]]:
    """One for each half of something, which is all it says."""
    with contextlib.ExitStack() as opened:
        strangers = {}
        for name, said in HALVES.items():
            strangers[name] = opened.enter_context(connected(post))
            strangers[name].sendall(said)
        yield strangers


def test_who_says_half_of_something_and_waits_holds_up_nobody(
    post: OrderPost, worker: OrderLine
) -> None:
    with strangers_who_wait(post):  # the post waits too, longer than this lasts
        assert_all_is_well(post, worker)


def test_who_says_half_of_something_and_waits_is_hung_up_on_whatever_else_waits(
    post: OrderPost,
) -> None:
    gate = threading.Event()
    hasty = OrderPost(HOST, lambda word: gate.wait(DEADLINE_S) and None)
    with (
        contextlib.closing(proven(hasty.address)) as guest,
        strangers_who_wait(post) as spared,
        strangers_who_wait(hasty) as strangers,
    ):
        began_s = time.monotonic()
        guest.send_bytes(encode(WORD))  # at which the ear hangs
        for number in range(500):
            hasty.stop("t" * 10_000 + str(number))  # none of which the guest reads
        for name, stranger in strangers.items():
            assert b"#WELCOME#" not in last_words(stranger), name
        assert time.monotonic() - began_s < 20
        with pytest.raises(TimeoutError):  # how long a post waits is its own
            last_words(spared["nothing"], 0.1)
    gate.set()
    hasty.close()


def test_who_says_half_of_something_and_leaves_is_nobody(
    post: OrderPost, worker: OrderLine
) -> None:
    for length in range(20):
        with connected(post) as stranger:
            stranger.sendall(framed(b"x" * 16)[:length])
    assert_all_is_well(post, worker)


def test_who_trickles_is_hung_up_on_all_the_same() -> None:
    post = OrderPost(HOST, greeting_s=1.0)
    with connected(post) as stranger, contextlib.suppress(ConnectionError):
        began_s = time.monotonic()
        stranger.settimeout(0.1)
        stranger.sendall(framed(b"x" * 250)[:4])
        while time.monotonic() - began_s < 20:
            stranger.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if stranger.recv(4096) == b"":
                    break
    assert time.monotonic() - began_s < 15
    post.close()


def test_many_silent_clients_leave_room_for_workers(post: OrderPost, worker: OrderLine) -> None:
    with contextlib.ExitStack() as opened:
        began_s = time.monotonic()
        silent = [opened.enter_context(connected(post)) for _ in range(300)]
        for oldest in silent[:200]:
            last_words(oldest)
        assert time.monotonic() - began_s < 30  # for room, not because their time was up
        assert_all_is_well(post, worker)


def test_random_bytes_end_nothing_but_their_connection(post: OrderPost, worker: OrderLine) -> None:
    before = threading.active_count()
    dice = random.Random(20)
    for _ in range(1_000):
        noise = dice.randbytes(dice.choice([1, 3, 4, 5, 24, 100, 5_000]))
        if dice.random() < 0.5:
            noise = framed(noise)
        # A listener that has hung up already is as good as any.
        with connected(post) as stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(noise)
    assert_all_is_well(post, worker)
    assert becomes(lambda: threading.active_count() <= before)


# -- with the key ------------------------------------------------------------------------------


def test_random_messages_end_nothing_but_their_connection(
    post: OrderPost, worker: OrderLine, heard: list[TaskWord]
) -> None:
    before = threading.active_count()
    dice = random.Random(21)
    for _ in range(1_000):
        guest = proven(post.address)
        with contextlib.suppress(OSError):
            guest.send_bytes(nonsense(dice))
        guest.close()
    assert_all_is_well(post, worker)
    assert becomes(lambda: threading.active_count() <= before)
    assert heard == [] and post.cuts("t") == {}


def nonsense(dice: random.Random) -> bytes:
    """Bytes, or msgpack that is none of the messages, or a message of which a part is missing."""
    good = encode(dice.choice([WORD, CutWish("t", "op", 1, 80)]))
    fields = msgspec.msgpack.decode(good)
    name = dice.choice(sorted(fields))
    match dice.randrange(7):
        case 0:
            return dice.randbytes(dice.choice([0, 1, 2, 10, 100, 5_000]))
        case 1:
            return good[: dice.randrange(len(good))]
        case 2:
            return good + dice.randbytes(1)
        case 3:
            return msgspec.msgpack.encode({**fields, name: [name]})
        case 4:
            return msgspec.msgpack.encode({key: fields[key] for key in fields if key != name})
        case 5:
            return msgspec.msgpack.encode({**fields, "more": 1})
        case _:
            return b"\x91" * dice.randrange(1, 60_000)  # lists in lists


def test_a_malformed_message_costs_the_connection(post: OrderPost, worker: OrderLine) -> None:
    guest = proven(post.address)
    guest.send_bytes(b"\xc0")
    with pytest.raises((EOFError, OSError)):
        for _ in range(1_000):
            guest.recv_bytes()
    guest.close()
    assert_all_is_well(post, worker)


def test_half_a_message_after_the_challenge_holds_up_nobody(
    post: OrderPost, worker: OrderLine, heard: list[TaskWord]
) -> None:
    message = framed(encode(WORD))
    guests = []
    for length in range(1, len(message), 7):
        guest = proven(post.address)
        with socket.socket(fileno=guest.fileno()) as raw:
            raw.sendall(message[:length])
            raw.detach()  # it stays the guest's
        guests.append(guest)
    assert_all_is_well(post, worker)
    for guest in guests:
        guest.close()
    assert heard == []


def test_a_message_that_is_too_long_is_not_read(post: OrderPost, worker: OrderLine) -> None:
    guest = proven(post.address)
    with pytest.raises((EOFError, OSError)):
        guest.send_bytes(encode(CutWish("t", "op" * MESSAGE_BYTES_MAX, 1, 80)))
        for _ in range(1_000):
            guest.recv_bytes()
    guest.close()
    assert_all_is_well(post, worker)
    assert post.cuts("t") == {}


def test_an_order_that_is_none_costs_a_worker_its_line_and_nothing_else() -> None:
    key = b"k" * 32
    dice = random.Random(22)
    served = 0

    def misorder(client: socket.socket) -> None:
        nonlocal served
        wire = Wire(client.dup())
        with contextlib.suppress(OSError, EOFError):
            wire.admit(key, 5)
            wire.send([nonsense(dice)])
            with contextlib.suppress(EOFError, OSError):
                wire.receive()
        wire.close()
        served += 1

    with answering(misorder) as port:
        line = OrderLine(LineAddress(HOST, port, key), retry_s=0)
        line.reach()
        assert becomes(lambda: line.tell(WORD) or served >= 100)
        assert not line.is_stopped("t")
        assert line.agree("t", "op", 1, 80) == 80
        line.close()
