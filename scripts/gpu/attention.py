"""Attention by libtorch's public operations: the backend that is chosen, its cost for a new shape, and the ceilings of decoding
and update. Shapes: B rows, T tokens, H query heads, K key heads, D elements of a head."""
import random
import time

import torch
import torch.nn.functional as F
from device import Device, error, share
from limits import SHAPES, of_cards
from one import details

BACKENDS = {-1: "none", 0: "math", 1: "flash", 2: "efficient", 3: "cuDNN", 4: "overridable"}
ROUNDING = 0.02  # bfloat16 keeps 8 bits; relative to the largest value of a result


def choice(context):
    """The backend of scaled_dot_product_attention for shapes of decoding and update, by default and with cuDNN off, and the
    milliseconds of the first and second call on three new shapes of each."""
    d = Device(context)
    rows, length, heads = d.pick((128, 1000, 12), (2, 30, 2))
    batch, tokens = d.pick((32, 600), (2, 20))

    def decode(step):
        q, k = d.random(rows, heads, 1, 128), d.random(rows, heads, length + step, 128)
        return (q, k, k, torch.zeros(rows, 1, 1, length + step, device=d.name, dtype=q.dtype)), False

    def update(step):
        q = d.random(batch, heads, tokens + step, 128).requires_grad_()
        return (q, q, q, None), True

    def call(args, causal):
        begin = time.perf_counter()
        out = F.scaled_dot_product_attention(*args, is_causal=causal)
        if out.requires_grad:
            out.sum().backward()
        d.sync()
        return round(1e3 * (time.perf_counter() - begin), 2)

    step, figures, off = 0, [], {}
    for mode, cudnn in [("default", True), ("cuDNN off", False)]:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        for name, make in [("decode", decode), ("update", update)]:
            args, causal = make(0)
            backend = BACKENDS.get(torch._fused_sdp_choice(*args, is_causal=causal), "unknown")
            call(args, causal)  # starts the library
            pairs = []
            for _ in range(3):
                step += 1
                args, causal = make(step)
                pairs.append((call(args, causal), call(args, causal)))
            off[name] = backend
            details(**{f"{mode}, {name}": {"backend": backend, "first_and_second_ms": pairs}})
            first, second = (sorted(column)[1] for column in zip(*pairs))
            figures.append(f"{mode}, {name}: {backend} {first} then {second} ms")
    return {"figure": "; ".join(figures), "good": "cuDNN" not in off.values()}


def padded(q, k, v, keys):
    """One query a row over the first `keys` of its own keys: what the flash call with seqused_k computes. In float32."""
    q, k, v = q.float(), k.float(), v.float()  # (B, H, D), (B, slot, K, D)
    share = q.shape[1] // k.shape[2]
    k, v = (x.repeat_interleave(share, 2).transpose(1, 2) for x in (k, v))
    mask = torch.arange(k.shape[2], device=q.device)[None] < keys[:, None]
    return F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask[:, None, None])[:, :, 0]


def over_slots(d, q, k, v, keys):
    """Decoding over keys in slots of equal size: (B, H, D) over the first `keys` of each (B, slot, K, D)."""
    batch, slot = k.shape[:2]
    if d.rehearsal:
        return lambda: padded(q, k, v, keys).to(q.dtype)
    starts = d.ints([slot * row for row in range(batch + 1)])
    ones = d.ints(list(range(batch + 1)))
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    return lambda: torch.ops.aten._flash_attention_forward(q, k, v, ones, starts, 1, slot, 0.0, False, False, seqused_k=keys)[0]


def decoding(context):
    """Flash attention with seqused_k, one query a row: whether it is right, and its share of the copy rate in a CUDA graph."""
    d = Device(context)
    figures, worst, reached = [], 0.0, []
    for name in ["1.5b", "7b"]:
        shape = SHAPES[name]
        heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
        for batch in d.pick([32, 128, 256], [3]):
            for length in d.pick([512, 1024, 2048], [40]):
                draw = random.Random(batch + length)
                kv_bytes = 4 * batch * length * kv_heads * dim
                caches = [(d.random(batch, length, kv_heads, dim), d.random(batch, length, kv_heads, dim))
                          for _ in range(d.copies(kv_bytes))]
                q = d.random(batch, heads, dim)
                ragged = d.ints([draw.randrange(1, length + 1) for _ in range(batch)])
                want = padded(q[:16], *(x[:16] for x in caches[0]), ragged[:16])
                off = error(over_slots(d, q, *caches[0], ragged)()[:16], want)
                worst = max(worst, off)
                calls = [over_slots(d, q, k, v, d.ints([length] * batch)) for k, v in caches]

                def all_caches(calls=calls):
                    for call in calls:
                        call()

                eager = d.seconds(all_caches, repeats=3) / len(calls)
                seconds = d.seconds(d.graph(all_caches), repeats=3) / len(calls)
                rate = kv_bytes / seconds
                entry = {"us": round(1e6 * seconds, 1), "eager_us": round(1e6 * eager, 1), "tb_per_s": round(rate / 1e12, 3),
                         "error": off}
                details(**{f"{name}, {batch} x {length}": entry})
                reached.append(rate)
                if (batch, length) == d.pick((128, 1024), (3, 40)):
                    figures.append(f"{name} {batch} x {length}: {1e6 * seconds:.0f} us, {rate / 1e12:.2f} TB/s "
                                   f"({share(context, rate, 1)})")
                del caches, calls, all_caches
    limit = of_cards(lambda _, copy: f"{copy / 1e12:.1f} TB/s")
    between = f"{share(context, min(reached), 1)} to {share(context, max(reached), 1)}"
    figure = f"{'; '.join(figures)}; all shapes {between}; largest error {worst:.1e}"
    return {"figure": figure, "limit": limit, "good": worst <= ROUNDING}


def packed(d, q, k, v, lengths):
    """Causal attention over packed sequences, each over itself: (T, H, D) over (T, K, D)."""
    if d.rehearsal:
        share = q.shape[1] // k.shape[1]
        parts = [x.split(lengths) for x in (q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1))]
        one = lambda *x: F.scaled_dot_product_attention(*(y.transpose(0, 1) for y in x), is_causal=True).transpose(0, 1)
        return torch.cat([one(*x) for x in zip(*parts)])
    ends = [0]
    for n in lengths:
        ends.append(ends[-1] + n)
    ends = d.ints(ends)
    return torch.ops.aten._flash_attention_forward(q, k, v, ends, ends, max(lengths), max(lengths), 0.0, True, False)[0]


def gradients(d, attend, q, k, v, lengths, weight):
    """Output and gradients of attention."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(d, *inputs, lengths)
    return [out, *torch.autograd.grad((out * weight).sum(), inputs)]


def reference(d, q, k, v, lengths):
    """The same in float32, one sequence after the other, by softmax(QKᵀ)V."""
    share, outs, begin = q.shape[1] // k.shape[1], [], 0
    for n in lengths:
        rows = slice(begin, begin + n)
        begin += n
        a, b, c = q[rows].float(), k[rows].float().repeat_interleave(share, 1), v[rows].float().repeat_interleave(share, 1)
        scores = torch.einsum("thd,shd->hts", a, b) / q.shape[2]**0.5
        later = torch.ones(n, n, device=q.device, dtype=torch.bool).triu(1)
        outs.append(torch.einsum("hts,shd->thd", scores.masked_fill(later, float("-inf")).softmax(-1), c))
    return torch.cat(outs)


def training(context):
    """Varlen flash attention, forward and backward, on the tokens of a micro-batch: equal and ragged sequences."""
    d = Device(context)
    few = [5, 70, 130, 1]
    q, k, v = d.random(sum(few), 12, 128), d.random(sum(few), 2, 128), d.random(sum(few), 2, 128)
    weight = d.random(sum(few), 12, 128)
    pairs = zip(gradients(d, packed, q, k, v, few, weight), gradients(d, reference, q, k, v, few, weight.float()))
    errors = [error(got, want) for got, want in pairs]
    details(errors=dict(zip(["out", "q", "k", "v"], errors)))
    count, length = d.pick((32, 600), (4, 20))
    # A tenth to nineteen tenths of the length, in equal steps: as many tokens as equal sequences have.
    half = [round(length * (0.1 + 1.8 * i / (count - 1))) for i in range(count // 2)]
    ragged, figures = [n for short in half for n in (short, 2 * length - short)], []
    for name, shape in [("1.5b", SHAPES["1.5b"]), ("7b", SHAPES["7b"])]:
        for kind, lengths in [("equal", [length] * count), ("ragged", ragged)]:
            tokens = sum(lengths)
            q = d.random(tokens, shape.heads, shape.head_dim).requires_grad_()
            k, v = (d.random(tokens, shape.kv_heads, shape.head_dim).requires_grad_() for _ in range(2))
            grad = d.random(tokens, shape.heads, shape.head_dim)
            forward = d.seconds(lambda: packed(d, q, k, v, lengths))
            both = d.seconds(lambda: torch.autograd.grad(packed(d, q, k, v, lengths), [q, k, v], grad))
            flops = 2 * sum(n * n for n in lengths) * shape.hidden
            entry = {"tokens": tokens, "forward_ms": 1e3 * forward, "both_ms": 1e3 * both, "forward_flops_per_s": flops / forward,
                     "both_flops_per_s": 3.5 * flops / both}
            details(**{f"{name}, {kind}": entry})
            figures.append(f"{name} {kind}: {1e3 * forward:.2f} + {1e3 * (both - forward):.2f} ms, "
                           f"{3.5 * flops / both / 1e12:.0f} TFLOP/s")
    return {"figure": f"{'; '.join(figures)}; largest error {max(errors):.1e}", "good": max(errors) <= ROUNDING,
            "limit": of_cards(lambda flops, _: f"{flops / 1e12:.0f} TFLOP/s")}
