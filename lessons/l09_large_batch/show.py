"""Lesson 09: what a larger batch did to updates, losses, accuracies and rates."""

import math

import pandas as pd

ALONE = "rate left alone"
ROUNDING = 1e-4  # of a loss, in the first epoch: rounding alone stays far below


def updates(per_epoch, batch_size, epochs):
    """A row for each number of ranks, from {ranks: updates an epoch}."""
    return [{"ranks": ranks, "global batch": ranks * batch_size, "updates an epoch": count,
             f"in {epochs} epochs": epochs * count} for ranks, count in per_epoch.items()]


def side_by_side(ranks, one):
    """A row an epoch: the losses of the ranks' run and of one process, and how far apart they are."""
    world_size = ranks["world_size"].iloc[0]
    return [{"epoch": epoch, f"loss, {world_size} ranks": f"{theirs.loss:.7f}", "loss, one process": f"{its.loss:.7f}",
             "difference": f"{abs(theirs.loss - its.loss):.0e}",
             "difference of the weights' norms": f"{abs(theirs.weight_norm - its.weight_norm):.0e}"}
            for epoch, (theirs, its) in enumerate(zip(ranks.itertuples(), one.itertuples(), strict=True))]


def same_training(ranks, one):
    """Whether one process may stand for the ranks, and what parts them."""
    apart = [abs(theirs - its) for theirs, its in zip(ranks["loss"], one["loss"], strict=True)]
    padded = -ranks["samples"].iloc[0] % ranks["world_size"].iloc[0]
    if padded:
        return f"In each epoch the ranks train on {padded} of the images twice (lesson 05), and one process does not."
    if apart[0] > ROUNDING:
        return f"The losses of the first epoch differ by {apart[0]:.0e}. **This is not the same training.**"
    return f"The losses of the first epoch differ by {apart[0]:.0e}, later ones by {max(apart):.0e} at most: rounding."


def closest(after, to):
    """The rule whose accuracy, of {run: accuracy}, is closest to that of run `to`."""
    return (after.drop([to, ALONE]) - after[to]).abs().idxmin()


def won_back(lost, one, alone):
    """The share of what the large batch lost that a rule gains; – where it lost nothing."""
    return f"{(lost - alone) / (one - alone):.0%}" if one > alone else "–"


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
        there = run.assign(end=run["seconds"].cumsum())[run["val_accuracy"] >= target]
        rows.append({"label": label, "images_per_second": run["images_per_second"].median(),
                     "reached": there["end"].iloc[0] if len(there) else math.nan,
                     "epoch": there["seconds"].iloc[0] if len(there) else math.nan,
                     "synthetic": run["synthetic"].iloc[0]})
    return pd.DataFrame(rows)


def fastest(table):
    """Which run had the most images a second, and which was first at the target. All that is known is the epoch: who
    got there less than an epoch later may have been first, too."""
    most, first = table.loc[table["images_per_second"].idxmax(), "label"], table.loc[table["reached"].idxmin()]
    close = table[table["reached"] - table["epoch"] < first["reached"]]["label"]
    said = f"The most images a second: **{most}**. The first at the target: **{first['label']}**"
    if len(close) == 1:
        return said + "."
    return said + f", but this is too close to call: {', '.join(close)} may each have been first, within an epoch."


def seeds(by_rule, batch):
    """A row a rule, over the seeds, for `batch` images an update; first the smallest batch, which lost nothing."""
    small = by_rule["global_batch"].min()
    one = by_rule[(by_rule["global_batch"] == small) & (by_rule["rule"] == ALONE)].iloc[0]
    large = by_rule[by_rule["global_batch"] == batch]
    alone = large[large["rule"] == ALONE].iloc[0]
    rows = [{"images an update": small, "rule": "", "test accuracy": spread(one), "of the lost accuracy, won back": ""}]
    for row in large.itertuples():
        share = "" if row.rule == ALONE or row.broken else won_back(row.mean, one["mean"], alone["mean"])
        rows.append({"images an update": batch, "rule": row.rule, "test accuracy": spread(row._asdict()),
                     "of the lost accuracy, won back": share})
    return rows


def warm_up(by_rule):
    """Whether the runs show that it helps: its gain on the linear rule, beside how far both scatter."""
    risen = by_rule[by_rule["rule"] == "linear, warm-up"].iloc[0]
    linear = by_rule[(by_rule["rule"] == "linear") & (by_rule["global_batch"] == risen["global_batch"])].iloc[0]
    gain, scatter = 100 * (risen["mean"] - linear["mean"]), 100 * math.hypot(risen["sd"], linear["sd"])
    said = f"The warm-up changes the linear rule's result by {gain:+.1f} points; the two scatter by {scatter:.1f}. "
    if abs(gain) <= scatter:
        return said + "So these runs do not show whether it helps."
    return said + ("It helps here." if gain > 0 else "It does harm here.")


def best_rates(by_rate):
    """A row for each batch: the best rate tried, and those about as good, within one standard deviation."""
    rows = []
    for batch, tried in by_rate.groupby("global_batch"):
        best = tried.loc[tried["mean"].idxmax()]
        near = tried.loc[tried["mean"] >= best["mean"] - max(best["sd"], 0.01), "lr"]
        rows.append({"images an update": batch, "best rate tried": best["lr"], "test accuracy": spread(best),
                     "about as good": " to ".join(f"{lr:.3g}" for lr in sorted({near.min(), near.max()}))})
    return rows


def spread(row):
    if row["broken"]:
        return f"{row['broken']} of {row['runs']} runs broke off"
    return f"{row['mean']:.1%} ± {row['sd']:.1%}"


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
    lines = [f"Here it has grown, to {after / before:.1f} times." if after > before else
             f"Here it has fallen, to {after / before:.2f} times. A likely reason: LeNet begins on a plateau, where "
             "the true gradient is tiny. And this is far from the end of a training."]
    sides = ["below" if large < found else "above" for found in (before, after)]
    where = sides[0] if sides[0] == sides[1] else f"{sides[0]} it with the first weights, and in the end {sides[1]}"
    return [*lines, f"The large batch, {large} images, lies {where} it. Far below, the linear rule has its reason; far "
            "above, the rate should grow less than the batch."]
