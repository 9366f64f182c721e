"""What stands between the query and its store, against a server that counts what it is asked."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.chaos.store_proxy import Misbehaviour, StoreProxy, proxied

BODY = b"x" * 200_000


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[int] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(len(body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxy(server: Server) -> Iterator[StoreProxy]:
    with proxied(f"http://127.0.0.1:{server.server_port}") as proxy:
        yield proxy


@pytest.fixture
def client(proxy: StoreProxy) -> Iterator[http.client.HTTPConnection]:
    client = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=60)
    yield client
    client.close()


def put(client: http.client.HTTPConnection) -> int:
    client.request("PUT", "/object", BODY)
    answer = client.getresponse()
    answer.read()
    return answer.status


def turn(proxy: StoreProxy, how: Misbehaviour | None) -> None:
    proxy.misbehave(how)
    done = threading.Event()
    proxy._loop.call_soon_threadsafe(done.set)  # after what was asked for before
    done.wait()


def test_requests_pass_on_one_connection(
    client: http.client.HTTPConnection, server: Server, proxy: StoreProxy
) -> None:
    assert [put(client) for _ in range(3)] == [200, 200, 200]
    assert server.asked == [len(BODY)] * 3
    assert proxy.affected == 0


def test_with_errors_the_store_is_not_asked(
    client: http.client.HTTPConnection, server: Server, proxy: StoreProxy
) -> None:
    assert put(client) == 200
    turn(proxy, Misbehaviour.ERRORS)
    client.request("PUT", "/object", b"small")
    assert client.getresponse().status == 503
    turn(proxy, None)
    client.close()
    assert put(client) == 200
    assert server.asked == [len(BODY)] * 2


def test_a_lost_answer_is_of_a_request_that_was_done(
    client: http.client.HTTPConnection, server: Server, proxy: StoreProxy
) -> None:
    assert put(client) == 200
    turn(proxy, Misbehaviour.LOST_ANSWERS)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(client)
    assert server.asked == [len(BODY)] * 2
    turn(proxy, None)
    client.close()
    assert put(client) == 200


def test_connections_are_reset_before_the_store_is_asked(
    client: http.client.HTTPConnection, server: Server, proxy: StoreProxy
) -> None:
    turn(proxy, Misbehaviour.GONE)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(client)
    assert server.asked == []


def test_silence_ends_and_what_was_asked_for_is_done(
    client: http.client.HTTPConnection, server: Server, proxy: StoreProxy
) -> None:
    turn(proxy, Misbehaviour.SILENT)
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(put(client)))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive() and server.asked == []
    turn(proxy, None)
    asking.join(60)
    assert statuses == [200] and server.asked == [len(BODY)]


def test_late_requests_come_all_the_same(
    client: http.client.HTTPConnection, server: Server, proxy: StoreProxy
) -> None:
    turn(proxy, Misbehaviour.LATE)
    begun = time.monotonic()
    assert put(client) == 200
    assert time.monotonic() - begun >= 0.4
    assert proxy.affected == 1
