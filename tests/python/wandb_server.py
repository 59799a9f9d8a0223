"""A W&B server for tests: answers the requests of `wandb sync` on loopback, and keeps all that it receives.

Modes: "ok"; "slow" (every answer takes SLOW seconds); "500" (every answer is an error); "dead" (nothing listens on the port).
"""
import json
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# Longer than any program that only has to give up, on any machine.
SLOW = 300
KEY = "local-" + "0123456789abcdef" * 2 + "01234567"  # the form of a key of a local server


@dataclass
class Received:
    """All that a server received. A stream's lines are numbered; a line with the same number replaces the one before."""
    url: str = ""
    streams: dict = field(default_factory=dict)  # run id -> file name -> place -> line
    finals: dict = field(default_factory=dict)  # run id -> the last message of its stream
    files: dict = field(default_factory=dict)  # path -> bytes
    queries: list = field(default_factory=list)  # (query, variables)
    bodies: list = field(default_factory=list)  # every byte received, headers excepted
    arrivals: list = field(default_factory=list)  # (time, number of history lines) of each stream message
    requests: int = 0

    def lines(self, run, name="wandb-history.jsonl"):
        """A stream's lines in order; its places must have no gap."""
        lines = self.streams.get(run, {}).get(name, {})
        assert sorted(lines) == list(range(len(lines))), sorted(lines)[:10]
        return [lines[place] for place in range(len(lines))]

    def rows(self, run):
        """History rows."""
        return [json.loads(line) for line in self.lines(run)]

    def summary(self, run):
        """The last summary."""
        return json.loads(self.lines(run, "wandb-summary.json")[-1])

    def exit_code(self, run):
        """The exit code; None while the run continues."""
        return self.finals.get(run, {}).get("exitcode")

    def variables(self, word):
        """The variables of all queries in which a word occurs."""
        return [variables for query, variables in self.queries if word in query]

    def config(self):
        """The last configuration that was set."""
        configs = [v["config"] for v in self.variables("upsertBucket") if v.get("config")]
        return json.loads(configs[-1])


def _answer(received, query, variables):
    if "upsertBucket" in query:
        project = {"name": variables.get("project") or "p", "entity": {"name": variables.get("entity") or "me"}}
        bucket = {"id": "b", "name": variables.get("name"), "displayName": "d", "project": project, "config": "{}"}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}
    if "createRunFiles" in query:
        files = [{"name": name, "uploadUrl": f"{received.url}/upload/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
    if "viewer" in query:
        return {"viewer": {"id": "u", "entity": "me", "username": "me", "teams": {"edges": []}, "flags": "{}"}}
    if "serverInfo" in query:
        return {"serverInfo": {"features": []}}
    return {}


def _handler(received, mode, lock):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                received.requests += 1
                received.bodies.append(self.path.encode() + b" " + body)
            if mode == "slow":
                time.sleep(SLOW)
            if mode == "500":
                return self.reply(500, b"{}")
            path = urlsplit(self.path).path
            with lock:
                answer = self.take(path, body)
            return self.reply(200, json.dumps(answer).encode())

        do_GET = do_POST = do_PUT = handle_any

        def take(self, path, body):
            if path.startswith("/upload/"):
                received.files[path.removeprefix("/upload/")] = body
                return {}
            stream = re.fullmatch(r"/files/[^/]*/[^/]*/([^/]+)/file_stream", path)
            if stream:
                message = json.loads(body)
                run = received.streams.setdefault(stream[1], {})
                for name, part in message.get("files", {}).items():
                    places = run.setdefault(name, {})
                    places.update(enumerate(part["content"], part["offset"]))
                received.arrivals.append((time.monotonic(), len(run.get("wandb-history.jsonl", {}))))
                if message.get("complete"):
                    received.finals[stream[1]] = message
                return {"limits": {}}
            if path.endswith("/graphql"):
                message = json.loads(body)
                variables = message.get("variables") or {}
                received.queries.append((message["query"], variables))
                return {"data": _answer(received, message["query"], variables)}
            return {}

        def reply(self, status, body):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that is killed leaves its connections open; that is expected."""


@contextmanager
def serve(mode="ok"):
    """A server in one of the modes: yields all that it receives, with its address as `url`."""
    received = Received()
    server = _Server(("127.0.0.1", 0), _handler(received, mode, threading.Lock()))
    received.url = f"http://127.0.0.1:{server.server_port}"
    if mode == "dead":
        server.server_close()
        yield received
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
