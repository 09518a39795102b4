# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         alone: nothing whole-batches batch bf16
#         alone_resnet: nothing channels-last
#         together: nothing first-bucket bf16-hook powersgd accumulate
#         rounds: 3
#         seconds: 0.5
#         steps: 5
#       seconds: 55
#     seconds: 145
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Make it faster
#
# Where does the time of a training step go, and which change pays? We measure first, predict from what we measured, change one
# thing, and measure again. **Many changes do not pay. They stay in the table.**

# %%
import glob, sys
sys.path[:0] = [p[:-16] for up in ("", "../", "*/") for p in glob.glob(up + "course/lesson.py")]
from course import lesson; lesson.begin()

# %%
import json
import math
import os
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown, display

import data
import models
import utils
from course import plots, predict
from course.checks import lesson_14 as check
from scripts.measure.adjustable_training import CHANGES

# %% tags=["parameters"]
ranks = 2  # processes of the runs with several; 2 or more
steps = 9  # updates that are profiled
rounds = 7  # times that each change is compared with no change; 3 or more
seconds = 2  # a comparison ends after so many, once it has made three rounds
alone = "nothing whole-batches fused threads batch bf16 channels-last compile"  # tried with LeNet, one process
alone_resnet = "nothing whole-batches threads batch bf16 channels-last"  # and with the small ResNet (compiling it takes too long)
together = "nothing threads bucket-view first-bucket small-buckets fp16-hook bf16-hook powersgd accumulate"

# %% [markdown]
# **All runs here are on the CPU, also where there are GPUs**, with one thread a rank: so everybody sees the same operators. On a GPU
# the same programs give other answers (`scripts/measure/compare_changes.py --device cuda`). The way to find them stays.

# %%
os.environ["OMP_NUM_THREADS"] = "1"
dataset = data.get_dataset("auto")[0].name  # once, before the ranks ask for it
Path("results/live").mkdir(parents=True, exist_ok=True)
LABEL = {"lenet": "LeNet", "resnet": "small ResNet", "wide": "three wide layers"}


def found(name):
    """What a run wrote for us."""
    return json.loads(Path(f"results/live/14_{name}.json").read_text())


Markdown(f"{utils.cores()} cores; images of {dataset}" + (" (SYNTHETIC)." if dataset == "synthetic" else "."))

# %% [markdown]
# ## One rank: where does the time go?
#
# LeNet has two convolutions and three fully connected layers. Where are its weights?

# %%
weights = {name: p.numel() for name, p in models.ConvNet().named_parameters()}
connected = sum(count for name, count in weights.items() if name.startswith("fc"))
Markdown(f"Of {sum(weights.values()):,} weights **{connected / sum(weights.values()):.0%}** are in the fully connected layers.")

# %% [markdown]
# **Predict.** What takes most of a step: `data` (images fetched and normalised), `convolution`, `fully connected`, or `optimizer`?

# %%
my_guess = "fully connected"

# %%
# !python scripts/measure/step_profile.py --model lenet resnet --steps {steps} --out results/live/14_profile_one.json

# %% [markdown]
# `torch.profiler` writes down when each operator begins and ends. **Self time** is the time in an operator without that of
# the operators which it calls.

# %%
one = found("profile_one")
fig, axes = plt.subplots(1, 2, figsize=(20, 8))
for ax, (model, profile) in zip(axes, one["models"].items(), strict=True):
    plots.changes.operators(profile["operators"], ax)
    ax.set_title(f"{LABEL[model]}: {predict.gains.step(profile):.1f} ms a step of {profile['batch_size']} images")
plt.show()


# %%
def parts(profile):
    """{what: share of the step}"""
    kinds = {"convolution": lambda name: "conv" in name, "fully connected": lambda name: predict.gains.is_product(name) and "conv" not in name,
             "optimizer": lambda name: "adam" in name.lower() or name == "update"}
    total = sum(row["ms"] for row in profile["operators"])
    # what normalises images has the names of operators elsewhere, so the phase tells: timed without the profiler
    return {"data": profile["phases"]["data"] / predict.gains.step(profile)} | {kind: sum(row["ms"] for row in profile["operators"] if holds(row["name"])) / total for kind, holds in kinds.items()}


shares = {model: parts(profile) for model, profile in one["models"].items()}
lesson.table([{"part": kind, **{LABEL[model]: f"{shares[model][kind]:.0%}" for model in shares},
       "if it took no time, LeNet would be": f"{predict.gains.amdahl(shares['lenet'][kind], math.inf):.2f}× as fast"} for kind in shares["lenet"]])
most = max(shares["lenet"], key=shares["lenet"].get)
Markdown(f"Of these four, most of LeNet's time goes to **{most}** (you said: {my_guess}). The weights say little about the time: a convolution uses each of its weights "
         "at every place of every image, a fully connected layer uses it once an image.")

# %% [markdown]
# The last column is **Amdahl's law**: a part that is a tenth of the step gives 1.11 times at most, however fast it becomes. So the
# profile tells which changes *cannot* pay. That is its first use.
#
# A profiler also disturbs. So the milliseconds of a step come from a run without it:

# %%
rows = []
for model, profile in one["models"].items():
    under = sum(profile["medians"].get(name, 0) for name in (*predict.gains.LABELS, "wait"))
    rows.append({"model": LABEL[model], **{f"{phase}, ms": f"{profile['phases'][phase]:.2f}" for phase in predict.gains.LABELS},
                 "a step": f"{predict.gains.step(profile):.1f}", "under the profiler": f"{under:.1f}"})
lesson.table(rows)

# %% [markdown]
# ## What the profile does not name
#
# Each result of an operator needs memory. When it is no longer needed, the C library may give it back to the operating system, and the
# next step asks for it again. The operating system hands memory out in **pages**: when a program first touches one, it stops the
# program, clears the page, and goes on. That is a **page fault**. No operator has that name, but the operating system counts them.
#
# You saw none of it above: `main.py`, and the programs of this lesson, tell the C library to keep what it has (`shortcuts.keep_memory()`: two settings of
# glibc's `mallopt`). Two processes now take turns, one with that and one without.
#
# **Predict.** How many page faults does a step of the small ResNet make without it? Its first result alone, 64 × 16 × 32 × 32 numbers, takes 4 MiB, and a page is
# mostly 4 KiB.

# %%
my_faults = 1024

# %%
# !python scripts/measure/page_faults.py --model lenet resnet --rounds {rounds} --out results/live/14_pages.json

# %%
pages, can_keep = (found("pages")[name] for name in ("models", "can_keep"))
lesson.table([{"model": LABEL[model], "page faults a step": f"{row['returned']['faults']:,.0f}", "of the time in the operating system": f"{row['returned']['system']:.0%}",
       "predicted gain, with none of it": f"{predict.gains.amdahl(row['returned']['system'], math.inf):.2f}", "memory kept: page faults": f"{row['kept']['faults']:,.0f}",
       "measured gain": f"{row['gain']:.2f} ({row['low']:.2f}–{row['high']:.2f})"} for model, row in pages.items()])
Markdown(f"You said {my_faults:,}. The small ResNet made **{pages['resnet']['returned']['faults']:,.0f}** (a page is {os.sysconf('SC_PAGESIZE') // 1024} KiB here), "
         f"LeNet, which needs less memory, {pages['lenet']['returned']['faults']:,.0f}. With its memory kept the small ResNet is **{pages['resnet']['gain']:.2f} times as fast**."
         + ("" if can_keep else " **(This system's C library cannot be told so: the two processes did the same.)**"))

# %% [markdown]
# The numbers change from run to run: what the C library gives back depends on what lies where. The prediction counts the time inside the operating
# system alone. A page that it clears also pushes other data out of the caches, which the program then waits for: so the gain may be larger.
#
# (On a GPU, PyTorch itself keeps freed memory: its *caching allocator*.)
#
# ## Several ranks: what is new?
#
# The same training with DDP, a thread a rank. And a third model, with few operations and many weights: three fully connected layers.
#
# **Predict.** Which share of a step does a rank only wait, with nothing left to compute? First LeNet, then the wide layers.

# %%
my_waiting = [0.05, 0.05]

# %%
# !torchrun --nproc_per_node={ranks} scripts/measure/step_profile.py --model lenet wide --steps {steps} --out results/live/14_profile_ranks.json

# %%
many = found("profile_ranks")
fig, axes = plt.subplots(2, 1, figsize=(14, 4.5 + 3 * min(ranks, 4)))
for ax, (model, profile) in zip(axes, many["models"].items(), strict=True):
    events = pd.DataFrame(profile["events"])
    plots.timeline(events[events["rank"] < 4], ax)  # four ranks at most
    ax.set_title(f"{LABEL[model]}: {profile['gradient_bytes'] / 2**20:.2f} MiB of gradients", pad=40)
axes[0].set_xlabel("")
plt.show()

# %% [markdown]
# **How to read it.** These are the traces of the ranks, on one clock: all processes of a machine share its monotonic clock, and each trace
# holds a label whose time on it is known. `wait` is what remains of `backward` after its last operator. `all-reduce` begins when this rank
# sends, and ends when the sum is back. Who comes early also waits for the others.
#
# (Open `results/live/14_profile_ranks.lenet.rank0.trace.json` at [ui.perfetto.dev](https://ui.perfetto.dev) to see every operator.)

# %%
waits = {model: profile["medians"]["wait"] / sum(profile["medians"][name] for name in (*predict.gains.LABELS, "wait"))
         for model, profile in many["models"].items()}
lesson.table([{"model": LABEL[model], **{f"{name}, ms": f"{profile['medians'][name]:.1f}" for name in (*predict.gains.LABELS, "wait", "all-reduce")},
       "waits": f"{waits[model]:.0%}", "you said": f"{guess:.0%}",
       "if it never waited": f"{predict.gains.amdahl(waits[model], math.inf):.2f}×"}
      for guess, (model, profile) in zip(my_waiting, many["models"].items(), strict=True)])
before, after = ({row["name"]: row["ms"] for row in which["models"]["lenet"]["operators"]} for which in (one, many))
grown = sorted(after, key=lambda name: before.get(name, 0) - after[name])[:4]
lesson.table([{"LeNet: what grew most": f"`{plots.changes.shorten(name)}`", "one rank, ms": f"{before.get(name, 0):.2f}",
       f"{ranks} ranks, ms": f"{after[name]:.2f}"} for name in grown])

# %% [markdown]
# New with several ranks: the all-reduce, and the waiting for it. The profiler has no operator called "wait". Waiting shows as **self time
# of what is around it**: `backward` itself. The same operators may also take longer: the ranks share caches and memory.
#
# ## The candidates
#
# Before anything is changed, the profile predicts. Each model is one line; where none is honest there is none.
#
# **Predict, too.** Write your own gains here (1 = no gain).

# %%
my_gains = {"whole-batches": 1.1, "fused": 1.1, "threads": 2, "batch": 1.5, "bf16": 2, "channels-last": 1.2, "compile": 1.5,
            "bucket-view": 1.1, "first-bucket": 1.0, "small-buckets": 1.1, "fp16-hook": 1.2, "bf16-hook": 1.2, "powersgd": 1.5, "accumulate": 1.3}


# %%
def profile_of(run, model):
    return run["models"][model] | {"world_size": run["world_size"], "cores": run["cores"]}


def predicted(run, names):
    """A line a change: the prediction for each model, and how it was computed."""
    models = list(run["models"])
    rows = []
    for name in names.split():
        told = {model: predict.gains.predict(name, profile_of(run, model)) for model in models}
        rows.append({"change": CHANGES[name].text, **{LABEL[model]: f"{gain:.2f}" if gain else "–" for model, (gain, _) in told.items()},
                     "you said": my_gains.get(name, 1), "how": told[models[0]][1]})
    lesson.table(rows)


predicted(one, alone)
predicted(many, together)


# %% [markdown]
# Three of these are what `main.py` does already (`images a batch at a time`, `fused optimizer`, and `channels_last` on a CPU). There the training *without* it comes first.
#
# ## One rank: measure
#
# `scripts/measure/compare_changes.py` trains two models in turns, with the change and without: A B, B A, A B … Both see the same images, from the same
# first weights. What disturbs the machine disturbs both. And it compares **the training with itself**: what that shows is noise.

# %%
# !python scripts/measure/compare_changes.py --model lenet --change {shlex.join(alone.split())} --rounds {rounds} --seconds {seconds} --out results/live/14_lenet.json
# !python scripts/measure/compare_changes.py --model resnet --change {shlex.join(alone_resnet.split())} --rounds {rounds} --seconds {seconds} --out results/live/14_resnet.json

# %%
def changes_of(measured, run, model, names):
    """A line a change of `names`: predicted, measured, and what that says."""
    of_model = measured["models"][model]
    rows = []
    for name in names.split():
        row = of_model.get(name, {"error": "not tried with this model"})
        rows.append({"change": name, "text": CHANGES[name].text, "predicted": predict.gains.predict(name, profile_of(run, model))[0], **row,
                     "verdict": predict.gains.verdict(row, of_model["nothing"]) if "gain" in row else "did not run" if name in of_model else "not tried"})
    return pd.DataFrame(rows, columns=["change", "text", "predicted", "gain", "low", "high", "quartiles", "error", "verdict", "losses", "gradient_off"])


def draw(tables, title):
    fig, axes = plt.subplots(1, 2, figsize=(20, 3.2 + 0.62 * len(tables[0][1])), sharey=True)
    for ax, (name, rows) in zip(axes, tables, strict=True):
        plots.changes.changes(rows, ax, f"{name}, {title}")
    plots.changes.key(fig)
    plt.show()


of_lenet, of_resnet = found("lenet"), found("resnet")
names = " ".join(dict.fromkeys((alone + " " + alone_resnet).split()))
on_one = {"lenet": changes_of(of_lenet, one, "lenet", names), "resnet": changes_of(of_resnet, one, "resnet", names)}
draw([(LABEL[model], rows) for model, rows in on_one.items()], "one rank")


# %% [markdown]
# **How to read it.** Right of the line at 1: faster. The dot is the median of the rounds, the thick line their middle half, the thin line
# all of them. Grey: the training against itself. **What lies in the grey is no gain**, whatever the median says. Below, *pays* means: the
# middle half lies above 1, and the median beyond the grey.

# %%
def verdicts(tables):
    rows = []
    for number, name in enumerate(tables[0][1]["change"]):
        if name != "nothing":
            line = {"change": CHANGES[name].text, "you said": my_gains.get(name, 1)}
            for label, rows_of in tables:
                row = rows_of.iloc[number]
                line |= {label: row["verdict"] if pd.isna(row["gain"]) else f"{row['gain']:.2f} ({row['low']:.2f}–{row['high']:.2f}), **{row['verdict']}**"}
            rows.append(line)
    lesson.table(rows)
    known = pd.concat([rows_of.assign(label=label) for label, rows_of in tables]).dropna(subset=["gain", "predicted"])
    worst = known.iloc[(known["gain"] / known["predicted"]).map(math.log).abs().argmax()]
    display(Markdown(f"Furthest from its prediction: **{worst['text']}**, {worst['label']}. Predicted {worst['predicted']:.2f}, measured {worst['gain']:.2f}."))


verdicts([(LABEL[model], rows) for model, rows in on_one.items()])

# %% [markdown]
# Where prediction and measurement differ, one of our reasons was wrong. That is worth a look:
#
# - **Threads** meet at the end of every operator. Amdahl counts the split work, not the meeting; and a core that another program uses holds all up.
# - **Batch 256** has fewer updates for the same images: fixed costs are paid less often. But the training is another one (lesson 09), and
#   larger intermediate results may leave the cache: no line a + b · images knows that.
# - **bf16** needs a processor with bf16 products, and casts every input. See the next cell for it and for **channels_last**.

# %%
flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
products = [name for name in ("avx512_bf16", "amx_bf16", "bf16") if f" {name}" in flags]
lines = ["Which instructions this processor has, this system does not tell." if not flags else
         "This processor " + (f"has bf16 instructions ({', '.join(products)})." if products else "names no bf16 instructions.")]
by_name = {model: rows.set_index("change") for model, rows in on_one.items()}
for name in ("bf16", "channels-last"):
    lines += [f"{CHANGES[name].text}, {LABEL[model]}: {rows.loc[name, 'gain']:.2f} times as fast, {rows.loc[name, 'verdict']}."
              for model, rows in by_name.items() if name in rows.index and pd.notna(rows.loc[name, "gain"])]
Markdown("\n".join(f"- {line}" for line in lines))

# %% [markdown]
# ## torch.compile: when is the start paid back?
#
# It writes C++ for the model, and calls a compiler. The first update waits for that. We start with an empty cache, as a new machine does.

# %%
compiled = of_lenet["models"]["lenet"].get("compile")
if compiled is None:
    text = "Left out in this run: compiling takes too long for it. Put `compile` into `alone` at the top."
elif "error" in compiled:
    text = f"It did not run here. **{compiled['error']}** A C++ compiler must be installed. `main.py --compile` needs it as well."
else:
    blocks = pd.DataFrame(compiled["seconds_an_image"]).median() * compiled["images_an_update"][0]  # seconds an update
    starts = compiled["first_update_seconds"]
    back = predict.gains.payback(*starts, *blocks)
    longest = 2 * back if back < math.inf else 20_000
    fig, ax = plt.subplots(figsize=(12, 6))
    for number, name in enumerate(("as it is", "compiled")):
        ax.plot([0, longest], [starts[number], starts[number] + longest * blocks[number]], color=plots.COLOURS[number], linestyle=plots.LINES["predicted"])
        ax.annotate(name, (longest, starts[number] + longest * blocks[number]), (8, 14 * (1 - 2 * number) * (1 if blocks[0] > blocks[1] else -1)),
                    textcoords="offset points", va="center", color=plots.COLOURS[number], fontweight="bold")
    ax.set(xlabel="updates", ylabel="seconds since the start", ylim=(0, None))
    ax.set_title("Compiling LeNet: computed from its start and its step")
    plt.show()
    epochs, seen = back * compiled["images_an_update"][0] / 50_000, predict.gains.verdict(compiled, of_lenet["models"]["lenet"]["nothing"])
    text = (f"The first update takes {starts[0]:.2f} s, compiled **{starts[1]:.0f} s**; every other one {1000 * blocks[0]:.1f} and {1000 * blocks[1]:.1f} ms. "
            + ((f"The start is paid back after **{back:,} updates**, that is {epochs:.1f} epochs of 50,000 images."
                + ("" if seen == "pays" else f" But do not build on it: the verdict above is *{seen}*, so the two steps may be equally long."))
               if back < math.inf else "A step is not faster, so the start is **never** paid back."))
Markdown(text)


# %% [markdown]
# ## Is it still the same training?
#
# Some changes compute other numbers. Beside each: how far the first gradient is from the unchanged one, and the loss on
# 1,000 test images after the same updates.

# %%
def numerics(tables):
    lesson.table([{"change": row.text, "model": label, "first gradient is off by": f"{row.gradient_off:.0e}" if row.gradient_off else "0",
           "loss without it": f"{row.losses[0]:.3f}", "loss with it": f"{row.losses[1]:.3f}"}
          for label, rows in tables for row in rows.itertuples() if isinstance(row.losses, list) and row.change != "nothing"])


numerics([(LABEL[model], rows) for model, rows in on_one.items()])

# %% [markdown]
# *Off by* is the length of the difference, by the length of the gradient. bf16 keeps 8 significant bits, so it rounds each value by up to
# 0.4 %; autocast does that to most intermediate results (the loss stays in float32). (A batch of 256 is not listed: it sees other images, so there is nothing to compare.)
#
# ## Several ranks: measure
#
# The same program under `torchrun`. All changes share one process group. What is measured is the slowest rank.

# %%
# !torchrun --nproc_per_node={ranks} scripts/measure/compare_changes.py --model lenet wide --change {shlex.join(together.split())} --rounds {rounds} --seconds {seconds} --out results/live/14_ranks.json

# %%
of_ranks = found("ranks")
on_many = {model: changes_of(of_ranks, many, model, together) for model in ("lenet", "wide")}
draw([(LABEL[model], rows) for model, rows in on_many.items()], f"{ranks} ranks")

# %%
verdicts([(LABEL[model], rows) for model, rows in on_many.items()])
numerics([(LABEL[model], rows) for model, rows in on_many.items()])

# %%
sent = {model: profile_of(many, model) for model in ("lenet", "wide")}
lesson.table([{"a step sends, KiB": LABEL[model], "float32": f"{p['gradient_bytes'] / 1024:,.0f}", "fp16, bf16": f"{p['gradient_bytes'] / 2048:,.0f}",
       "PowerSGD": f"{predict.gains.powersgd_values(p['shapes']) * 4 / 1024:,.0f}"} for model, p in sent.items()])
lesson.table([{"an all-reduce alone, ms": LABEL[model], **{kind: f"{ms:.2f}" for kind, ms in p["all_reduce"].items()},
       "fp16 / float32": f"{p['all_reduce']['fp16'] / p['all_reduce']['float32']:.2f}",
       "bf16 / float32": f"{p['all_reduce']['bf16'] / p['all_reduce']['float32']:.2f}"} for model, p in sent.items()])
caps = {"main.py's 25 MiB": [25 * 2**20], "None": [2**20, 25 * 2**20]}
Markdown("\n".join(f"- `bucket_cap_mb`, {LABEL[model]}: " + "; ".join(f"{name} makes {len(predict.gains.fill(p['shapes'], cap))} bucket(s)" for name, cap in caps.items()) + "."
                   for model, p in sent.items()))

# %% [markdown]
# - **LeNet sends little.** No change of the messages can gain what is not there. The profile said so before.
# - **The wide layers send much.** Here it can pay. But *half the bytes* need not be half the time: someone must add up the 16-bit values (second
#   table), and casting to and fro costs, too.
# - **PowerSGD** sends two thin matrices for each large one ([Vogels et al. 2019](https://arxiv.org/abs/1905.13727)), and keeps what it left
#   out for the next step. It multiplies matrices to do so, on the same cores. Its gradient is far off, on purpose.
# - **bucket_cap_mb=None** is not 25: DDP's own default has a first bucket of 1 MiB, so that sending begins early.
# - **An update each 4 batches** waits and updates a quarter as often. It can gain more than predicted: a late rank holds the others up less
#   often. But the weights move a quarter as often, too: the global batch is 4 times as large.
# - **Two threads a rank**: if the cores are taken, there is nothing to give.
#
# ## What goes into main.py?
#
# What harms nothing, and can pay, is a default, even if it did not pay here (`gradient_as_bucket_view` also saves a copy of the
# gradients in memory). What pays sometimes, and has a price, is an option. The rest is left out.

# %%
IN_MAIN = {"whole-batches": "always", "fused": "always", "bucket-view": "always", "threads": "OMP_NUM_THREADS; cores / ranks by itself", "batch": "--batch-size",
           "bf16": "--bf16", "channels-last": "on a CPU; elsewhere --channels-last", "compile": "--compile", "first-bucket": "--bucket-cap-mb", "small-buckets": "--bucket-cap-mb",
           "fp16-hook": "--comm-hook fp16", "bf16-hook": "--comm-hook bf16", "powersgd": "no: another gradient", "accumulate": "no: --batch-size 256 is the same training, if the memory is there"}
here = {}
for rows in (*on_one.values(), *on_many.values()):
    for row in rows.itertuples():
        here.setdefault(row.change, []).append(row.verdict)
kept = [predict.gains.verdict(row, of["models"][model]["nothing"]) for (model, row), of in zip(pages.items(), (of_lenet, of_resnet), strict=True)]
lesson.table([{"change": CHANGES[name].text, "paid here": f"{here[name].count('pays')} of {sum(v not in ('did not run', 'not tried') for v in here[name])} times",
       "cost": f"{here[name].count('costs')} times", "in main.py": place} for name, place in IN_MAIN.items() if name in here]
     + [{"change": "freed memory is kept", "paid here": f"{kept.count('pays')} of {len(kept)} times", "cost": f"{kept.count('costs')} times", "in main.py": "on a CPU" if can_keep else "on a CPU, where the C library can"}])
# !grep -nE "gradient_as_bucket_view|fused\"|bucket_cap_mb|keep_memory" main.py utils.py shortcuts.py
# !grep -nE "bf16|channels-last|--compile|comm-hook|bucket-cap" options.py

# %% [markdown]
# ## Exercises
#
# 1. `events` is a list of dicts with `name`, `start` and `end`, of one thread: an event holds those that lie inside it. Return the name with
#    the largest self time, over all its calls.

# %%
def my_largest(events):
    raise NotImplementedError


check.largest(my_largest)
# check.largest.hint()
# check.largest.solution()

# %% [markdown]
# 2. A step takes `step` ms. A part of it, `part` ms, becomes `times` times as fast. How many times as fast is the step?

# %%
def my_gain(step, part, times):
    raise NotImplementedError


check.gain(my_gain)
# check.gain.hint()
# check.gain.solution()

# %% [markdown]
# 3. The first step takes `start_before` seconds, with a change `start_after`. Every other step takes `before` and `after` seconds. After how many
#    whole steps is the slower start paid back? (`math.inf`, if never)

# %%
def my_payback(start_before, start_after, before, after):
    raise NotImplementedError


check.payback(my_payback)
# check.payback.hint()
# check.payback.solution()

# %% [markdown]
# 4. An epoch has `batches` batches, with an update after each `every` of them, and one more for those left over. DDP has `buckets` buckets,
#    and `no_sync` stands where it should. How many all-reduces of gradients does the epoch make?

# %%
def my_all_reduces(batches, every, buckets):
    raise NotImplementedError


check.all_reduces(my_all_reduces)
# check.all_reduces.hint()
# check.all_reduces.solution()

# %% [markdown]
# ## What to remember
#
# 1. Profile before you change anything. A part that is small cannot give much.
# 2. Predict from the profile. A wrong prediction teaches more than a lucky gain.
# 3. One change at a time, in turns with the unchanged training, and beside the noise.
# 4. Ask whether it is still the same training.
#
# ## Where next
#
# - Raise `ranks` at the top. Which gains change, and does the profile say so before?
# - On a GPU: `python scripts/measure/compare_changes.py --device cuda --model resnet --out results/live/14_gpu.json`. Predict bf16, channels_last and compile first.
# - [07 · Performance](07_performance.ipynb): what more ranks gain. [06 · DDP](06_ddp.ipynb): buckets, overlap and `no_sync` from nothing.
