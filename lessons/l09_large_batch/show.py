"""Lesson 09: what a larger batch did to updates, losses, accuracies and rates: tables, sentences and pictures.

Tables come from `runs.read_runs`; `along` and `last_epochs` add the columns that the pictures need.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course import runs
from course.compare import ratio
from course.plots.labels import BESIDE_A_POINT, BESIDE_A_START, BESIDE_AN_END, write_beside
from course.plots.style import COLOURS, GREY, MARKERS, colour_of, head, line_style, name_rows, percent, ticks
from course.plots.tables import need, source_of
from course.plots.training import curves, elapsed

ALONG = {"images": "training images seen", "updates": "updates of the weights", "elapsed": "training time (s)"}
ALONE = "rate left alone"
RULES = {ALONE: lambda k: 1 + 0 * k, "square root": np.sqrt, "linear": lambda k: k}  # k times the images
ROUNDING = 1e-4  # of a loss, in the first epoch: rounding alone stays far below

# ---------------------------------------------------------------- tables of runs


def along(df: pd.DataFrame) -> pd.DataFrame:
    """Adds what a run has spent at the end of each epoch: `images`, `updates`, and `elapsed` seconds of training.

    Also `global_batch`, images an update. The rows of a run stand in the order of its epochs.
    """
    done = df["epoch"].astype(float) + 1
    each = zip(df["samples"], df["world_size"], df["batch_size"], strict=True)
    steps = [runs.updates_per_epoch(*run) for run in each]
    return df.assign(images=done * df["samples"].astype(float), updates=done * steps, elapsed=elapsed(df),
                     global_batch=df["world_size"] * df["batch_size"])


def last_epochs(df: pd.DataFrame) -> pd.DataFrame:
    """One row a run, its last epoch, with `result`: its test accuracy then. NaN where the run did not get to its end,
    as one whose loss was no longer a number."""
    last = along(df).groupby(["label", "path"], sort=False, dropna=False).tail(1)
    return last.assign(result=last["val_accuracy"].where(last["status"] == "completed"))


def over_seeds(last: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """`mean` and `sd` (of a sample: n - 1) of `result` over the runs that are alike in `by`, `runs` of them, and
    `broken` that have no result. Where one is broken the mean is missing: that of the others would flatter."""
    return last.groupby(by, as_index=False, dropna=False)["result"].agg(
        mean=lambda results: results.mean(skipna=False), sd=lambda results: results.std(skipna=False), runs="size",
        broken=lambda results: results.isna().sum())


def of_rules(last: pd.DataFrame, lr: float, batch: int) -> dict[str, pd.Series]:
    """{rule: which runs have its rate}, if `lr` is right for `batch` images an update. Runs that rise to their rate are
    a rule of their own, "linear, warm-up"."""
    k = (last["global_batch"] / batch).astype(float)
    risen = last["warmup_epochs"].notna()
    kinds = {rule: ~risen & np.isclose(last["lr"], lr * factor(k), rtol=1e-4) for rule, factor in RULES.items()}
    return kinds | {"linear, warm-up": risen & (last["lr"] == lr)}


def chosen_by_rules(last: pd.DataFrame, lr: float, batch: int) -> pd.DataFrame:
    """`over_seeds` by `rule` and `global_batch` of the runs whose rate a rule chooses, see `of_rules`."""
    return pd.concat(over_seeds(last[which], ["global_batch", "source", "machine"]).assign(rule=rule)
                     for rule, which in of_rules(last, lr, batch).items())


# ---------------------------------------------------------------- what one run shows


def side_by_side(ranks, process):
    """A row an epoch: the losses of the ranks' run and of one process, and their differences."""
    world_size = ranks["world_size"].iloc[0]
    return [{"epoch": epoch, f"loss, {world_size} ranks": f"{many.loss:.7f}", "loss, one process": f"{alone.loss:.7f}",
             "difference": f"{abs(many.loss - alone.loss):.0e}",
             "difference of the weights' norms": f"{abs(many.weight_norm - alone.weight_norm):.0e}"}
            for epoch, (many, alone) in enumerate(zip(ranks.itertuples(), process.itertuples(), strict=True))]


def same_training(ranks, process):
    """Whether one process may stand for the ranks."""
    apart = np.abs(ranks["loss"].to_numpy() - process["loss"].to_numpy())
    if apart[0] > ROUNDING:
        return f"The losses of the first epoch differ by {apart[0]:.0e}. **This is not the same training.**"
    return f"The losses of the first epoch differ by {apart[0]:.0e}, later ones by {max(apart):.0e} at most: rounding."


def closest(after, to):
    """The rule whose accuracy, of {run: accuracy}, is closest to that of run `to`."""
    return (after.drop([to, ALONE]) - after[to]).abs().idxmin()


def won_back(accuracy, small, alone):
    """The share of the lost accuracy that a rule wins back, – if none was lost. `small`: the accuracy of the small
    batch; `alone`: that of the large one with the rate left alone."""
    return f"{(accuracy - alone) / (small - alone):.0%}" if small > alone else "–"


def rules(after, test_images, to):
    """A row a run, from {run: accuracy}: with its standard error, and what the rules win back."""
    return [{"run": run, "test accuracy": f"{value:.1%} ± {math.sqrt(value * (1 - value) / test_images):.1%}",
             "of the lost accuracy, won back": "" if run in (to, ALONE) else won_back(value, after[to], after[ALONE])}
            for run, value in after.items()]


def reached(df, target):
    """A row a run: images a second, the median of its epochs; `reached`, the seconds of training at the end of the
    first epoch with a test accuracy of `target`, NaN if there is none; and `epoch`, the seconds of that epoch."""
    rows = []
    for label, run in df.groupby("label", sort=False):
        at_target = run.assign(end=run["seconds"].cumsum())[run["val_accuracy"] >= target]
        end, seconds = at_target[["end", "seconds"]].iloc[0] if len(at_target) else (math.nan, math.nan)
        rows.append({"label": label, "images_per_second": run["images_per_second"].median(), "reached": end,
                     "epoch": seconds, "synthetic": run["synthetic"].iloc[0]})
    return pd.DataFrame(rows)


def sooner(table, run, other):
    """Did `run` reach the target "sooner" than `other`, "later or never", or is it "too close to call"? The accuracy is
    known after each epoch only: a run may have been there up to an epoch before its time."""
    times = table.set_index("label")[["reached", "epoch"]].fillna(math.inf)
    mine, theirs = times.loc[run], times.loc[other]
    if mine["reached"] == math.inf or mine["reached"] - mine["epoch"] >= theirs["reached"]:
        return "later or never"
    early = theirs["reached"] == math.inf or theirs["reached"] - theirs["epoch"] >= mine["reached"]
    return "sooner" if early else "too close to call"


def fastest(table):
    """Which run had the most images a second, and which were sooner or later at the target than the first one."""
    first, *others = table["label"]
    kinds = {kind: "; ".join(run for run in others if sooner(table, run, first) == kind)
             for kind in ("sooner", "too close to call", "later or never")}
    return (f"The most images a second: **{table.loc[table['images_per_second'].idxmax(), 'label']}**. At the target, "
            f"beside {first}: {', '.join(f'**{kind}**: {runs}' for kind, runs in kinds.items() if runs)}.")


# ---------------------------------------------------------------- what several seeds and rates show


def seeds(by_rule, batch):
    """A row a rule, over the seeds, for `batch` images an update; first the smallest batch, which lost nothing."""
    small = by_rule["global_batch"].min()
    before = by_rule[(by_rule["global_batch"] == small) & (by_rule["rule"] == ALONE)].iloc[0]
    large = by_rule[by_rule["global_batch"] == batch]
    alone = large[large["rule"] == ALONE].iloc[0]
    rows = [{"images an update": small, "rule": "", "test accuracy": spread(before),
             "of the lost accuracy, won back": ""}]
    for row in large.itertuples():
        share = "" if row.rule == ALONE or row.broken else won_back(row.mean, before["mean"], alone["mean"])
        rows.append({"images an update": batch, "rule": row.rule, "test accuracy": spread(row._asdict()),
                     "of the lost accuracy, won back": share})
    return rows


def against(last, lr, batch, size, mine, theirs):
    """The accuracies of rule `mine` by those of rule `theirs`, a Ratio, with `size` images an update; `lr` is right for
    `batch`. Two runs with one seed, that is, with the same first weights and the same order, are a pair."""
    kinds, by_seed = of_rules(last, lr, batch), last.sort_values("seed")
    return ratio(*(by_seed.loc[kinds[rule] & (last["global_batch"] == size), "result"] for rule in (mine, theirs)))


def about_as_good(tried):
    """The lowest and the highest rate within one standard deviation of the best, of runs with one batch."""
    best = tried.loc[tried["mean"].idxmax()]
    near = tried.loc[tried["mean"] >= best["mean"] - max(best["sd"], 0.01), "lr"]
    return near.min(), near.max()


def best_rates(by_rate):
    """A row for each batch: the best rate tried, and those about as good."""
    rows = []
    for batch, tried in by_rate.groupby("global_batch"):
        best = tried.loc[tried["mean"].idxmax()]
        rows.append({"images an update": batch, "best rate tried": best["lr"], "test accuracy": spread(best),
                     "about as good": " to ".join(f"{lr:.3g}" for lr in sorted(set(about_as_good(tried))))})
    return rows


def spread(row):
    if row["broken"]:
        return f"{row['broken']} of {row['runs']} runs broke off"
    return f"{row['mean']:.1%} ± {row['sd']:.1%}"


# ---------------------------------------------------------------- the noise of a gradient


def noise_scale(error, batch):
    """The images whose error is as large as the true gradient, by the error of `batch` images and 1 / √images."""
    return batch * error[batch] ** 2


def noise(errors, batch):
    """A row for each model, from {model: {images: error of their gradient, as a share of the true one}}."""
    return [{"model": name, f"error of {batch} images": f"{error[batch]:.2f}",
             f"of {8 * batch}": f"{error[8 * batch]:.2f}", "times smaller": f"{error[batch] / error[8 * batch]:.1f}",
             "error = gradient at": f"{noise_scale(error, batch):,.0f} images"} for name, error in errors.items()]


def moved(errors, batch):
    """From the first model to the last: does the noise scale need "more" images, or "fewer"?"""
    first, *_, last = (noise_scale(error, batch) for error in errors.values())
    return "more" if last > first else "fewer"


def scale(errors, batch, large):
    """How the noise scale moved, and on which side of it the large batch lies."""
    before, after = (noise_scale(error, batch) for error in errors.values())
    moved = f"from {before:,.0f} to {after:,.0f} images"
    lines = [f"Here the noise scale has grown, {moved}." if after > before else
             f"Here the noise scale has fallen, {moved}. A likely reason: LeNet begins on a plateau, where "
             "the true gradient is tiny. And this is far from the end of a training."]
    side = "below" if large < after else "above"
    return [*lines, f"The large batch, {large} images, lies {side} the noise scale of the trained model. Far below it, "
            "the linear rule has its reason; far above it, the rate should grow less than the batch."]


# ---------------------------------------------------------------- pictures


def accuracy_along(df: pd.DataFrame, x: str, ax: Axes, title: str) -> Axes:
    """Test accuracy of each run against `x`: "images", "updates" or "elapsed", see `along`."""
    ax = curves(along(df), x, "val_accuracy", title, ALONG[x], "test accuracy (%)", ax)
    percent(ax)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter("{x:,.12g}")
    return ax


def for_the_same(df: pd.DataFrame) -> np.ndarray:
    """The test accuracy of the runs three times, side by side: against the images, the updates, and the time."""
    axes = plt.subplots(1, 3, figsize=(24, 7.5), sharey=True)[1]
    for ax, x, what in zip(axes, ALONG, ("images", "updates", "time"), strict=True):
        accuracy_along(df, x, ax, f"For the same {what}")
    for ax in axes[1:]:
        ax.set_ylabel("")
    return axes


def with_rates(rates: list[float], accuracies: list[float], rules: pd.DataFrame, name: str) -> np.ndarray:
    """Left: `rates`, the learning rate of each update in a training called `name`. Right: its test `accuracies`, one an
    epoch, beside those of main.py in `rules`, with the linear rule."""
    left, right = axes = plt.subplots(1, 2, figsize=(20, 7))[1]
    theirs = rules[rules["label"].isin(["linear", "linear, warm-up"])]
    mine = theirs[theirs["label"] == "linear, warm-up"].assign(label=name, val_accuracy=accuracies)
    accuracy_along(pd.concat([theirs, mine]), "updates", right, "Test accuracy")
    left.step(range(len(rates)), rates, where="post", color=colour_of(2), linewidth=3)
    left.set(xlabel="update", ylabel="learning rate", ylim=(0, None))
    head(left, f"Learning rate: {name}", key=[])
    return axes


def speed_and_time(table: pd.DataFrame, target: float) -> np.ndarray:
    """Two panels of bars, a run a row: `images_per_second`, and `reached`, the seconds to a test accuracy of `target`.
    A run that did not get there (NaN) has no bar, and says so."""
    axes = plt.subplots(1, 2, figsize=(17, 1.5 + 0.8 * len(table)), sharey=True)[1]
    for ax, column, colour, form in zip(axes, ("images_per_second", "reached"), COLOURS, ("{:,.0f}", "{:.1f} s"),
                                        strict=False):
        for y, value in enumerate(table[column]):
            ax.barh(y, np.nan_to_num(value), height=0.6, color=colour)
            ax.text(np.nan_to_num(value), y, f"  {'not reached' if np.isnan(value) else form.format(value)}",
                    va="center", fontweight="bold")
        ax.margins(x=0.25)
        name_rows(ax, table["label"])
    axes[0].xaxis.set_major_formatter("{x:,.0f}")
    axes[0].set_xlabel("images a second")
    axes[1].set_xlabel("seconds of training")
    head(axes[0], "Throughput", table)
    head(axes[1], f"Time to a test accuracy of {target:.0%}", table)
    return axes


def gradient_errors(errors: dict, synthetic: bool = False) -> Axes:
    """The error of a gradient as a share of the true one, against the images that it is the mean of, from
    {name: {images: error}}; dotted, what the first of them and 1 / √images say."""
    ax = plt.subplots(figsize=(13, 7))[1]
    for number, (name, error) in enumerate(errors.items()):
        sizes, values, colour = list(error), list(error.values()), colour_of(number)
        ax.loglog(sizes, values, MARKERS[number] + "-", color=colour)
        ax.plot(sizes, [values[0] * math.sqrt(sizes[0] / size) for size in sizes], ":", color=colour)
        ax.annotate(name, (sizes[-1], values[-1]), (14, 0), textcoords="offset points", va="center", color=colour,
                    fontweight="bold", annotation_clip=False)
    ax.axhline(1, color=GREY, linewidth=2)
    ax.text(sizes[0], 0.97, "error = gradient", color=GREY, va="top")
    ticks(ax, sizes)
    low, high = ax.get_ylim()
    marks = [mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low < mark < high]
    ax.minorticks_off()
    ax.set_yticks(marks, marks)
    ax.set(xlabel="images that the gradient is the mean of", ylabel="error / true gradient")
    head(ax, "How wrong is a batch's gradient? (dotted: 1 / √images)", pd.DataFrame({"synthetic": [synthetic]}), [])
    return ax


def by_rule(table: pd.DataFrame, ax: Axes, title: str) -> Axes:
    """Accuracy after the last epoch against the images an update, a line each `rule`; bars are one standard deviation.

    `table` is `over_seeds` by `rule` and `global_batch`, in the order in which the rules shall be drawn, with the
    columns `source` and `machine` of the runs.
    """
    need(table, "mean")
    ends = []
    for number, (rule, rows) in enumerate(table.groupby("rule", sort=False), 1):  # colour 0 is for one rank's run
        # side by side: where rules agree the bars would hide each other
        beside = rows.assign(global_batch=rows["global_batch"] * 1.03 ** (number - 2))
        for end in _points(ax, beside, "global_batch", number).tail(1).itertuples():
            ends.append((end.global_batch, end.mean, rule, colour_of(number)))
    _finish(ax, table, title, "images an update (global batch)", sorted(table["global_batch"].unique()))
    write_beside(ax, ends, BESIDE_AN_END)
    return ax


def by_rate(table: pd.DataFrame, ax: Axes, title: str, lr: float, batch: int) -> Axes:
    """Accuracy after the last epoch against the learning rate, a line each global batch; bars are one standard
    deviation, × is a rate with which a run broke off.

    `table` is `over_seeds` by `global_batch` and `lr`. A broad line joins the points that a rule chooses, if `lr` is
    right for `batch` images an update.
    """
    need(table, "mean")
    starts, notes = [], []
    for number, (size, rows) in enumerate(table.groupby("global_batch")):
        drawn, broken = _points(ax, rows, "lr", number), rows[rows["broken"] > 0]
        ax.plot(broken["lr"], np.full(len(broken), 0.06 + 0.012 * number), "X", color=colour_of(number), markersize=12)
        for first in drawn.head(1).itertuples():
            starts.append((first.lr, first.mean, f"{size} images", colour_of(number)))
    for name, colour in (("linear", "black"), ("square root", GREY)):
        factors = RULES[name]((table["global_batch"] / batch).astype(float))
        chosen = np.isclose(table["lr"].astype(float), lr * factors, rtol=1e-4)
        way = table[chosen].dropna(subset=["mean"]).sort_values("global_batch")
        ax.plot(way["lr"], way["mean"], linestyle=(0, (1, 1)), color=colour, linewidth=6, alpha=0.5, zorder=1)
        for end in way.tail(1).itertuples():
            notes.append((end.lr, end.mean, f"{name} rule".replace("square root", "square-root"), colour))
    shared = table["lr"].value_counts()
    _finish(ax, table, title, "learning rate", sorted(shared[shared > 1].index))  # a tick for each would be too many
    ax.set_xlim(left=0.6 * table["lr"].min())  # room for their names
    write_beside(ax, starts, BESIDE_A_START)
    write_beside(ax, notes, BESIDE_A_POINT)
    return ax


def _points(ax, rows, x, number):
    """The means against column `x`, each with its standard deviation; returns the rows that have one, along `x`."""
    drawn = rows.dropna(subset=["mean"]).sort_values(x)
    ax.errorbar(drawn[x].to_numpy(float), drawn["mean"], yerr=drawn["sd"], capsize=6, elinewidth=2, capthick=2,
                **line_style(number, source_of(rows.iloc[0])))
    return drawn


def _finish(ax, table, title, xlabel, values):
    ax.set_xscale("log", base=2)
    ticks(ax, values)
    ax.set(xlabel=xlabel, ylabel="test accuracy (%)")
    percent(ax)
    head(ax, title, table)
