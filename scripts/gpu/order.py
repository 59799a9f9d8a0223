"""The checks in their order, each with the seconds it is expected to take on a GPU: the card's rates, correctness, the speed of
the product, and last the ceilings of libtorch's public operations. Together they fit into ten minutes, without those that are
apart, which calls.py asks for."""
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
        Check("rates", 10, "rates.machine"),
        Check("kernels", 6, "correct.kernels"),
        Check("greedy", 12, "correct.greedy", {"shape": "tiny"}),
        Check("greedy-0.5b", 15, "correct.greedy", {"shape": "0.5b, 2 blocks"}),
        Check("greedy-1.5b", 18, "correct.greedy", {"shape": "1.5b, 2 blocks"}),
        Check("score-float32", 8, "correct.score", {"shape": "1.5b, 2 blocks", "dtype": "float32"}),
        Check("gradient", 6, "correct.gradient"),
        Check("score-0.5b", 12, "correct.score", {"shape": "0.5b", "dtype": half}),
        Check("logprob-diff", 15, "correct.logprob_diff", {"shape": "1.5b, 2 blocks"}),
        Check("collective", 6, "whole.collective"),
        Check("smoke-gigpo", 10, "whole.smoke", {"recipe": "gigpo"}),
        Check("generate", 20, "speed.generate", {**on_1_5b, **DECODE, "ragged": False}),
        Check("update-auto", 8, "speed.update", {**on_1_5b, **STEP, "recompute": "auto"}),
        Check("iteration", 40, "speed.iteration", {"workload": "alfworld-1.5b", "turns": 8}),
        Check("profile-generate", 15, "speed.profile",
              {**on_1_5b, "work": "generate", "sizes": [128, 512, 64], "small": [3, 16, 8]}),
        Check("profile-update", 15, "speed.profile", {**on_1_5b, "work": "update", "sizes": [32, 512, 88], "small": [4, 16, 8]}),
        Check("generate-plain", 20, "speed.generate", {**on_1_5b, **DECODE, "ragged": False, "without": "NESTOR_DECODE=plain"}),
        Check("update-all", 8, "speed.update", {**on_1_5b, **STEP, "recompute": "all"}),
        Check("update-none", 8, "speed.update", {**on_1_5b, **STEP, "recompute": "none"}),
        Check("update-public", 8, "speed.update", {**on_1_5b, **STEP, "recompute": "auto", "without": "NESTOR_KERNELS=none"}),
        Check("generate-ragged", 15, "speed.generate", {**on_1_5b, **RAGGED_DECODE, "ragged": True}),
        Check("update-ragged", 8, "speed.update", {**on_1_5b, **STEP, "recompute": "auto", "ragged": True}),
        Check("update-hundred", 20, "speed.update",
              {**on_1_5b, **SHORT, "recompute": "auto", "ragged": True, "short": True}),
        Check("smoke-sharded", 10, "whole.sharded"),
        Check("smoke-ppo", 10, "whole.smoke", {"recipe": "ppo"}),
        Check("checkpoint", 30, "whole.checkpoint"),
        Check("offload", 15, "whole.offload", apart=True),
        Check("score-rate", 15, "speed.score", {**on_1_5b, "sizes": [32, 512, 88, 3], "small": [3, 16, 8, 1]}),
        Check("generate-7b", 30, "speed.generate", {"shape": "7b, 8 blocks", "dtype": half, **DECODE, "ragged": False}),
        Check("update-7b", 25, "speed.update", {"shape": "7b, 8 blocks", "dtype": half, **STEP, "recompute": "auto"}),
        Check("peer-update", 20, "plain.update", {"shape": "1.5b", **STEP}),
        Check("peer-generate", 32, "plain.generate", {"shape": "1.5b", **DECODE}),
        *[Check(f"score-{dtype}", 3, "correct.score", {"shape": "tiny", "dtype": dtype}) for dtype in HALVES],
        Check("matrices", 8, "products.matrices"),
        Check("flash-decode", 12, "attention.decoding"),
        Check("flash-update", 8, "attention.training"),
        Check("addmm-float32", 6, "products.addmm"),
        Check("rms-norm", 6, "products.rms_norm"),
        Check("sdp-choice", 10, "attention.choice"),
        *[Check(f"smoke-{recipe}", 3, "whole.smoke", {"recipe": recipe}) for recipe in ("grpo", "rloo", "reinforce_pp")],
        Check("rollouts", 60, "whole.rollouts", apart=True),
        Check("memcheck", 40, "sanitizer.run", {"tool": "memcheck"}, apart=True),
        Check("synccheck", 40, "sanitizer.run", {"tool": "synccheck"}, apart=True),
        # Of attention alone, since it is slow and few other kernels have shared memory.
        Check("racecheck", 60, "sanitizer.run", {"tool": "racecheck", "only": "paged_attention"}, apart=True),
    ]
    if rehearsal:
        for check in listed:
            check.seconds = 30  # a busy machine may need it; the limit is for a hang
    return listed
