"""The first half hour on a rented GPU, as eight calls of at most some minutes each. first_run.sh makes one of them.

A call is a list of checks of order.py with a deadline. What a check found is in the call's checks.jsonl the moment it ends, so a
machine that is lost costs the checks that were under way. report.py reads them all.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    about: str
    seconds: int  # the deadline of its checks
    checks: tuple


CALLS = (
    Call("the card, and the test of all own kernels", 120, ("rates", "kernels")),
    Call("compute-sanitizer of that test", 180, ("memcheck", "synccheck")),
    Call("results beside those of the CPU", 240,
         ("gradient", "greedy", "greedy-0.5b", "greedy-1.5b", "score-float32", "score-0.5b", "logprob-diff", "collective")),
    Call("speed of decoding and update", 300,
         ("generate", "update-all", "update-none", "profile-generate", "profile-update", "generate-plain")),
    Call("an iteration with agentic rollouts", 180, ("iteration", "generate-ragged")),
    Call("memory over forty rollouts", 150, ("rollouts",)),
    Call("ragged and short steps, whole runs, a checkpoint, the widths of 7B", 330,
         ("update-ragged", "update-hundred", "smoke-gigpo", "smoke-sharded", "smoke-ppo", "checkpoint", "offload", "generate-7b")),
    Call("the peers, and races of threads", 300, ("peer-update", "peer-generate", "racecheck")),
)
