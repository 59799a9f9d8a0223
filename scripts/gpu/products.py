"""The other public operations of the update and of decoding: weight gradients added in float32, the norm, and the five weight
matrices of a network."""
import torch
import torch.nn.functional as F
from device import Device, error, rates, share
from limits import SHAPES, of_cards
from one import details


def added(d, total, a, b):
    """Adds aᵀ b to a float32 sum, with a (T, n) and b (T, m) in bfloat16: in the product itself on a GPU."""
    if d.rehearsal:
        return total.addmm_(a.float().t(), b.float())
    return torch.ops.aten.addmm.dtype_out(total, a.t(), b, torch.float32, out=total)


def addmm(context):
    """addmm with out_dtype float32: whether it is right, and its rate beside a plain product and an addition."""
    d = Device(context)
    tokens, n, m = d.pick((19_200, 1_536, 17_920), (64, 24, 40))
    a, b = d.random(tokens, n), d.random(tokens, m)
    total = d.random(n, m, dtype=torch.float32)
    want = total + a.float().t() @ b.float()
    off = error(added(d, total.clone(), a, b), want)
    # The product alone would be rounded to bfloat16: a float32 sum of exact products is nearer than that by far.
    rounded = error(total + (a.t() @ b).float(), want)
    details(error=off, error_of_a_bfloat16_product=rounded)
    seconds = d.seconds(lambda: added(d, total, a, b))
    plain = d.seconds(lambda: total.add_(a.t() @ b))
    flops = 2 * tokens * n * m
    details(flops_per_s=flops / seconds, plain_flops_per_s=flops / plain)
    figure = (f"{flops / seconds / 1e12:.0f} TFLOP/s ({share(context, flops / seconds, 0)}), product and addition apart "
              f"{flops / plain / 1e12:.0f}; error {off:.1e}, rounded product {rounded:.1e}")
    return {"figure": figure, "good": off < max(rounded / 4, 1e-5), "limit": of_cards(lambda f, _: f"{f / 1e12:.0f} TFLOP/s")}


def rms_norm(context):
    """The fused norm, forward and backward: whether it is right, and its rate."""
    d = Device(context)
    tokens, width = d.pick((19_200, 1_536), (64, 48))
    x, weight = d.random(tokens, width).requires_grad_(), d.random(width).requires_grad_()
    grad = d.random(tokens, width)

    def forward():
        return torch.ops.aten._fused_rms_norm(x, [width], weight, 1e-6)[0]

    def both():
        y = forward()
        return y, *torch.autograd.grad(y, [x, weight], grad)

    exact = [x.detach().float().requires_grad_(), weight.detach().float().requires_grad_()]
    y = F.rms_norm(exact[0], [width], exact[1], 1e-6)
    want = [y, *torch.autograd.grad(y, exact, grad.float())]
    errors = [error(got, wanted) for got, wanted in zip(both(), want)]
    element_bytes = 2 * tokens * width
    first, whole = d.seconds(forward), d.seconds(both)
    details(errors=errors, forward_us=1e6 * first, both_us=1e6 * whole)
    figure = (f"forward {1e6 * first:.0f} us, {2 * element_bytes / first / 1e12:.2f} TB/s "
              f"({share(context, 2 * element_bytes / first, 1)}); with backward {1e6 * whole:.0f} us; error {max(errors):.1e}")
    return {"figure": figure, "good": max(errors) <= 0.02, "limit": of_cards(lambda _, c: f"{c / 1e12:.1f} TB/s")}


def matrices(context):
    """x Wᵀ for each weight matrix of a network at the rows of decoding and of a micro-batch, beside the limit of both rates."""
    d = Device(context)
    figures, finite = [], True
    for name in ["1.5b", "7b"]:
        for rows in d.pick([128, 19_200], [4]):
            seconds_of_all, limit_of_all, parts = 0.0, 0.0, {}
            for matrix, (n, m) in (SHAPES["tiny"] if d.rehearsal else SHAPES[name]).products.items():
                # The head of an update sees the responses alone, a seventh of the tokens.
                t = rows // 7 if matrix == "head" and rows > 1000 else rows
                weights = [d.random(m, n) for _ in range(d.copies(2 * n * m) if rows <= 1000 else 1)]
                x = d.random(t, n)

                def products(weights=weights, x=x):
                    for weight in weights:
                        F.linear(x, weight)

                seconds = d.seconds(d.graph(products), repeats=5) / len(weights)
                finite &= bool(F.linear(x, weights[0]).isfinite().all())
                flops, moved = 2 * t * n * m, 2 * (n * m + t * n + t * m)
                parts[matrix] = {"us": round(1e6 * seconds, 1), "tflops": round(flops / seconds / 1e12, 1),
                                 "tb_per_s": round(moved / seconds / 1e12, 3)}
                times = 1 if matrix == "head" else SHAPES[name].layers
                seconds_of_all += times * seconds
                if known := rates(context):
                    limit_of_all += times * max(flops / known[0], moved / known[1])
                del weights, products
            details(**{f"{name}, {rows} rows": parts})
            beside = f" ({limit_of_all / seconds_of_all:.0%} of the limit)" if limit_of_all else ""
            figures.append(f"{name}, {rows} rows: {1e3 * seconds_of_all:.2f} ms a network{beside}")
    return {"figure": "; ".join(figures), "good": finite,
            "limit": of_cards(lambda f, c: f"{f / 1e12:.0f} TFLOP/s or {c / 1e12:.1f} TB/s")}
