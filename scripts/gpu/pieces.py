"""A model for a machine that takes little at a time: its 4-bit GGUF file in pieces, joined and converted there.

    pieces.py cut NAME|FILE.gguf FOLDER    FOLDER/00, 01, … get a piece and its checksums each
    pieces.py keep FOLDER/NN DIR           on the machine: keeps it; the last piece makes DIR/model
"""
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

MODELS = Path(__file__).resolve().parents[1] / "models"
# Below the 60 MB of a transfer, which also has the checkout.
PIECE_BYTES = 50_000_000


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gguf_of(name, scratch):
    """The GGUF file of a model of scripts/models/get.py, made in `scratch`, and what its folder has beside it."""
    sys.path.insert(0, str(MODELS))
    import get

    if name not in get.MODELS or name == "minilm":
        raise SystemExit(f"pieces: {name} is neither a file nor a model of scripts/models/get.py")
    model, parts = get.MODELS[name], scratch / "parts"
    parts.mkdir()
    try:
        get.download(model, parts)
        get.join(model, parts, scratch / "whole")
    except get.GetError as error:
        raise SystemExit(f"pieces: {error}") from error
    return scratch / "whole", {"generation": model.generation, "card": model.about}


def cut(name, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        whole, beside = Path(name), {"generation": {}, "card": f"From {Path(name).name}."}
        if not whole.is_file():
            whole, beside = gguf_of(name, Path(scratch))
        count, total = -(-whole.stat().st_size // PIECE_BYTES), sha256(whole)
        with open(whole, "rb") as source:
            for number in range(count):
                to = folder / f"{number:02}"
                to.mkdir()
                (to / "piece").write_bytes(source.read(PIECE_BYTES))
                sums = {"number": number, "of": count, "sha256": sha256(to / "piece"), "whole": total, **beside}
                (to / "sums.json").write_text(json.dumps(sums))
    print(f"pieces: {count} of at most {PIECE_BYTES / 1e6:.0f} MB in {folder}")


def keep(piece, folder):
    piece, folder = Path(piece), Path(folder)
    try:
        sums = json.loads((piece / "sums.json").read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"pieces: {piece} is not a piece of a model: {error}") from error
    if (found := sha256(piece / "piece")) != sums["sha256"]:
        raise SystemExit(f"pieces: {piece} has SHA-256 {found}, not {sums['sha256']}: carry it again")
    kept = folder / "pieces" / sums["whole"][:16]
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(piece / "piece", kept / f"{sums['number']:02}.new")
    (kept / f"{sums['number']:02}.new").rename(kept / f"{sums['number']:02}")
    missing = [number for number in range(sums["of"]) if not (kept / f"{number:02}").exists()]
    if missing:
        print(f"pieces: kept {sums['number']:02} of {sums['of']}; missing: {', '.join(f'{n:02}' for n in missing)}")
        return
    whole = kept / "whole.gguf"
    with open(whole, "wb") as target:
        for number in range(sums["of"]):
            with open(kept / f"{number:02}", "rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
    if sha256(whole) != sums["whole"]:
        raise SystemExit("pieces: the joined file has another checksum than the one that was cut: carry all pieces again")
    sys.path.insert(0, str(MODELS))
    from from_gguf import InputError, convert

    try:
        convert(whole, folder / "model", sums["generation"], sums["card"])
    except InputError as error:
        raise SystemExit(f"pieces: {error}") from error
    shutil.rmtree(folder / "pieces")
    print(f"pieces: wrote {folder / 'model'}")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("cut", "keep"):
        raise SystemExit(__doc__)
    {"cut": cut, "keep": keep}[sys.argv[1]](*sys.argv[2:])
