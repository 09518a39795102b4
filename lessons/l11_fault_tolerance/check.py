"""Exercises of lesson 11. The first is judged by its purpose: the learner's function is killed while it writes."""

import functools
import json
import math
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from course.exercise import Case, Wrong, exercise, mistake
from course.on_ranks import exercise_on_ranks, patched
from course.predict.checkpoints import drawn
from lessons.l11_fault_tolerance.sharded import Sharded, table
from lessons.start.ours.checkpoint import Checkpoint
from lessons.start.ours.must_stop import ASK, must_stop
from lessons.start.ours.replace import replace

OLD, NEW = b"old", b"new"  # data of the file
LIMIT = 60  # seconds for all kills of one function, which take one or two


# Runs the function once for each of its bytecode instructions, in a process of its own that is killed right before it.
# torch is not imported here: os.fork is safe. Ends at the first kill that leaves neither the old data nor the new.
KILLS = '''
import json, os, shutil, signal, sys, tempfile
from pathlib import Path
{source}
OLD, NEW = {old!r} * 1000, {new!r} * 1300  # shorter than the buffer of an open file
CONTENTS = {OLD: "old", NEW: "new", None: "no file"}
def killed_at(number, path):
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        frame.f_trace_opcodes = True
        seen += event == "opcode"
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    replace(path, NEW)
    os._exit(0)
number, killed, contents = 0, True, "old"
while killed and contents in ("old", "new"):
    number += 1
    for name in os.listdir():
        os.remove(name)
    path = os.path.join(os.getcwd(), "checkpoint")
    Path(path).write_bytes(OLD)
    inode = os.stat(path).st_ino
    child = os.fork()
    if child == 0:
        killed_at(number, path)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and status:
        sys.exit(1)
    killed = status != 0
    data = Path(path).read_bytes() if os.path.exists(path) else None
    contents = CONTENTS.get(data, "torn")
print(json.dumps({
    "killed": killed, "contents": contents, "bytes": len(data or b""), "of": len(NEW),
    "whole new data in another file": any(Path(name).read_bytes() == NEW for name in os.listdir()
                                          if name != "checkpoint"),
    "renamed": data is not None and os.stat(path).st_ino != inode}))
'''


def kill_often(function):
    """What KILLS prints of this function: the state of its file after the kill that did harm, or at the end."""
    is_mistake = isinstance(function, partial)
    source = function.args[1] if is_mistake else Path(function.__code__.co_filename).read_text(encoding="utf-8")
    program = KILLS.replace("{source}", source).replace("{old!r}", repr(OLD)).replace("{new!r}", repr(NEW))
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True,
                                  timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Wrong(f"Your function had not come to its end after {LIMIT} s.") from None
    if done.returncode:
        raise Wrong("In a process of its own, where only os, shutil, tempfile and Path are imported, your function "
                    f"failed: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1]}.")
    return json.loads(done.stdout.splitlines()[-1])


changed = partial(mistake, replace)
RENAME = '    os.replace(f"{path}.part", path)\n'
FLUSH = "        file.flush()\n        os.fsync(file.fileno())  # a power cut takes what has not reached the disk\n"


@exercise(
    solution=replace,
    hint=("There is one call that changes what a name stands for, at once: before it the old file has the name, after "
          "it the new one. What must be true of the new file by then?",
          "Write all of the data to a file beside it, such as path + '.part', and close that file. Then comes the one "
          "call, of the module os.",
          "with open(f'{path}.part', 'wb') as file: file.write(data); and after the with block "
          "os.replace(f'{path}.part', path)."),
    mistakes={
        "Opening a file for writing empties it. Write to another name first.": changed(
            {'open(f"{path}.part", "wb")': 'open(path, "wb")', RENAME: ""}),
        "os.replace removes the old file and renames the new one at once: do not remove it first.": changed(
            {RENAME: f"    os.remove(path)\n{RENAME}"}),
        "The whole new data stood in another file. Do not copy it: rename that file.": changed(
            {RENAME: '    with open(path, "wb") as file:\n        file.write(data)\n'}),
        "Give the new file its name.": changed({RENAME: ""}),
        "It got its name before the data had left the program's buffer: close the file first.": changed(
            {FLUSH: "", RENAME: f"    {RENAME}"}),
    },
    limit=2 * LIMIT,
)
def never_half(answer):
    """Killed before each single instruction, your function left the whole old file or the whole new one. From now on
    train.py saves with it. os.fsync before the rename guards against a power cut."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        path.write_bytes(OLD)
        answer(str(path), NEW)
        contents = path.read_bytes() if path.exists() else None
        yield Case(contents, NEW, f"After your function had returned, the file held {contents!r}; {NEW!r} is right.")
    state = kill_often(answer)
    written, size = state.pop("bytes"), state.pop("of")
    whole = state["contents"] == "new" and not state["killed"]
    yield Case("whole" if whole else state, "whole",
               "It was killed when there was no file at all: the old one was gone, and the new one did not have its "
               "name yet." if state["contents"] == "no file" else
               f"It was killed when the file held {written} of {size} bytes: neither the old data nor the new.")


# ---------------------------------------------------------------------------------------------- how often to save
def my_interval(write, between):
    return math.sqrt(2 * write * between)


@functools.lru_cache
def least_by_chance(write, between):
    """(the best interval by search, the share of time that it loses), over the same failures as every other."""
    return min(((every, drawn(every, write, between, 0)) for every in np.geomspace(write / 2, between, 400)),
               key=lambda found: found[1])


@exercise(
    solution=my_interval,
    hint=("One of the shares falls with the interval, the other rises. Where is their sum least?",
          "Call the interval t: the shares are write / t and t / (2 * between). At the best t the derivative of their "
          "sum is 0.",
          "-write / t**2 + 1 / (2 * between) = 0. Solve it for t."),
    mistakes={
        "Of an interval half is lost at a failure, on average: where is the 2?": mistake(my_interval, {"2 * ": ""}),
        "That is its square. Look at the units: seconds times seconds.": mistake(my_interval, {"math.sqrt": ""}),
        "So short an interval spends half of the time on writing.": mistake(
            my_interval, {"math.sqrt(2 * write * between)": "write"}),
        "Then each failure costs half of all that was done since the last one.": mistake(
            my_interval, {"math.sqrt(2 * write * between)": "between"}),
        "The longer a write takes, the less often you should write.": mistake(
            my_interval, {"2 * write * between": "2 * between / write"}),
    },
)
def interval(answer):
    """Two costs, one that falls with the interval and one that rises: at the best interval they are equal."""
    worst, cases = 1.0, []
    for write, between in [(0.02, 11_000.0), (5.0, 90_000.0), (30.0, 20_000.0)]:
        every = float(answer(write, between))
        if not every > 0:
            raise Wrong(f"With writes of {write:g} s and a failure every {between:g} s it returned {every:g}. An "
                        "interval is longer than 0 s.")
        best, least = least_by_chance(write, between)
        factor = drawn(every, write, between, 0) / least
        worst = max(worst, factor)
        cases.append(Case(
            every, every if factor < 1.02 else best,
            f"A write takes {write:.3g} s, a failure comes every {between:,.0f} s. Saving every {every:,.4g} s "
            f"loses {factor:.3g} times the least, over 5,000 random failures: it is too "
            f"{'seldom' if every > best else 'often'}."))
    cases[-1].remark = f"Over 5,000 random failures your intervals lose at most {worst:.3f} times the least possible."
    yield from cases


# ---------------------------------------------------------------------------------------------- stop together
STEPS = 40


def signals(ranks):
    """For each training {rank: step in which it gets the signal}."""
    return [{}, {ranks - 1: 13}, {0: 7, 1: 12}, {1: 10}]


def measure_stop(function, context):
    """For each training the step after which this rank stopped (0: never; less than 0: in which it waited in vain), and
    its messages."""
    measured, calls = {"stopped": [], "messages": []}, []
    names = ("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast",
             "broadcast_object_list", "reduce", "gather", "gather_object", "barrier", "send", "recv",
             "isend", "irecv")
    with patched(function, **{name: counted(getattr(dist, name), calls) for name in names}):
        for number, got in enumerate(signals(context.world_size)):
            calls.clear()
            stopped, step = 0, 0
            try:
                while step < STEPS and not stopped:
                    step += 1
                    stopped = step if function(got.get(context.rank, STEPS + 1) <= step, step) else 0
            except NotImplementedError:
                raise
            except RuntimeError as error:  # gloo's, of a wait in vain
                if not re.search("timed out|closed", str(error), re.IGNORECASE):
                    raise
                stopped = -step
            measured["stopped"].append(stopped)
            measured["messages"].append(len(calls))
            if len(set(context.gather(f"training {number}", stopped))) > 1:
                break  # the ranks are no longer together
    return measured


def counted(call, calls):
    @functools.wraps(call)
    def noted(*args, **kwargs):
        calls.append(call)
        return call(*args, **kwargs)
    return noted


asks = partial(mistake, must_stop)
IN_TENTH, QUESTION = "    if step % ASK:\n        return False\n", "    dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"


@exercise_on_ranks(
    measure_stop,
    solution=must_stop,
    ranks=(2, 3),
    hint=("A rank that has no signal must take part, too. In which updates do all ranks know that they are to ask?",
          "Every tenth update is the same for all. There one all-reduce over a flag tells each rank whether any has "
          "the signal.",
          "if step % 10: return False; else flag = torch.tensor(int(signalled)), dist.all_reduce(flag, "
          "op=dist.ReduceOp.MAX), return bool(flag)."),
    mistakes={
        "A rank that looks at its own signal alone leaves the others behind. They must ask each other.": asks(
            {IN_TENTH: "", QUESTION: ""}),
        "A collective takes time. Ask after each tenth update.": asks({IN_TENTH: ""}),
        "Each rank still looks at its own signal alone.": asks({QUESTION: ""}),
        "Only a rank with a signal asks, and the others do not answer: a collective needs all ranks. When to ask must "
        "depend on what all of them know, such as the number of the update.": asks(
            {"if step % ASK:": "if not signalled:"}),
        "A rank with a signal asks at once, and what answers it is the question of another update. When to ask "
        "must depend on what all ranks know, such as the number of the update.": asks(
            {"if step % ASK:": "if step % ASK and not signalled:"}),
        "Ask more often: after each tenth update.": asks({"step % ASK": "step % (2 * ASK)"}),
        "Rank 0 decides, and it has heard of no signal: another rank has.": asks(
            {QUESTION: "    dist.broadcast(flag, src=0)\n"}),
        "One signal is enough: take the largest flag, and not the smallest.": asks({"ReduceOp.MAX": "ReduceOp.MIN"}),
    },
)
def stopped(ranks):
    """All ranks see the same result of the all-reduce, so they leave the loop after the same update. Nobody waits."""
    n = len(ranks)
    for number, got in enumerate(signals(n)):
        steps = [measured["stopped"][number] for measured in ranks]
        first = min(got.values(), default=STEPS)
        expected = n * [-(-first // ASK) * ASK if got else 0]
        together = len(set(steps)) == 1
        right = together and (first <= steps[0] <= first + ASK if got else steps[0] == 0)
        story = " and ".join(f"rank {rank} gets a signal in update {step}" for rank, step in got.items()) or (
            "no rank gets a signal")
        ends = ["stopped after" if step > 0 else "waited in vain in" if step else "did not stop by"
                for step in steps]
        what = "; ".join(f"rank {rank} {end} update {abs(step) or STEPS}"
                         for rank, (end, step) in enumerate(zip(ends, steps, strict=True)))
        late = (" After each update all ranks must ask, or none." if not together else
                " That is too late: at most 10 updates after the signal." if steps[0] > first + ASK else "")
        yield Case(steps, steps if right else expected, f"Of {n} ranks {story}. {what.capitalize()}.{late}")
        if not together:
            return
        messages = [measured["messages"][number] for measured in ranks]
        most = STEPS // ASK
        yield Case(messages, messages if max(messages) <= most else n * [most],
                   f"In at most {STEPS} updates a rank took part in {max(messages)} collectives; {most} are enough.")


# ---------------------------------------------------------------------------------------------- save and restore


class Training:
    """A small training on ranks: a layer that learns from numbers that each rank draws. Seeds are those of a start."""

    def __init__(self, kind, context, start):
        torch.manual_seed(start)
        self.model = nn.Linear(3, 2, dtype=torch.float64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: 1 / (1 + update))
        self.losses, self.writes, self.file = [], 0, Path(context.folder, "kept")
        self.kept = kind(str(self.file), self.model, self.optimizer, self.scheduler, self.write)
        torch.manual_seed(100 * start + context.rank)

    def write(self, path, data):
        self.writes += 1
        Path(path).write_bytes(data)

    def updates(self, number):
        for _ in range(number):
            loss = self.model(torch.randn(4, 3, dtype=torch.float64)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            if dist.is_initialized():
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter.grad)
            self.optimizer.step()
            self.scheduler.step()
            self.losses.append(loss.detach())

    def now(self):
        """What the next update depends on, as numbers. `rng`: the next number that would be drawn."""
        state = torch.get_rng_state()
        drawn_next = torch.rand(1).item()
        torch.set_rng_state(state)
        momentum = [self.optimizer.state[parameter].get("momentum_buffer") for parameter in self.model.parameters()]
        return {"weights": self.model.weight.flatten().tolist(),
                "momentum": [each if each is None else each.flatten().tolist() for each in momentum],
                "schedule": self.scheduler.last_epoch, "rng": drawn_next}


EPOCH, STEP = 1, 4  # where the training is killed


def measure_kept(made, context):
    """What is there when a training saves, and what another process finds after restore()."""
    if context.world_size > 1:
        context.join()
    one = Training(made, context, 1)
    one.updates(7)
    one.losses = one.losses[-STEP:]
    saved = one.now() | {"losses": [loss.item() for loss in one.losses]}
    one.kept.save(EPOCH, STEP, one.losses)
    writes = sum(context.gather("writes", one.writes))
    one.updates(2)  # these are lost
    if not one.file.exists():
        return {"writes": writes}
    other = Training(made, context, 2)
    place = other.kept.restore()
    if not isinstance(place, tuple | list) or len(place) != 3:
        raise Wrong(f"restore() returned {place!r}. It returns three things: epoch, step, losses.")
    found = other.now() | {"losses": [float(loss) for loss in place[2]]}
    return {"writes": writes, "saved": saved, "found": found, "place": [int(place[0]), int(place[1])]}


kept, ALL = partial(mistake, Checkpoint), '"model": model, "optimizer": optimizer, "scheduler": scheduler'
OWN = "ranks[rank]"


@exercise_on_ranks(
    measure_kept,
    solution=Checkpoint,
    hint=("List what the next update reads: whatever your program changes while it trains. Some of it is not an "
          "argument, and some of it differs from rank to rank.",
          "model, optimizer and scheduler have a state_dict(). The epoch, the step and the losses are given. "
          "torch.get_rng_state() is each rank's own, as the losses are: dist.all_gather_object(box, mine) brings them "
          "to the rank that writes.",
          "save: ranks = [None] * world_size; dist.all_gather_object(ranks, {'losses': losses, 'rng': "
          "torch.get_rng_state()}); on rank 0 torch.save({...}, data := io.BytesIO()) and self.replace(self.file, "
          "data.getvalue()). restore: state = torch.load(self.file), load_state_dict() three times, "
          "torch.set_rng_state(state['ranks'][rank]['rng'])."),
    mistakes={
        "A process that was started alone has no process group: ask dist.is_initialized() first.": kept(
            {"if dist.is_initialized():  #": "if True:  #"}),
        "One rank writes. All others have only to send it what is theirs.": kept(
            {"not dist.is_initialized() or dist.get_rank() == 0": "True"}),
        "The model is not all that an update changes.": kept({ALL: '"model": model'}),
        "Momentum is part of the optimizer's state_dict().": kept(
            {ALL: '"model": model, "scheduler": scheduler'}),
        "The schedule begins again: the scheduler counts updates.": kept(
            {ALL: '"model": model, "optimizer": optimizer'}),
        "A new process draws from its seed again. torch.get_rng_state() says where the generator is.": kept(
            {f'            torch.set_rng_state({OWN}["rng"])\n': ""}),
        "The random state, and the losses, are those of one rank. Each rank has its own.": kept({OWN: "ranks[0]"}),
        "The loss of an epoch is that of all its updates, also of those before the kill.": kept(
            {f'step, {OWN}["losses"]': "step, []"}),
        "The epoch begins again, and its first images are seen twice.": kept(
            {f"epoch, step, {OWN}": f"epoch, 0, {OWN}"}),
    },
    ranks=(1, 3), group=False,
)
def saved(ranks):
    """Nothing that the next update depends on is missing, on any rank. train.py now saves and goes on with it."""
    where = f"On {len(ranks)} rank(s)"
    writes = ranks[0]["writes"]
    yield Case(writes, 1, f"{where} self.replace was called {writes} time(s), all ranks together, and 1 is right.")
    for rank, measured in enumerate(ranks):
        before, after = measured["saved"], measured["found"]
        yield Case(measured["place"], [EPOCH, STEP], f"{where} restore() returned epoch and step "
                   f"{measured['place']} for a checkpoint of {[EPOCH, STEP]}.")
        for item, what in {"weights": "the weights", "momentum": "the optimizer's momentum",
                           "schedule": "the updates that the scheduler has counted",
                           "losses": "the losses of this epoch", "rng": "the next random number"}.items():
            yield Case(after[item], before[item], f"{where}, after restore() on rank {rank}, {what} differ from those "
                       "at save().", rel_tol=0)


# ---------------------------------------------------------------------------------------------- another number of ranks
OLD_RANKS = 4


def measure_fewer(made, context):
    """Four ranks save. Then the first two of them restore, then the first three; the others form another group."""
    one = Training(made, context, 1)
    one.updates(STEP)
    mean = torch.stack(one.losses).mean()
    dist.all_reduce(mean)
    one.kept.save(EPOCH, STEP, one.losses)
    context.gather("saved", True)
    measured = {"saved": one.now()["weights"], "before": mean.item() / OLD_RANKS}
    for count in (2, 3):
        context.gather(f"done before {count}", True)
        dist.destroy_process_group()
        context.gather(f"ended {count}", True)
        if context.rank >= count:
            context.join(f"rest {count}", context.rank - count, OLD_RANKS - count)
            context.gather(f"met {count}", True)
            continue
        context.join(f"group {count}", context.rank, count)
        context.gather(f"met {count}", True)
        other = Training(made, context, 2)
        torch.manual_seed(context.rank)  # as train.py does when it starts
        fresh = other.now()["rng"]
        try:
            _, _, losses = other.kept.restore()
        except (IndexError, KeyError) as error:
            raise Wrong(f"On rank {context.rank} of {count} restore() raised {type(error).__name__}: {error}. "
                        f"The file is of {OLD_RANKS} ranks.") from None
        loss = torch.stack(list(losses)).mean() if len(losses) else torch.zeros((), dtype=torch.float64)
        dist.all_reduce(loss)
        found = other.now()
        measured[str(count)] = {"weights": found["weights"], "loss": loss.item() / count, "rng": found["rng"],
                                "again": found["rng"] == fresh}
    return measured


@exercise_on_ranks(
    measure_fewer,
    solution=Checkpoint,
    hint=("len(ranks) in the file is the number of ranks of then. Which of the things in it are no rank's own? Those "
          "are easy.",
          "The losses: train.py takes the mean over its ranks, and those had equal shares. If each new rank has the "
          "old ranks' mean, update by update, the mean stays. The random states fit no new rank: seed anew, "
          "differently on each rank.",
          "if len(ranks) != world_size: torch.manual_seed(hash((epoch, step, rank))); losses = "
          "list(torch.stack([torch.stack(each['losses']) for each in ranks]).mean(0))."),
    mistakes={
        "Each rank took what the old rank of its number had. That leaves out the others.": kept(
            {"len(ranks) == world_size": "True"}),
        "The updates before the kill belong to the epoch's loss.": kept({"list(losses)": "[]"}),
        "A mean over the ranks does not need their sum: train.py divides by the ranks of now.": kept(
            {".mean(0)": ".sum(0)"}),
        "All ranks draw the same numbers now. Let the seed depend on the rank.": kept(
            {"hash((epoch, step, rank))": "hash((epoch, step))"}),
        "A new process begins with the numbers of the first update, which the training has used. Seed it anew, "
        "differently in each epoch and step.": kept({"torch.manual_seed(hash((epoch, step, rank)))": "pass"}),
    },
    ranks=OLD_RANKS,
)
def resized(ranks):
    """The loss of the epoch is that of all its images, and each new rank draws numbers of its own."""
    for count in (2, 3):
        of_ranks = [measured[str(count)] for measured in ranks[:count]]
        where = f"Saved by {OLD_RANKS} ranks, restored by {count}:"
        weights = [each["weights"] for each in of_ranks]
        yield Case(weights, [ranks[0]["saved"]] * count, f"{where} the weights differ from those at save().")
        yield Case(of_ranks[0]["loss"], ranks[0]["before"], f"{where} the loss of the epoch so far would be printed as "
                   f"{of_ranks[0]['loss']:.4f}, and it was {ranks[0]['before']:.4f}.")
        streams = len({each["rng"] for each in of_ranks})
        yield Case(streams, count, f"{where} the ranks draw {streams} different series of random numbers.")
        again = [rank for rank, each in enumerate(of_ranks) if each["again"]]
        yield Case(again, [], f"{where} ranks {again} draw the numbers with which train.py has started.")


# ---------------------------------------------------------------------------------------------- a sharded checkpoint


def measure_sharded(made, context):
    """Four ranks save a table, of which each has a part; two of them load it. Then what they have, and the files."""
    folder, mine = str(Path(context.folder, "table")), made()
    mine.save(table(whole=True), folder)
    context.gather("saved", True)
    dist.destroy_process_group()
    context.gather("ended", True)
    context.join(f"pair {context.rank // 2}", context.rank % 2, 2)
    state, right = table(whole=False), table(whole=True)
    returned = mine.load(state, folder)
    if returned is not None and returned is not state:
        raise Wrong("load() fills the tensors in `state`, and returns nothing.")
    return {"right": [(state[name].to_local() == right[name].to_local()).double().mean().item() for name in state]}


@exercise_on_ranks(
    measure_sharded,
    solution=Sharded,
    hint=("Both are one call of torch.distributed.checkpoint, made by all ranks.",
          "dcp.save(state, …) writes what each rank has. dcp.load(state, …) fills the tensors of a state that is laid "
          "out as the ranks are now. Both take checkpoint_id=, the folder.",
          "dcp.save(state, checkpoint_id=folder) and dcp.load(state, checkpoint_id=folder)."),
    mistakes={
        "All ranks make the call: each has a part of the table.": mistake(
            Sharded, {"        dcp.save": "        if dist.get_rank() == 0:\n            dcp.save"}),
        "Nothing has filled the tensors: dcp.load reads into those that are in `state`.": mistake(
            Sharded, {"dcp.load(state,": "dcp.load(dict.fromkeys(state, torch.empty(0)) and {},"}),
        "A file per rank holds the parts of four ranks, and a rank of two needs two or three of them. dcp knows "
        "which.": mistake(
            Sharded, {"dcp.save(state, checkpoint_id=folder)":
                      "os.makedirs(folder, exist_ok=True) or torch.save({name: value.to_local() for name, value in "
                      "state.items()}, f'{folder}/{dist.get_rank()}')",
                      "dcp.load(state, checkpoint_id=folder)":
                      "[state[name].to_local()[:len(value)].copy_(value) for name, value in "
                      "torch.load(f'{folder}/{dist.get_rank()}').items()] and None"}),
    },
    ranks=4, preload=("torch.distributed.checkpoint", "torch.distributed.tensor"),
)
def sharded(ranks):
    """Four ranks wrote their parts, and each of two has read its own, which is twice as long."""
    for rank, measured in enumerate(ranks[:2]):
        share = min(measured["right"])
        yield Case(measured["right"], [1.0, 1.0], f"Saved by 4 ranks and loaded by 2: of its part of the table, or of "
                   f"the momentum, rank {rank} has {share:.0%} as it was saved.")
