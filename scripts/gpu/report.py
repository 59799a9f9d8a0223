"""The findings of a first half hour on a GPU, as tables for docs/gpu.md and rates of the card for the ledger.

    report.py DIR            prints them. DIR/1, DIR/2, …: what the calls of first_run.sh wrote, or DIR/checks.jsonl
    report.py DIR --write    writes the tables into docs/gpu.md, the rates into rates.json, and the ledger's tables anew

A call that hung, died or never came back leaves the lines of its checks that had ended. The report has those, and names the others.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

from calls import CALLS
from limits import RATES_FILE, card_of

PAGE = Path(__file__).resolve().parents[2] / "docs/gpu.md"
BEGIN, END = "<!-- report: written by scripts/gpu/report.py --write -->", "<!-- end of the report -->"

CORRECT = ("kernels", "memcheck", "synccheck", "racecheck", "greedy", "score-float32", "score-0.5b", "gradient", "logprob-diff",
           "collective", "smoke", "checkpoint", "offload", "rollouts")
VERDICTS = {"ok": "ok", "missed": "below the aim", "FAILED": "**failed**", "HUNG": "**hung**", "not started": "not started"}


def read(folder):
    """The lines of all checks by name, and what is wrong with the files."""
    lines, notes = {}, []
    if not folder.is_dir():
        raise SystemExit(f"report: there is no folder {folder}")
    parts = {number: folder / str(number) for number in range(1, len(CALLS) + 1) if (folder / str(number)).is_dir()}
    for number, part in (parts or {0: folder}).items():
        of = f"call {number}" if number else str(folder)
        file = part / "checks.jsonl"
        if not file.exists():
            notes.append(f"{of} left no checks.jsonl")
            continue
        for text in file.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
                lines[line["name"]] = line
            except (ValueError, KeyError, TypeError):
                notes.append(f"{of}: a line is cut, so the machine was lost while it was written")
        if number:
            gone = [name for name in CALLS[number - 1].checks if name not in lines]
            if gone:
                notes.append(f"{of} ended before {', '.join(gone)}")
    for number, call in enumerate(CALLS, 1):
        if parts and number not in parts:
            notes.append(f"call {number} did not come back: {', '.join(call.checks)}")
    return lines, notes


def table(head, rows):
    """A Markdown table; nothing where it has no rows."""
    if not rows:
        return ""
    text = lambda cells: "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |\n"
    return text(head) + "|" + "---|" * len(head) + "\n" + "".join(map(text, rows)) + "\n"


def machine(lines):
    details = lines.get("rates", {}).get("details", {})
    words = [details.get("where", "a machine that did not say which"), details.get("nvidia_smi", "")]
    return ", ".join(word for word in words if word)


def percent(share):
    return f"{share:.0%}" if share is not None else "-"


def updates(lines):
    rows = []
    for name, line in lines.items():
        report, details = line["details"].get("report"), line["details"]
        if not name.startswith("update-") or not report:
            continue
        peak = report["peak_bytes"]
        peak = max(peak) if isinstance(peak, list) else peak
        rows.append([name, f"{report['tokens_per_s']:,.0f}", percent(details.get("mfu")),
                     f"{report['planned_bytes'] / 1e9:.1f} GB", f"{peak / 1e9:.1f} GB", VERDICTS[line["verdict"]]])
    return rows


def generations(lines):
    rows = []
    for name, line in lines.items():
        report, decode = line["details"].get("report"), line["details"].get("decode")
        if not name.startswith("generate") or not report:
            continue
        one = [f"{decode['ms']:.2f} ms", percent(line["details"].get("share"))] if decode else ["-", "-"]
        rows.append([name, f"{report['tokens_per_s']:,.0f}", *one, VERDICTS[line["verdict"]]])
    return rows


def iteration(lines):
    report = lines.get("iteration", {}).get("details", {}).get("report")
    if not report:
        return []
    phases = [[name, f"{seconds:.2f} s"] for name, seconds in report["phases"].items()]
    return [*phases, ["all", f"{report['seconds']:.2f} s, {report['tokens_per_s']:,.0f} tokens/s"]]


def own_kernels(lines):
    return [[name, f"{us:.0f}", f"{want:.0f}", f"{us / want:.2f}" if want else "-"]
            for check in ("profile-generate", "profile-update")
            for name, (us, want) in lines.get(check, {}).get("details", {}).get("own_kernels", {}).items()]


def peers(lines):
    """Tokens per second of each peer beside Nestor's on the same card."""
    rows = []
    for peer, ours in (("peer-update", ("update-auto", "update-none")), ("peer-generate", ("generate",))):
        theirs = lines.get(peer, {}).get("details", {}).get("tokens_per_s")
        own = next((lines[name]["details"]["report"]["tokens_per_s"] for name in ours
                    if lines.get(name, {}).get("details", {}).get("report")), None)
        if theirs and own:
            rows.append([peer, f"{theirs:,.0f}", f"{own:,.0f}", f"{own / theirs:.2f} ×"])
    return rows


def constants(lines):
    """The rates that limits.py and ledger.py assume of a card, as this one reached them."""
    details = lines.get("rates", {}).get("details", {})
    found = {"card": details.get("device"), "flops": details.get("flops"), "bytes_per_s": details.get("bytes_per_s"),
             "microseconds": details.get("microseconds")}
    return {name: value for name, value in found.items() if value}


def report(lines, notes):
    correct = [[name, line["figure"], VERDICTS[line["verdict"]]] for name, line in lines.items() if name.startswith(CORRECT)]
    bad = [[name, VERDICTS[line["verdict"]], line["figure"], line["details"].get("stderr", "").strip().rpartition("\n")[2][:300]]
           for name, line in lines.items() if line["verdict"] not in ("ok", "missed")]
    sections = [
        ("Correctness", table(["check", "result", ""], correct)),
        ("Update", table(["check", "tokens/s", "MFU", "planned", "peak", ""], updates(lines))),
        ("Generation", table(["check", "tokens/s", "a decoding pass", "share of the limit", ""], generations(lines))),
        ("Iteration", table(["phase", "time"], iteration(lines))),
        ("Own kernels", table(["kernel", "µs", "ledger", "ratio"], own_kernels(lines))),
        ("Peers", table(["check", "peer, tokens/s", "Nestor", "ratio"], peers(lines))),
        ("Rates", f"```json\n{json.dumps(constants(lines), indent=2)}\n```\n\n" if constants(lines) else ""),
        ("Not ok", table(["check", "", "figure", "last words"], bad)),
        ("Not known", "".join(f"- {note}\n" for note in notes)),
    ]
    text = f"**Machine.** {machine(lines)}.\n\n"
    return text + "".join(f"## {title}\n\n{body}" for title, body in sections if body).rstrip("\n") + "\n"


def with_rates(text, found):
    """The text of rates.json with those of one more card, to three digits."""
    rates = json.loads(text)
    words = found["card"].removeprefix("NVIDIA ")
    name = card_of(words) or words.partition("-")[0]
    rates[name] = {rate: float(f"{found[rate]:.3g}") for rate in ("flops", "bytes_per_s")}
    rows = (f"  {json.dumps(card)}: {json.dumps(one)}" for card, one in rates.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def with_tables(page, tables):
    """The page with these tables in the place of the last ones, or in a section of their own before "Repeat it"."""
    body = f"{BEGIN}\n\n{tables.replace('## ', '### ')}\n{END}"
    if BEGIN in page:
        before, rest = page.split(BEGIN)
        return before + body + rest.split(END)[1]
    before, heading, rest = page.partition("## Repeat it\n")
    return f"{before}## Last half hour\n\n{body}\n\n{heading}{rest}"


def write(lines, notes):
    found = constants(lines)
    if {"card", "flops", "bytes_per_s"} <= found.keys():
        RATES_FILE.write_text(with_rates(RATES_FILE.read_text(), found))
        # A process of its own, since `limits` has read the rates before.
        subprocess.run([sys.executable, Path(__file__).with_name("ledger.py"), "--write"], check=True)
    else:
        print("report: no check \"rates\" of a GPU came back, so rates.json and the ledger stay as they are", file=sys.stderr)
    PAGE.write_text(with_tables(PAGE.read_text(), report(lines, notes)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="with the folders that the calls of first_run.sh wrote")
    parser.add_argument("--write", action="store_true", help="write into docs/gpu.md, rates.json and docs/performance.md")
    args = parser.parse_args()
    lines, notes = read(args.folder)
    if args.write:
        write(lines, notes)
    else:
        print(report(lines, notes), end="")


if __name__ == "__main__":
    main()
