# ---
# jupyter:
#   course:
#     minutes: 120
#     quick:
#       parameters:
#         alone: nothing bf16
#         alone_resnet: nothing
#         together: nothing bf16-hook
#         rounds: 3
#         seconds: 0.3
#         steps: 2
#       seconds: 50
#     seconds: 145
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Make it faster
#
# **The question.** Where does the time of a training step go, and which change makes it shorter?
#
# **You will be able to**
#
# - profile a step on one rank and on several, and say what a change can gain at most;
# - measure a change of your own so that noise does not fool you, and see whether it is still the same training;
# - send gradients in 16 bits with a communication hook of your own, and log losses without waiting for them.
#
# **You need** lessons [06 · DistributedDataParallel](06_ddp.ipynb) and [07 · Performance](07_performance.ipynb).
#
# **Time.** About 120 minutes for you, 3 for the machine. Take a break halfway, before *The changes*.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json, math, mmap, os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

os.environ["KINETO_LOG_LEVEL"] = "99"  # before torch, or its profiler prints a line at each start
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import data, models
from course import plots
from course.adjustable_training import CHANGES, Training
from lessons.l14_make_it_faster import check, gains, show

# %% tags=["parameters"]
ranks = 2  # processes of the runs with several; 2 or more
steps = 9  # updates that are profiled
rounds = 7  # times that each change is compared with no change; 3 or more
seconds = 1  # a comparison ends after so many, once it has made three rounds
alone = "nothing whole-batches fused threads batch bf16 channels-last compile"  # with LeNet
alone_resnet = "nothing threads batch bf16 channels-last"  # with the small ResNet
together = "nothing small-buckets bucket-view bf16-hook powersgd accumulate"

# %% [markdown]
# **All runs are on the CPU, also where there is a GPU**, with one thread a rank: then all see the same operators. On a
# GPU the answers are other ones. The way to find them is the same.
#
# ## Where does the time go?
#
# LeNet has two convolutions (`conv1`, `conv2`) and three fully connected layers (`fc1` to `fc3`). Which share of its
# weights is in the fully connected layers?

# %%
weights = {name: p.numel() for name, p in models.ConvNet().named_parameters()}
sum(count for name, count in weights.items() if name.startswith("fc")) / sum(weights.values())

# %% [markdown]
# **Predict.** What takes most of a training step?

# %%
my_most = None  # "data" (fetch, normalise), "convolution", "fully connected" or "optimizer"

# %% [markdown]
# `torch.profiler` notes when each operator begins and ends. **Self time** (`Self CPU`) is the time in an operator
# without the operators that it calls. Names that begin with `aten::` are PyTorch's operators.

# %%
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of each command below
images, labels = data.get_dataset("auto")[0].__getitems__(range(64))
model = models.ConvNet()
optimizer = torch.optim.Adam(model.parameters(), fused=True)


def update():
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()


update()  # the first one brings libraries in
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(steps):
        update()
print(profiler.key_averages().table("self_cpu_time_total", row_limit=5, max_name_column_width=30))

# %% [markdown]
# Now `main.py`'s whole step, with its data, for two models. The program also times steps without the profiler, before
# and after, because a profiler takes time, too.

# %%
# !python lessons/l14_make_it_faster/step_profile.py --model lenet resnet --steps {steps} \
#     --out results/live/14_profile_one.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one = json.loads(Path("results/live/14_profile_one.json").read_text())
shares = {show.NAMES[model]: show.shares(p) for model, p in one["models"].items()}
named = {part: share for part, share in shares["LeNet"].items() if part != "everything else"}
lesson.predicted(my_most, max(named, key=named.get))
lesson.table([{"model": show.NAMES[model], "before, ms": f"{p['halves'][0]:.1f}",
               "with the profiler, ms": f"{show.under_profiler(p):.1f}",
               "after, ms": f"{p['halves'][1]:.1f}", "": show.disturbed(p)}
              for model, p in one["models"].items()])
plots.picture(show.profiles({show.NAMES[model]: p["operators"]
                             for model, p in one["models"].items()}))

# %% [markdown]
# The number of weights says little about the time. A convolution uses each weight at every place of every image, a
# fully connected layer uses it once an image.
#
# This is the profile of your machine, by parts:

# %%
profiles = {show.NAMES[model]: show.milliseconds(p) for model, p in one["models"].items()}
lesson.table([{"part": part} | {f"{model}, ms": f"{of[part]:.2f}" for model, of in profiles.items()}
              for part in profiles["LeNet"]])


# %% [markdown]
# ### Exercise 1: the bound
#
# One part of a step becomes `times` times as fast. How many times as fast does the step become? `profile` is a dict of
# milliseconds, such as `profiles["LeNet"]`; `times` may be `math.inf`: then the part takes no time at all.

# %%
def my_bound(profile, part, times):
    raise NotImplementedError


# %%
check.bound(my_bound)
# check.bound.hint()
# check.bound.solution()

# %% [markdown]
# This is **Amdahl's law** ([1967](https://doi.org/10.1145/1465482.1465560)). From now on your function says what a change
# can gain at most. (Until it is right ours does, and the pictures say so.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
bound, whose = check.bound.or_ours(my_bound)
plots.picture(show.bounds(bound, profiles, whose))

# %% [markdown]
# So the first use of a profile is to tell which changes *cannot* pay. All of these lines flatten: the more a part has
# gained, the less there is left of it.
#
# ## Several ranks: what is new?
#
# The same training with DDP, a core a rank if there are enough. Beside LeNet a model with little to compute and many
# weights: three wide fully connected layers, with 16 MiB of gradients.
#
# **Predict.** For how many percent of a step of the wide layers has a rank nothing left to compute, and waits?

# %%
my_waiting = None  # percent

# %%
# !torchrun --nproc_per_node={ranks} lessons/l14_make_it_faster/step_profile.py --model lenet wide \
#     --steps {steps} --out results/live/14_profile_ranks.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
many = json.loads(Path("results/live/14_profile_ranks.json").read_text())
waiting = {model: show.waiting(many, model) for model in many["models"]}
lesson.predicted(my_waiting, waiting["wide"], "%")
parts = (*gains.LABELS, "wait", "all-reduce")
never = {model: bound({"wait": percent, "rest": 100 - percent}, "wait", math.inf)
         for model, percent in waiting.items()}
lesson.table([{"model": show.NAMES[model]}
              | {f"{part}, ms": f"{p['medians'][part]:.1f}" for part in parts}
              | {"waits": f"{waiting[model]:.0f}%",
                 f"if it never waited, {whose} bound": f"{never[model]:.2f}× as fast"}
              for model, p in many["models"].items()])
plots.timelines.one_below_another({show.NAMES[model]: pd.DataFrame(p["events"])
                                   for model, p in many["models"].items()})
plt.show()

# %% [markdown]
# These are the profiler's traces of the ranks, on one clock: **one step**, that of median length. (The table has the
# medians of all steps. In a single one the operating system may have held up a rank.) `wait` is what remains of
# `backward` after its last operator. `all-reduce` begins when this rank sends, and ends when the sum is back: who comes
# early also waits for the others. (Open `results/live/14_profile_ranks.lenet.rank0.trace.json` at
# [ui.perfetto.dev](https://ui.perfetto.dev) to see every operator.)
#
# Nothing is sent before `backward` has ended: like `main.py`, these runs pass `bucket_cap_mb=25`, so that all gradients
# of a model lie in **one bucket**. Is that good? Four buckets are one of the changes below.
#
# The profiler has no operator called *wait*. Waiting shows as self time of what is around it, here of `backward`.
#
# **This is half of the lesson: take a break.**
#
# ## The changes
#
# | change | its code |
# |:--|:--|
# | images a batch at a time | `__getitems__` in the dataset: one call of `index_select` for the batch |
# | fused optimizer | `Adam(…, fused=True)`: one pass over all weights |
# | 2 threads | `torch.set_num_threads(2)` |
# | bf16 autocast | `with torch.autocast("cpu", torch.bfloat16):` around forward and loss |
# | channels_last | `model.to(memory_format=torch.channels_last)`: the channels of a pixel side by side in memory |
# | torch.compile | `model.compile()`: writes C++ for the model (on a GPU Triton), and compiles it |
# | 4 buckets | `DDP(…, bucket_cap_mb=…)`: a quarter of the gradients' size, so that the first leave earlier ([06](06_ddp.ipynb)) |
# | gradient_as_bucket_view | `DDP(…, gradient_as_bucket_view=True)`: gradients are not copied to the buckets and back |
# | bf16 compression | `ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)`: sends half the bytes |
# | PowerSGD | another hook: two thin matrices, of one column here, for each large one ([Vogels 2019](https://arxiv.org/abs/1905.13727)) |
# | an update each 4 batches | `with ddp.no_sync():` for three of four batches ([09](09_large_batch.ipynb)) |
#
# **bf16** (bfloat16) is a number of 16 bits: float32's range, with 8 significant bits instead of 24. *Autocast* casts
# the inputs of matrix products to it; the weights stay float32. A processor without bf16 instructions must imitate it.
#
# **Predict** two of them (1 = no gain).

# %%
my_bf16 = None  # bf16 autocast, LeNet on one rank: how many times as fast?
my_half = None  # bf16 compression, wide layers on several ranks: how many times as fast?

# %% [markdown]
# The profile predicts, too. Each prediction is one line of `lessons/l14_make_it_faster/gains.py`; where no honest one is possible
# there is none.

# %%
lesson.table(show.predictions(one, CHANGES, alone))
lesson.table(show.predictions(many, CHANGES, together))


# %% [markdown]
# ### Exercise 2: a fair comparison
#
# `before()` and `after()` train for some steps, without a change and with it. `now()` tells the time in seconds. Return
# how many times as fast `after` is, from `rounds` rounds (an even number) in which each trains once. The check has
# machines on which the first call of each is slow, one call is disturbed, the second call of a round is always slower,
# or everything becomes slower halfway.

# %%
def my_gain(before, after, rounds, now):
    raise NotImplementedError


# %%
check.fair(my_gain)
# check.fair.hint()
# check.fair.solution()

# %% [markdown]
# ### Exercise 3: a change of yours
#
# Which part of LeNet's step would you make shorter, and how? `my_change(training)` is called once, before the first
# update. It may replace whatever the step uses: `training.model`, `training.optimizer`, `training.autocast`, or
# `training.batches`, an iterator of (images, labels). This is the step:

# %%
lesson.code(Training.update)

# %% [markdown]
# It need not be a change that one would keep. An **experiment** that takes a part away shows whether the bound is true.
# **Predict**: name the part. Its bound by `my_bound` will stand beside your measurement.

# %%
my_part = None  # "data", "convolution", "fully connected", "optimizer" or "everything else"

# %%
# %%writefile results/live/14_change.py
import torch


def my_change(training):
    raise NotImplementedError


# %% [markdown]
# ## One rank: measure
#
# `compare_changes.py` trains with the change and without it, in the way of exercise 2: from the same first weights, on
# the same images. It first compares **the training with itself**: what that shows is noise. (Whole batches, the fused
# optimizer and channels_last are `main.py`'s defaults on a CPU: for these three, the training *without* it is the one to
# compare with.) The last line of LeNet is your change. No check can say whether it is right: the rounds do.

# %%
# !python lessons/l14_make_it_faster/compare_changes.py --model lenet --change {alone} \
#     --change-file results/live/14_change.py --rounds {rounds} --seconds {seconds} \
#     --out results/live/14_lenet.json
# !python lessons/l14_make_it_faster/compare_changes.py --model resnet --change {alone_resnet} \
#     --rounds {rounds} --seconds {seconds} --out results/live/14_resnet.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lenet, resnet = (json.loads(Path(f"results/live/14_{name}.json").read_text())["models"]
                 for name in ("lenet", "resnet"))
alone_measured = lenet | resnet
ours = alone_measured["lenet"]["my_change"]["text"].startswith("ours")
part = "data" if ours else my_part
most = bound(profiles["LeNet"], part, math.inf) if part else None
on_one = show.judged(alone_measured, one, CHANGES, alone.split(), {"my_change": most})
lesson.predicted(my_bf16, show.gain(on_one, "lenet", "bf16"), "times as fast")
table = pd.concat([table.assign(model=model) for model, table in on_one.items()], ignore_index=True)
off = (table["gain"] / table["predicted"])[table["change"] != "nothing"].dropna()
off = off.map(math.log).abs()
worst = table.loc[off.idxmax()]
cpu = Path("/proc/cpuinfo")  # Linux
words = cpu.read_text().split() if cpu.exists() else []
bf16 = [word for word in ("amx_bf16", "avx512_bf16", "bf16") if word in words]
lesson.verdict([f"Furthest from its prediction: **{worst['text']}**, {worst['model']}: predicted "
                f"{worst['predicted']:.2f}, measured {worst['gain']:.2f}.",
                "bf16 instructions that Linux names for this processor: "
                f"{', '.join(bf16) or '**none**'}.",
                show.of_the_learner(on_one["LeNet"], part, most, whose)])
if ours:
    lesson.code(check.my_change)
plots.picture(show.compared(on_one, "one rank"))

# %% [markdown]
# Right of the line at 1: faster. The dot is the median of the rounds, the thick line their middle half, the thin line
# all of them. The grey is the spread of the training compared with itself, as wide to the left as to the right. One rule
# decides: a change *pays* or *costs* if the middle half of its rounds lies outside the grey. Otherwise it is **not told
# apart** from no change, whatever its median.
#
# Where prediction and measurement differ, a reason was wrong:
#
# - **Threads** meet at the end of every operator, and wait for the last. Amdahl does not count that.
# - **Batch 256**: fixed costs come a quarter as often, but larger results may not fit into the caches. And the
#   result is different (lesson [09](09_large_batch.ipynb)).
# - **torch.compile**: the prediction is an upper limit, as if all but the products vanished.
# - **bf16** halves the bytes, but without bf16 instructions the processor computes in another way, slowly. Autocast also
#   casts the inputs of each product: small products may not pay that back.
#
# ## torch.compile: when is the start paid back?
#
# The first update waits for the compiler. Here it begins with an empty cache, as on a new machine.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
compiled, nothing = (alone_measured["lenet"].get(change) for change in ("compile", "nothing"))
lesson.verdict(show.compiled(compiled, nothing))
if compiled and "gain" in compiled and gains.verdict(compiled, nothing) == "pays":
    plots.picture(show.paid_back(compiled, "Compiling LeNet"))

# %% [markdown]
# `torch.compile(model)` wraps the model, and its weights get other names; `model.compile()` keeps them:

# %%
wrapped = torch.compile(model)
model.compile()
next(iter(wrapped.state_dict())), next(iter(model.state_dict()))

# %% [markdown]
# With DDP the manual has two answers. Compile the DDP model, then
# [DDPOptimizer](https://docs.pytorch.org/docs/stable/notes/ddp.html#torchdynamo-ddpoptimizer) cuts the graph at the
# buckets, so that messages still overlap with backward (`main.py --compile`). Or, as a [newer
# page](https://docs.pytorch.org/docs/stable/compile/programming_model.where_to_apply_compile.html) advises, compile the
# model inside: `model.compile()`, then `DDP(model)`. Measure both on your machine.
#
# ## Several ranks: measure
#
# The same program runs under `torchrun`. What counts is the slowest rank. One of the changes will be yours.
#
# ### Exercise 4: gradients in 16 bits
#
# A communication hook takes the place of DDP's all-reduce. DDP calls `my_hook(state, bucket)` for each bucket as soon
# as it is full. `bucket.buffer()` is a tensor with its gradients, in float32. Return a `Future` of the tensor that DDP
# is to take as the bucket's gradients (a **Future** is the promise of a result: the handle of an `async_op=True` has
# one, `handle.get_future()`, and `future.then(f)` is the Future of what `f(future)` will return;
# `future.value()` is a list of tensors): their **mean over all
# ranks**, in float32, of which only bf16 has been sent. The check registers it on three ranks, counts bytes, and
# compares the gradient. (Import nothing from `ddp_comm_hooks`.)

# %%
# %%writefile results/live/14_hook.py
import torch
import torch.distributed as dist


def my_hook(state, bucket):
    raise NotImplementedError


# %%
check.hook("results/live/14_hook.py")
# check.hook.hint()
# check.hook.solution()

# %% [markdown]
# The run measures **your hook**, too, beside PyTorch's own bf16 compression. As long as it is not right, the run takes
# ours, and says so.

# %%
hook_file = check.hook.file or "ours"
# !torchrun --nproc_per_node={ranks} lessons/l14_make_it_faster/compare_changes.py \
#     --model lenet wide --change {together} --hook-file {hook_file} \
#     --rounds {rounds} --seconds {seconds} --out results/live/14_ranks.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
many_measured = json.loads(Path("results/live/14_ranks.json").read_text())["models"]
on_many = show.judged(many_measured, many, CHANGES, together.split())
lesson.predicted(my_half, show.gain(on_many, "wide", "bf16-hook"), "times as fast")
plots.picture(show.compared(on_many, f"{ranks} ranks"))

# %%
lesson.table(show.messages(many))

# %% [markdown]
# - **LeNet sends little.** No change of its messages can gain what is not there.
# - **Half the bytes need not take half the time** (last column): someone must add up the 16-bit values, and casting to
#   and fro costs, too.
# - **PowerSGD** sends least, but multiplies matrices for it, on the same cores. What it leaves out it adds to the next
#   gradient.
# - **An update each 4 batches** waits and updates a quarter as often. But its global batch is 4 times as large.
# - **Four buckets** can only hide what is sent while there is a core left to send it.
#
# ## Is it still the same training?
#
# Some changes compute other numbers. Beside each: how far the first gradient is from the unchanged one (the length of
# the difference, in percent of the length of the gradient), and the loss on 1,000 test images after the same updates.

# %%
lesson.table(show.numerics(on_one, on_many))

# %% [markdown]
# bf16 keeps 8 significant bits, so it rounds a value by up to 0.4 %. Compression rounds each gradient once. Autocast
# rounds every product on the way, forward and backward, and the errors add up. Where a gradient is off by less than
# 0.01 %, only the order of sums has changed. A change that sees other images (a larger batch) cannot be compared so,
# and is not listed.
#
# ### Exercise 5: losses that are seldom read
#
# `loss.item()` looks harmless. On a GPU it makes the program wait until the GPU has done all its work; and a mean over
# ranks is a message. Write the loop: train `ddp` on `batches` with `cross_entropy`, an update each batch. Return a list
# with one float for each `every` batches: the mean loss over them **and over all ranks**, the same on each rank. Per
# `every` batches no more than one all-reduce, and no more than one read of a tensor (`item`, `tolist`, `float`).
# `every` divides the number of batches.

# %%
# %%writefile results/live/14_log.py
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def my_train(ddp, batches, optimizer, every):
    raise NotImplementedError


# %%
check.logged("results/live/14_log.py")
# check.logged.hint()
# check.logged.solution()

# %% [markdown]
# ## What goes into main.py?
#
# What harms nothing and can pay is a default, even where it did not pay here. What pays sometimes and has a price is an
# option. The rest is left out. *Tried* counts models.

# %%
lesson.table(show.decided(CHANGES, on_one, on_many))

# %% [markdown]
# ## On a GPU
#
# Add `ProfilerActivity.CUDA`. None of this was run here; the changes are those of PyTorch's [tuning
# guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html).
#
# | the trace shows | try |
# |:--|:--|
# | gaps between short kernels | a larger batch; `torch.compile(model, mode="reduce-overhead")`, which replays them as one graph |
# | the CPU waits in `cudaStreamSynchronize` | fewer `.item()`; `pin_memory=True` and `.to(device, non_blocking=True)` |
# | the GPU waits for `DataLoader` | `num_workers`, `persistent_workers=True`, `prefetch_factor` |
# | matrix products take most of it | bf16 autocast; TF32: `torch.set_float32_matmul_precision("high")` ([01](01_one_device.ipynb)) |
# | an NCCL kernel runs alone at the end | other bucket sizes; a communication hook |
#
# ## Appendix: what the profile does not name
#
# Each result of an operator needs memory. When it is no longer needed, the C library may give the memory back to the
# operating system, and the next step asks for it again. The system hands it out in **pages**, mostly of 4 KiB: when a
# program first touches one, the system stops the program, clears the page, and lets it go on. That is a **page fault**.
# No operator has that name, but the operating system counts them.
#
# `main.py` as lessons start it, and the programs of this lesson, avoid them: they tell the C library to keep its memory
# (`shortcuts.keep_memory()`; without any code `MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_MAX_=0 python …`, both for glibc).
# Two processes now take turns, one with that, one without.
#
# The first result of the small ResNet alone, 64 × 16 × 32 × 32 numbers, takes 4 MiB, or 1,024 pages.

# %%
# !python lessons/l14_make_it_faster/page_faults.py --model resnet --rounds {rounds} --steps 5 \
#     --out results/live/14_pages.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
pages = json.loads(Path("results/live/14_pages.json").read_text())
faults = pages["models"]["resnet"]["returned"]["faults"]
lesson.table(show.page_faults(pages))
size = faults * mmap.PAGESIZE / 2**20
lesson.verdict(f"{faults:,.0f} pages of {mmap.PAGESIZE // 1024} KiB are {size:.0f} MiB: in each "
               f"step, memory for {size / 4:.1f} such results is given back and asked for again.")
if not pages["can_keep"]:
    lesson.verdict("**This system's C library cannot be told to keep memory: both processes did "
                   "the same, and their difference is noise.**")

# %% [markdown]
# The column *predicted* counts the time inside the operating system alone. A page that is cleared also pushes other
# data out of the caches, so the gain may be larger. What the C library gives back differs from run to run. The price is
# memory that stays with the process. (On a GPU PyTorch keeps freed memory by itself: its [caching
# allocator](https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management).)
#
# ## What to remember
#
# 1. Profile first: a small part cannot give much, however fast it becomes.
# 2. Change one thing, measure it in turns with the unchanged training, and compare the gain with the noise.
# 3. Ask whether it is still the same training. Sixteen bits, a larger batch and PowerSGD are others.
#
# **Next:** [15 · Talk less](15_talk_less.ipynb): the ranks' messages are what is left. On a GPU `python
# lessons/l14_make_it_faster/compare_changes.py --device cuda --model resnet --out results/live/14_gpu.json` compares the changes of
# this lesson.
