"""transformers' generate as a peer: forced lengths, multi-turn rollouts in lock-step, and greedy tokens as a reference."""
import time

import torch
from transformers import GenerationConfig, StoppingCriteria

# A gap of logits below which two tokens count as equally likely.
NEAR_TIE = 1e-4


def settings(new, **more):
    """Samples from the whole distribution at temperature 1; a response ends only by its length."""
    return GenerationConfig(**dict(max_new_tokens=new, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                                   eos_token_id=None, bos_token_id=None, pad_token_id=0) | more)


@torch.no_grad()
def generate(model, prompts, new):
    """Exactly `new` tokens after each of these equally long prompts."""
    out = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=settings(new))
    assert out.shape[1] == prompts.shape[1] + new


class ForcedLengths(StoppingCriteria):
    """Ends each row at its own length. As with an end-of-sequence token, generate keeps computing a finished row until the
    longest row ends."""

    def __init__(self, prompt, lengths):
        self.prompt, self.lengths = prompt, torch.tensor(lengths)

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] - self.prompt >= self.lengths


@torch.no_grad()
def lockstep(model, script):
    """Plays a script as verl-agent does: every turn is one left-padded batch of all environments and lasts as long as its
    longest response. Finished episodes stay in the batch, with their last turn, until all are finished, and every turn starts
    with an empty cache. The environments of a turn answer at the same time, so the slowest counts. Returns the
    (prompt, response) pairs of each episode."""
    episodes = [episode["turns"] for episode in script["episodes"]]
    transcript = script["history"] == "transcript"
    played = [[] for _ in episodes]
    for number in range(max(map(len, episodes))):
        turns = [turns[min(number, len(turns) - 1)] for turns in episodes]
        time.sleep(max(turn["env_ms"] for turn in turns) / 1000)
        prompts = []
        for turn, past in zip(turns, played):
            before = [token for pair in past for part in pair for token in part] if transcript else []
            prompts.append(before + turn["prompt"])
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        lengths = [turn["response"] for turn in turns]
        out = model.generate(ids, attention_mask=mask, generation_config=settings(max(lengths)),
                             stopping_criteria=[ForcedLengths(width, lengths)])
        for row, (turn, turns, past) in enumerate(zip(turns, episodes, played)):
            if number < len(turns):
                past.append((turn["prompt"], out[row, width:width + turn["response"]].tolist()))
    return played


@torch.no_grad()
def compare_greedy(model, prompts, responses):
    """Compares greedy responses with transformers' own on the same weights (float32), one prompt at a time. Returns a sentence,
    and whether they agree. After a near-tie the rest of the response is not compared."""
    tokens = ties = 0
    wrong = []
    for number, (prompt, ours) in enumerate(zip(prompts, responses)):
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids),
                             generation_config=settings(len(ours), do_sample=False, temperature=None, top_k=None,
                                                        top_p=None))
        theirs = out[0, len(prompt):].tolist()
        at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), len(ours))
        tokens += at
        if at < len(ours):
            logits = model(torch.tensor([prompt + theirs[:at]]), use_cache=False, logits_to_keep=1).logits[0, -1]
            if (logits[theirs[at]] - logits[ours[at]]).item() < NEAR_TIE:
                ties += 1
            else:
                wrong.append(number)
    text = f"greedy in float32: {tokens} tokens of {len(prompts)} prompts equal transformers', {ties} near-ties"
    return text + (f", prompts {wrong} DIFFER" if wrong else ""), not wrong


@torch.no_grad()
def logprob_difference(model, prompts, new):
    """Returns the mean and the largest difference between log-probs of sampled tokens in cached decoding and a full pass."""
    out = model.generate(prompts, attention_mask=torch.ones_like(prompts),
                         generation_config=settings(new, output_logits=True, return_dict_in_generate=True))
    sampled = out.sequences[:, prompts.shape[1]:]
    decoded = torch.stack(out.logits, 1)
    full = model(out.sequences, use_cache=False, logits_to_keep=new + 1).logits[:, :-1]
    a, b = (torch.log_softmax(logits.float(), -1).gather(-1, sampled[..., None]) for logits in (decoded, full))
    return {"mean": (a - b).abs().mean().item(), "max": (a - b).abs().max().item()}
