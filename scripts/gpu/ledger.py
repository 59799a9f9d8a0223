#!/usr/bin/env python3
"""The ledger of a block: kernels, bytes and products of decoding and update, and the time that they should take on a GPU.

The list of operations is the program's own: core/nestor/tests/all/ledger.rs records what a small network dispatches, with the
sizes of all tensors, into operations.json. Each size of that network is another number, so that a number names its meaning.

    scripts/gpu/ledger.py            # prints the tables of docs/performance.md
    scripts/gpu/ledger.py --list     # every operation of a block, in the shape of 1.5b
    scripts/gpu/ledger.py --write    # writes the tables into docs/performance.md
"""
import argparse
import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from limits import RATES, SHAPES

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).with_name("operations.json")
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- ledger: written by scripts/gpu/ledger.py --write -->", "<!-- end of the ledger -->"

BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Long": 8, "Int": 4, "Bool": 1, "Byte": 1}

# Shares of a card's rates that kernels of each kind reached on an H200 (docs/gpu.md): products of 19,200 rows 93 to 98 %;
# products of 128 rows read at 85 % of the memory rate after 4 us in which the multiprocessors fill and drain; flash attention
# of sequences of 600 tokens 125 TFLOP/s; own attention of 128 rows and 1,030 tokens 69 %; silu(gate) * up 91 %.
PRODUCT, FEW_ROWS, FILL = 0.95, 0.85, 4e-6
ATTENTION_FLOPS, ATTENTION_BYTES = 0.16, 0.69
ELEMENTWISE = 0.90
GAP = 1e-6  # seconds between two kernels of a graph, or of a stream that the host keeps full

# Kernels of an operation that has more than one on CUDA. Flash attention's backward pass: products of output and gradient, the
# pass itself, conversion, and two sums over the query heads of a key head.
KERNELS = {"nestor::varlen_attention_backward": 5, "nestor::paged_attention": 2, "nestor::sample": 2}
# Rows of float32 of which these write or read as many as a backward pass has parts: constants of core/torch/cpp, which tell how
# many blocks such a pass has.
PARTS = {"nestor::rms_norm_backward": 512, "nestor::rotate_backward": 512, "nestor::column_sums": 512}
PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "mkldnn::_linear_pointwise", "nestor::add_product", "nestor::logits"}
# These read only as much of their first tensor as they write, or write only as much of the last one as they read.
GATHERS = {"aten::index_select", "aten::embedding", "aten::gather"}
SCATTERS = {"aten::index_copy_", "aten::index_copy"}


@dataclass(frozen=True)
class Work:
    """Rows of a pass: requests that decode, or tokens of a micro-batch."""
    rows: int
    context: int        # keys and values that a row sees (decoding), or tokens of a sequence (update)
    responses: int = 0  # rows that the head reads in an update


@dataclass
class Operation:
    """A dispatched operation: what it reads and writes on the way between memory and the chip, and its products."""
    name: str
    kernels: int
    read: int
    written: int
    flops: int = 0
    few_rows: bool = False

    def seconds(self, flops_rate, copy_rate):
        moved = self.read + self.written
        if "attention" in self.name:
            rate = (ATTENTION_FLOPS * flops_rate, ATTENTION_BYTES * copy_rate)
        elif self.flops:
            rate = (PRODUCT * flops_rate, (FEW_ROWS if self.few_rows else ELEMENTWISE) * copy_rate)
        else:
            rate = (flops_rate, ELEMENTWISE * copy_rate)
        fill = FILL if self.few_rows and self.flops else 0
        return max(self.flops / rate[0], moved / rate[1]) + fill + self.kernels * GAP


def meaning(shape, work, decoding):
    """For each size of the recorded network the size that takes its place in another one."""
    dim, heads, kv_heads = shape.head_dim, shape.heads, shape.kv_heads
    sizes = {1: 1, 2: kv_heads, 6: heads, 8: heads + kv_heads, 10: heads + 2 * kv_heads, 32: dim // 2, 64: dim, 128: kv_heads * dim,
             384: heads * dim, 640: (heads + 2 * kv_heads) * dim, 200: shape.hidden, 176: shape.ffn, 352: 2 * shape.ffn,
             1000: shape.vocabulary}
    return sizes | ({16: work.rows} if decoding else {62: work.rows, 12: work.responses})


def pieces(shape, work):
    """Pieces of a context, as `piece_of_attention` of core/torch/cpp/decode_kernels.cpp cuts it on 132 multiprocessors."""
    groups, piece = -(-shape.heads // shape.kv_heads // 8), 512
    while piece > 64 and work.rows * shape.kv_heads * groups * -(-work.context // piece) < 2 * 132:
        piece //= 2
    return -(-work.context // piece)


def operation(line, shape, work, decoding):
    """An entry of the list in another shape."""
    name, _, rest = line.partition(" ")
    sizes, tensors = meaning(shape, work, decoding), []
    for tensor in filter(None, rest.split(";")):
        direction, kind, *numbers = tensor.split()
        numbers = [int(number) for number in numbers]
        if decoding and len(numbers) == 5:  # the cache: (2, pages, page, K, D)
            tokens = work.rows * (work.context if direction == "r" else 1)
            elements = [2, tokens, shape.kv_heads, shape.head_dim]
        elif decoding and len(numbers) == 4:  # attention's sums over pieces of keys: (rows, H, pieces, D + 2)
            elements = [work.rows, shape.heads, pieces(shape, work), shape.head_dim + 2]
        else:
            # Other sizes are those of small tensors: tables of sequences and frequencies.
            elements = [sizes.get(number, number) for number in numbers]
            if name in PARTS and kind == "Float" and len(numbers) == 2:
                elements[0] = PARTS[name]
        count = prod(elements)
        tensors.append((direction, elements, count, count * BYTES[kind]))
    read = [it for it in tensors if it[0] == "r"]
    written = [it for it in tensors if it[0] == "w"]
    if name in GATHERS:
        read[0] = (*read[0][:3], written[0][3])
    if name in SCATTERS:
        written[0] = read.pop(0)[:3] + (read[-1][3],)
    flops = 0
    if name in PRODUCTS:
        *_, left, right = [it for it in read if len(it[1]) > 1]
        # Every element of the result is a sum over the side that both factors have.
        flops = 2 * int(round((left[2] * right[2] * written[0][2]) ** 0.5))
    elif name.startswith("nestor::varlen_attention"):
        # Two products forward over half of the pairs, five backward.
        products = 5 if name.endswith("backward") else 2
        flops = products * 2 * work.rows * work.context // 2 * shape.heads * shape.head_dim
    return Operation(name, KERNELS.get(name, 1), sum(it[3] for it in read), sum(it[3] for it in written), flops, decoding)


def lists(work_name, shape, work):
    """The operations of a block, and all else: the last block, which computes only rows that are read, embedding and head."""
    kept = json.loads(LISTS.read_text())[work_name]
    return [[operation(line, shape, work, work_name == "decode") for line in kept[part]] for part in ("block", "rest")]


# The passes of the tables: 128 requests of 1,024 tokens, and a micro-batch of 32 sequences of 600 tokens, 14 % responses.
DECODE = Work(rows=128, context=1024)
UPDATE = Work(rows=32 * 600, context=600, responses=32 * 84)
MODELS = ("0.5b", "1.5b", "7b")
UPDATES = ("update, nothing recomputed", "update, all recomputed")


def total(shape, block, rest, field):
    return (shape.layers - 1) * sum(getattr(it, field) for it in block) + sum(getattr(it, field) for it in rest)


def seconds(shape, block, rest, rates):
    return (shape.layers - 1) * sum(it.seconds(*rates) for it in block) + sum(it.seconds(*rates) for it in rest)


def decode_row(name):
    shape = SHAPES[name]
    block, rest = lists("decode", shape, DECODE)
    moved = total(shape, block, rest, "read") + total(shape, block, rest, "written")
    context = DECODE.rows * DECODE.context
    needed = shape.decode_seconds(context, 1)
    row = {"model": name, "kernels": sum(it.kernels for it in block), "moved": moved, "over": moved / needed}
    for card, rates in RATES.items():
        taken, limit = seconds(shape, block, rest, rates), shape.decode_seconds(context, rates[1])
        row[card] = (1e3 * limit, 1e3 * taken, limit / taken)
    return row


def update_row(name, work_name):
    shape = SHAPES[name]
    block, rest = lists(work_name, shape, UPDATE)
    moved = total(shape, block, rest, "read") + total(shape, block, rest, "written")
    flops = shape.update_flops([(UPDATE.context - 84, 84)] * (UPDATE.rows // UPDATE.context))
    row = {"model": name, "work": work_name, "kernels": sum(it.kernels for it in block), "moved": moved, "flops": flops}
    for card, rates in RATES.items():
        taken = seconds(shape, block, rest, rates)
        row[card] = (1e3 * flops / rates[0], 1e3 * taken, flops / rates[0] / taken)
    return row


# The published iteration of GiGPO on ALFWorld: turns, and tokens of a prompt and of a response.
TURNS, PROMPT, RESPONSE = 4322, 521, 81
# Tokens of all sequences by distinct ones. In that paper's words rollouts with answers of 14 tokens had 1.38 (docs/rollout.md);
# answers of 81 tokens lower it.
TREE_FACTORS = {"no prefix tree": 1.0, "prefix tree": 1.3}


def iteration_rows():
    """Seconds of the update and of the reference's log-probs of that iteration, with 1.5b on an H100."""
    shape = SHAPES["1.5b"]
    block, rest = lists(UPDATES[0], shape, UPDATE)
    a_token = seconds(shape, block, rest, RATES["H100"]) / UPDATE.rows
    for name, factor in TREE_FACTORS.items():
        update = TURNS * (PROMPT + RESPONSE) / factor * a_token
        # A forward pass has a third of the products.
        yield f"| {name} | {factor} | {update:.1f} | {update / 3:.1f} | {update * 4 / 3:.1f} |"


def table(head, rows):
    lines = [head, "|" + "---|" * (head.count("|") - 1), *rows]
    return "\n".join(lines)


def shares(row):
    return " | ".join(f"{row[card][0]:.2f} | {row[card][1]:.2f} | {row[card][2]:.0%}" for card in RATES)


def page():
    """The tables of docs/performance.md."""
    cards = " | ".join(f"{card}: limit, ms | estimate, ms | share" for card in RATES)
    decode = [f"| {row['model']} | {row['kernels']} | {row['moved'] / 1e9:.2f} | {row['over']:.2f} | {shares(row)} |"
              for row in map(decode_row, MODELS)]
    update = [f"| {row['model']} | {row['work'][8:]} | {row['kernels']} | {row['moved'] / 1e9:.0f} | {row['flops'] / 1e12:.0f} | {shares(row)} |"
              for row in (update_row(name, work) for name in MODELS for work in UPDATES)]
    block = [f"| `{it.name}` | {it.kernels} | {it.read / 1e6:.2f} | {it.written / 1e6:.2f} | {it.flops / 1e9:.1f} | {1e6 * it.seconds(*RATES['H100']):.1f} |"
             for it in lists("decode", SHAPES["1.5b"], DECODE)[0]]
    return "\n\n".join([
        "Decoding, 128 requests of 1,024 tokens. Bytes are also given as a multiple of weights, keys and values:",
        table(f"| model | kernels a block | GB a pass | multiple | {cards} |", decode),
        "Update, a micro-batch of 32 sequences of 600 tokens, 14 % of them responses. The share is MFU:",
        table(f"| model | | kernels a block | GB | TFLOP | {cards} |", update),
        f"Update and reference of the published iteration on ALFWorld ({TURNS:,} turns, prompts of {PROMPT} and responses of {RESPONSE} "
        "tokens), 1.5b on one H100, nothing recomputed, without AdamW's step. Computed tokens are those of all sequences by the tree factor:",
        table("| | tree factor | update, s | reference, s | both |", iteration_rows()),
        "A block of 1.5b in decoding, on an H100:",
        table("| operation | kernels | MB read | MB written | GFLOP | µs |", block),
    ])


def written(text, tables):
    """The page with other tables."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.split(END)[1]}"


def listing(name):
    for work_name, work in [("decode", DECODE), *((update, UPDATE) for update in UPDATES)]:
        for part, operations in zip(("block", "rest"), lists(work_name, SHAPES[name], work)):
            print(f"\n{work_name}: {part}")
            for it in operations:
                print(f"{it.name:36} {it.kernels:2} kernels {it.read / 1e6:9.2f} MB read {it.written / 1e6:9.2f} written "
                      f"{it.flops / 1e9:9.2f} GFLOP {1e6 * it.seconds(*RATES['H100']):8.1f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="every operation, in the shape of 1.5b on an H100")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/performance.md")
    args = parser.parse_args()
    if args.list:
        listing("1.5b")
    elif args.write:
        PAGE.write_text(written(PAGE.read_text(), page()))
    else:
        print(page())


if __name__ == "__main__":
    main()
