"""The updates of tests/drivers/src/bin/updates.rs in PyTorch: transformers' model over ranks by `fully_shard`, on a CPU in float32.

usage, at each rank, with torchrun's variables: fully_shard.py MODEL_DIR BATCHES.json OUT.safetensors

Rank 0 prints a JSON object for each optimizer step and writes the final parameters.
"""
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from test_gradients import ENTROPY, KL, padded_stats, token_sums
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import AutoModelForCausalLM


def mini_batches(sequences, turns):
    """Cuts in order, before the sequence that would exceed the number of turns."""
    cut, used = [], turns
    for sequence in sequences:
        if used + len(sequence) > turns:
            cut.append([])
            used = 0
        cut[-1].append(sequence)
        used += len(sequence)
    return cut


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is normalised over all ranks already; Gloo knows sums only.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def local_loss(model, sequences, tokens):
    """This rank's part of (total, policy, kl) for a mini-batch of `tokens` response tokens."""
    if not sequences:  # takes part in the collectives
        nothing = model(torch.zeros(1, 1, dtype=torch.long), use_cache=False).logits.sum() * 0.0
        return nothing, nothing.double(), nothing.double()
    rows = sum(sequences, [])
    policy, kl, entropy = (x / tokens for x in token_sums(padded_stats(model, sequences), rows))
    return policy - ENTROPY * entropy + KL * kl, policy, kl


def main():
    directory, batches, out = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    given = json.loads(Path(batches).read_text())
    update = given["update"]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=update["lr"], eps=1e-8, fused=True, **update["optimizer"])
    for batch in given["batches"]:
        for sequences in mini_batches(batch, update["mini_batch"]):
            tokens = sum(len(turn["response"]) for turns in sequences for turn in turns)
            losses = local_loss(model, sequences[rank::world], tokens)
            losses[0].backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), update["grad_clip"]).full_tensor()
            optimizer.step()
            optimizer.zero_grad()
            sums = torch.stack([loss.detach().double() for loss in losses])
            dist.all_reduce(sums)
            if rank == 0:
                print(json.dumps(dict(zip(("total", "policy", "kl"), sums.tolist()), norm=norm.item())), flush=True)
    whole = {name: p.full_tensor() for name, p in model.named_parameters()}
    if rank == 0:
        save_file(whole, out)
    dist.destroy_process_group()
    sys.stdout.flush()
    # Threads of PyTorch that still run would at times abort the end of the process.
    os._exit(0)


if __name__ == "__main__":
    main()
