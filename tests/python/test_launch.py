"""Ranks on one machine: started by `nestor launch`, by torchrun or by hand; killed, stopped, started again."""
import json
import os
import re
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from conftest import PATIENCE, free_port

SUM = ["bench", "collective", "--backend", "gloo", "--mib", "1"]
# Never ends by itself.
LONG = [*SUM, "--repeats", "100000000", "--silence", "5"]


def start(command, **variables):
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.Popen([str(word) for word in command], env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def until(what):
    """Waits for something to become true, and returns it."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


def joined(pid):
    """True once a rank has joined the others: c10d starts these threads when all are connected."""
    try:
        return any("gloo_runloop" in (task / "comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False


def alive(pid):
    """True while a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_heartbeats(port, world):
    """Waits until every rank has sent a heartbeat: one that never did would not be missed."""
    store = dist.PrefixStore("nestor", dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    store.wait([f"beat/{rank}" for rank in range(world)], timedelta(seconds=PATIENCE))


def ranks_of(launcher, n):
    """The process ids of a launcher's ranks in their order, once they have joined."""
    def found():
        pids = {}
        for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
            try:
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            pids.update({int(v[5:]): int(child) for v in variables if v.startswith(b"RANK=")})
        return len(pids) == n and all(map(joined, pids.values())) and [pids[rank] for rank in range(n)]
    return until(found)


def ends(process):
    """Exit code, stdout and stderr of a process that ends by itself."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, out, err


def test_launch_and_torchrun_give_one_report(run_json, nestor, root):
    assert run_json("launch", "--nproc", 2, *SUM, "--json")["world"] == 2
    # torchrun's agent serves the store itself.
    torchrun = [root / ".venv/bin/torchrun", "--nproc-per-node", "2", "--no-python", nestor, *SUM, "--json"]
    code, out, err = ends(start(torchrun))
    assert code == 0 and json.loads(out)["world"] == 2, err


def test_wrong_input_is_reported_once_before_anything_starts(run):
    # Arguments, and a part of the one line.
    wrong = [
        ([*SUM, "--silence", "60"], "60 is not in 5..=50"),
        (["train", "nothing.yaml"], "there is no recipe nothing.yaml"),
        (["model", "new", "x", "--shape", "tiny"], "only train, bench collective and bench update"),
    ]
    for arguments, text in wrong:
        done = run("launch", "--nproc", 2, *arguments)
        assert done.returncode == 2 and text in done.stderr and "[rank" not in done.stderr, done.stderr
    # An error that only a rank can find: one line of the ranks, and the launcher's.
    done = run("launch", "--nproc", 2, "--restarts", 3, *SUM, "--repeats", 0)
    assert done.returncode == 2 and done.stderr.count("[rank") == 1 and "restart" not in done.stderr, done.stderr
    for variables, text in [({"RANK": "1"}, "WORLD_SIZE is not set"), ({"RANK": "2", "WORLD_SIZE": "x"}, "WORLD_SIZE")]:
        done = run(*SUM, env={**os.environ, **variables})
        assert done.returncode == 2 and text in done.stderr, done.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_without_a_launcher_the_others_end_and_name_the_rank(nestor, how):
    groups = []
    for victim in [2, 0]:
        port = free_port()
        place = {"WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [start([nestor, *LONG], RANK=rank, **place) for rank in range(3)]
        until(lambda: all(joined(rank.pid) for rank in ranks))
        wait_for_heartbeats(port, 3)
        ranks[victim].send_signal(how)
        groups.append((victim, ranks))
    for victim, ranks in groups:
        for rank in [rank for i, rank in enumerate(ranks) if i != victim]:
            code, _, err = ends(rank)
            assert code == 1, err
            # Rank 0 serves the store: the others see its death at once, and its silence like another's.
            gone = "is gone" if (victim, how) == (0, signal.SIGKILL) else "has been silent for 5 s"
            errors = [line for line in err.splitlines() if "error: " in line]
            speaker = f"[rank {ranks.index(rank)}] "
            assert len(errors) == 1 and errors[0].startswith(f"{speaker}error: rank {victim} {gone}"), err
        ranks[victim].kill()
        ranks[victim].communicate()


def test_a_rank_that_waits_in_vain_names_the_late_one(nestor):
    """The timeout of a collective is shorter than the silence: the message names the rank that began fewer."""
    place = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    rank = start([nestor, *SUM, "--timeout", "3"], RANK=0, **place)
    code, _, err = ends(rank)
    assert code == 1 and "[rank 0] error: rank 1 did not join in time" in err, err


@pytest.mark.parametrize("other", ["waits", "hangs"])
def test_a_rank_that_hangs_alive_is_named(root, other):
    """Rank 1 sleeps before its third collective. Rank 0's main thread waits for it, or hangs elsewhere while the
    collective is under way, as in a call that synchronises with a GPU: then the pulse ends it."""
    place = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    failpoints = ["mid-collective:3=hang" if other == "hangs" else "", "before-collective:3=hang"]
    program = root / "target/release/nestor_failpoints"
    ranks = [start([program, *LONG, "--timeout", "3"], RANK=rank, NESTOR_FAILPOINT=failpoints[rank], **place)
             for rank in range(2)]
    for i, rank in enumerate(ranks):
        code, _, err = ends(rank)
        assert code == 1, err
        errors = [line for line in err.splitlines() if "error: " in line]
        assert len(errors) == 1 and errors[0].startswith(f"[rank {i}] error: "), err
        assert "rank 1 began 2 collectives and others 3: slow or hung" in errors[0], err


def test_a_launcher_ends_all_when_one_is_killed_and_starts_again(nestor):
    launcher = start([nestor, "launch", "--nproc", 3, "--restarts", 1, *LONG])
    first = ranks_of(launcher, 3)
    os.kill(first[1], signal.SIGSTOP)  # cannot end by itself
    os.kill(first[2], signal.SIGKILL)
    until(lambda: not any(map(alive, first)))
    second = ranks_of(launcher, 3)
    os.kill(second[0], signal.SIGKILL)
    code, _, err = ends(launcher)
    assert code == 1 and not any(map(alive, first + second)), err
    assert "error: rank 2 was killed by signal 9 (SIGKILL)" in err, err
    assert "error: rank 0 was killed by signal 9 (SIGKILL)" in err, err
    assert re.findall(r"restart \d of \d", err) == ["restart 1 of 1"], err


def test_signals_reach_the_ranks(nestor):
    for how in [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]:
        launcher = start([nestor, "launch", "--nproc", 2, "--restarts", 5, *LONG])
        ranks = ranks_of(launcher, 2)
        launcher.send_signal(how)
        code, _, err = ends(launcher)
        until(lambda: not any(map(alive, ranks)))
        if how == signal.SIGKILL:
            assert code == -signal.SIGKILL  # the ranks end with it
        else:  # this command has nothing to save, so the signal ends it; a stopped command is not restarted
            assert code == 130 and "there was nothing to save yet" in err and "restart" not in err, err
