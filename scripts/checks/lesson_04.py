"""Exercises of notebook 04. The second runs on ranks: the learner's function stands in a file,

    torchrun --nproc_per_node=2 scripts/collectives_demo.py --show answer --answer results/live/04_answer.py \
        --out results/live/04_answer.json

measures what it does there, and the check takes that JSON file. Given a function, the check starts three ranks itself.
"""

import json
import re
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

import utils
from scripts.checks import Wrong, exercise, on_ranks, tell

RANKS, LIMIT, WAIT = 3, 30, 4  # of a check that starts ranks itself: seconds for all of it, and for one collective

# ---------------------------------------------------------------------------------- on each rank: what a function does


def measure(function, group):
    """{"before", "after"} or {"before", "error"}, a dict a rank; {"untried": True}. `group` carries the answers: the
    function may break the default one."""
    if function is None:
        return {"untried": True}
    rank, used = dist.get_rank(), []

    def forbidden(*args, **kwargs):
        used.append("all_reduce")
        raise RuntimeError("all_reduce is what you are to build: use dist.reduce and dist.broadcast")

    tensor = torch.tensor([(1 + cell) * 10**rank for cell in range(4)])
    mine = {"before": tensor.tolist()}
    try:
        with mock.patch.object(dist, "all_reduce", forbidden):
            function(tensor)
        mine["after"] = tensor.tolist()
    except NotImplementedError:
        mine["untried"] = True
    except Exception as error:  # the learner's: to be told, not to end the ranks
        mine["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    mine["forbidden"] = bool(used)
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine, group=group)
    return {"untried": True} if any("untried" in one for one in of_ranks) else {"ranks": of_ranks}


def be_rank(rank, folder, function):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS,
                            timeout=timedelta(seconds=WAIT))
    group = dist.new_group(timeout=timedelta(seconds=LIMIT / 2))
    found = measure(function, group)
    if rank == 0:
        tell(folder, rank, found)
    dist.barrier(group=group)  # the others may still read from rank 0
    utils.exit_now()


# ------------------------------------------------------------------------------------- 2: all_reduce from two others


def my_all_reduce(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def only_reduce(tensor):
    dist.reduce(tensor, dst=0)


def only_broadcast(tensor):
    dist.broadcast(tensor, src=0)


def from_another_rank(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=1)


def rank_0_alone_reduces(tensor):
    if dist.get_rank() == 0:
        dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def with_all_reduce(tensor):
    dist.all_reduce(tensor)


@exercise(
    solution=my_all_reduce,
    hint="Two lines. First one rank gets the sum, then all ranks get what this rank has. Every rank calls both.",
    mistakes={"only reduce": only_reduce, "only broadcast": only_broadcast, "broadcast from another rank":
              from_another_rank, "rank 0 alone reduces": rank_0_alone_reduces, "all_reduce itself": with_all_reduce},
)
def reduced(attempt):
    """Reduce, then broadcast, is an all_reduce: every rank has the sum. But all of it goes through rank 0, whose link
    is then the bottleneck; the ring has none."""
    if callable(attempt):
        found = on_ranks(be_rank, attempt, ranks=RANKS, limit=LIMIT,
                         question="Does every rank call the same collectives?")
    else:
        found = read(attempt)
    if "untried" in found:
        raise NotImplementedError
    if "broken" in found:
        raise Wrong(found["broken"])
    ranks = found["ranks"]
    if any(rank["forbidden"] for rank in ranks):
        raise Wrong("all_reduce is what you are to build: use dist.reduce and dist.broadcast.")
    waited = [number for number, rank in enumerate(ranks) if "error" in rank]
    if waited:
        said = "; ".join(f"rank {number}: {ranks[number]['error']}" for number in waited)
        hung = re.search("imed out|closed by peer", said)
        raise Wrong(f"{said}." + " Does every rank call the same collectives, in the same order?" * bool(hung))
    befores, afters = ([rank[when] for rank in ranks] for when in ("before", "after"))
    total = [sum(values) for values in zip(*befores, strict=True)]
    if afters == [total] * len(ranks):
        return
    if afters[0] == total:
        raise Wrong(f"Rank 0 has the sum {total}, but rank 1 has {afters[1]}. After a reduce only `dst` has a result.")
    if afters == [befores[0]] * len(ranks):
        raise Wrong(f"Every rank has {afters[0]}: that is what rank 0 began with. Nothing was added up.")
    if afters[0] == afters[1] == afters[-1]:
        raise Wrong(f"All ranks agree on {afters[0]}, but the sum is {total}. Which rank has the sum after your "
                    "reduce, and which one do you broadcast from?")
    raise Wrong(f"The sum is {total}; rank 0 has {afters[0]}, rank 1 has {afters[1]}.")


def read(file):
    try:
        return json.loads(Path(file).read_text())["answer"]
    except FileNotFoundError:
        raise NotImplementedError from None


# ------------------------------------------------------------------------------------- 3: which chunk a rank sends


def my_chunk(rank, step, ranks):
    return (rank - step) % ranks


def other_direction(rank, step, ranks):
    return (rank + step) % ranks


def no_modulo(rank, step, ranks):
    return rank - step


def always_its_own(rank, step, ranks):
    return rank


def begins_again(rank, step, ranks):
    return (rank - step % (ranks - 1)) % ranks


@exercise(
    solution=my_chunk,
    hint="What a rank receives and adds in one step, it sends on in the next. So it sends the chunk that its left "
    "neighbour sent one step before: my_chunk(rank, step) = my_chunk(rank - 1, step - 1). In step 0, let rank r send "
    "chunk r.",
    mistakes={"the other direction": other_direction, "no modulo": no_modulo, "always its own": always_its_own,
              "the second phase begins like the first": begins_again},
)
def chunk(attempt):
    """With your schedule each of 2 to 6 ranks had the whole sum in the end, after 2 (n - 1) steps. Subtraction modulo n
    does both phases: after n - 1 steps the chunk that comes next is just the one that is complete."""
    for ranks in (4, 2, 3, 6):
        total = sum(10**rank for rank in range(ranks))
        held, before = [[10**rank] * ranks for rank in range(ranks)], None
        for step in range(2 * (ranks - 1)):
            sent = [attempt(rank, step, ranks) for rank in range(ranks)]
            at = f"With {ranks} ranks, in step {step}"
            for rank, number in enumerate(sent):
                if number not in range(ranks):
                    raise Wrong(f"{at}, rank {rank} would send chunk {number}. There are the chunks 0 to {ranks - 1}: "
                                "the ring goes round, so take the rest of a division (%).")
                if step and sent == before:
                    raise Wrong(f"{at}, every rank sends the chunk that it sent the step before: rank {rank} chunk "
                                f"{number}. Then each chunk moves one place only. What came in has to go on.")
                if 0 < step < ranks and number != before[rank - 1]:
                    raise Wrong(f"{at}, rank {rank} sends chunk {number}. But it has just received chunk "
                                f"{before[rank - 1]}" + (", which is now complete: this one must go round."
                                if step == ranks - 1 else ", and no sum grows unless this is sent on."))
            arriving = [(number, held[rank][number]) for rank, number in enumerate(sent)]
            for rank, (number, value) in enumerate(arriving):
                right = held[(rank + 1) % ranks]
                right[number] = value + (right[number] if step < ranks - 1 else 0)
            before = sent
        if held != [[total] * ranks] * ranks:
            raise Wrong(f"With {ranks} ranks, rank 0 ends with {held[0]}; each should be {total}: one from every rank.")


# ------------------------------------------------------------------------------------- 4: algbw and busbw


def my_bandwidths(bytes, seconds, ranks):
    algbw = bytes / seconds / 1e9
    return algbw, algbw * 2 * (ranks - 1) / ranks


def without_factor(bytes, seconds, ranks):
    algbw = bytes / seconds / 1e9
    return algbw, algbw


def half_a_ring(bytes, seconds, ranks):
    algbw = bytes / seconds / 1e9
    return algbw, algbw * (ranks - 1) / ranks


def in_gibibytes(bytes, seconds, ranks):
    algbw = bytes / seconds / 2**30
    return algbw, algbw * 2 * (ranks - 1) / ranks


def only_busbw(bytes, seconds, ranks):
    return my_bandwidths(bytes, seconds, ranks)[1]


def in_bits(bytes, seconds, ranks):
    algbw = 8 * bytes / seconds / 1e9
    return algbw, algbw * 2 * (ranks - 1) / ranks


@exercise(
    solution=my_bandwidths,
    hint="algbw is bytes / seconds. busbw counts what each rank sends in the ring: 2 (n - 1) / n times the bytes of "
    "the tensor. 1 GB is 1e9 bytes.",
    mistakes={"no factor": without_factor, "one phase only": half_a_ring, "GiB": in_gibibytes, "bits": in_bits,
              "one number": only_busbw},
)
def bandwidths(attempt):
    """Both are right for 2, 4 and 8 ranks. algbw tells how long your message takes; busbw tells how well the links are
    used, whatever the number of ranks."""
    for bytes, seconds, ranks in ((10**9, 0.5, 8), (4_000_000, 0.002, 4), (1_000_000, 0.001, 2)):
        got = attempt(bytes, seconds, ranks)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            raise Wrong(f"You gave {got!r}. Return two numbers: algbw, busbw.")
        algbw, busbw = (float(value) for value in got)
        right = my_bandwidths(bytes, seconds, ranks)
        case = f"{bytes:,} bytes in {seconds} s on {ranks} ranks"
        if near(algbw, right[0] * 1e9 / 2**30):
            raise Wrong(f"{case}: algbw is {right[0]:g} GB/s, and you have {algbw:.4g}. These are GiB (2^30 bytes); "
                        "network speeds are given in GB (1e9).")
        if near(algbw, 8 * right[0]):
            raise Wrong(f"{case}: algbw is {right[0]:g} GB/s, and you have {algbw:.4g}: gigabits. A link of 400 Gbit/s "
                        "carries 50 GB/s.")
        if not near(algbw, right[0]):
            raise Wrong(f"{case}: algbw is bytes / seconds, {right[0]:g} GB/s; you have {algbw:.4g}.")
        if near(busbw, right[1]):
            continue
        if near(busbw, algbw):
            raise Wrong(f"{case}: your busbw is algbw. But each rank has to send {2 * (ranks - 1) / ranks:g} times the "
                        "bytes of the tensor.")
        if near(busbw, right[1] / 2):
            raise Wrong(f"{case}: your busbw is {busbw:.4g}, half of {right[1]:.4g}. The ring goes round twice: once "
                        "adding, once copying.")
        raise Wrong(f"{case}: busbw is {right[1]:.4g} GB/s; you have {busbw:.4g}.")


def near(a, b):
    return abs(a - b) <= 1e-6 * abs(b)


# ------------------------------------------------------------------------------------- 1: which collective fits


def my_choices():
    return {"a": "broadcast", "b": "all_reduce", "c": "reduce", "d": "reduce_scatter", "e": "all_gather",
            "f": "all_to_all"}


def always_all_reduce():
    return dict.fromkeys("abcdef", "all_reduce")


def gather_for_all_gather():
    return my_choices() | {"e": "gather"}


def scatter_for_reduce_scatter():
    return my_choices() | {"d": "scatter"}


def gather_for_reduce():
    return my_choices() | {"c": "gather"}


def scatter_the_weights():
    return my_choices() | {"a": "scatter"}


@exercise(
    solution=my_choices,
    hint="Two questions. Is something added up over the ranks (reduce)? And who needs the result: one rank, all ranks "
    "the same (all_), or each rank another part (scatter)?",
    mistakes={"all_reduce for everything": always_all_reduce, "gather for all_gather": gather_for_all_gather,
              "scatter for reduce_scatter": scatter_for_reduce_scatter, "scatter for broadcast": scatter_the_weights,
              "gather for reduce": gather_for_reduce},
)
def choices(attempt):
    """a and b are what DDP does. d and e together are an all_reduce with an update between its two phases: this is how
    optimizers and models are sharded (ZeRO, FSDP). f carries tokens to the ranks of their experts."""
    why = {
        "a": "Rank 0 has what all others need, the same for each.",
        "b": "All ranks need the same sum.",
        "c": "Something is added up, and one rank needs it: the others need not receive anything.",
        "d": "A sum over the ranks is needed, and each rank needs only its own part of it.",
        "e": "Each rank has a part, nothing is added up, and every rank needs all parts.",
        "f": "Each rank has another message for each other rank.",
    }
    answer = attempt()
    if not isinstance(answer, dict):
        raise Wrong(f"You gave {answer!r}. Return the dict of the stub, with a name for each letter.")
    missing = [letter for letter in why if letter not in answer]
    if missing:
        raise Wrong(f"There is no answer to {', '.join(missing)}.")
    wrong = [letter for letter, right in my_choices().items() if str(answer[letter]).removeprefix("dist.") != right]
    if wrong:
        letter = wrong[0]
        more = f" ({len(wrong)} of 6 are not right yet.)" if len(wrong) > 1 else ""
        raise Wrong(f"{letter}: {answer[letter]} does not fit, or moves more than is needed. {why[letter]}{more}")
