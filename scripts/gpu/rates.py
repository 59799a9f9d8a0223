"""The machine: versions, rates and costs that every other figure is compared with."""
import os
import shutil
import subprocess
from pathlib import Path

import torch
from device import Device
from limits import of_cards
from one import details


def text_of(*command):
    """The output of a program that may be missing."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()


def machine(context):
    d = Device(context)
    query = text_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")
    name = torch.cuda.get_device_name(0) if d.cuda else "CPU (rehearsal)"
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if d.cuda else "-"
    libraries = [*Path(context.folder).glob("*.so"), Path(context.folder) / "nestor-torch"]
    missing = sorted({line.split()[0] for library in libraries for line in text_of("ldd", str(library)).splitlines()
                      if "not found" in line})
    where = f"{name}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, NCCL {nccl}"
    details(device=name if d.cuda else "", where=where, nvidia_smi=query, cpus=os.cpu_count(), ldd_missing=missing)

    n = d.pick(8192, 128)
    a, b = d.random(n, n), d.random(n, n)
    flops = 2 * n**3 / d.seconds(lambda: a @ b)
    source = torch.empty(d.pick(4 << 30, 1 << 20), dtype=torch.uint8, device=d.name)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / d.seconds(lambda: target.copy_(source))
    details(flops=flops, bytes_per_s=copied)
    del source, target

    one = torch.zeros(1, device=d.name)
    many = d.pick(2000, 20)

    def adds():
        for _ in range(many):
            one.add_(1)

    launch = d.seconds(adds, repeats=3, warm_up=1) / many
    replayed = d.seconds(d.graph(adds), repeats=3, warm_up=1) / many
    small = torch.zeros(1024, dtype=torch.int32)
    there = small.to(d.name)
    pageable = d.seconds(lambda: there.copy_(small), repeats=200)
    back = d.seconds(lambda: there.cpu(), repeats=200)
    fixed = small.pin_memory() if d.cuda else small
    pinned = d.seconds(lambda: there.copy_(fixed, non_blocking=True), repeats=200)
    micro = {"launch": launch, "in_a_graph": replayed, "pageable": pageable, "pinned": pinned, "back": back}
    micro = {name: round(1e6 * seconds, 2) for name, seconds in micro.items()}
    details(microseconds=micro)
    figure = (f"{flops / 1e12:.0f} TFLOP/s, copy {copied / 1e12:.2f} TB/s; us: launch {micro['launch']}, in a graph "
              f"{micro['in_a_graph']}, copy of 4 KB pageable {micro['pageable']}, pinned {micro['pinned']}, back {micro['back']}")
    if missing:
        figure += f"; libraries missing: {', '.join(missing)}"
    limit = of_cards(lambda flops, copy: f"{flops / 1e12:.0f} TFLOP/s {copy / 1e12:.1f} TB/s")
    return {"figure": figure, "limit": limit, "good": not missing and flops > 0}
