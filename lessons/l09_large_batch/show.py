"""Lesson 09: what the trainings say, recorded and live, and its pictures."""

import json
import math
import shlex
from itertools import takewhile
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from course.compare import FEWEST, ratio
from course.plots.labels import BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, head, line_style, percent, ticks
from lessons.l09_large_batch.record import FILE, TARGET, epochs

IMAGES = 6144  # per epoch
GUESSING = 0.15  # a training that is below this accuracy after its third epoch has broken down: guessing gets 0.1


def option(options: str, name: str, default: float = 0) -> float:
    words = shlex.split(options)
    return float(words[words.index(f"--{name}") + 1]) if f"--{name}" in words else default


def recorded(experiment: str) -> list[dict]:
    """The recorded trainings of an experiment, with batch, lr and seed as numbers, and whether each broke down."""
    rows = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return [row | {name: option(row["options"], name) for name in ("batch", "lr", "seed")}
            | {"broken": min(row["accuracy"][3:], default=1) < GUESSING}
            for row in rows if row["experiment"] == experiment]


def live(file: str) -> dict:
    """What train.py has printed into a file."""
    return epochs(Path(file).read_text(encoding="utf-8"))


def epochs_to(accuracy: list[float], target: float = TARGET) -> float | None:
    """After how many epochs the target was reached. The accuracy is known after each; between two, a straight line."""
    before = 0.1  # guessing
    for epoch, after in enumerate(accuracy):
        if after >= target:
            return epoch + (target - before) / (after - before)
        before = after
    return None


def epochs_of(row: dict) -> float | None:
    return epochs_to(row["accuracy"])


def seconds_to(training: dict, images: int, batch: int, target: float) -> float | None:
    """Seconds of training, without the evaluations, until the target was reached; None: never."""
    reached = epochs_to(training["accuracy"], target)
    seconds = [ms / 1000 * (images // batch) for ms in training["ms"]]
    return None if reached is None else float(np.interp(reached, range(len(seconds) + 1), np.cumsum([0, *seconds])))


def steps_by_rate() -> dict[int, dict[float, list[float]]]:
    """{batch: {learning rate: updates to the target, one per seed; infinite where a training never reached it}}."""
    steps: dict[int, dict[float, list[float]]] = {}
    for row in recorded("steps"):
        reached = epochs_to(row["accuracy"])
        steps.setdefault(int(row["batch"]), {}).setdefault(row["lr"], []).append(
            np.inf if reached is None else reached * (IMAGES // row["batch"]))
    return steps


def best_rates() -> list[dict]:
    """For each batch the rate that needs the fewest updates to the target, by the median of the seeds: a row with
    `batch`, `lr` and `steps` (one per seed)."""
    rows = []
    for batch, by_rate in sorted(steps_by_rate().items()):
        lr = min(by_rate, key=lambda lr, by_rate=by_rate: median(by_rate[lr]))
        rows.append({"batch": batch, "lr": lr, "steps": sorted(by_rate[lr])})
    return rows


def law(batches, steps) -> tuple[float, float]:
    """(S, B) of steps = S (1 + B / batch), which McCandlish et al. expect: fewest steps S; at batch B twice as many.

    Fitted to the logarithms, so that each batch counts alike.
    """
    batches, steps = np.asarray(batches, float), np.asarray(steps, float)
    candidates = np.geomspace(1, 1e5, 2000)
    logs = np.log(1 + candidates[:, None] / batches)
    least = (np.log(steps) - logs).mean(1)
    errors = ((np.log(steps) - logs - least[:, None]) ** 2).sum(1)
    return float(np.exp(least[errors.argmin()])), float(candidates[errors.argmin()])


def steps_to_target(rows: list[dict], scale: tuple[float, float] | None = None) -> Axes:
    """Updates to the target against images per update, both logarithmic; `scale`: a range of noise scales, a band."""
    ax = plt.subplots(figsize=(11, 7))[1]
    batches, middle = [row["batch"] for row in rows], [median(row["steps"]) for row in rows]
    fewest, half = law(batches, middle)
    straight = [fewest * half / batch for batch in batches]
    ax.plot(batches, straight, color=GREY, linewidth=2, linestyle=":")
    ax.plot(batches, middle, **line_style(0, "recorded"))
    for row in rows:
        ax.plot([row["batch"]] * len(row["steps"]), row["steps"], color=COLOURS[0], marker="_", linestyle="",
                markersize=14)
    ax.set(xscale="log", yscale="log", xlabel="images per update", ylabel=f"updates to an accuracy of {TARGET:.0%}")
    ticks(ax, batches[::2] if len(batches) > 6 else batches)
    head(ax, "Steps to a target, by batch (recorded, three seeds)", key=[])
    if scale:
        ax.axvspan(*scale, color=COLOURS[1], alpha=0.15, linewidth=0)
        write_beside(ax, [(scale[1], max(middle), "noise scale,\nmeasured", COLOURS[1])], BESIDE_AN_END)
    write_beside(ax, [(batches[-1], straight[-1], "half the updates\nfor twice the batch", GREY)],
                 [(-60, 0, "right", "center")])
    return ax


def rules(names: list[str], mine: dict | None = None, whose: str = "your") -> list[Axes]:
    """Accuracy along the recorded trainings of each experiment, a panel each; `mine`: a live one, in the last panel."""
    axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 5.5), sharey=True)[1]
    for number, (ax, name) in enumerate(zip(axes, names, strict=True)):
        for row in recorded(name):
            ax.plot(range(1, len(row["accuracy"]) + 1), row["accuracy"], color=COLOURS[number], linestyle="--")
        ax.set_xlabel("epochs")
        ax.set_title(name, fontsize=17)
        ax.axhline(TARGET, color=GREY, linewidth=1.5, linestyle=":")
    if mine:
        axes[-1].plot(range(1, len(mine["accuracy"]) + 1), mine["accuracy"], color="black")
        axes[-1].text(0.97, 0.05, f"solid: live,\n{whose} rate", transform=axes[-1].transAxes, ha="right", fontsize=15)
    axes[0].set_ylabel("accuracy on test images, %")
    percent(axes[0])
    return list(axes)


def ends(names: list[str]) -> list[dict]:
    """A row per experiment: rate, each seed's epochs to the target, and how many broke down."""
    rows = []
    for name in names:
        runs = sorted(recorded(name), key=lambda row: row["seed"])
        lr = runs[0]["lr"] * runs[0]["batch"] / option(runs[0]["options"], "lr-for", runs[0]["batch"])
        rows.append({"training": name, "images per update": int(runs[0]["batch"]), "rate": f"{lr:g}",
                     f"epochs to {TARGET:.0%}, three seeds": " · ".join(
                         "never" if reached is None else f"{reached:.1f}" for reached in map(epochs_of, runs)),
                     "broke down": sum(row["broken"] for row in runs)})
    return rows


def noise_range() -> tuple[float, float, float, float]:
    """The noise scale: the seeds' median in the epoch in which each reached the target and in the last ten epochs, and
    of these the smallest and the largest of a single epoch."""
    runs = recorded("noise")
    at = [row["noise"][min(int(epochs_to(row["accuracy"]) or 0), len(row["noise"]) - 1)] for row in runs]
    last = [row["noise"][-10:] for row in runs]
    return median(at), median(map(median, last)), min(map(min, last)), max(map(max, last))


def scatter(near: float, late: float, low: float, high: float) -> str:
    """The recorded noise scale in the first epoch, when the target is reached and in the last ten epochs, in words."""
    first = median(row["noise"][0] for row in recorded("noise"))
    return (f"Recorded, median of the seeds: {first:,.0f} images in the first epoch, {near:,.0f} when the target is "
            f"reached, {late:,.0f} in the last ten epochs. Of these, single epochs say {low:,.0f} to {high:,.0f}.")


def noise(mine: dict | None = None, whose: str = "your") -> Axes:
    """The noise scale along recorded trainings on two ranks, and along a live one."""
    ax = plt.subplots(figsize=(11, 6))[1]
    runs = recorded("noise")
    for row in runs:
        ax.plot(range(1, len(row["noise"]) + 1), row["noise"], color=COLOURS[0], linestyle="--", linewidth=2)
    notes = [(len(runs[0]["noise"]), median(row["noise"][-1] for row in runs), "recorded", COLOURS[0])]
    if mine:
        ax.plot(range(1, len(mine["noise"]) + 1), mine["noise"], color=COLOURS[1], marker="o")
        notes.append((len(mine["noise"]), mine["noise"][-1], f"live, {whose} noise.py", COLOURS[1]))
    ax.set(ylim=(0, None), xlabel="epochs", ylabel="noise scale, images")
    head(ax, "The noise scale, measured while two ranks train", key=[])
    write_beside(ax, notes, BESIDE_AN_END)
    return ax


def advice(rows: list[dict], scale: float, ours: list[int]) -> list[str]:
    """What the theory expects, and advises for the batches `ours`, beside what the recorded trainings did."""
    fewest, half = law([row["batch"] for row in rows], [median(row["steps"]) for row in rows])
    linear = list(takewhile(lambda row: math.isclose(row["lr"] / row["batch"], rows[0]["lr"] / rows[0]["batch"]), rows))
    rest = rows[len(linear):]
    rates, tried = {row["batch"]: row["lr"] for row in rows}, steps_by_rate()
    return [
        f"**Where does it bend?** The measured updates follow {fewest:.0f} · (1 + {half:,.0f} / batch). So the bend is "
        f"at {half:,.0f} images. The noise scale near the target is about {scale:,.0f} images: "
        f"{'the same order' if 0.4 < scale / half < 2.5 else f'{scale / half:.1f} times as much'}.",
        f"**The best rate** is in proportion to the batch from {linear[0]['batch']} to {linear[-1]['batch']} images, "
        f"as the linear rule has it: {linear[0]['lr']:g} to {linear[-1]['lr']:g}. From {rest[0]['batch']} to "
        f"{rest[-1]['batch']:,} images it stays between {min(row['lr'] for row in rest):g} and "
        f"{max(row['lr'] for row in rest):g}. Neighbouring rates overlap: " + "; ".join(
            f"with {batch} images {one:g} takes {median(tried[batch][one]):.0f} updates in the median, {two:g} "
            f"{median(tried[batch][two]):.0f}" for batch, one, two in (
                (128, 0.04, 0.08), (256, 0.16, 0.08), (512, 0.16, 0.32)))
        + ". So three seeds do not tell at which batch the proportion ends.",
        "**The theory's rate.** With a noise scale N the theory advises (1 + N / 64) / (1 + N / batch) times the rate "
        "of 64 images: " + "; ".join(
            f"{(1 + scale / 64) / (1 + scale / batch):.1f} times for {batch:,} images (square root "
            f"{(batch / 64) ** 0.5:.1f}, linear {batch / 64:.0f}, best of those tried {rates[batch] / rates[64]:.0f})"
            for batch in ours) + "."]


def race(pairs: list[tuple[float | None, float | None]]) -> str:
    """One rank and two ranks to the same target, in pairs of seconds: how many seconds sooner, by the rule."""
    if any(None in pair for pair in pairs):
        missed = [sum(pair[number] is None for pair in pairs) for number in range(2)]
        return (f"Of {len(pairs)} pairs one rank missed the target {missed[0]} times and two ranks {missed[1]} times: "
                "nothing can be compared. Another batch or rate?")
    sooner = median(one - two for one, two in pairs)
    result = ratio([two for _, two in pairs], [one for one, _ in pairs])
    words = ("significant" if result.significant else "no significant difference" if len(pairs) >= FEWEST
             else f"{len(pairs)} pairs name no winner")
    return (f"In the median of {len(pairs)} pairs two ranks reach the target **{abs(sooner):.1f} s "
            f"{'sooner' if sooner > 0 else 'later'}** than one (two ranks ÷ one: {result.median:.2f}, "
            f"{result.low:.2f} to {result.high:.2f}; {words}).")


def warm_up_matters() -> str:
    """How many of the seeds broke down with the linear rule, without warm-up, with it, and with it from a larger rate.
    """
    without, with_it, larger = (sum(row["broken"] for row in recorded(name))
                                for name in ("linear", "linear, warm-up", "linear, warm-up, twice the rate"))
    return (f"With the linear rule {without} of 3 seeds broke down without warm-up, and {with_it} of 3 with it. From "
            f"twice the rate {larger} of 3 broke down even with warm-up.")


def whose(part: str) -> str:
    """ "your" where mine/ has the part, else "our"."""
    return "your" if Path("mine", f"{part}.py").exists() else "our"
