"""The best that a GPU can reach on given work, and the shapes that these limits are computed from.

Rates: those that a product of 8192 cubed in bfloat16 and a copy reached on such cards (rates.json: 798 TFLOP/s and 3.0 TB/s on an
H100, 790 and 4.3 on an H200), which is less than their data sheets say. report.py writes those of a card that it has a report of.
The shapes are those of Config::shape in core/model. With them, decoding 128 rows of 1,024 tokens takes 2.28 ms a pass on an H100
with Qwen2.5-1.5B (3.09 GB of weights and 3.76 GB of keys and values at 3.0 TB/s), and 7.22 ms with 7B.
"""
import json
from dataclasses import dataclass, replace
from pathlib import Path

RATES_FILE = Path(__file__).with_name("rates.json")
RATES = {card: (one["flops"], one["bytes_per_s"]) for card, one in json.loads(RATES_FILE.read_text()).items()}

# The project's aims: shares of a limit, and how near plan and measurement, first and last pass should be.
DECODE_TARGET = 0.30
UPDATE_TARGET = 0.40
PLAN_TARGET = 0.10
RAGGED_TARGET = 0.20


@dataclass(frozen=True)
class Shape:
    """A Qwen2 network."""
    vocabulary: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = True

    @property
    def head_dim(self):
        return self.hidden // self.heads

    @property
    def products(self):
        """Columns and rows of the five weight matrices: qkv, attention's output, gate and up, down, head."""
        wide = (self.heads + 2 * self.kv_heads) * self.head_dim
        return {"qkv": (self.hidden, wide), "out": (self.hidden, self.hidden), "gate_up": (self.hidden, 2 * self.ffn),
                "down": (self.ffn, self.hidden), "head": (self.hidden, self.vocabulary)}

    @property
    def block_parameters(self):
        return self.layers * sum(n * m for name, (n, m) in self.products.items() if name != "head")

    @property
    def head_parameters(self):
        return self.hidden * self.vocabulary

    @property
    def kv_bytes(self):
        """Bytes of a token's keys and values in two-byte elements."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def decode_seconds(self, context, copy_rate):
        """The shortest pass that decodes rows with `context` keys in all: it reads every weight and the cache once."""
        return (2 * (self.block_parameters + self.head_parameters) + context * self.kv_bytes) / copy_rate

    def update_flops(self, lengths):
        """FLOPs of forward and backward pass over sequences of (prompt, response), without recomputation: 6 for a parameter
        and token, the head on responses alone, and causal attention."""
        tokens = sum(p + r for p, r in lengths)
        responses = sum(r for _, r in lengths)
        attention = 6 * self.layers * self.hidden * sum((p + r) ** 2 for p, r in lengths)
        return 6 * (self.block_parameters * tokens + self.head_parameters * responses) + attention


SHAPES = {
    "tiny": Shape(512, 64, 176, 2, 4, 2),
    "0.5b": Shape(151_936, 896, 4_864, 24, 14, 2),
    "1.5b": Shape(151_936, 1_536, 8_960, 28, 12, 2),
    "7b": Shape(152_064, 3_584, 18_944, 28, 28, 4, tied=False),
}
# Real widths with few blocks, for comparisons with the CPU.
SHAPES.update({f"{size}, 2 blocks": replace(SHAPES[size], layers=2) for size in ("0.5b", "1.5b")})
# The widths of 7B with as many blocks as one GPU can train with float32 master weights and moments.
SHAPES["7b, 8 blocks"] = replace(SHAPES["7b"], layers=8)


def card_of(name):
    """The card of the table that a device's name belongs to, or None."""
    return next((card for card in RATES if card in name), None)


def of_cards(limit):
    """A limit on the cards of the table as text: `limit` maps FLOP/s and bytes/s to a text."""
    return ", ".join(f"{card} {limit(*rates)}" for card, rates in RATES.items())
