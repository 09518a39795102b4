"""Questions about DistributedDataParallel, each answered by a small experiment. Notebook 06 draws the answers.

    torchrun --nproc_per_node=2 lessons/l06_ddp/ddp_questions.py --step scale timeline --out results/live/06_scale.json

The ranks run on CPUs with gloo, so that every machine shows the same.
"""

import threading
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from course import one_model, rank_program
from course.sent import Sent
from trainer import files
from trainer.options import positive

WARM_UP, ROUNDS, STEPS = 3, 9, 3  # of `timeline`: steps, and timed rounds of so many steps
LAYERS, ROWS = 6, 128  # of its model, and samples a step for each rank


def scale(lab):
    """The ranks' gradient as a multiple of the whole batch's, for each way to reduce losses and gradients."""

    def gradient(batch, reduction):
        model = lab.model()
        cross_entropy(model(batch[0]), batch[1], reduction=reduction).backward()
        return one_model.flat_gradient(model)

    results = []
    for loss in ("mean", "sum"):
        whole, total = gradient(lab.whole[0], loss), gradient(lab.shards[0], loss)
        dist.all_reduce(total)
        for over_ranks, reduced in (("sum", total), ("mean", total / lab.placement.world_size)):
            times = (reduced @ whole / (whole @ whole)).item()
            results.append({"loss": loss, "over_ranks": over_ranks, "times": times})
    return results


class Noted(Sent):
    """Within `with`: `events` gets each message, when it was sent and when it came back, in seconds."""

    def __init__(self):
        super().__init__()
        self.events, self.arrivals = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = self.calls.total(), self.bytes.total()
        out = super().__torch_dispatch__(function, types, args, kwargs)
        if self.calls.total() > before[0]:
            self.note(out, {"bytes": self.bytes.total() - before[1], "start": time.perf_counter()})
        return out

    def note(self, out, event):
        def arrived(*_):
            event["end"] = time.perf_counter()

        def wait_for(work):
            work.wait()
            arrived()

        self.events.append(event)
        for boxed in tree_leaves(out):
            if isinstance(boxed, torch.ScriptObject):
                work = dist.Work.unbox(boxed)
                try:
                    self.arrivals.append(work.get_future().then(arrived).wait)
                except RuntimeError:  # gloo's reduce_scatter has no future
                    waiting = threading.Thread(target=wait_for, args=(work,))
                    waiting.start()
                    self.arrivals.append(waiting.join)


def timeline(lab):
    """For each bucket size the events of a typical step of rank 0, in milliseconds since a barrier, and the `rounds`:
    the medians of each round's steps, of the parts and of the whole `step`.

    The step is the one whose parts are nearest to all medians. After `bucket_cap_mb` MiB or more a bucket is full.
    `wait` is what follows the last message in backward(), and finish(): nothing is left to compute. The clock starts
    when the rank leaves the barrier. With --wrapper a step under that class, too; its bucket_cap_mb is None.
    """
    width = lab.args.width
    inputs = torch.randn(ROWS, width)

    def start(cap):
        torch.manual_seed(0)
        model = nn.Sequential(*[part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.ReLU())])
        parallel = (files.from_file(lab.args.wrapper)(model) if cap is None
                    else DistributedDataParallel(model, bucket_cap_mb=cap))
        return parallel, torch.optim.SGD(model.parameters(), lr=0.01)

    caps = [*lab.args.bucket_mb, *([None] if lab.args.wrapper else [])]
    runs = [start(cap) for cap in caps]
    rounds = [[timed_step(*run, inputs) for run in runs]  # in turn: what disturbs one disturbs all
              for _ in range(WARM_UP + ROUNDS * STEPS)]
    results = []
    for cap, (parallel, _), steps in zip(caps, runs, zip(*rounds[WARM_UP:], strict=True), strict=True):
        lengths = [{event["event"]: event["end"] - event["start"] for event in events if event["lane"] == "compute"}
                   for events in steps]
        typical = {part: median(of_step[part] for of_step in lengths) for part in lengths[0]}
        off = [sum(abs(of_step[part] - typical[part]) for part in typical) for of_step in lengths]
        lengths = [of_step | {"step": sum(of_step.values())} for of_step in lengths]
        results.append({
            "bucket_cap_mb": cap, "events": steps[off.index(min(off))],
            "bytes": sum(parameter.nbytes for parameter in parallel.parameters()),
            "rounds": {part: [median(of_step[part] for of_step in lengths[first:first + STEPS])
                              for first in range(0, len(lengths), STEPS)] for part in lengths[0]}})
    return results


def timed_step(parallel, optimizer, inputs):
    """This rank's events of one step, a dict each, in milliseconds since a barrier."""
    dist.barrier()
    start = time.perf_counter()
    loss = parallel(inputs).square().mean()
    forward = time.perf_counter()
    with Noted() as sent:
        loss.backward()
        returned = time.perf_counter()
        if hasattr(parallel, "finish"):
            parallel.finish()
    finished = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    last_sent = max(event["start"] for event in sent.events)  # after it DDP's backward() only waits
    marks = [start, forward, min(last_sent, returned), finished, time.perf_counter()]
    for wait in sent.arrivals:
        wait()
    events = [{"lane": "compute", "event": name, "start": begin, "end": end} for name, begin, end in
              zip(("forward", "backward", "wait", "update"), marks, marks[1:], strict=False)]
    events += [{"lane": "all-reduce", "event": "all-reduce", "text": str(number), **event,
                "end": min(event.get("end", finished), finished)} for number, event in enumerate(sent.events)]
    return [{**event, "rank": dist.get_rank(), "start": 1000 * (event["start"] - start),
             "end": 1000 * (event["end"] - start)} for event in events]


# ---------------------------------------------------------------------------------------------- command


QUESTIONS = {step.__name__: step for step in (scale, timeline)}


def main():
    parser = one_model.get_parser(__doc__)
    add = parser.add_argument
    add("--step", nargs="+", required=True, choices=QUESTIONS, metavar="NAME", help=f"of: {', '.join(QUESTIONS)}")
    add("--bucket-mb", type=positive(float), nargs="+", default=[4, 1000], help="bucket_cap_mb of each `timeline`, MiB")
    add("--width", type=positive(int), default=1024, help="of the layers in `timeline`")
    add("--wrapper", metavar="FILE.py:CLASS", help="a class of your own, for `timeline`, too")
    args = parser.parse_args()
    one_model.run(args, parser, {name: QUESTIONS[name] for name in args.step})


if __name__ == "__main__":
    rank_program.start(main)
