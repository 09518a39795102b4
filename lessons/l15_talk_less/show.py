"""Lesson 15: how fast ways that talk less are, what they send, and what they learn.

`found` is the JSON of lessons/l15_talk_less/talk_less.py.
"""

import math
from statistics import median

import numpy as np
import pandas as pd

from lessons.l15_talk_less import predict as talking

WORDS = {"never": "never", "ddp": "DDP", "accumulate": "accumulate", "local": "local SGD", "diloco": "DiLoCo",
         "fp16": "DDP, fp16", "bf16": "DDP, bf16", "powersgd": "DDP, PowerSGD"}
TRAININGS = ["never", "ddp", "accumulate", "local", "diloco"]  # each learns in its own way; the rest are DDP's, nearly
CLOSE = 0.95  # of the images a second of ranks that never talk


def name(one):
    """How a way is called in tables and pictures."""
    return WORDS[one["way"]] + (f", each {one['every']}" if one["every"] > 1 else "")


def rounds(found):
    """A row for each round of each way: its `name`, images a second as a `share` of what ranks that never talk reached
    in the same round, and `elapsed`, seconds of training since the start of this seed."""
    table = pd.DataFrame(found["rounds"])
    table["name"] = [name(one) for one in found["rounds"]]
    never = table[table["way"] == "never"].set_index(["seed", "round"])["seconds"]
    table["share"] = [never[one.seed, one.round] / one.seconds for one in table.itertuples()]
    table["synthetic"] = found["dataset"] == "synthetic"
    table["elapsed"] = table.groupby(["seed", "name"], sort=False)["seconds"].cumsum()
    return table


def ways(found):
    """A row a way: `share` (median), `low`, `high` over all rounds; `accuracy` and `sd` over the seeds after the last
    round; `sent`, bytes a batch and rank, the lowest of the rounds: other programs talk, too."""
    table = rounds(found)
    of_ways = table.groupby(["name", "way", "every"], sort=False)
    last = table[table["round"] == table["round"].max()].groupby(["name", "way", "every"], sort=False)["accuracy"]
    return pd.DataFrame({"share": of_ways["share"].median(), "low": of_ways["share"].min(),
                         "high": of_ways["share"].max(), "accuracy": last.mean(), "sd": last.std(),
                         "sent": of_ways["sent"].min(), "synthetic": of_ways["synthetic"].first()}).reset_index()


def in_time(found, seconds):
    """{way's name: mean accuracy over the seeds after so many seconds of training}, between two rounds on a line; nan
    where nobody judged it so early."""
    return {name: rows.groupby("seed")[["elapsed", "accuracy"]].apply(
        lambda run: np.interp(seconds, run["elapsed"], run["accuracy"], left=np.nan)).mean(skipna=False)
        for name, rows in rounds(found).groupby("name", sort=False)}


def all_had(found):
    """Seconds of training that each way has had with every seed: those of the fastest."""
    return rounds(found).groupby(["name", "seed"])["elapsed"].max().min()


def asked(text):
    """The ways of a --ways, as dicts."""
    return [{"way": way, "every": int(every or 1)} for way, _, every in (word.partition(":") for word in text.split())]


def forecast(text, found, alpha, beta):
    """A row for each way of a --ways but `never`: `count` of its messages and `message`, bytes of all of them; and by
    lesson 08's model `share`, of the images a second of ranks that never talk, whose time stands in `found`."""
    alone = median(one["seconds"] for one in found["rounds"] if one["way"] == "never") / found["steps"]
    rows = []
    for one in asked(text):
        count, size = talking.messages(one["way"], found["shapes"])
        if count:
            rows.append(one | {"name": name(one), "count": count, "message": size,
                               "share": alone / talking.seconds(one, found["shapes"], alone, alpha, beta)})
    return pd.DataFrame(rows)


def forecasts(table):
    """A row a way: what it sends, when, and how fast that lets it be."""
    return [{"way": one.name, "talks after batches": one.every, "messages": one.count,
             "their bytes": f"{one.message:,}", "predicted, % of the ceiling": f"{100 * one.share:.0f}"}
            for one in table.itertuples(index=False)]


def compared(found, table):
    """A row a way: its speed, predicted by `table` and measured, and what it had learnt, by images and by time."""
    expected, seconds = table.set_index("name")["share"], all_had(found)
    timely = in_time(found, seconds)
    return [{"way": one.name, "predicted": f"{100 * expected[one.name]:.0f}" if one.name in expected else "–",
             **of_ceiling(one), "test accuracy": f"{one.accuracy:.3f} ± {one.sd:.3f}",
             f"after {seconds:.1f} s": f"{timely[one.name]:.3f}"} for one in ways(found).itertuples(index=False)]


def of_ceiling(one):
    return {"% of the ceiling": f"{100 * one.share:.0f}",
            "lowest to highest round": f"{100 * one.low:.0f} to {100 * one.high:.0f}"}


def worst(found):
    """Which of TRAININGS has the lowest accuracy after the same images, however seldom it talks."""
    return WORDS[ways(found).query("way in @TRAININGS").set_index("way")["accuracy"].idxmin()]


def how_long(found):
    """How much training that is, of which the ways are judged."""
    images = max(one["images"] for one in found["rounds"])
    batches = max(one["round"] for one in found["rounds"]) * found["steps"]
    seldom = max(found["rounds"], key=lambda one: one["every"])
    return (f"Each way learnt from {images:,} images, {images / found['samples']:.2g} of an epoch: {batches} batches "
            f"of each rank, and with {name(seldom)}, {batches // seldom['every']} messages.")


def both(found):
    """Which ways are as fast as ranks that never talk, nearly, and learn as DDP does; or how far the nearest is off."""
    table = ways(found).set_index("name")
    ddp, others = table.loc["DDP"], table[~table["way"].isin(["never", "ddp"])]
    fast = others[others["share"] >= CLOSE]
    learnt = fast[fast["accuracy"] >= ddp["accuracy"] - ddp["sd"]]
    floor = f"{100 * CLOSE:.0f} % of the ceiling's images a second"
    if math.isnan(ddp["sd"]):
        return "With one seed nobody can say what is chance: take two or more."
    if len(learnt):
        return (f"**{' and '.join(learnt.index)}**: at least {floor}, and after the same images DDP's accuracy within "
                f"one standard deviation ({ddp['accuracy']:.3f} − {ddp['sd']:.3f}), or above it. DDP itself reaches "
                f"{100 * ddp['share']:.0f} %.")
    if len(fast):
        nearest = fast.loc[fast["accuracy"].idxmax()]
        return (f"At least {floor}: {' and '.join(fast.index)}. None of them learns as DDP does after the same images: "
                f"the nearest, {nearest.name}, has {nearest['accuracy']:.3f}; DDP has {ddp['accuracy']:.3f} ± "
                f"{ddp['sd']:.3f}.")
    nearest = others.loc[others["share"].idxmax()]
    return (f"No way reaches {floor} here. The nearest is {nearest.name} with {100 * nearest['share']:.0f} %, in "
            f"single rounds {100 * nearest['low']:.0f} to {100 * nearest['high']:.0f} %: other programs run beside, "
            "or a message costs more than it saves.")


def over_link(found, table):
    """A row a way: messages a batch; bytes a batch and rank, by the formula and as the network interface counted them;
    the speed, predicted by `table` and measured."""
    expected, rows = table.set_index("name")["share"], []
    for one in ways(found).itertuples(index=False):
        count, _ = talking.messages(one.way, found["shapes"])
        formula = talking.sent(one._asdict(), found["shapes"], found["world_size"])
        rows.append({"way": one.name, "messages a batch": f"{count / one.every:.2g}",
                     "bytes: formula": f"{formula:,.0f}", "counted": f"{one.sent:,.0f}",
                     "counted / formula": f"{one.sent / formula:.2f}" if formula else "–",
                     "predicted": f"{100 * expected[one.name]:.0f}" if one.name in expected else "–",
                     **of_ceiling(one)})
    return rows


def share(found, wanted):
    """Percent of the ceiling that a way reaches."""
    return 100 * ways(found).set_index("name").loc[wanted, "share"]


def slower(near, far):
    """What a slow link costs DDP and the way that suffers least from it."""
    here, there = (ways(found).set_index("name")["share"] for found in (near, far))
    least = there.drop("never").idxmax()
    return (f"DDP: {100 * here['DDP']:.0f} % of the ceiling between processes of one machine, "
            f"{100 * there['DDP']:.0f} % over the link. **{least}**: {100 * there[least]:.0f} % over the link.")


def delayed(why_not):
    """Whether a link with a latency can be had here."""
    if why_not is None:
        return "This machine can make such a link: try it."
    return f"Not to be had here: {why_not.rstrip('.')}."


def shown(found):
    """The ways whose learning is drawn over time: of each of TRAININGS the one that talks most seldom."""
    table = ways(found).query("way in @TRAININGS")
    return list(table.loc[table.groupby("way", sort=False)["every"].idxmax(), "name"])
