"""Clients that misuse a web server: they send slowly, never read, lie about lengths, or send too much. None but the last few has the key."""
import contextlib
import socket
import threading
import time

# Bytes of a header line without an end.
ENDLESS = 700 << 20
HALF_OPEN = 900


def drip(start, byte=b"a", pause=0.2):
    yield start
    while True:
        time.sleep(pause)
        yield byte


def flood(start, size, end=b""):
    yield start
    for _ in range(size >> 20):
        yield b"a" * (1 << 20)
    yield end


def clients(host, path):
    """The bytes that each client sends, by name, to a server at this host with a page at this path: chunks, after which it keeps the socket open."""
    def head(line, *headers, named=host):
        return "\r\n".join([line, f"Host: {named}", *headers, "", ""]).encode()
    get = head(f"GET {path} HTTP/1.1")
    stranger = "GET /index HTTP/1.1"
    return {
        "says nothing": lambda: [],
        "half a request line": lambda: [b"GET / HT"],
        "slow request line": lambda: drip(b"GET /"),
        "slow header": lambda: drip(head(stranger)[:-2] + b"X: "),
        "slow header names": lambda: drip(head(stranger)[:-2], b"A: b\r\n"),
        "slow body": lambda: drip(head("POST /x HTTP/1.1", "Content-Length: 1000000")),
        "no body": lambda: [head("POST /x HTTP/1.1", "Content-Length: 1000000")],
        "no body, no host": lambda: [b"GET / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n"],
        "a longer body": lambda: flood(head("POST / HTTP/1.1", "Content-Length: 4"), 64 << 20),
        "a huge body": lambda: flood(head("POST / HTTP/1.1", f"Content-Length: {1 << 40}"), 256 << 20),
        "a length of 2^64": lambda: [head("POST / HTTP/1.1", f"Content-Length: {1 << 64}")],
        "a negative length": lambda: [head("POST / HTTP/1.1", "Content-Length: -1")],
        "two lengths": lambda: [head("POST / HTTP/1.1", "Content-Length: 5", "Content-Length: 500000")],
        "chunked": lambda: drip(head("POST / HTTP/1.1", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n", b"1\r\na\r\n"),
        "a huge chunk": lambda: [head("POST / HTTP/1.1", "Transfer-Encoding: chunked"), b"ffffffffffffffff\r\nabc"],
        "chunked and a length": lambda: [head("POST / HTTP/1.1", "Transfer-Encoding: chunked", "Content-Length: 7"), b"0\r\n"],
        "expects 100-continue": lambda: [head("POST / HTTP/1.1", "Expect: 100-continue", "Content-Length: 9999")],
        "upgrade": lambda: [head("GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==")],
        "HTTP/2 by prior knowledge": lambda: [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)],
        "HTTP/0.9": lambda: [b"GET /\r\n"],
        "HTTP/1.0": lambda: [b"GET / HTTP/1.0\r\n\r\n"],
        "garbage": lambda: [bytes(range(256)) * 64],
        "zeros": lambda: flood(b"", 16 << 20, bytes(1 << 20)),
        "a TLS hello": lambda: [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512)],
        "line ends alone": lambda: flood(b"", 0, b"\r\n" * (1 << 20)),
        "an endless header": lambda: flood(b"GET / HTTP/1.1\r\nX: ", ENDLESS),
        "an endless request line": lambda: flood(b"GET /", ENDLESS),
        "a million headers": lambda: [b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1_000_000],
        "HEAD": lambda: [head("HEAD / HTTP/1.1")],
        "OPTIONS": lambda: [head("OPTIONS * HTTP/1.1")],
        "CONNECT": lambda: [head("CONNECT example.org:443 HTTP/1.1"), b"\x16\x03"],
        "an absolute target": lambda: [head(f"GET http://{host}/ HTTP/1.1")],
        "a target of another host": lambda: [head("GET http://example.org/ HTTP/1.1")],
        "two hosts": lambda: [head("GET / HTTP/1.1", "Host: example.org")],
        "pipelined": lambda: [head(stranger) * 10_000],
        "pipelined bodies": lambda: [head("POST / HTTP/1.1", "Content-Length: 1") * 10_000],
        # These have the key.
        "the page, unread": lambda: [get],
        "the page, pipelined and unread": lambda: [get * 40],
        "the page, with a body": lambda: drip(head(f"GET {path} HTTP/1.1", "Content-Length: 100000")),
        "the page, by POST": lambda: drip(head(f"POST {path} HTTP/1.1", "Content-Length: 100000")),
    }


def misuse(port, send, stop):
    """Plays one client, and again when the server closes its socket."""
    while not stop.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            for chunk in send():
                client.sendall(chunk)
                if stop.is_set():
                    return
            while not stop.wait(0.2) and client.recv(1, socket.MSG_PEEK):
                pass
        stop.wait(0.05)


@contextlib.contextmanager
def crowd(host, path, half_open=HALF_OPEN):
    """All these clients at once, each in a thread, and sockets that say nothing."""
    port = int(host.rpartition(":")[2])
    stop = threading.Event()
    threads = [threading.Thread(target=misuse, args=(port, send, stop)) for send in clients(host, path).values()]
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [thread.join() for thread in threads])
        stack.callback(stop.set)
        for thread in threads:
            thread.start()
        for _ in range(half_open):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
        yield


def memory(pid):
    """Bytes of memory that a process has held at most."""
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
