#!/usr/bin/env python3
"""Trains with a mirror on a real S3 server (moto, on loopback) behind a proxy that spoils requests, and kills the training again and again.

Half of the kills delete the run directory too. The run must end with parameters, moments, state and metrics of an undisturbed one, and the
mirror must hold what its directory holds. Faults: status 500, 503, 403, no answer, a body that is cut, and bytes that were changed on the way
to the store and back.

    tests/slow/mirror.py [--kills 20] [--faults 50] [--seed 0]

moto is installed into target/moto on the first run.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from measured import MEASURED  # noqa: E402

NESTOR = os.environ.get("NESTOR", str(ROOT / "target/release/nestor"))
PACKAGES = ["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"]
BUCKET = "runs"
FAULTS = ["500", "503", "403", "silence", "cut", "bytes"]
SILENCE_S = 2


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_server():
    """Starts moto's server; returns the process and its port."""
    python = ROOT / "target/moto/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ROOT / "target/moto"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    port = free_port()
    log = open(ROOT / "target/moto/server.log", "w")
    server = subprocess.Popen([python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    for _ in range(300):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request, timeout=5)
            return server, port
        except OSError:
            time.sleep(0.2)
    raise SystemExit("moto's server does not answer")


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server, and spoils some of them."""
    daemon_threads = True

    def __init__(self, port, seed):
        super().__init__(("127.0.0.1", 0), Handler)
        self.to, self.random, self.rate, self.left, self.done, self.lock = port, random.Random(seed), 0.0, 0, Counter(), threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def fault(self, method):
        with self.lock:
            if self.left == 0 or self.random.random() > self.rate:
                return None
            self.left -= 1
            fault = self.random.choice(FAULTS)
            self.done[f"{fault} {method}"] += 1
            return fault

    def handle_error(self, request, address):
        pass  # a client that was killed


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        fault = self.server.fault(self.command)
        if fault in ("500", "503", "403"):
            return self.answer(int(fault), {}, b"<Error><Code>AccessDenied</Code></Error>" if fault == "403" else b"")
        if fault == "silence":
            time.sleep(SILENCE_S)
            return self.close()
        if fault == "cut" and self.command == "PUT":
            return self.close()
        if fault == "bytes" and self.command == "PUT" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
            # S3 compares a body with the checksum that signs it; moto does not.
            if hashlib.sha256(body).hexdigest() != self.headers.get("x-amz-content-sha256"):
                return self.answer(400, {}, b"<Error><Code>XAmzContentSHA256Mismatch</Code></Error>")
        connection = HTTPConnection("127.0.0.1", self.server.to, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        found = connection.getresponse()
        content = found.read()
        headers = {k: v for k, v in found.getheaders() if k.lower() not in ("transfer-encoding", "connection", "date", "server")}
        if fault == "cut" and content:
            self.answer(found.status, headers, content[:len(content) // 2], len(content))
            return self.close()
        if fault == "bytes" and content and self.command == "GET":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.answer(found.status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

    def answer(self, status, headers, content, length=None):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        given = headers.get("Content-Length") or headers.get("content-length")
        self.send_header("Content-Length", given if self.command == "HEAD" and given else str(length or len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def close(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *words):
        pass


def command(run_dir, *more):
    settings = {"deterministic": "true", "dtype": "float32", "device": "cpu", "iterations": 120, "checkpoint.every": 1, "eval.every": 4,
                "warm_start.steps": 20}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [NESTOR, "train", str(ROOT / "recipes/smoke/gigpo.yaml"), *sets, "--run-dir", str(run_dir), *more]


def outcome(run_dir):
    last = sorted((run_dir / "checkpoints").glob("iteration-*"))[-1]
    contents = {path.name: path.read_bytes() for path in [*last.glob("*.safetensors"), last / "state.json"]}
    rows = [json.loads(line) for name in ("metrics.jsonl", "steps.jsonl") for line in (run_dir / name).read_text().splitlines()]
    return last.name, contents, [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]


def is_fetching(log):
    """True until the log tells that a fetch has ended, or that the run begins without one."""
    text = log.read_text()
    return "fetched " not in text and "parameters" not in text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    numbers = random.Random(args.seed)
    server, port = start_server()
    proxy = Proxy(port, args.seed)
    environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}", "AWS_ACCESS_KEY_ID": "key",
                   "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            began = time.monotonic()
            subprocess.run(command(scratch / "whole"), check=True, capture_output=True)
            alone = time.monotonic() - began
            want, run_dir, mirror = outcome(scratch / "whole"), scratch / "run", f"s3://{BUCKET}/{args.seed}/run"
            kills = deleted = ended = fetching = fetched = refused = 0
            proxy.rate, proxy.left = 0.1, args.faults
            while True:
                log = open(scratch / "log.txt", "w+")
                run = subprocess.Popen(command(run_dir, "--set", f"checkpoint.mirror={mirror}", "--resume", "auto"), env=environment,
                                       stdout=log, stderr=log)
                ends = kills >= args.kills
                whole = numbers.random() < 0.7  # a fetch may end before the kill
                while whole and run.poll() is None and is_fetching(scratch / "log.txt"):
                    time.sleep(0.05)
                try:
                    run.wait(None if ends else numbers.uniform(0.05, 0.8) * alone)
                except subprocess.TimeoutExpired:
                    run.kill()
                    run.wait()
                    kills += 1
                    if numbers.random() < 0.5 and run_dir.exists():
                        shutil.rmtree(run_dir)
                        deleted += 1
                text = (scratch / "log.txt").read_text()
                fetching += "fetching the run" in text
                fetched += "fetched iteration" in text or "fetched warm-start" in text
                if run.returncode in (1, 2):
                    refused += 1  # the store gave no answer, or refused, when the run began
                    assert refused < args.faults, text
                    print(f"  {text.strip().splitlines()[-1]}"[:300])
                    continue
                if run.returncode == 0:
                    assert outcome(run_dir) == want, "the run ended otherwise than an undisturbed one"
                    if ends and proxy.left == 0:
                        break
                    shutil.rmtree(run_dir)
                    ended += 1
                    mirror = f"s3://{BUCKET}/{args.seed}/run-{ended}"  # begins anew
                elif run.returncode != -signal.SIGKILL:
                    raise SystemExit(f"exit code {run.returncode}: {text}")
            assert proxy.left == 0 or ends
            # The mirror holds what the directory holds.
            shutil.move(run_dir, scratch / "first")
            run = subprocess.run(command(run_dir, "--set", f"checkpoint.mirror={mirror}", "--resume", "auto"), env=environment,
                                 capture_output=True, text=True)
            assert run.returncode == 0 and outcome(run_dir) == want, run.stderr
            print(f"{kills} kills, {deleted} of them with the directory, and {ended} ends before a kill; {fetching} fetches begun and {fetched} ended, {refused} starts refused by a fault; "
                  f"faults {dict(sorted(proxy.done.items()))}; the end is bit-identical")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
