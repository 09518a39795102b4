"""The tables and pictures of lesson 16."""

import re
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course import step_memory
from course.compare import Ratio, ratio
from course.dial import words
from course.one_process import distances  # noqa: F401 (the notebook asks this module)
from course.plots.labels import write_beside
from course.plots.style import COLOURS, GREY, colour_of, head, line_key, line_style, name_rows

LINE = re.compile(r"^update (\d+),(?: loss [\d.]+,)? val loss ([\d.]+).*\n", re.M)
BESIDE_AN_END = [(-8, 12, "right", "bottom"), (-8, -12, "right", "top"), (-8, 30, "right", "bottom")]


def reports(printed: str) -> list[tuple[int, float]]:
    """(update, val loss) of each line that a program of the exam has printed."""
    return [(int(update), float(loss)) for update, loss in LINE.findall(printed)]


def written(printed: str, most: int = 600) -> str:
    """What the model wrote: what follows the last report, without lines that hold no letter, and without most of long
    runs of blanks. · stands for what cannot be printed."""
    *_, last = LINE.finditer(printed)
    lines = printed[last.end():].split("\n")
    lines = [re.sub(" {5,}", "    ", line) for line in lines if any(map(str.isalpha, line))]  # no rules of tables
    text = "\n".join(lines)[:most]
    return "".join(each if each.isprintable() or each == "\n" else "·" for each in text)


def from_one_process(runs: dict[str, list[float]]) -> Axes:
    """{name: distances}, on a logarithmic axis."""
    ax = plt.subplots(figsize=(11, 6))[1]
    notes = []
    for number, (name, far) in enumerate(runs.items()):
        far = [max(each, 1e-17) for each in far]
        ax.plot(range(1, len(far) + 1), far, **line_style(number))
        notes.append((len(far), far[-1], name, colour_of(number)))
    eps = torch.finfo(torch.float64).eps
    ax.axhline(eps, color=GREY, linewidth=1.5, linestyle=":")
    ax.text(1, eps / 1.6, "the last digit of a float64", color=GREY, va="top")
    ax.set(yscale="log", xlabel="update", ylabel="|difference| / |weights|", ylim=(1e-18, 10))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    head(ax, "How far the ranks are from one process", key=[])
    write_beside(ax, notes, BESIDE_AN_END)
    return ax


@dataclass
class Try:
    """A row of the score board."""

    strategy: str
    """with whose file it was, as train_gpt.py says it"""
    options: str
    megabytes: float
    """between two updates, of the rank that keeps most"""
    tokens: int
    loss: float
    """on the held-out text"""


def tried(options: str, folder: str, printed: str) -> Try:
    """What train_gpt.py has printed, and course.step_memory left in the folder. ValueError where it did not end."""
    name, ended = re.search(r"^(.+): [\d,]+ parameters", printed, re.M), re.search(
        r"^val loss ([\d.]+|nan) after ([\d,]+) tokens", printed, re.M)
    curves = step_memory.read(folder)
    if not (name and ended and curves):
        raise ValueError((printed.strip().splitlines() or ["It said nothing."])[-1])
    return Try(name[1], options, max(map(step_memory.kept, curves)) / 1e6, int(ended[2].replace(",", "")),
               float(ended[1]))


def attempt(strategy: str, options: str, fixed: str, ranks: int, folder: str) -> Try:
    """What the two commands above do, for the course's tries. CalledProcessError where one fails."""
    program = ["mine/train_gpt.py", *fixed.split(), "--strategy", strategy, *options.split()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    subprocess.run([*torchrun, "-m", "course.step_memory", "--out", folder, *program], check=True, capture_output=True)
    done = subprocess.run([*torchrun, *program], check=True, capture_output=True, text=True)
    return tried(options, folder, done.stdout)


# What keeps the budget of 12 MB, with the same tokens.
COURSE_TRIES = [("ddp", "--width 160 --layers 2"), ("zero", "--width 192 --layers 2"),
                ("fsdp", "--width 224 --layers 2")]


def board(tries: list[Try], budget: float, tokens: int) -> list[dict]:
    """Those that keep the budget come first, the smallest loss on top."""
    def kept(each):
        return each.megabytes <= budget and each.tokens == tokens

    return [{"strategy": each.strategy, "options": each.options or "–",
             "MB kept": f"{each.megabytes:.1f}" + ("" if each.megabytes <= budget else ", too much"),
             "tokens": f"{each.tokens:,}" + ("" if each.tokens == tokens else ", not the number asked for"),
             "val loss": f"{each.loss:.3f}", "score": f"{each.loss:.3f}" if kept(each) else "none"}
            for each in sorted(tries, key=lambda each: (not kept(each), each.loss))]


def budget(tries: list[Try], megabytes: float) -> Axes:
    """A bar for each try: what a rank keeps between two updates, beside the budget."""
    ax = plt.subplots(figsize=(11, 1.8 + 0.8 * len(tries)))[1]
    for row, each in enumerate(tries):
        fits = each.megabytes <= megabytes
        ax.barh(row, each.megabytes, height=0.6, color=COLOURS[0] if fits else COLOURS[1])
        ax.text(0.2, row, f"val loss {each.loss:.2f}", va="center", color="white", fontweight="bold")
    ax.axvline(megabytes, color="black", linewidth=2.5)
    name_rows(ax, [f"{each.strategy} {each.options}".strip() for each in tries])
    ax.set(xlabel="MB of tensors between two updates, of the rank that keeps most",
           xlim=(0, 1.3 * max(each.megabytes for each in tries)))
    head(ax, "Who keeps the budget?", key=[line_key(f"budget: {megabytes:g} MB", color="black")])
    return ax


def speedups(measured: dict) -> dict[str, Ratio]:
    """{rate: tokens per second of the ranks over those of one process}"""
    return {rate: ratio(rounds["one process"], rounds["ranks"]) for rate, rounds in measured["rounds"].items()}


def speeds(measured: dict) -> list[dict]:
    """A row for each network."""
    return [{"network": words(rate),
             "one process, tokens/s": f"{measured['tokens'] / median(rounds['one process']):,.0f}",
             "the ranks, tokens/s": f"{measured['tokens'] / median(rounds['ranks']):,.0f}",
             "speed-up": str(ratio(rounds["one process"], rounds["ranks"]))}
            for rate, rounds in measured["rounds"].items()]


def where_faster(measured: dict) -> list[str]:
    """The rates of the networks on which the ranks are, significantly."""
    return [rate for rate, each in speedups(measured).items() if each.significant and each.low > 1]


def sentence(measured: dict) -> str:
    """On which networks the ranks pay, and on which they do not."""
    kinds: dict[str, list[str]] = {"faster than one process": [], "slower": [], "neither, significantly": []}
    for rate, each in speedups(measured).items():
        kinds["neither, significantly" if not each.significant else "faster than one process" if each.low > 1 else
              "slower"].append(words(rate))
    return "The ranks are " + "; ".join(f"{kind}: {', '.join(where)}" for kind, where in kinds.items() if where) + "."


def speedup_by_network(measured: dict, whose: str) -> Axes:
    """The speed-up on each network, with its interval and a dot for each pair of rounds."""
    ax = plt.subplots(figsize=(11, 1.8 + 1.1 * len(measured["rounds"])))[1]
    for row, (rate, each) in enumerate(speedups(measured).items()):
        rounds = measured["rounds"][rate]
        pairs = [one / ranks for one, ranks in zip(rounds["one process"], rounds["ranks"], strict=True)]
        colour = GREY if not each.significant else COLOURS[0] if each.median > 1 else COLOURS[1]
        ax.plot([each.low, each.high], [row, row], color=colour, linewidth=9, solid_capstyle="butt", alpha=0.5)
        ax.plot(pairs, [row] * len(pairs), "o", color=colour, markersize=6)
        ax.plot(each.median, row, "|", color="black", markersize=26, markeredgewidth=3)
        ax.text(each.median, row - 0.28, f"{each.median:.2f}", ha="center", va="bottom", fontsize=16)
    ax.axvline(1, color="black", linestyle=":")
    ax.set(xlabel="speed-up: tokens per second ÷ those of one process", xlim=(0, None))
    name_rows(ax, [words(rate) for rate in measured["rounds"]])
    head(ax, f"{measured['world_size']} ranks, DDP ({whose})", key=[
        line_key("more than one process", color=COLOURS[0], linewidth=9, alpha=0.5),
        line_key("less", color=COLOURS[1], linewidth=9, alpha=0.5)], columns=2)
    return ax
