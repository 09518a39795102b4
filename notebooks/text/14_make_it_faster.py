# ---
# jupyter:
#   course:
#     minutes: 115
#     quick:
#       parameters:
#         alone: nothing bf16
#         alone_resnet: nothing
#         together: nothing bf16-hook
#         rounds: 3
#         seconds: 0.3
#         steps: 2
#       seconds: 45
#     seconds: 120
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
# - profile a step on several ranks and on one, and say what a change can gain at most;
# - measure a change of your own so that noise does not fool you, and check whether it is still the same training;
# - send gradients in 16 bits with a communication hook of your own, and log losses without waiting for them.
#
# **You need** lessons [06 · DistributedDataParallel](06_ddp.ipynb) and [08 · Performance](08_performance.ipynb).
#
# **Time.** About 115 minutes for you, 2 for the machine. Take a break halfway, before *The changes*.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, math, os, timeit
from pathlib import Path

import pandas as pd

os.environ["KINETO_LOG_LEVEL"] = "99"  # before torch, or its profiler prints a line at each start
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from trainer import data, models
from course import compare, plots, runs
from course.adjustable_training import CHANGES, Training
from lessons.l14_make_it_faster import check, show, solution

# %% jupyter={"source_hidden": true} tags=["parameters", "hide-input"]
ranks = 2  # processes of the runs with several; 2 or more
steps = 9  # updates that are profiled
rounds = 7  # times that each change is compared with no change; 6 or more for a verdict
seconds = 3  # that each comparison takes, about
alone = "nothing whole-batches threads batch bf16 channels-last"  # with LeNet
alone_resnet = "nothing threads batch bf16"  # with the small ResNet
together = "nothing bucket-view bf16-hook powersgd accumulate"

# %% [markdown]
# **All runs are on the CPU, even where there is a GPU**, with one thread a rank, so that everybody sees the same
# operators. A GPU gives other answers. The way to find them is the same.
#
# ## Where does the time go?
#
# Two models train with DDP, with a core for each rank if there are enough. LeNet has 242 KiB of gradients. The other
# model has little to compute and many weights: three wide fully connected layers with 16 MiB of gradients.
#
# **Predict.** Of 100 ms of a step of the wide layers, in how many has a rank nothing left to compute, and waits for the
# others' 16 MiB?

# %%
my_waiting = None  # percent

# %% [markdown]
# `torch.profiler` notes when each operator begins and ends. It takes time itself, so the program also times steps
# without it, before and after.

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # of each command below
# !torchrun --nproc_per_node={ranks} lessons/l14_make_it_faster/step_profile.py \
#     --model lenet wide --steps {steps} --out results/live/14_profile_ranks.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
many = json.loads(Path("results/live/14_profile_ranks.json").read_text())
waiting = {model: show.waiting(many, model) for model in many["models"]}
lesson.predicted(my_waiting, waiting["wide"], "%")
lesson.table([row | {"waits": f"{waiting[model]:.0f}%"}
              for model, row in zip(waiting, show.times(many), strict=True)])
plots.timelines.one_below_another({show.NAMES[model]: pd.DataFrame(p["events"])
                                   for model, p in many["models"].items()})
lesson.figure("One step of every rank, on one clock. The ranks compute apart (yellow to blue), "
              "then wait (grey) until the all-reduce (orange) has the sum of their gradients, "
              "and update.")

# %% [markdown]
# The table has the medians of all profiled steps. The figure shows **one step**, the one whose parts are nearest to
# these medians. `wait` is the rest of `backward` after its last operator. `all-reduce` begins when this rank sends and
# ends when the sum is back, so a rank that comes early also waits for the others. (To see every operator, open
# `results/live/14_profile_ranks.lenet.rank0.trace.json` at [ui.perfetto.dev](https://ui.perfetto.dev).)
#
# Nothing is sent before the last gradient is there. Like `main.py`, these runs pass `bucket_cap_mb=25`, and all
# gradients of a model lie in **one bucket**. Several buckets would leave earlier (lesson [06](06_ddp.ipynb)), if a core
# were free to send them.
#
# The profiler has no operator called *wait*. Waiting counts as time in `backward` outside of any operator.
#
# ## Inside one rank
#
# What does a rank do while it computes? LeNet has two convolutions (`conv1`, `conv2`) and three fully connected layers
# (`fc1` to `fc3`). Which share of its weights lies in the fully connected layers?

# %%
weights = {name: p.numel() for name, p in models.ConvNet().named_parameters()}
fully = sum(count for name, count in weights.items() if name.startswith("fc"))
fully / sum(weights.values())

# %% [markdown]
# **Predict.** What takes most of a training step?

# %%
my_most = None  # "data", "convolution", "fully connected" or "optimizer"

# %% [markdown]
# **Self time** (`Self CPU`) is the time in an operator without the operators that it calls. Names that begin with
# `aten::` are PyTorch's operators.

# %%
torch.set_num_threads(1)
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
print(profiler.key_averages().table("self_cpu_time_total", row_limit=5,
                                    max_name_column_width=30))

# %% [markdown]
# Now the whole step of `main.py`, with its data, for LeNet and for a second model, the small ResNet:

# %%
# !python lessons/l14_make_it_faster/step_profile.py --model lenet resnet \
#     --steps {steps} --out results/live/14_profile_one.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
one = json.loads(Path("results/live/14_profile_one.json").read_text())
shares = show.shares(one["models"]["lenet"])
named = {part: share for part, share in shares.items() if part != "everything else"}
lesson.predicted(my_most, max(named, key=named.get))
lesson.table(show.times(one))
show.profiles({show.NAMES[model]: p["operators"] for model, p in one["models"].items()})
lesson.figure("The operators with the most self time, in a step of one rank. In both models the"
              " convolutions (dark blue, on top) take the most by far, whatever share of the "
              "weights they have.")

# %% [markdown]
# The number of weights says little about the time. A convolution uses each weight at every place of every image, a
# fully connected layer uses it once an image.
#
# This is the profile of your machine, by parts:

# %%
profiles = {show.NAMES[model]: show.milliseconds(p)
            for model, p in one["models"].items()}
lesson.table([{"part": part} | {f"{model}, ms": f"{of[part]:.2f}"
                                for model, of in profiles.items()}
              for part in profiles["LeNet"]])


# %% [markdown]
# ### Exercise 1: the bound
#
# One part of a step becomes `times` times as fast. How many times as fast does the step become? `profile` is a dict of
# milliseconds, such as `profiles["LeNet"]`. `times` may be `math.inf`: then the part takes no time at all.

# %%
def my_bound(profile, part, times):
    raise NotImplementedError


# %%
check.bound(my_bound)
# check.bound.hint()
# check.bound.solution()

# %% [markdown]
# This is **Amdahl's law** ([1967](https://doi.org/10.1145/1465482.1465560)). From now on your function says how much a
# change can gain at most. (Until it is right ours takes its place, and the pictures say so.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
bound, whose = check.bound.or_ours(my_bound)
show.bounds(bound, profiles, whose)
lesson.figure("The step's gain when one part becomes faster and the others stay as they are. "
              "Every line flattens: a small part cannot make the step much faster, even if it "
              "takes no time at all.")
waits = ", ".join(f"{show.NAMES[model]} {bound({'wait': w, 'rest': 100 - w}, 'wait', math.inf):.2f}"
                  for model, w in waiting.items())
lesson.verdict(f"And if no rank ever waited? By {whose} bound a step of the {ranks} ranks would "
               f"be this many times as fast: {waits}.")

# %% [markdown]
# So the first use of a profile is to tell which changes *cannot* pay.
#
# ## How much of the processor does the step use?
#
# The profile says where the time goes, not whether the time is well spent. **Model FLOPs utilization** (MFU) is the
# number of operations that the model needs, divided by the number that the processor could have done in that time
# ([Chowdhery et al. 2022](https://arxiv.org/abs/2204.02311), appendix B). Here the yardstick is the fastest large
# matrix product on one core:

# %%
with FlopCounterMode(display=False) as counter:
    update()
step = min(timeit.repeat(update, number=5, repeat=5)) / 5
square = torch.randn(1024, 1024)
product = min(timeit.repeat(lambda: square @ square, number=2, repeat=5)) / 2
reached, peak = counter.get_total_flops() / step, 2 * 1024**3 / product
f"{reached / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s: an MFU of {reached / peak:.0%}"

# %% [markdown]
# The small products of LeNet leave most of the core unused. PaLM (Chowdhery et al.) reached 46 % of its 6,144 TPUs.
# Large models report MFU rather than tokens a second because it compares machines and models of different sizes.
#
# **This is half of the lesson: take a break.**
#
# ## The changes
#
# | change | its code |
# |:--|:--|
# | images a batch at a time | `__getitems__` in the dataset: one call of `index_select` for the batch |
# | 2 threads | `torch.set_num_threads(2)` |
# | batch 256 | four times as many images an update ([09](09_large_batch.ipynb)) |
# | bf16 autocast | `with torch.autocast("cpu", torch.bfloat16):` around forward and loss |
# | channels_last | `model.to(memory_format=torch.channels_last)`: the channels of a pixel side by side in memory |
# | gradient_as_bucket_view | `DDP(…, gradient_as_bucket_view=True)`: DDP does not copy gradients to its buckets and back |
# | bf16 compression | `ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)`: sends half the bytes |
# | PowerSGD | another hook: for a gradient of 1,000 × 1,000 it sends two columns, 2,000 numbers ([Vogels 2019](https://arxiv.org/abs/1905.13727)) |
# | an update every 4 batches | `with ddp.no_sync():` for three of four batches ([09](09_large_batch.ipynb)) |
#
# A *communication hook* is a function in the place of DDP's all-reduce. **bf16** (bfloat16) is a number of 16 bits:
# float32's range, with 8 significant bits instead of 24. *Autocast* casts the inputs of matrix products to it; the
# weights stay float32. A processor without bf16 instructions must imitate it.
#
# **Predict** two of them (1 = no gain).

# %%
# How many times as fast?
my_bf16 = None  # bf16 autocast, LeNet on one rank
my_half = None  # bf16 compression, the wide layers on several ranks

# %% [markdown]
# The profile predicts, too. Each prediction is one line of `lessons/l14_make_it_faster/gains.py`. Where the profile
# says nothing about a change, there is no prediction.

# %%
lesson.table(show.predictions(one, CHANGES, alone))
lesson.table(show.predictions(many, CHANGES, together))


# %% [markdown]
# ### Exercise 2: a fair comparison
#
# `before()` and `after()` train for some steps, without a change and with it. `now()` tells the time in seconds. Return
# how many times as fast `after` is, from `rounds` rounds (an even number) in which each trains once. The check runs
# your function on machines that disturb it: the first call of each is slow, one call is disturbed, the second call of a
# round is always slower, or everything becomes slower halfway.

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
# The change may be useless for training. An **experiment** that makes a part smaller shows whether the bound is true:
# an optimizer that does nothing, say, shows what the update costs. **Predict**: name the part. Its bound by `my_bound`
# will stand beside your measurement.

# %%
# "data", "convolution", "fully connected", "optimizer" or "everything else"
my_part = None

# %%
# %%writefile results/live/14_change.py
import torch


def my_change(training):
    raise NotImplementedError


# %% [markdown]
# ## One rank: measure
#
# `compare_changes.py` trains with the change and without it, in the way of exercise 2: from the same first weights, on
# the same images. It first compares **the training with itself**: this control shows the noise. (Whole batches and
# channels_last are `main.py`'s defaults on a CPU. For these two, the training *without* them is the one to compare
# with.) The last line of LeNet is your change. No check can say whether it pays; the rounds do.

# %%
# !python lessons/l14_make_it_faster/compare_changes.py --model lenet \
#     --change {alone} --change-file results/live/14_change.py \
#     --rounds {rounds} --seconds {seconds} --out results/live/14_lenet.json
# !python lessons/l14_make_it_faster/compare_changes.py --model resnet \
#     --change {alone_resnet} \
#     --rounds {rounds} --seconds {seconds} --out results/live/14_resnet.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lenet, resnet = (json.loads(Path(f"results/live/14_{name}.json").read_text())["models"]
                 for name in ("lenet", "resnet"))
ours = lenet["lenet"]["my_change"]["text"].startswith("ours")
part = "convolution" if ours else my_part
most = bound(profiles["LeNet"], part, math.inf) if part else None
on_one = show.judged(lenet | resnet, one, CHANGES, alone.split(), {"my_change": most})
lesson.predicted(my_bf16, show.gain(on_one, "lenet", "bf16"), "times as fast")
table = pd.concat([table.assign(model=model) for model, table in on_one.items()])
table = table[table["change"].isin([*CHANGES][1:]) & table["predicted"].notna()
              & table["gain"].notna()].reset_index()
outside = table[(table["predicted"] < table["low"]) | (table["predicted"] > table["high"])]
cpu = Path("/proc/cpuinfo")  # Linux
words = cpu.read_text().split() if cpu.exists() else []
bf16 = [word for word in ("amx_bf16", "avx512_bf16", "bf16") if word in words]
lesson.verdict([*(f"The prediction of **{row.text}**, {row.model}, lies outside the interval: "
                  f"{row.predicted:.2f} predicted, {row.low:.2f} to {row.high:.2f} measured."
                  for row in outside.itertuples()),
                "bf16 instructions that Linux names for this processor: "
                f"{', '.join(bf16) or '**none**'}.",
                show.of_the_learner(on_one["LeNet"], part, most, whose)])
if ours:
    lesson.code(solution.my_change)
show.compared(on_one, "one rank")
lesson.figure("Each change against no change, predicted (diamond) and measured (dot and line). "
              "Right of 1 is faster. A difference is significant only where the whole line "
              "lies on one side of 1. The grey band is the control's line.")

# %% [markdown]
# In a round, *before* and *after* run one after the other, and their ratio is the gain. The one that runs second may have
# an advantage. The control has the same order, so we divide by its gain in the round with the same number. The control
# ran earlier, so its noise is a part of every line. The dot is the median of these ratios, the line the 95 % interval of
# lesson [01](01_measure.ipynb). A change *pays* or *costs* only where its whole line lies on one side of 1. Otherwise
# there is **no significant difference** from no change, whatever the median. The grey band is the interval of the
# control's own gains. It should hold 1.
#
# Where prediction and measurement differ, the model behind the prediction leaves something out:
#
# - **Threads** meet at the end of every operator and wait for the last. Amdahl does not count that.
# - **Batch 256**: fixed costs come a quarter as often, but larger results may not fit into the caches. And the
#   result is different (lesson [09](09_large_batch.ipynb)).
# - **bf16** halves the bytes, but without bf16 instructions the processor computes in another way, slowly. Autocast
#   also casts the inputs of each product, and small products may not pay that back.
#
# ## torch.compile: when is the start paid back?
#
# `model.compile()` has the model's code generated and compiled: C++ on a CPU, Triton on a GPU. The first update waits
# for the compiler. If it takes `extra` seconds more, and every later update takes `saved` seconds less, then
# `extra / saved` updates pay it back. Here is a run recorded on one H200, the small ResNet in bf16 with channels_last
# (`results/recorded/1xh200` has the commands; each is one run of three epochs of 196 updates):

# %% jupyter={"source_hidden": true} tags=["hide-input"]
epochs = {name: runs.read_run(f"results/recorded/1xh200/{file}.jsonl")["seconds"].tolist()
          for name, file in (("as it is", "bf16-channels-last"), ("compiled", "bf16-compile"))}
lesson.table([{"recorded on an H200": name,
               **{f"epoch {number}, s": f"{epoch:.2f}" for number, epoch in enumerate(of_run)}}
              for name, of_run in epochs.items()])
extra = epochs["compiled"][0] - epochs["as it is"][0]
best = min(epochs["as it is"]) / 196
gained = min(epochs["compiled"][1:]) < min(epochs["as it is"][1:])
lesson.verdict(f"The start takes {extra:.0f} s more. An update takes {1000 * best:.1f} ms without "
               f"the compiler. If it took half of that, {extra / (best / 2):,.0f} updates would "
               f"pay the start back. In this run the later epochs became "
               f"{'faster' if gained else '**no** faster'}.")

# %% [markdown]
# We did not look for the cause, and one run of each is no verdict. `python
# lessons/l14_make_it_faster/compare_changes.py --change nothing compile --out results/live/14_compile.json` compares
# the two in turns on your machine.
#
# `torch.compile(model)` wraps the model, and its weights get other names; `model.compile()` keeps them:

# %%
wrapped = torch.compile(model)
model.compile()
next(iter(wrapped.state_dict())), next(iter(model.state_dict()))

# %% [markdown]
# With DDP the manual has two answers. Compile the DDP model, then
# [DDPOptimizer](https://docs.pytorch.org/docs/stable/notes/ddp.html#torchdynamo-ddpoptimizer) cuts the graph at the
# buckets, so that messages still overlap with backward (`main.py --compile`; lesson [13b](13b_fsdp2.ipynb) counts the
# graphs). Or compile the model inside, as a [newer
# page](https://docs.pytorch.org/docs/stable/compile/programming_model.where_to_apply_compile.html) advises:
# `model.compile()`, then `DDP(model)`.
#
# ## Several ranks: measure
#
# The same program runs under `torchrun`, with the three wide layers: LeNet sends so little that no change of its
# messages can show. The slowest rank's time counts. One of the changes will be yours.
#
# ### Exercise 4: gradients in 16 bits
#
# A communication hook takes the place of DDP's all-reduce. DDP calls `my_hook(state, bucket)` for each bucket as soon
# as it is full. `bucket.buffer()` is a float32 tensor with its gradients.
#
# Return a `Future` of the tensor that DDP is to take as the bucket's gradients: their **mean over all ranks**, in
# float32, of which only bf16 has been sent. A **Future** is the promise of a result. The handle of an `async_op=True`
# has one, `handle.get_future()`. `future.then(f)` is the Future of whatever `f(future)` will return.
#
# The check registers the hook on three ranks, counts bytes, and compares the gradient. (Import nothing from
# `ddp_comm_hooks`.)

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
# The run measures **your hook**, too, beside PyTorch's own bf16 compression. As long as yours is not right, the run
# takes ours and says so. Both send the same bytes. The figure compares each hook with no change, and not one hook with
# the other: it gives no reason to explain a difference of their medians.

# %%
hook_file = check.hook.file or "ours"
# !torchrun --nproc_per_node={ranks} lessons/l14_make_it_faster/compare_changes.py \
#     --model wide --change {together} --hook-file {hook_file} \
#     --rounds {rounds} --seconds {seconds} --out results/live/14_ranks.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
many_measured = json.loads(Path("results/live/14_ranks.json").read_text())["models"]
on_many = show.judged(many_measured, many, CHANGES, together.split())
lesson.predicted(my_half, show.gain(on_many, "wide", "bf16-hook"), "times as fast")
verdicts = set(on_many["three wide layers"]["verdict"])
if rounds >= compare.FEWEST and not verdicts & {"pays", "costs"}:
    lesson.verdict(compare.NOT_SHOWN)
show.compared(on_many, f"{ranks} ranks")
lesson.figure("Each change of the messages against no change. Only a line wholly right of 1 "
              "pays. One wholly left of 1 costs more than it saves.")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.messages(many))

# %% [markdown]
# - **LeNet sends little**: 242 KiB. The last column says how long half the bytes take. Near or above 100 % halving
#   saves nothing: latency and casting weigh more than bytes.
# - **Half the bytes need not take half the time** (last column): a core must add up the 16-bit values, and casting
#   them costs, too.
# - **PowerSGD** sends least, but multiplies matrices for it, on the same cores. It adds what it leaves out to the next
#   gradient (*error feedback*).
# - **An update every 4 batches** waits and updates a quarter as often. But its global batch is 4 times as large.
#
# ## Is it still the same training?
#
# Some changes compute other numbers. The table shows how far the first gradient is from the unchanged one (the length
# of the difference, in percent of the length of the gradient), and the loss on 1,000 test images after the same number
# of updates.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.numerics(on_one, on_many))

# %% [markdown]
# bf16 keeps 8 significant bits, so it rounds a value by up to 0.4 %. Compression rounds each gradient when it is cast,
# and each sum of the all-reduce again. Autocast rounds every product on the way, forward and backward, and the errors
# add up. Where a gradient is off by less than 0.01 %, only the order of sums has changed. A larger batch sees other
# images: its gradient cannot be compared, and the table leaves it out.
#
# ### Exercise 5: losses that are seldom read
#
# `loss.item()` looks harmless. On a GPU it makes the program wait until the GPU has done all its work, and a mean over
# ranks is a message.
#
# Write the loop: train `ddp` on `batches` with `cross_entropy`, an update for each batch. Return a list with one float
# for every group of `every` batches: the mean loss over the group **and over all ranks**, the same on each rank. A
# group may have one all-reduce and one read of a tensor (`item`, `tolist`, `float`), no more. `every` divides the
# number of batches.

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
# A change that harms nothing and can pay is a default, even where it did not pay here. A change that pays sometimes and
# has a price is an option. The others are left out. *Tried* counts models.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.decided(CHANGES, on_one, on_many))

# %% [markdown]
# ## On a GPU
#
# Add `ProfilerActivity.CUDA`. The changes are those of PyTorch's [tuning
# guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html); this lesson has not measured them.
#
# | the trace shows | try |
# |:--|:--|
# | gaps between short kernels | a larger batch; `torch.compile(model, mode="reduce-overhead")`, which replays them as one graph |
# | the CPU waits in `cudaStreamSynchronize` | fewer `.item()`; `pin_memory=True` and `.to(device, non_blocking=True)` |
# | the GPU waits for `DataLoader` | `num_workers`, `prefetch_factor`, `persistent_workers=True` (workers that live on keep their copy of the data set: a `set_epoch` of the *data set* does not reach them, one of the sampler does) |
# | matrix products take most of it | bf16 autocast; TF32: `torch.set_float32_matmul_precision("high")` ([01](01_measure.ipynb)) |
# | an NCCL kernel runs alone at the end | other bucket sizes; a communication hook |
#
# ## What to remember
#
# 1. Profile first: a small part cannot give much, however fast it becomes.
# 2. Change one thing, measure it in turns with the unchanged training, and compare the gain with the noise.
# 3. Check whether it is still the same training. Sixteen bits, a larger batch and PowerSGD make it another one.
#
# **Next:** [15 · Talk less](15_talk_less.ipynb). Must ranks send a message at every step? (On a GPU, `python
# lessons/l14_make_it_faster/compare_changes.py --device cuda --model resnet --out results/live/14_gpu.json` compares
# the changes of this lesson.)
