#!/usr/bin/env python3
"""`nestor view --serve` beside a crowd of clients that misuse it, and large pages that nobody reads:

    tests/slow/view_crowd.py [--seconds 60] [--nestor PROGRAM]

The owner's page must come within a second, memory stay within 100 MB of idle, and SIGINT, then SIGTERM, end the program with 0
within a second while all clients are connected.
"""
import argparse
import http.client
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from rude_clients import clients, crowd, memory  # noqa: E402
from view_runs import write_run  # noqa: E402


def page(host, path):
    """The seconds in which the owner gets the page, and its bytes."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("GET", path)
    with connection.getresponse() as response:
        length = len(response.read())
        return time.monotonic() - begin, length


def measure(args, run, number):
    command = [args.nestor, "view", str(run), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        url = urllib.parse.urlsplit(process.stdout.readline().strip())
        try:
            alone, length = page(url.netloc, url.path)
            idle = memory(process.pid)
            with crowd(url.netloc, url.path):
                times, end = [], time.monotonic() + args.seconds
                while time.monotonic() < end:
                    times.append(page(url.netloc, url.path)[0])
                    time.sleep(0.05)
                more = (memory(process.pid) - idle) / 1e6
                process.send_signal(number)
                begin = time.monotonic()
                code = process.wait(20)
                ended = time.monotonic() - begin
        finally:
            process.kill()
    print(f"{len(clients('h:1', '/'))} kinds of clients: page of {length / 1e6:.1f} MB in {alone:.2f} s alone; {len(times)} times beside them, "
          f"at most {max(times):.2f} s; {more:.0f} MB more memory; {number.name} ended it with {code} in {ended:.2f} s", flush=True)
    return max(times) < alone + 1 and more < 100 and code == 0 and ended < 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--nestor", default=str(ROOT / "target/release/nestor"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = write_run(Path(folder) / "small")
        large = write_run(Path(folder) / "large", iterations=1000, episodes=16, group_size=8, turns=1, tokens=2)
        results = [measure(args, run, number) for run in (small, large) for number in (signal.SIGINT, signal.SIGTERM)]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
