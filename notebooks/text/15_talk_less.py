# ---
# jupyter:
#   course:
#     minutes: 75
#     quick:
#       parameters:
#         ways: never ddp local:2 diloco:2
#         seeds: 0 1
#         rounds: 2
#         steps: 2
#         tested: 100
#         several_nodes: false
#       seconds: 50
#     seconds: 140
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 15 · Talk less
#
# **The question.** DDP's ranks talk at each step, and wait for each other. Must they?
#
# **You will be able to**
#
# - name the ways to send less often or fewer bytes, and what each of them does to learning;
# - write the outer step of DiLoCo, train with it, and say what local training leaves different on the ranks;
# - choose how seldom ranks should talk over a given link.
#
# **You need** [06 · DistributedDataParallel](06_ddp.ipynb), [08 · Performance](08_performance.ipynb) and
# [09 · Large batches](09_large_batch.ipynb); for *A slow link* the hosts of
# [10 · From one machine to a cluster](10_launchers.ipynb).
#
# **Time.** About 75 minutes for you, 3 for the machine.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

from course import processes
from course.hosts import Cluster, where
from course.predict import fit
from lessons.l15_talk_less import check, show, talk_ways

# %% jupyter={"source_hidden": true} tags=["parameters", "hide-input"]
ranks = 2  # each should have a core of its own, or a GPU
ways = "never ddp accumulate:8 local:8 local:32 diloco:32 bf16 powersgd"  # :N talks each N batches
seeds = "0 1 2"  # of weights and order
rounds = 3  # of each seed
steps = 64  # batches of a round
tested = 10_000  # test images
link_ways = "never ddp bf16 powersgd local:8 diloco:32"
several_nodes = True  # False shows a recorded run over the slow link

# %% [markdown]
# ## How much is there to gain?
#
# The **ceiling** of lesson [08](08_performance.ipynb) is set by ranks that never talk, where each trains a model of its
# own. A way to train one model together can at best do as many images a second. (More than 100 % of it, below, is
# noise.)
#
# **Predict.** What share of the ceiling does DDP reach on this machine, with LeNet and 64 images a rank?

# %%
my_ddp = None  # %

# %% jupyter={"source_hidden": true} tags=["hide-input"]
os.environ["OMP_NUM_THREADS"] = "1"
folder = Path("results/live/15")


def read(name):
    return json.loads(Path(folder, f"{name}.json").read_text())


# %%
# !torchrun --nproc_per_node={ranks} scripts/measure/message_time.py \
#     --max-bytes 16M --rounds {rounds} --out {folder}/messages.json
# !torchrun --nproc_per_node={ranks} lessons/l15_talk_less/talk_less.py \
#     --ways never --seeds 0 --rounds {rounds} --steps {steps} \
#     --test-samples 100 --out {folder}/never.json

# %% [markdown]
# ## Ways to talk less
#
# There are two. **Send fewer bytes**: gradients in 16 bits, or two thin matrices for each large one (PowerSGD, [Vogels
# 2019](https://arxiv.org/abs/1905.13727)), which adds what they leave out to the next gradient: **error feedback**.
# Lesson [14](14_make_it_faster.ipynb) has used both. Or **send less often**:
#
# | way | each rank | after N batches all ranks |
# |:--|:--|:--|
# | accumulate | adds up the gradients of N batches (`no_sync`) | average gradients, and update **once** |
# | local SGD ([Stich 2018](https://arxiv.org/abs/1805.09767)) | updates its own weights N times | average **weights** |
# | DiLoCo ([Douillard 2023](https://arxiv.org/abs/2311.08105)) | updates its own weights N times | compute old weights − new weights (the **pseudo-gradient**), average it over the ranks, and let a second optimizer make a step with it |
#
# This is their code, from `lessons/l15_talk_less/talk_ways.py`. `update(images, labels)` is called for each batch of a
# rank. All ways have the same learning rate. PyTorch has local SGD: its `PeriodicModelAverager` averages the weights
# after each N steps. For DiLoCo one function is missing, the `outer_step`: you will write it.

# %%
lesson.code(talk_ways.learn, talk_ways.accumulate,
            talk_ways.local_sgd, talk_ways.diloco)

# %% [markdown]
# DiLoCo's **inner** optimizer is AdamW, here as in all ways. The **outer** one is SGD with Nesterov momentum. It sees a
# gradient only once in N batches. That gradient has less noise than a single batch's, so the outer steps can be long.
#
# How fast will they be? By the first model of lesson [08](08_performance.ipynb) a batch takes as long as without
# talking, and once in N batches each message adds α + β · bytes. PowerSGD sends three messages: one with the tensors
# that stay whole, and one for each of the two kinds of matrices.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
link = read("messages")["ops"]["all_reduce"]
lesson.verdict(fit.line(link["points"], link["alpha"], link["beta"]))
forecast = show.forecast(ways, read("never"), link["alpha"], link["beta"])
lesson.table(show.forecasts(forecast))

# %% [markdown]
# ### Exercise 1: the outer step
#
# On each rank `model` has learnt alone. `agreed` is one long vector: the weights that all ranks had after the last
# outer step. `outer` is a PyTorch optimizer of that vector. Do an outer step, after which `agreed` and the models are
# the same on all ranks. `parameters_to_vector` turns weights into such a vector, and `vector_to_parameters` turns it
# back. Be careful: afterwards the weights are views of the vector that you gave it, so `agreed` and the model would
# share one memory. Give it a copy.
#
# The check runs your function on three ranks. When it is right, DiLoCo trains with it, beside DDP and local SGD.

# %%
# %%writefile results/live/15_outer.py
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


@torch.no_grad()
def my_outer_step(model, agreed, outer):
    raise NotImplementedError


# %%
check.outer("results/live/15_outer.py")
# check.outer.hint()
# check.outer.solution()

# %%
outer_file = check.outer.file or "ours"  # yours, if it is right

# %% [markdown]
# ## Speed, and learning
#
# A way that talks less trains a different model. So each is measured twice: how many images a second, and **what it has
# learnt** from the same images. All ways start from the same weights, with each seed, and take turns. A round continues
# from the way's last one. The figures say whose outer step DiLoCo takes.
#
# **Predict.** Which way has the lowest accuracy after the same number of images, by the median of the seeds?

# %%
# "never", "DDP", "accumulate", "local SGD" or "DiLoCo"
my_least = None

# %%
# !torchrun --nproc_per_node={ranks} lessons/l15_talk_less/talk_less.py \
#     --ways {ways} --outer {outer_file} --seeds {seeds} --rounds {rounds} --steps {steps} \
#     --test-samples {tested} --out {folder}/ways.json > {folder}/ways.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
near = read("ways")
table = show.ways(near).set_index("name")
least = show.least(table)
lesson.predicted(my_ddp, 100 * table.loc["DDP", "share"], "%")
lesson.predicted(my_least, least)
images, batches = max(row["images"] for row in near["rounds"]), rounds * steps
most = table["every"].max()
lesson.verdict(f"Each way learnt from {images:,} images, {images / near['samples']:.2g} of an "
               f"epoch: {batches} batches of each rank. A way that talks every {most} batches "
               f"sent {batches // most} messages.")
show.fast_and_good(near, forecast, f"LeNet, {ranks} ranks")
lesson.figure("Left: images a second of each way; the ceiling is 100 %. Right: test accuracy "
              "after the same number of images; the grey band covers the seeds of DDP. A good "
              "way stands far to the right in both.")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
seconds = show.all_had(near)
timely = show.in_time(near, seconds)
lesson.table([{"way": name, **show.of_ceiling(row, forecast),
               "test accuracy (all seeds)":
                   f"{row.accuracy:.3f} ({row.worst:.3f} to {row.best:.3f})",
               f"after {seconds:.1f} s": f"{timely[name]:.3f}"} for name, row in table.iterrows()])
lesson.verdict(show.both(near))

# %% [markdown]
# Speeds follow the rule of lesson [01](01_measure.ipynb). A pair is a round of a way and the round of *never* beside
# it. A share of the ceiling above 100 % is noise: its interval holds 100. For accuracies a pair is two ways with the
# same seed, and three pairs are too few to name a winner: the medians and the ranges of the seeds are all that we
# state.
#
# - **never**: the accuracy is the mean over the ranks' models. Each of them has learnt only from its own share of the
#   images. Talking would give it the others' share, too.
# - **accumulate** is exact: it is DDP with N times the batch and N times fewer updates, at the same learning rate.
#   Lesson [09](09_large_batch.ipynb) shows what a larger batch does to learning.
# - **local SGD**: between two averages the ranks' weights move apart, the farther the longer the ranks learn alone.
# - **DiLoCo** learns alone just as long. The average cancels changes of opposite sign, as in local SGD. The outer
#   momentum then carries the rest into the next rounds.
# - **16 bits and PowerSGD** still talk at each step. They save the time that bytes take, which is short here, but no
#   latency and no waiting. PowerSGD even pays the latency of three messages and multiplies matrices, so it may be
#   slower than DDP. Its gradient is another one, so it may learn less.
#
# Where the prediction is off, the model of lesson [08](08_performance.ipynb) leaves out the same things as there:
# ranks wait for each other, and DDP itself takes time. With N = 32 these two costs come once in 32
# batches: compare the rows with N = 1 and N = 32.
#
# A comparison after the same number of images is fair. So is one after the same time, in which a way that talks less
# has seen more images. A curve can be higher below for two reasons: more images by then, or more learnt from each.
# Compare *local SGD* with *never*, which have seen about equally many.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.by_time(near, f"LeNet, {ranks} ranks")
lesson.figure("Test accuracy as training goes on, with the same seconds for each way: a "
              "curve that rises earlier has seen more images by then. (Mean of the seeds "
              "after each round.)")

# %% [markdown]
# ## A slow link
#
# So far the ranks were neighbours in one machine. Now they run on two **hosts** of lesson [10](10_launchers.ipynb),
# whose link carries 50 Mbit/s. The network interface counts what a rank sends. LeNet's gradients, like its weights,
# have 248,024 bytes.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
why_not = Cluster.available() if several_nodes else "several_nodes is False"
recorded = Path("results/recorded/slow-link/link.json")
alone = show.silent_batch(json.loads(recorded.read_text()) if why_not else read("never"))
place = "Where the run below was recorded," if why_not else "Here"
lesson.verdict(f"{place} a batch of ranks that never talk takes **{1000 * alone:.1f} ms**.")

# %% [markdown]
# **Predict.** What share of the ceiling does DDP reach over this link? And how many batches must the ranks
# of local SGD learn alone before each message to reach 80 % of it? (Take 248,024 bytes at 50 Mbit/s; α is small here.)

# %%
my_linked = None  # %
my_every = None  # batches

# %% jupyter={"source_hidden": true} tags=["hide-input"]
job = ("torchrun --nnodes=2 --node-rank=$NODE --master-addr=$MASTER --master-port=29500 "
       f"lessons/l15_talk_less/talk_less.py --ways {link_ways} --outer {outer_file} --seeds 0 "
       f"--rounds 3 --steps 32 --test-samples 100 --out {folder}/link.json")
lesson.verdict(where(why_not, recorded) + (
    " After a pause that link let 128 KiB pass at once: some ways are faster than predicted."
    if why_not else ""))
if not why_not:
    processes.said(f"scripts/cluster/lab_cluster.py --nodes 2 --rate 50mbit -- '{job}'")
far = json.loads(recorded.read_text()) if why_not else read("link")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
over_link = show.ways(far).set_index("name")
lesson.predicted(my_linked, 100 * over_link.loc["DDP", "share"], "%")
enough = show.seldom(alone, link["alpha"], 8 / 50e6, 248_024, 0.8)
lesson.predicted(my_every, enough, "batches")
expected = show.forecast(link_ways, far, link["alpha"], beta=8 / 50e6)
rows = []
for name, row in over_link.iterrows():
    count, _ = show.messages(row.way, far["shapes"])
    formula = show.sent(row.way, row.every, far["shapes"], far["world_size"])
    rows.append({"way": name, "messages a batch": f"{count / row.every:.2g}",
                 "bytes: formula": f"{formula:,.0f}", "counted": f"{row.sent:,.0f}",
                 "counted / formula": f"{row.sent / formula:.2f}" if formula else "–",
                 **show.of_ceiling(row, expected)})
lesson.table(rows)
diloco = over_link[over_link["way"] == "diloco"].iloc[0]
lesson.verdict(f"DDP reaches {table.loc['DDP', 'share']:.0%} of the ceiling between processes of "
               f"one machine, and {over_link.loc['DDP', 'share']:.0%} over the link. "
               f"{diloco.name} reaches {diloco['share']:.0%} over the link.")

# %% [markdown]
# On this link the bytes take most of the time, so a way that sends fewer of them gains, too. In a ring of W ranks each
# rank sends 2 (W − 1) / W times the message (lesson [04](04_collectives.ipynb)): with two ranks, the message once. The
# rest of the count is headers, which weigh more where messages are short, and the barriers before and after a round.
#
# A link also has a **latency**. Light in a glass fibre travels 200,000 km a second. Over 5,000 km each packet needs 25
# ms, and 50 ms there and back, however many bytes a second the link carries. `lab_cluster.py --rate 1gbit --delay 25ms`
# makes such a link where the kernel has `netem`. By the model, with α = 50 ms and 1 Gbit/s:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.verdict("This machine's kernel has no `netem`, so the table is the model's alone."
               if Cluster.available(delay="25ms") else "This machine can make such a link: try it.")
lesson.table(show.forecasts(show.forecast(link_ways, far, alpha=0.05, beta=8 / 1e9)))

# %% [markdown]
# There shorter messages gain next to nothing, and only talking less often helps. Compare the two tables: which ways
# does a narrow link slow down, and which a distant one?
#
# ## What remains different
#
# With DDP all ranks have the same weights after each step, and the same optimizer's state. (BatchNorm's running
# statistics are each rank's own, or rank 0's: lesson [07](07_traps.ipynb).) After local steps all three differ.
#
# ### Exercise 2: find what is missing
#
# This program averages the weights, and its author thinks that the ranks are equal then:
#
# ```python
# @torch.no_grad()
# def average(model, optimizer):
#     for parameter in model.parameters():
#         dist.all_reduce(parameter)
#         parameter /= dist.get_world_size()
# ```
#
# `model` has a BatchNorm layer, and `optimizer` is Adam. Write the function so that nothing in a rank's training
# differs from the others': each value becomes the mean over the ranks. `optimizer.state` is a dict of dicts: look at
# what is in it. Counters of steps are equal anyway; leave them as they are.

# %%
# %%writefile results/live/15_average.py
import torch
import torch.distributed as dist


@torch.no_grad()
def my_average(model, optimizer):
    raise NotImplementedError


# %%
check.average("results/live/15_average.py")
# check.average.hint()
# check.average.solution()

# %% [markdown]
# An average of the weights makes one of three things equal: BatchNorm's statistics and the optimizer's state differ as
# well. Whether it pays to average all three is another matter. Adam's state has twice the bytes of the weights, so
# messages become three times as long ([Iacob 2025](https://arxiv.org/abs/2505.22549) sends the state more seldom than
# the weights).
#
# ## Today's field
#
# - **Streaming DiLoCo** ([Douillard 2025](https://arxiv.org/abs/2501.18512)) sends the weights in fragments, one at a
#   time and in 4 bits, while the ranks go on learning. [torchft's
#   `DiLoCo`](https://docs.pytorch.org/torchft/local_sgd.html) has its parts as arguments: `model_fragments`,
#   `sync_every`, `fragment_sync_delay` (the batches that a fragment may be on its way) and `should_quantize`. If a rank
#   fails, the others go back to the last weights on which all agreed.
# - **Does it hold for large models?** The [scaling laws for DiLoCo](https://arxiv.org/abs/2503.09799) (Charles 2025)
#   fit models of 35 million to 2.4 billion parameters and predict 4 and 10 billion. DiLoCo's loss falls faster with
#   size than that of data parallelism, and DiLoCo tolerates larger batches.
# - **Asynchronous training**: no rank waits. In the first designs each rank sent gradients to a server whenever it had
#   some, and took the newest weights ([Dean
#   2012](https://research.google/pubs/large-scale-distributed-deep-networks/)). Its gradient then belongs to older
#   weights: it is **stale**. With many ranks stale gradients cost so much accuracy that synchronous training with a
#   few spare ranks was sooner at the same accuracy ([Chen 2016](https://arxiv.org/abs/1604.00981)).
# - **Decoupled DiLoCo** ([Douillard 2026](https://arxiv.org/abs/2604.21428)) makes rare messages asynchronous. It
#   merges the fragments that have arrived from a part of the ranks, and waits for no slow or lost one. In a simulation
#   of 1.2 million chips that fail, 88 % of the time is useful training, in place of 27 % with data parallelism. Between
#   eight data centres it needs 0.84 Gbit/s in place of 198, and the model reaches 64.1 % on a set of tests in place of
#   64.4 % ([DeepMind](https://deepmind.google/blog/decoupled-diloco/)).
#
# For ranks that all wait for all, lesson [11](11_fault_tolerance.ipynb) shows how a lost one is replaced. LeNet is small:
# only a large model can tell which N and which outer optimizer it needs.
#
# ## What to remember
#
# 1. Messages can be shorter or fewer. Shorter messages save the time that bytes take, which is long on a slow link.
#    Only fewer messages save latency and waiting, too.
# 2. Talking less gives a different result: compare accuracy after the same images **and** after the same time.
# 3. After local steps ranks differ in more than their weights: BatchNorm's statistics, and the optimizer's state.
#
# Before you choose: how long is a step of your own job, and how long its message? If talking takes a few percent, leave
# it.
#
# **Next:** [16 · Your turn: a language model](16_language_model.ipynb). Does all of this hold for what is trained today?
