"""Lesson 00: what to hope for from several ranks, when they pay, which way to train when, and the course's words."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course.lesson import some
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY

WORDS = {  # word: (the lesson that teaches it, what it means)
    "process": ("03", "a running program with memory of its own. Processes share no variables: they send messages"),
    "rank": ("03", "a process of the job; also its number, from 0"),
    "world size": ("03", "how many ranks the job has"),
    "node": ("10", "one machine of several that work on a job"),
    "local rank": ("03", "a rank's number among those of the same node, from 0. It picks the GPU"),
    "backend": ("03", "the library that carries tensors between ranks: gloo (CPU), NCCL (GPUs)"),
    "epoch": ("01", "one pass over all training images"),
    "gradient": ("06", "for each weight, how fast the loss rises as the weight grows; the optimizer makes the update "
                 "from it. `backward()` computes it"),
    "all-reduce": ("04", "all ranks add up their tensors, and each gets the sum. DDP averages the gradients with it"),
    "shard": ("05", "the part of the images that one rank trains on in an epoch"),
    "global batch": ("09", "the images of one step over all ranks: batch size × world size"),
}
LEFT, BOX, WIDTH, HEIGHT, DOWN = 3.6, 4.9, 7.6, 1.15, 1.55  # of questions and boxes, and from one row to the next


def paid_back(one, many, epochs: int | None, whose: str) -> Axes:
    """The seconds of two commands by their epochs, from rows of `runs.command_parts`, and where the second pays.

    `epochs`: what the function of exercise 1 returned; `whose`: "your" or "our".
    """
    ax, most = plt.subplots(figsize=(12, 5.5))[1], max(10, 2 * (epochs or 0))
    ends = []
    for run, colour in ((one, COLOURS[0]), (many, COLOURS[1])):
        seconds = [run.once, run.once + most * run.epoch]
        ax.plot([0, most], seconds, color=colour)
        ends.append((most, seconds[1], run.label, colour))
    if epochs:
        ax.axvline(epochs, color=GREY, linestyle="--")
    ax.set(xlabel="epochs", ylabel="seconds of the whole command", xlim=(0, 1.25 * most), ylim=(0, None))
    pays = f"earlier from {some(epochs, 'epoch')} on" if epochs else "later, whatever the epochs"
    ax.set_title(f"{many.label} are done {pays} ({whose} function)")
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def ways(gpus: int, nodes: int) -> Axes:
    """Questions from the top down, each with the way to train where the answer is yes.

    A way is filled where it runs on a machine with so many GPUs, in a job of so many nodes.
    """
    two_nodes = "" if nodes > 1 else "needs 2 machines"
    rows = [  # question, way, explanation, command, lesson, what this machine lacks for it
        ("Is one device\nfast enough?", "One process", "on one device", "python main.py", "01", ""),
        ("Is it old code that\nmust stay one process?", "DataParallel", "one process, all its GPUs",
         "python main.py --strategy dp", "02", "" if gpus > 1 else "needs 2 GPUs"),
        ("Are the devices of\none machine enough?", "DDP", "a process for each GPU or core",
         "torchrun --nproc_per_node=8 main.py", "06", ""),
        ("Does every machine\nstay to the end?", "DDP, several nodes", "torchrun on each machine",
         "torchrun --nnodes=2 … main.py", "10", two_nodes),
        ("Machines come\nand go:", "Elastic", "1 to 4 machines: one is enough to try it",
         "torchrun --nnodes=1:4 … main.py", "11", ""),
    ]
    ax = plt.subplots(figsize=(15, 9))[1]
    arrow = {"arrowstyle": "-|>", "linewidth": 3, "mutation_scale": 28, "color": GREY, "shrinkA": 0, "shrinkB": 0}
    for number, (question, way, explanation, command, lesson, lacks) in enumerate(rows):
        y, last = -number * DOWN, number == len(rows) - 1
        ink = "black" if lacks else "white"
        ax.add_patch(plt.Rectangle((BOX, y - HEIGHT / 2), WIDTH, HEIGHT, linewidth=3, edgecolor=COLOURS[0],
                                   facecolor="white" if lacks else COLOURS[0]))
        name = ax.text(BOX + 0.15, y + 0.24, way, fontsize=19, fontweight="bold", color=ink, va="center")
        ax.annotate(f"  {explanation}", (1, 0.5), xycoords=name, fontsize=16, color=ink, va="center")
        ax.text(BOX + 0.15, y - 0.25, command, fontsize=17, family="monospace", color=ink, va="center")
        ax.text(BOX + WIDTH - 0.15, y - 0.25, lacks, fontsize=16, fontweight="bold", ha="right", color=ink, va="center")
        ax.text(BOX + WIDTH + 0.15, y, f"lesson {lesson}", fontsize=16, color=GREY, va="center")
        ax.text(LEFT / 2, y, question, fontsize=17, fontweight="bold", ha="center", va="center")
        ax.annotate("", (BOX, y), (LEFT, y), arrowprops=arrow)
        if not last:  # the last question is what remains
            ax.text((LEFT + BOX) / 2, y + 0.1, "yes", fontsize=17, color=GREY, ha="center", va="bottom")
            ax.annotate("", (LEFT / 2, y - DOWN + 0.45), (LEFT / 2, y - 0.45), arrowprops=arrow)
            ax.text(LEFT / 2 + 0.15, y - DOWN / 2, "no", fontsize=17, color=GREY, va="center")
    ax.set(xlim=(-0.1, BOX + WIDTH + 1.5), ylim=(-(len(rows) - 1) * DOWN - 0.7 * HEIGHT, 0.7 * HEIGHT))
    ax.set_title("Which way to train?")
    ax.set_title("filled: runs on this machine", loc="right", fontsize=17, fontweight="normal", color=GREY)
    ax.axis("off")
    return ax
