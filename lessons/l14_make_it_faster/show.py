"""Lesson 14: where a step's time goes, what each change was predicted to gain and gained, and what it did to the
training.

`run` is the JSON of lessons/l14_make_it_faster/step_profile.py, `measured` that of compare_changes.py, `pages` that of
page_faults.py.
"""

import math
import mmap
import statistics

import pandas as pd

from lessons.l14_make_it_faster import gains

NAMES = {"lenet": "LeNet", "resnet": "small ResNet", "wide": "three wide layers"}
KINDS = {  # {part of a step: is an operator of the profile one of it?}
    "convolution": lambda name: "conv" in name,
    "fully connected": lambda name: gains.is_product(name) and "conv" not in name,
    "optimizer": lambda name: "adam" in name.lower() or name == "update",
}
ROUNDING = 1e-4  # gradients nearer than this differ in the order of their sums
IN_MAIN = {  # {change: where main.py has it}
    "whole-batches": "always", "fused": "always", "bucket-view": "always",
    "threads": "cores / ranks by itself; `OMP_NUM_THREADS`", "batch": "`--batch-size`", "bf16": "`--bf16`",
    "channels-last": "on a CPU; elsewhere `--channels-last`", "compile": "`--compile`",
    "first-bucket": "`--bucket-cap-mb`", "small-buckets": "`--bucket-cap-mb`", "fp16-hook": "`--comm-hook fp16`",
    "bf16-hook": "`--comm-hook bf16`", "powersgd": "no: another gradient", "accumulate": "no: it is a larger batch",
}

# ---------------------------------------------------------------------------------------------- where the time goes


def under_profiler(profile):
    """Milliseconds of a profiled step."""
    return sum(profile["medians"].get(name, 0) for name in (*gains.LABELS, "wait"))


def shares(profile):
    """{part: share of a profiled step}, everything else last; they add up to 1."""
    total = sum(row["ms"] for row in profile["operators"])
    found = {"data": profile["medians"]["data"] / under_profiler(profile)}
    found |= {kind: sum(row["ms"] for row in profile["operators"] if holds(row["name"])) / total
              for kind, holds in KINDS.items()}
    return found | {"everything else": 1 - sum(found.values())}


def most(run, model):
    """The named part that takes most of the model's step."""
    found = shares(run["models"][model])
    del found["everything else"]
    return max(found, key=found.get)


def parts(run):
    """A row for each part of a step: its share, and the most that can come of it."""
    found = {model: shares(profile) for model, profile in run["models"].items()}
    return [{"part": part, **{NAMES[model]: f"{of[part]:.0%}" for model, of in found.items()},
             **{f"{NAMES[model]}, if it took no time": f"{gains.amdahl(of[part], math.inf):.2f}× as fast"
                for model, of in found.items()}}
            for part in next(iter(found.values()))]


def steps(run):
    """A row for each model: its step timed without the profiler, before and after the profiled ones, and with it."""
    return [{"model": NAMES[model], "before, ms": f"{profile['halves'][0]:.1f}",
             "with the profiler, ms": f"{under_profiler(profile):.1f}", "after, ms": f"{profile['halves'][1]:.1f}",
             "": disturbed(profile)} for model, profile in run["models"].items()]


def disturbed(profile):
    """What speaks against believing these times; "" if nothing does. A profiler cannot make a step faster."""
    low, high = min(profile["halves"]), max(profile["halves"])
    if under_profiler(profile) < low:
        return "**disturbed**: no profiler makes a step faster. Run it again"
    return "**disturbed**: the machine changed its speed. Run it again" if high > 1.25 * low else ""


def pages(found):
    """For each model a row without and a row with memory that is kept: page faults, their time, memory held, gain."""
    rows = []
    for model, row in found["models"].items():
        best = gains.amdahl(row["returned"]["system"], math.inf)
        for way, predicted, measured in (
                ("given back", "–", "–"),
                ("kept", f"{best:.2f}×", f"{row['gain']:.2f}× ({row['low']:.2f}–{row['high']:.2f})")):
            seen = row["returned" if way == "given back" else "kept"]
            rows.append({NAMES[model]: f"memory {way}", "page faults a step": f"{seen['faults']:,.0f}",
                         "time in the system": f"{seen['system']:.0%}", "MiB held": f"{seen['resident'] / 2**20:,.0f}",
                         "as fast, predicted": predicted, "measured": measured})
    return rows


def given_back(found, result):
    """How much memory the ResNet's page faults of a step are, also in results of so many bytes."""
    pages = found["models"]["resnet"]["returned"]["faults"]
    size = pages * mmap.PAGESIZE
    return (f"{pages:,.0f} pages of {mmap.PAGESIZE // 1024} KiB are {size / 2**20:.0f} MiB: in each step, memory for "
            f"{size / result:.1f} such results is given back and asked for again.")


def can_keep(found):
    return "" if found["can_keep"] else ("**This system's C library cannot be told to keep memory: both processes did "
                                         "the same, and what differs is noise.**")


def waiting(run, model):
    """Percent of a profiled step in which a rank has nothing left to compute, the median."""
    profile = run["models"][model]
    return 100 * profile["medians"]["wait"] / under_profiler(profile)


def waits(run):
    """A row for each model: the parts of a step with several ranks."""
    return [{"model": NAMES[model],
             **{f"{name}, ms": f"{profile['medians'][name]:.1f}" for name in (*gains.LABELS, "wait", "all-reduce")},
             "waits": f"{waiting(run, model):.0f}%",
             "if it never waited": f"{gains.amdahl(waiting(run, model) / 100, math.inf):.2f}× as fast"}
            for model, profile in run["models"].items()]


def messages(run):
    """A row for each model and format: what a step sends, and how long an all-reduce of so much takes alone."""
    rows = []
    for model, profile in run["models"].items():
        size, ms = profile["gradient_bytes"], profile["all_reduce"]
        rows += [{"model": NAMES[model], "sent as": name, "KiB a step": f"{size * part / 1024:,.0f}",
                  "all-reduce alone, ms": f"{ms[name]:.2f}", "of float32's time": f"{ms[name] / ms['float32']:.0%}"}
                 for name, part in (("float32", 1), ("bf16", 0.5))]
        rows.append({"model": NAMES[model], "sent as": "PowerSGD, one column",
                     "KiB a step": f"{4 * gains.powersgd_values(profile['shapes']) / 1024:,.0f}",
                     "all-reduce alone, ms": "–", "of float32's time": "–"})
    return rows


# ---------------------------------------------------------------------------------------------- changes


def predicted(run, model, name):
    """(gain, how it was computed), from the profile alone."""
    return gains.predict(name, run["models"][model] | {"world_size": run["world_size"], "cores": run["cores"]})


def predictions(run, changes, names):
    """A row for each change: the predicted gain of each model, and how it was computed."""
    rows = []
    for name in names.split()[1:]:
        told = {model: predicted(run, model, name) for model in run["models"]}
        rows.append({"change": changes[name].text,
                     **{NAMES[model]: f"{gain:.2f}" if gain else "–" for model, (gain, _) in told.items()},
                     "how": next(iter(told.values()))[1]})
    return rows


def judged(measured, run, changes, names):
    """{model's name: table}, as pictures.changes takes it, with the verdict on each change."""
    tables = {}
    for model, of in measured.items():
        rows = []
        for name in names:
            row = of.get(name, {"error": "not tried"})
            said = "did not run" if name in of else "not tried"
            rows.append({"change": name, "text": changes[name].text, "predicted": predicted(run, model, name)[0],
                         **row, "verdict": gains.verdict(row, of["nothing"]) if "gain" in row else said})
        tables[NAMES[model]] = pd.DataFrame(rows, columns=[
            "change", "text", "predicted", "gain", "low", "high", "quartiles", "error", "verdict", "losses",
            "gradient_off"])
    return tables


def gain(tables, model, name):
    """What a change gained; or why nobody knows."""
    row = tables[NAMES[model]].set_index("change").loc[name]
    return row["verdict"] if pd.isna(row["gain"]) else row["gain"]


def instructions(cpuinfo):
    """Which bf16 instructions Linux says that the processor has; `cpuinfo`: what stands in /proc/cpuinfo, if it is."""
    names = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in cpuinfo.split()]
    if not cpuinfo:
        return "Whether this processor has bf16 instructions, this system does not tell."
    return f"This processor has bf16 instructions: {', '.join(names)}." if names else (
        "This processor names **no bf16 instructions**.")


def furthest(tables):
    """The change whose measured gain is furthest from the predicted one."""
    known = pd.concat([table.assign(model=model) for model, table in tables.items()])
    known = known[known["change"] != "nothing"].dropna(subset=["gain", "predicted"])
    off = (known["gain"] / known["predicted"]).map(math.log).abs()
    worst = known.iloc[off.argmax()]
    return (f"Furthest from its prediction: **{worst['text']}**, {worst['model']}: predicted {worst['predicted']:.2f}, "
            f"measured {worst['gain']:.2f}.")


def pays(found, nothing):
    return bool(gains.saved(found)) and gains.verdict(found, nothing) == "pays"


def compiled(found, nothing):
    """When the start of torch.compile is paid back. `found` is None where it was not tried in this run."""
    if not gains.saved(found):
        return ("Not tried in this run: compiling takes too long for it. Put `compile` into `alone` at the top."
                if found is None else f"It did not run here: {found['error']} It needs a C++ compiler.")
    before, after = found["first_update_seconds"]
    start = f"The first update takes {before:.2f} s, and compiled **{after:.0f} s**."
    seen = gains.verdict(found, nothing)
    if seen != "pays":
        return f"{start} After that the verdict is *{seen}*: the start is not known to be **ever** paid back."
    updates = gains.payback(before, after, statistics.median(gains.saved(found)), 0)
    return f"{start} By the median of the rounds it is paid back after **{updates:,} updates**."


def numerics(*results):
    """A row for each change whose first gradient differs by more than rounding; then one for all others.

    `results`: tables by model, as `judged` gives them.
    """
    rows, others = [], []
    for model, table in [pair for tables in results for pair in tables.items()]:
        for row in table[table["losses"].notna() & (table["change"] != "nothing")].itertuples():
            if row.gradient_off > ROUNDING:
                rows.append({"change": row.text, "model": model,
                             "first gradient is off by": f"{100 * row.gradient_off:.2g} %",
                             "loss without it": f"{row.losses[0]:.3f}", "with it": f"{row.losses[1]:.3f}"})
            else:
                others.append(row.gradient_off)
    most = f"{100 * max(others):.2g} % at most" if others else "–"
    return [*rows, {"change": "all others here", "model": "–", "first gradient is off by": most,
                    "loss without it": "–", "with it": "–"}]


def decided(changes, *results):
    """A row for each change: how often it paid and cost in `results`, tables by model; and where main.py has it."""
    seen = pd.concat([table for tables in results for table in tables.values()]).groupby("change")["verdict"].agg(list)
    rows = []
    for name, place in IN_MAIN.items():
        if name in seen:
            tried = [verdict for verdict in seen[name] if verdict not in ("did not run", "not tried")]
            rows.append({"change": changes[name].text, "tried": len(tried), "paid": tried.count("pays"),
                         "cost": tried.count("costs"), "in main.py": place})
    return rows
