"""The checks in their order, each with the seconds it is expected to take on a GPU: what others are compared with comes first,
and what may be left out comes last. Together they fit into ten minutes."""
from program import HALVES
from runner import Check

# Sequences, prompt tokens, new tokens and repetitions; then those of a rehearsal.
DECODE = {"sizes": [128, 896, 256, 2], "small": [3, 16, 8, 1]}
RAGGED_DECODE = {"sizes": [128, 896, 128, 2], "small": [3, 16, 8, 1]}
STEP = {"sizes": [32, 512, 88, 5], "small": [4, 16, 8, 1]}
SHORT = {"sizes": [8, 512, 88, 100], "small": [4, 16, 8, 100]}


def checks(rehearsal):
    """All checks; in a rehearsal none is expected to take long."""
    half = HALVES[0]
    on_1_5b = {"shape": "1.5b", "dtype": half}
    listed = [
        Check("rates", 15, "rates.machine"),
        Check("sdp-choice", 20, "attention.choice"),
        Check("flash-decode", 25, "attention.decoding"),
        Check("flash-update", 12, "attention.training"),
        Check("addmm-float32", 8, "products.addmm"),
        Check("rms-norm", 8, "products.rms_norm"),
        Check("matrices", 12, "products.matrices"),
        Check("kernels", 6, "correct.kernels"),
        Check("score-float32", 5, "correct.score", {"shape": "tiny", "dtype": "float32"}),
        Check("greedy", 8, "correct.greedy"),
        Check("gradient", 5, "correct.gradient"),
        *[Check(f"score-{dtype}", 4, "correct.score", {"shape": "tiny", "dtype": dtype}) for dtype in HALVES],
        Check("score-0.5b", 12, "correct.score", {"shape": "0.5b", "dtype": half}),
        Check("logprob-diff", 12, "correct.logprob_diff"),
        Check("generate", 35, "speed.generate", {**on_1_5b, **DECODE, "ragged": False}),
        Check("generate-ragged", 25, "speed.generate", {**on_1_5b, **RAGGED_DECODE, "ragged": True}),
        Check("generate-plain", 20, "speed.generate", {**on_1_5b, **DECODE, "ragged": False, "without": "NESTOR_DECODE=plain"}),
        Check("update-all", 16, "speed.update", {**on_1_5b, **STEP, "recompute": "all"}),
        Check("update-none", 16, "speed.update", {**on_1_5b, **STEP, "recompute": "none"}),
        Check("update-auto", 16, "speed.update", {**on_1_5b, **STEP, "recompute": "auto"}),
        Check("update-public", 16, "speed.update", {**on_1_5b, **STEP, "recompute": "auto", "without": "NESTOR_KERNELS=none"}),
        Check("update-ragged", 16, "speed.update", {**on_1_5b, **STEP, "recompute": "auto", "ragged": True}),
        Check("update-hundred", 25, "speed.update",
              {**on_1_5b, **SHORT, "recompute": "auto", "ragged": True, "short": True}),
        Check("profile-generate", 25, "speed.profile",
              {**on_1_5b, "work": "generate", "sizes": [128, 512, 64], "small": [3, 16, 8]}),
        Check("profile-update", 20, "speed.profile", {**on_1_5b, "work": "update", "sizes": [32, 512, 88], "small": [4, 16, 8]}),
        Check("collective", 10, "whole.collective"),
        Check("smoke-sharded", 12, "whole.sharded"),
        Check("smoke-ppo", 10, "whole.smoke", {"recipe": "ppo"}),
        Check("checkpoint", 20, "whole.checkpoint"),
        Check("score-rate", 12, "speed.score", {**on_1_5b, "sizes": [32, 512, 88, 3], "small": [3, 16, 8, 1]}),
        Check("update-7b", 30, "speed.update", {"shape": "7b, 8 blocks", "dtype": half, **STEP, "recompute": "auto"}),
        Check("generate-7b", 20, "speed.generate", {"shape": "7b, 8 blocks", "dtype": half, **DECODE, "ragged": False}),
        *[Check(f"smoke-{recipe}", 8, "whole.smoke", {"recipe": recipe}) for recipe in ("gigpo", "grpo", "rloo", "reinforce_pp")],
    ]
    if rehearsal:
        for check in listed:
            check.seconds = 30  # a busy machine may need it; the limit is for a hang
    return listed
