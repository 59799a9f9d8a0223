"""The device that checks measure, and how they measure it."""
import time

import torch

# Every measured call works on other memory than the last ones, so that a GPU's second-level cache (50 to 60 MB) has none of it.
COLD_BYTES = 512 << 20


class Device:
    """A GPU, or the CPU in a rehearsal."""

    def __init__(self, context):
        self.cuda = context.device == "cuda"
        self.name = "cuda" if self.cuda else "cpu"
        self.rehearsal = context.rehearsal
        torch.manual_seed(0)

    def pick(self, real, small):
        """A size: the real one, or a small one in a rehearsal."""
        return small if self.rehearsal else real

    def random(self, *shape, dtype=torch.bfloat16):
        return torch.randn(shape, device=self.name, dtype=dtype)

    def ints(self, values):
        return torch.tensor(values, device=self.name, dtype=torch.int32)

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def copies(self, size):
        """How many buffers of `size` bytes a measurement goes through."""
        return self.pick(max(1, min(64, -(-COLD_BYTES // size))), 2)

    def seconds(self, work, repeats=10, warm_up=3):
        """Mean seconds of a call of `work`."""
        repeats = self.pick(repeats, 1)
        for _ in range(self.pick(warm_up, 1)):
            work()
        self.sync()
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        self.sync()
        return (time.perf_counter() - begin) / repeats

    def graph(self, work):
        """`work` as a captured CUDA graph, so that launching costs nothing; on a CPU `work` itself."""
        if not self.cuda:
            return work
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay


def error(got, want):
    """The largest difference relative to the largest value wanted."""
    got, want = got.float(), want.float()
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


def rates(context):
    """FLOP/s and bytes/s of the card by the table of limits, or None."""
    from limits import RATES, card_of
    card = card_of(context.card)
    return RATES[card] if card else None


def share(context, value, which):
    """A rate as text beside that of the card: which is 0 for FLOP/s, 1 for bytes/s."""
    known = rates(context)
    return f"{value / known[which]:.0%}" if known else "-"
