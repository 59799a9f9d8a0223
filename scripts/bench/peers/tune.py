"""Supervised fine-tuning beside TRL's SFTTrainer: the same chats, tokens, order and optimizer."""
import json
import os
import tempfile
import time
import warnings
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from .program import ROOT, Failed, run

# The recipe's environment is not played.
RECIPE = "recipes/real/smollm2.yaml"


def chats(folder, count, longest):
    """Two neighbouring paragraphs of the documentation each: a message of the user, and its answer. None has more than `longest` tokens of
    this model: TRL would cut it, and Nestor would leave it out."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    paragraphs = [part.replace("\n", " ") for page in sorted((ROOT / "docs").glob("*.md")) for part in page.read_text().split("\n\n")
                  if 200 < len(part) < 700 and "|" not in part and "`" not in part[:1]]
    pairs = [[{"role": "user", "content": f"Continue: {first}"}, {"role": "assistant", "content": second}]
             for first, second in zip(paragraphs[::2], paragraphs[1::2])]
    fitting = [pair for pair in pairs if len(tokens(tokenizer, pair)["input_ids"]) <= longest][:count]
    assert len(fitting) == count, f"the documentation has {len(fitting)} pairs of paragraphs of at most {longest} tokens"
    return [{"messages": pair} for pair in fitting]


def ours(folder, file, steps, batch, lr, longest):
    """Loss of each step and seconds of all, in float32."""
    section = {"data": str(file), "steps": steps, "batch": batch, "lr": lr, "shuffle": False, "max_tokens": longest}
    values = {"model": {"path": str(folder)}, "dtype": "float32", "device": "cpu", "iterations": 0, "warm_start": section,
              "eval.tasks": "none", "checkpoint.every_minutes": 0, "rollout.max_prompt_tokens": longest,
              "update.micro_batch_tokens": 2048}
    with tempfile.TemporaryDirectory() as scratch:
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        run([ROOT / "target/release/nestor", "train", RECIPE, "--run-dir", f"{scratch}/run", *sets])
        read = lambda name: [json.loads(line) for line in (Path(scratch) / "run" / name).read_text().splitlines()]
        return [row["loss"] for row in read("warm_start.jsonl")], read("metrics.jsonl")[0]["time/warm_start_s"]


def tokens(tokenizer, messages):
    """Token ids up to the end of the answer, and which of them are learned."""
    prompt = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, messages[1]["content"] + "<|im_end|>")]
    return {"input_ids": parts[0] + parts[1], "completion_mask": [0] * len(parts[0]) + [1] * len(parts[1])}


def theirs(folder, rows, steps, batch, lr, longest):
    """As `ours`, by SFTTrainer."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.simplefilter("ignore", FutureWarning)
    try:
        from trl import SFTConfig, SFTTrainer
    except ImportError as error:
        raise Failed(f"{error}; run scripts/bench.sh, which installs the group bench") from error
    from datasets import Dataset

    tokenizer, losses = AutoTokenizer.from_pretrained(folder), []

    class Losses(TrainerCallback):
        def on_train_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs:
                losses.append(logs["loss"])

        def on_train_end(self, *_, **__):
            self.seconds = time.perf_counter() - self.begin

    with tempfile.TemporaryDirectory() as output:
        arguments = SFTConfig(
            output_dir=output, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", logging_steps=1, disable_tqdm=True, max_steps=steps, learning_rate=lr, lr_scheduler_type="constant",
            optim="adamw_torch_fused", weight_decay=0.01, max_grad_norm=1.0, per_device_train_batch_size=batch, max_length=longest,
            train_sampling_strategy="sequential", completion_only_loss=True, packing=False)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        trainer = SFTTrainer(model=model, args=arguments, processing_class=tokenizer, callbacks=[clock := Losses()],
                             train_dataset=Dataset.from_list([tokens(tokenizer, row["messages"]) for row in rows]))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return losses, clock.seconds
