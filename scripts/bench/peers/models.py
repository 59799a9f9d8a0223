"""The models that both sides load, in Hugging Face form: random weights of a fixed seed, and those that scripts/models/get.py
fetches."""
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from .program import ROOT, Failed

SHAPES = {
    "tiny": dict(hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=512),
    "27m": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
                num_key_value_heads=2, vocab_size=8192),
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                 num_key_value_heads=2, vocab_size=151936),
}
# Standard deviation of the logits of a sharp model.
SHARP = 3.0


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


@torch.no_grad()
def logit_std(model):
    """Returns the standard deviation over the vocabulary, averaged over the positions of random rows."""
    rows = torch.randint(0, model.config.vocab_size, (4, 128), generator=torch.Generator().manual_seed(1))
    return model(rows, use_cache=False).logits.float().std(-1).mean().item()


@torch.no_grad()
def folder(shape, sharp=False):
    """Returns a folder of bfloat16 weights: a shape's, or a real model's. A sharp model has its final norm scaled so that the
    standard deviation of its logits is SHARP, as in trained models. Rounding a logit then costs more."""
    if shape not in SHAPES:
        if not (ROOT / "models" / shape / "model.safetensors").exists():
            raise Failed(f"there is no models/{shape}; run scripts/models/get.py {shape}")
        return ROOT / "models" / shape
    path = ROOT / "target/bench" / (shape + ("-sharp" if sharp else ""))
    if (path / "model.safetensors").exists():
        return path
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6,
                                         tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
                                         **SHAPES[shape]))
    if sharp:
        model.model.norm.weight *= SHARP / logit_std(model)
    staged = path.with_name(path.name + ".partial")
    model.to(torch.bfloat16).save_pretrained(staged)
    staged.rename(path)
    return path
