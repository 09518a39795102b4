"""Where the time of a training step goes, by torch.profiler: on one rank, or on several with a timeline on one clock.

    python lessons/l14_make_it_faster/step_profile.py --out one.json
    torchrun --nproc_per_node=2 lessons/l14_make_it_faster/step_profile.py --model lenet wide --out ranks.json

The training is main.py's (adjustable_training.py). The file holds for each model what
lessons/l14_make_it_faster/gains.py needs:
`phases` (ms of a step, timed without the profiler; `halves`: the whole step, before and after the profiled ones),
`operators` (of rank 0: self time of each in a profiled step), `events` of a typical step of every rank, and a few
things timed alone. Each rank's Chrome trace is written beside it (OUT.MODEL.rankN.trace.json): open it at
ui.perfetto.dev.
"""

import itertools
import json
import os
import statistics
import time
from functools import partial

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its tracer tells every start and stop

import pandas as pd
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

import utils
from course import rank_program, shortcuts, timing
from course.adjustable_training import MODELS, Setting, Training
from course.predict.fit import fit
from trainer import launch
from trainer.files import check_output
from trainer.options import positive

WARM_UP = 3  # updates before anything is timed
LATE = 0.3  # ms: the end of an all-reduce beyond that of its rank's waiting
SMALL = 16  # images: with the usual batch it makes a line
PHASES = ("data", "forward", "backward", "update")
SYNCHRONISE = "clock"  # a label whose monotonic time we know: it ties a rank's trace to the clock of the machine

# ---------------------------------------------------------------------------------------------- the profiler


def labelled_update(training):
    """An update whose phases are labelled regions of the trace: each begins where the one before it is marked."""
    regions = {phase: record_function(phase) for phase in PHASES}
    following = dict(itertools.pairwise(PHASES))

    def mark(phase):
        regions[phase].__exit__(None, None, None)
        if phase in following:
            regions[following[phase]].__enter__()

    regions[PHASES[0]].__enter__()
    training.update(mark)


def profiled(training, steps):
    """The profiler after so many updates, and the monotonic time, ns, of each `clock` label."""
    clock = []
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            rank_program.meet(training.placement.device)
            with record_function(SYNCHRONISE):
                clock.append(time.monotonic_ns())
            labelled_update(training)
    return profiler, clock


def operators(profiler, steps):
    """A row an operator: ms of self time and calls in a step, largest first. Other threads' all-reduces are no part."""
    rows = [{"name": event.key, "ms": event.self_cpu_time_total / 1000 / steps, "calls": event.count / steps}
            for event in profiler.key_averages()
            if not event.key.startswith(("gloo:", "nccl:", "ProfilerStep", SYNCHRONISE))]
    return sorted(rows, key=lambda row: -row["ms"])


def read_trace(path, clock, rank):
    """Events of a Chrome trace, a list for each step: ms on the machine's monotonic clock, the same for all ranks.

    `wait` is what remains of backward after its last operator: the rank has nothing left to compute.
    """
    trace = [event | {"end": event["ts"] + event["dur"]} for event in json.loads(path.read_text())["traceEvents"]
             if event.get("ph") == "X"]
    labels = sorted((event for event in trace if event["name"] == SYNCHRONISE), key=lambda event: event["ts"])
    # The time was read inside the label, a little after its start: the smallest delay is the best guess of none.
    offset = min(ns / 1000 - event["ts"] for ns, event in zip(clock, labels, strict=True))
    steps = []
    for label, following in itertools.zip_longest(labels, labels[1:], fillvalue={"ts": float("inf")}):
        inside = [event for event in trace if label["ts"] <= event["ts"] < following["ts"]]
        rows = []
        for event in inside:
            start, stop = event["ts"], event["end"]
            if event["name"] in PHASES and event["tid"] == label["tid"]:
                cut = stop
                if event["name"] == "backward":
                    cut = max((e["end"] for e in inside if e["name"].startswith("autograd::engine")
                               and e["tid"] == label["tid"] and start < e["ts"] and e["end"] <= stop), default=stop)
                    rows.append(("compute", "wait", cut, stop))
                rows.append(("compute", event["name"], start, cut))
            elif event["name"].startswith(("gloo:", "nccl:")) and "barrier" not in event["name"]:  # that is ours
                name = event["name"].split(":")[1].replace("_", "-")
                rows.append((name, name, start, stop))
        rows.sort(key=lambda row: row[2])
        steps.append([{"rank": rank, "lane": lane, "event": name, "start": (start + offset) / 1000,
                       "end": (stop + offset) / 1000} for lane, name, start, stop in rows])
    return steps


def typical(steps_of_ranks):
    """A typical step: all ranks' events in it, ms from its first. And each event's median sum in a step.

    It is the step whose events are nearest to their medians, of those in which no all-reduce ends, by the traces, after
    its rank has gone on: gloo's thread may note an end late.

    `least wait` is that of the rank which waits least: who comes last to the all-reduce waits for nothing but the link.
    """
    events = pd.DataFrame([event | {"step": number} for steps in steps_of_ranks
                           for number, step in enumerate(steps) for event in step])
    sums = (events["end"] - events["start"]).groupby([events["step"], events["rank"], events["event"]]).sum().unstack()
    least_wait = sums["wait"].groupby("step").min()
    off = (sums - sums.groupby("rank").transform("median")).abs().sum(axis=1).groupby("step").sum()
    ends = events.groupby(["step", "rank", "event"])["end"].max().unstack()
    late = (ends.get("all-reduce", ends["wait"]) - ends["wait"]).groupby("step").max() > LATE
    chosen = events[events["step"] == (off[~late] if not late.all() else off).idxmin()].drop(columns="step")
    chosen[["start", "end"]] -= chosen["start"].min()
    return chosen.to_dict("records"), sums.median().to_dict() | {"least wait": least_wait.median()}


# ---------------------------------------------------------------------------------------------- timed alone


def timed_phases(training, steps):
    """{phase: seconds} of so many updates, timed without the profiler."""
    seconds = []
    for _ in range(steps):
        rank_program.meet(training.placement.device)
        timer = utils.PhaseTimer(training.placement.device)
        training.update(timer.mark)
        seconds.append(timer.totals())
    return seconds


def medians(updates):
    """{phase: ms of an update}"""
    return {phase: 1000 * statistics.median(update[phase] for update in updates) for phase in PHASES}


def median_ms(call, times):
    return 1000 * statistics.median(timing.timed(call, 1, torch.device("cpu")) for _ in range(times))


def alone(training, model, train_set, steps):
    """What a prediction needs besides the profile, ms: an update with a small batch, one batch fetched singly."""
    small = Training(Setting(batch_size=SMALL), model, train_set, training.placement)
    timed_phases(small, WARM_UP)
    single = Training(Setting(one_by_one=True), model, train_set, training.placement)
    next(single.batches)
    return {"small_batch": SMALL, "small_batch_step": sum(medians(timed_phases(small, steps)).values()),
            "one_by_one_data": median_ms(lambda: next(single.batches), WARM_UP)}


def link(gradients, rounds):
    """α (ms) and β (ms a byte) of an all-reduce between these ranks, from one of 4 KiB and one of all gradients; the ms
    of one with as many values of 16 bits; and the ms in which this rank copies all gradients once."""
    cpu, values = torch.device("cpu"), gradients // 4
    sizes = [4096, gradients]
    calls = [timing.prepare("all_reduce", size, cpu)[0] for size in sizes]
    calls.append(partial(dist.all_reduce, torch.zeros(values, dtype=torch.bfloat16)))
    times = timing.interleave({index: partial(timing.timed, call, 3, cpu) for index, call in enumerate(calls)}, rounds)
    small, whole, bf16 = (statistics.median(timing.slowest(own)) for own in times.values())
    alpha, beta = fit(sizes, [small, whole])
    source, target = torch.ones(values), torch.ones(values)
    return {"alpha": 1000 * alpha, "beta": 1000 * beta,
            "all_reduce": {"float32": 1000 * whole, "bf16": 1000 * bf16},
            "copy": median_ms(lambda: target.copy_(source), rounds)}


# ---------------------------------------------------------------------------------------------- command


def look(model, train_set, args, placement):
    training = Training(Setting(), model, train_set, placement)
    timed_phases(training, WARM_UP)
    before = timed_phases(training, args.steps)
    profiler, clock = profiled(training, args.steps)
    after = timed_phases(training, args.steps)  # on both sides: a machine that becomes slower is no profiler's fault
    measured = {"batch_size": training.setting.batch_size, "phases": medians(before + after),
                "halves": [sum(medians(half).values()) for half in (before, after)],
                "shapes": [list(p.shape) for p in training.raw.parameters()],
                "gradient_bytes": sum(p.nbytes for p in training.raw.parameters())}
    path = args.out.with_name(f"{args.out.stem}.{model}.rank{placement.rank}.trace.json")
    profiler.export_chrome_trace(str(path))
    steps = read_trace(path, clock, placement.rank)
    of_ranks = launch.gathered(steps)
    measured["events"], measured["medians"] = typical(of_ranks)
    measured["operators"] = operators(profiler, args.steps)
    return measured | (alone(training, model, train_set, args.steps) if placement.world_size == 1
                       else link(measured["gradient_bytes"], args.steps))


def main():
    parser = rank_program.parser(__doc__, out="write the measurements to this file, as JSON", dataset=True, timeout=60)
    add = parser.add_argument
    add("--model", nargs="+", choices=MODELS, default=["lenet"], help="wide: three large fully connected layers")
    add("--steps", type=positive(int), default=9, help="updates that are timed, profiled, and timed again, and "
        "all-reduces that are timed alone; default: 9")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu")
        check_output("--out", args.out)
        train_set = rank_program.dataset(args)[0]
    torch.set_num_threads(1)
    shortcuts.keep_memory()  # as main.py
    shortcuts.defer_compiler()  # nothing is compiled here
    with rank_program.ranks(placement, args.timeout):
        measured = {**rank_program.measured_on(placement), "dataset": train_set.name, "models": {}}
        for model in args.model:
            measured["models"][model] = profile_of_model = look(model, train_set, args, placement)
            if placement.rank == 0:
                print(f"{model:8}{sum(profile_of_model['phases'].values()):6.1f} ms an update; most of it: "
                      f"{profile_of_model['operators'][0]['name']}", flush=True)
        if placement.rank == 0:
            rank_program.write_json(args.out, measured)


if __name__ == "__main__":
    rank_program.start(main)
