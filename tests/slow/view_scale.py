#!/usr/bin/env python3
"""Times the page of a long run: 200 iterations of 128 episodes, each of about 10 turns with 80 tokens or more.

Writes the run, makes its page, and opens it in Chromium: once at the curves, once at an episode list, and then goes to an
episode's turns. Exits with 1 unless each opens in under 3 s and the page is under 30 MB. The run takes 1.2 GB of disk.

    tests/slow/view_scale.py [--runs 1] [--iterations 200] [--episodes 128] [--turns 10] [--tokens 80]
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from view_runs import write_rest, write_run  # noqa: E402

# Set once the browser has painted the canvases of all curves, or the rows of the list.
WATCH = """new MutationObserver(() => {
  const root = document.documentElement;
  const there = root.dataset.ready && (location.hash ? document.querySelector('.episode') : document.querySelector('.plot canvas'));
  if (there && !window.seen) { window.seen = true; requestAnimationFrame(() => setTimeout(() => { window.drawn = performance.now(); })); }
}).observe(document, {subtree: true, childList: true, attributes: true});"""


def seconds_to_open(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(WATCH)
    page.goto(address)
    while (drawn := page.evaluate("window.drawn")) is None:
        time.sleep(0.05)
    page.close()
    return drawn / 1000


def seconds_to_turns(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.wait_for_selector(".episode:not(.left-out)")
    begin = time.monotonic()
    page.locator(".episode:not(.left-out)").first.click()
    page.wait_for_selector(".turn")
    return time.monotonic() - begin


def make_run(folder, number, args):
    """Every second run has another estimator, so that several form two variants."""
    estimator = ("gigpo", "grpo")[number % 2]
    recipe = f"seed: {number}\nestimator: {{plugin: {estimator}}}\n"
    run = write_run(folder / f"{estimator}-seed{number}", args.iterations, args.episodes, 8, args.turns, args.tokens, number, recipe)
    write_rest(run, args.iterations, number)
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("runs", 1), ("iterations", 200), ("episodes", 128), ("turns", 10), ("tokens", 80)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    view = os.environ.get("VIEW", ROOT / "target/release/view")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or parser.error("chromium is missing")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        page = Path(temporary) / "page.html"
        runs = [make_run(Path(temporary), number, args) for number in range(args.runs)]
        raw = sum(file.stat().st_size for run in runs for file in (run / "rollouts").iterdir())
        begin = time.monotonic()
        done = subprocess.run(["/usr/bin/env", "time", "-f", "peak memory %M kB", str(view), str(page), *map(str, runs)],
                              check=True, capture_output=True, text=True)
        print(f"rollout files {raw / 1e6:.0f} MB, page made in {time.monotonic() - begin:.1f} s, {done.stderr.strip()}")
        print(done.stdout.split("/")[-1].strip())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        times = {name: [seconds_to_open(browser, page.as_uri() + address) for _ in range(3)]
                 for name, address in (("curves", ""), ("episode list", "#/rollouts"))}
        for name, seconds in times.items():
            print(f"{name}: drawn {' / '.join(f'{one:.2f}' for one in seconds)} s after navigation")
        print(f"turns of an episode: {seconds_to_turns(browser, page.as_uri() + '#/rollouts'):.2f} s after the click")
        browser.close()
        size = page.stat().st_size
        print(f"page: {size / 1e6:.1f} MB")
        return int(size >= 30e6 or max(map(max, times.values())) >= 3)


if __name__ == "__main__":
    sys.exit(main())
