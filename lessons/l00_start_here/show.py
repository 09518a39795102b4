"""Lesson 00: what this machine has, two runs side by side, which way when, and the words and lessons of the course."""

import math

import pandas as pd

WORDS = {  # word: (the lesson that teaches it, what it means)
    "process": ("03", "a running program with memory of its own. Processes share no variables: they send messages"),
    "rank": ("03", "a process of the job; also its number, from 0"),
    "world size": ("03", "how many ranks the job has"),
    "node": ("10", "one machine of several that work on a job"),
    "local rank": ("03", "a rank's number among those of the same node, from 0. It picks the GPU"),
    "backend": ("03", "the library that carries tensors between ranks: gloo (CPU), NCCL (GPUs)"),
    "epoch": ("01", "one pass over all training images"),
    "gradient": ("06", "for each weight, which way and how much to change it; `backward()` computes it"),
    "all-reduce": ("04", "all ranks add up their tensors, and each gets the sum. DDP averages the gradients with it"),
    "shard": ("05", "the part of the images that one rank trains on in an epoch"),
    "global batch": ("09", "the images of one step over all ranks: batch size × world size"),
}


def machine(cores, gpus, torch_version, backends, train_set, test_images):
    """`gpus`: a name for each; `train_set`: (its name, how many images)."""
    names = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    name, images = train_set
    made = " (SYNTHETIC: made from a seed, not photographs)" if name == "synthetic" else ""
    return [{"what": what, "on this machine": found} for what, found in {
        "CPU cores that we may use": cores,
        "GPUs": ", ".join(names) or "none",
        "PyTorch": torch_version,
        "libraries for messages between processes (NCCL works with GPUs only)": ", ".join(backends),
        "images": f"{name}: {images:,} for training, {test_images:,} for the test{made}",
    }.items()]


def beside_prediction(table, ranks, prediction):
    """The table of `runs.speedup_table`, and a row with what was predicted, if anything was."""
    if prediction is None:
        return table
    row = pd.DataFrame({"source": ["predicted"], "world_size": [ranks], "speedup": [float(prediction)]})
    drawn = ["label", "source", "machine", "world_size", "speedup", "oversubscribed", "cores", "status", "synthetic"]
    return pd.concat([table[drawn], row])


def two_runs(table, samples):
    """A row for each run of `runs.speedup_table`."""
    return [{"run": run.label, "images/s": f"{run.images_per_second:,.0f}", "times as fast": f"{run.speedup:.2f}",
             "images per step": run.batch_size * run.world_size,
             "steps per epoch": math.ceil(samples / (run.batch_size * run.world_size)),
             f"loss after {run.epochs} epochs": f"{run.loss:.2f}"} for run in table.itertuples()]


def crowded(ranks, devices, kind):
    """What it means for the speed-up how many devices there are for the ranks."""
    there = f"{devices} {kind}{'s' * (devices > 1)}"
    if ranks > devices and kind == "GPU":
        return f"{ranks} ranks share {there}: they can gain only what one process leaves idle."
    if ranks > devices:
        whose = f"{ranks} ranks take turns on {there}"
    else:
        whose = f"Each of the {ranks} ranks has a {kind} of its own"
    return f"{whose}: {min(ranks, devices)} times as fast is the most to hope for."


def ways(gpus, nodes):
    """The rows of `ways.decisions`, for a machine with so many GPUs in a job of so many nodes."""
    two = "" if nodes > 1 else "needs 2 machines"
    rows = [
        ("Is one device\nfast enough?", "One process", "on one device", "python main.py", "01", ""),
        ("Is it old code that\nmust stay one process?", "DataParallel", "one process, all its GPUs",
         "python main.py --strategy dp", "02", "" if gpus > 1 else "needs 2 GPUs"),
        ("Are the devices of\none machine enough?", "DDP", "a process for each GPU or core",
         "torchrun --nproc_per_node=8 main.py", "06", ""),
        ("Does every machine\nstay to the end?", "DDP, several nodes", "torchrun on each machine",
         "torchrun --nnodes=2 … main.py", "10", two),
        ("Machines come\nand go:", "Elastic", "1 to 4 machines: one is enough to try it",
         "torchrun --nnodes=1:4 … main.py", "11", ""),
    ]
    return [dict(zip(("question", "way", "what", "command", "lesson", "lacks"), row, strict=True)) for row in rows]


def words(files):
    """A row for each word, with a link to the lesson that teaches it; `files`: names of all lessons' notebooks."""
    by_number = {file[:2]: file for file in files}
    return [{"word": f"**{word}**", "meaning": meaning, "lesson": f"[{number}]({by_number[number]})"}
            for word, (number, meaning) in WORDS.items()]


def lessons(pages):
    """A row for each of {file: notebook}: title, question and time, as the lesson's own first cell and metadata say."""
    rows = []
    for file, page in pages.items():
        title, question = page.cells[0].source.split("\n\n")[:2]
        course = page.metadata.course
        rows.append({"lesson": f"[{title.strip('# ')}]({file})",
                     "its question": " ".join(question.removeprefix("**The question.**").split()),
                     "for you": f"{course.minutes} min",
                     "for the machine": f"{math.ceil(course.seconds / 60)} min"})
    return rows

