"""Updates as peers: a plain PyTorch policy-gradient update, and TRL's GRPOTrainer for whole iterations."""
import os
import tempfile
import time
import warnings

import torch

from .play import lockstep
from .program import Failed

MICRO_BATCH = 4


class PlainUpdate:
    """Policy gradient with AdamW (fused) and clipping, on the model's device; weights, gradients and moments in the model's
    type. Sequences of different lengths are padded to the longest one of all."""

    def __init__(self, model, lengths, lora=None, micro_batch=MICRO_BATCH):
        """`lengths` holds (prompt, response) of each sequence; `micro_batch` sequences run together. With a rank `lora`, peft's
        adapters to all projections of the blocks are trained alone."""
        if lora:
            from peft import LoraConfig, get_peft_model
            targets = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
            model = get_peft_model(model, LoraConfig(r=lora, lora_alpha=2 * lora, target_modules=targets))
        self.model = model.train()
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6, fused=True)
        longest = max(prompt + response for prompt, response in lengths)
        self.keep = max(longest - prompt for prompt, _ in lengths)
        self.micro_batch, device = micro_batch, model.device
        self.rows = torch.randint(0, model.config.vocab_size, (len(lengths), longest), device=device)
        position = torch.arange(longest, device=device)
        prompts, ends = (torch.tensor(column, device=device)[:, None] for column in
                         ([p for p, _ in lengths], [p + r for p, r in lengths]))
        # Without padding there is no mask, which attention has a faster path for.
        self.attention = None if (ends == longest).all() else (position < ends).long()
        self.responses = ((position >= prompts) & (position < ends))[:, -self.keep:]
        self.advantages = torch.randn(len(lengths), 1, device=device)

    def __call__(self):
        self.optimizer.zero_grad()
        tokens = self.responses.sum()
        for part in torch.arange(len(self.rows), device=self.rows.device).split(self.micro_batch):
            rows, responses = self.rows[part], self.responses[part]
            attention = None if self.attention is None else self.attention[part]
            logits = self.model(rows, attention_mask=attention, use_cache=False, logits_to_keep=self.keep + 1).logits
            logp = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, rows[:, -self.keep:, None])[..., 0]
            losses = torch.exp(logp - logp.detach()) * self.advantages[part] * responses
            (-losses.sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def tokenizer(vocab_size):
    """Makes a tokenizer with one word per id. The trainer requires one, though this benchmark tokenizes no text."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    words = {f"t{i}": i for i in range(vocab_size)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")), unk_token="t0",
                                   pad_token="t0", eos_token="t1", padding_side="left")


def iterations_of_trl(model, script, repeat, before, micro_batch=MICRO_BATCH):
    """Runs whole iterations of TRL's GRPOTrainer, whose rollout function plays the script in lock-step. The first is a
    warm-up; `before` is called before each of the others. Every turn is a sample, in as many groups as the script has. All of
    them make one optimizer step, so the trainer needs no old log-probs. There is no KL and no activation checkpointing; AdamW
    is fused, in the model's type. Returns the seconds of the iterations and of their rollouts."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.simplefilter("ignore", FutureWarning)
    try:
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        raise Failed(f"{error}; run scripts/bench.sh, which installs the group bench") from error
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback

    turns = sum(len(episode["turns"]) for episode in script["episodes"])
    groups = len(script["episodes"]) // script["group_size"]
    tokens = sum(len(turn["prompt"]) + turn["response"] for episode in script["episodes"] for turn in episode["turns"])
    # The trainer requires groups of equal size.
    assert turns % groups == 0 and turns % micro_batch == 0, f"{turns} turns do not split into {groups} groups"
    rewards = [sum(turn["reward"] for turn in episode["turns"]) for episode in script["episodes"]]
    seconds, rollouts = [], []

    def play(prompts, trainer):
        begin = time.perf_counter()
        played = lockstep(trainer.accelerator.unwrap_model(trainer.model).eval(), script)
        trainer.model.train()
        pairs = [(pair, reward) for episode, reward in zip(played, rewards) for pair in episode]
        assert len(pairs) == len(prompts)
        rollouts.append(time.perf_counter() - begin)
        return {"prompt_ids": [pair[0] for pair, _ in pairs], "completion_ids": [pair[1] for pair, _ in pairs],
                "logprobs": None, "episode_return": [reward for _, reward in pairs]}

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step > 0:
                before()
            self.begin = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            seconds.append(time.perf_counter() - self.begin)

    with tempfile.TemporaryDirectory() as output:
        arguments = GRPOConfig(
            output_dir=output, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, max_steps=repeat + 1, learning_rate=1e-6,
            lr_scheduler_type="constant", optim="adamw_torch_fused", weight_decay=0.01, max_grad_norm=1.0, beta=0.0,
            temperature=1.0, num_generations=turns // groups, per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=turns // micro_batch,
            max_completion_length=max(turn["response"] for e in script["episodes"] for turn in e["turns"]))
        trainer = GRPOTrainer(
            model=model, args=arguments, rollout_func=play, processing_class=tokenizer(model.config.vocab_size),
            reward_funcs=lambda prompts, completions, episode_return, **kwargs: episode_return,
            train_dataset=Dataset.from_list([{"prompt": f"t{group}"} for group in range(groups)]), callbacks=[Clock()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        assert trainer.state.num_input_tokens_seen == (repeat + 1) * tokens and len(seconds) == repeat + 1
    return seconds[1:], rollouts[1:]
