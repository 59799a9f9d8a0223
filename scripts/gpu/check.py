"""The checks of gpu_check.sh, which calls this with the folder of the program.

Every check runs in a process of its own with a time limit. Its line is in checks.jsonl, and the table is whole, the moment
it ends. Needs torch alone beside the standard library."""
import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import order
import runner

SIGNS = {"ok": "ok", "missed": "target missed"}


def table(where, lines):
    """The table of all checks: figures beside the limits of an H100 and an H200."""
    text = f"{where}\n\n| check | figure | limit | s | |\n|---|---|---|---|---|\n"
    for line in lines:
        verdict = SIGNS.get(line["verdict"], line["verdict"])
        cells = [line["name"], line["figure"], line["limit"], f"{line['seconds']:.0f}", verdict]
        text += "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |\n"
    for line in lines:
        profile = line["details"].get("profile")
        if profile:
            text += f"\n{line['name']}\n\n| kernel | ms | calls |\n|---|---|---|\n"
            text += "".join(f"| {dear['name'][:100].replace('|', '/')} | {dear['ms']:.2f} | {dear['calls']} |\n"
                            for dear in profile["dearest"])
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, default=None, help="gets checks.jsonl and table.md")
    parser.add_argument("--deadline", type=float, default=540, help="seconds for all checks")
    parser.add_argument("--only", default="", help="names of checks, with commas")
    args = parser.parse_args()
    begin = time.monotonic()
    runner.adopt()
    out = args.out or Path(tempfile.mkdtemp(prefix="gpu-check-out-"))
    out.mkdir(parents=True, exist_ok=True)
    rehearsal = args.device == "cpu"
    checks = order.checks(rehearsal)
    names = [check.name for check in checks]
    wanted = args.only.split(",") if args.only else [check.name for check in checks if not check.apart]
    if unknown := set(wanted) - set(names):
        sys.exit(f"gpu_check: no check {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    if not rehearsal:
        wanted.append(names[0])  # it names the card, whose limits the others are compared with
    checks = [check for check in checks if check.name in wanted]
    # So that the checks under way end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu_check: terminated"))
    # Models and runs are made outside OUT, which may be carried away.
    scratch = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    context = {"folder": str(args.folder.resolve()), "device": args.device, "rehearsal": rehearsal, "scratch": str(scratch),
               "card": "", "earlier": {}}
    where, lines, plant = "CPU (rehearsal)" if rehearsal else "GPU", [], runner.Planted()
    try:
        with (out / "checks.jsonl").open("w") as record:
            for check in checks:
                left = args.deadline - (time.monotonic() - begin)
                if left < check.seconds:
                    line = {"name": check.name, "figure": "not started", "good": False, "verdict": "not started",
                            "seconds": 0.0, "details": {"left": round(left, 1)}, "limit": ""}
                else:
                    line = runner.run(check, context, plant, min(plant.limit(check), left))
                if check.name == "kernels" and line["verdict"] == "HUNG":
                    # Which one hangs is not known. All that follows does without any.
                    (args.folder / "left-out").write_text("none")
                    line["figure"] += "; later checks run without own kernels"
                context["card"] = line["details"].get("device", context["card"])
                context["earlier"][check.name] = {"report": line["details"].get("report", {})}
                where = line["details"].get("where", where)
                lines.append(line)
                text = json.dumps(line)
                record.write(text + "\n")
                record.flush()
                print(text, flush=True)
                (out / "table.md").write_text(table(where, lines))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"\n{table(where, lines)}\n{out}")
    bad = [line["name"] for line in lines if not line["good"]]
    if bad:
        sys.exit(f"gpu_check: {len(bad)} of {len(lines)} checks are not ok: {', '.join(bad)}")


if __name__ == "__main__":
    main()
