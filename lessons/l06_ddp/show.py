"""Lesson 06: the tables on DDP. The findings are those that ddp_from_scratch.py and ddp_questions.py write."""

from course.lesson import some

ROUNDING = 1e-9  # largest difference of a float64 weight in the same training, summed in another order
CLOSE = 0.03  # steps whose times differ by less are called equal


def small(difference):
    return f"{difference:.0e}" if difference else "0"


def steps(proofs):
    """A row for each training loop, from {its name: what was proved}."""
    return [{"loop": f"`{name}`", "between the ranks": small(proof['between_ranks'][-1]),
             "from one process": small(proof['from_one_process'][-1]),
             "all-reduces per update": proof["messages"]}
            for name, proof in proofs.items()]


def scale(found):
    return [{"the loss is the … over a rank's images": row["loss"], "over the ranks we take the …": row["over_ranks"],
             "times the gradient of the whole batch": f"{row['times']:.3f}"} for row in found]


def length(run):
    """Milliseconds of a step, the sum of its parts' medians."""
    return sum(run["medians"][part] for part in ("forward", "backward", "wait", "update"))


def buckets(run):
    """"6 buckets (bucket_cap_mb=4)": those that rank 0 sent in the step drawn."""
    sent = sum(event["event"] == "all-reduce" and event["rank"] == 0 for event in run["events"])
    return f"{some(sent, 'bucket')} (bucket_cap_mb={run['bucket_cap_mb']:g})"


def overlap(runs):
    """A row for each size of the buckets."""
    return [{"buckets": buckets(run),
             **{f"{part}, ms": f"{run['medians'][part]:.1f}" for part in ("forward", "backward", "wait", "update")},
             "step, ms": f"{length(run):.1f}", "hidden": f"{hidden(run['events']):.0%}"} for run in runs]


def hidden(events):
    """The share of the all-reduces' time that lies below the backward of their rank."""
    ends = {event["rank"]: event["end"] for event in events if event["event"] == "backward"}
    bars = [event for event in events if event["event"] == "all-reduce"]
    below = sum(max(0, min(bar["end"], ends[bar["rank"]]) - bar["start"]) for bar in bars)
    return below / sum(bar["end"] - bar["start"] for bar in bars)


def shorter(small, one):
    """Which step is shorter, that with small buckets or that with one."""
    ratio = length(one) / length(small)
    return "neither" if abs(ratio - 1) < CLOSE else "small buckets" if ratio > 1 else "one bucket"


def another_training(cases):
    """The cases that are not the training of one process."""
    return [name for name, off in cases.items() if off > ROUNDING]


def batchnorm(equality):
    """A row for each way to take mean and variance; the last on GPUs only."""
    found = equality["batchnorm"]
    rows = [{f"the model's {found['layers']} layers": name,
             "weights, from one process": small(equality['weights'][name]),
             "running means, between the ranks": small(found['running_means'][name]),
             "all-reduces per update": messages} for name, messages in found["messages"].items()]
    if (real := found.get("torch.nn.SyncBatchNorm")) is not None:
        rows.append(dict(zip(rows[0], ("`torch.nn.SyncBatchNorm`, on the GPU", small(real), "–", "–"), strict=True)))
    return rows


WAYS = {"synchronise_each": "without `no_sync`", "first_try": "around backward only", "never": "around everything",
        "around_ddp": "`ddp.module(images)`, without `no_sync`", "synchronise_last": "in the right place"}


def no_sync(found):
    return [{"`no_sync`": told, "all-reduces": found[way]["all_reduces"],
             "gradient: between the ranks": small(found[way]['between_ranks']),
             "from one process": small(found[way]['from_one_process'])} for way, told in WAYS.items()]


def unused(found):
    return [{"`find_unused_parameters`": f"`{option}`", "steps that went well": f"{case['steps']} of {case['tried']}",
             "then": f"`{case['error'].split('.')[0]}.`" if case["error"] else "–"} for option, case in found.items()]


def memory(cases):
    """Bytes that rank 0 holds for each value of the model."""
    return [{"`gradient_as_bucket_view`": f"`{case['gradient_as_bucket_view']}`",
             **{kind: f"{size / case['values']:.1f}" for kind, size in case["ranks"][0].items()},
             "together": f"{sum(case['ranks'][0].values()) / case['values']:.1f}"} for case in cases]
