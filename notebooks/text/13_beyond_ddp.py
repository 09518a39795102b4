# ---
# jupyter:
#   course:
#     minutes: 115
#     quick:
#       parameters:
#         steps: 2
#       seconds: 60
#     seconds: 80
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 · Beyond DDP
#
# **The question.** With DDP each rank holds the whole model. What if the model does not fit on one device?
#
# **You will be able to**
#
# - estimate what a device must hold, and say which part of it ZeRO, FSDP, tensor parallelism and pipelines share out;
# - write an optimizer that shares out its state, share out a matrix product, and order the work of a pipeline;
# - choose the simplest way that fits.
#
# **You need** lessons [04 · Collectives](04_collectives.ipynb) and [06 · DistributedDataParallel](06_ddp.ipynb). What
# lesson [14](14_make_it_faster.ipynb) teaches of autocast is said here in a few words.
#
# **Time.** About 115 minutes for you, 2 for the machine. After the first 65 there is a place for a break.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json, os
from pathlib import Path

import pandas as pd

from course import plots
from lessons.l13_beyond_ddp import check, memory, pipeline, shard_ways, show
from lessons.l13_beyond_ddp.tiny_transformer import SHAPE

# %% tags=["parameters"]
steps = 4  # updates of each run
parameters = 7e9  # of the model that we would like to train …
devices = 8  # … on so many GPUs of 80 GB; above 8 a multiple of 8, the size of a node

# %% [markdown]
# ## What has to fit
#
# Four things: the parameters, their gradients, the optimizer's state, and the **activations**, which forward keeps for
# backward. Adam's state is two running averages for each parameter.
#
# In **mixed precision** a device computes with 16-bit values. With PyTorch's `torch.autocast` (lesson
# [14](14_make_it_faster.ipynb)) the parameters, their gradients and Adam's averages stay in 32 bits, which is 4 bytes
# each. Autocast makes 16-bit copies of the parameters while it computes.
#
# **Predict.** A model with 7 billion parameters, DDP on 8 GPUs, autocast and Adam. How many GB of parameters,
# gradients and optimizer state must each GPU hold, without copies and activations?

# %%
my_gigabytes = None  # GB on each GPU

# %%
states = memory.model_states(7e9, 8, stage=0, size=memory.AUTOCAST)
lesson.predicted(my_gigabytes, sum(states.values()) / 1e9, "GB")

# %% [markdown]
# DDP holds that on every device, however many there are. **ZeRO** (Zero Redundancy Optimizer: [Rajbhandari et al.
# 2020](https://arxiv.org/abs/1910.02054)) has three stages. On N ranks each keeps one N-th of
#
# 1. the optimizer's state,
# 2. the gradients, too,
# 3. the parameters, too. PyTorch calls this **FSDP**, *fully sharded data parallel*.
#
# The paper counts in another way than autocast: a parameter and its gradient have 16 bits (2 + 2 bytes), and the
# optimizer has the averages and a 32-bit copy of the parameter (12 bytes). These are 16 bytes, too. But what stage 1
# leaves whole is 4 bytes in the paper, and 8 in PyTorch. Here are both, for your `parameters` and `devices`, with the
# activations of one sequence of 4,096 tokens.

# %%
rows = memory.shared_out(parameters, devices)
title = f"{show.short(parameters)} parameters on {devices} devices"
plots.picture(show.states(rows, 80e9, title))


# %% [markdown]
# Compare what the two bars of ZeRO-1 leave whole. *For a moment* are weights that are there only while the device
# computes with them: autocast's copies, and the layers that FSDP makes whole. (The paper's weights have 16 bits anyhow,
# so its bars need no copies.) All is predicted. Two smaller things are left out: scratch memory of the operators, and
# the scores of the last layer.
#
# ### Exercise 1: does it fit?
#
# Count as the paper does: 2 bytes a parameter, 2 for its gradient, 12 for its optimizer state. Stage 0 shares out
# nothing, 1 the optimizer's state, 2 also the gradients, 3 also the parameters. Return the fewest devices of `memory`
# bytes on which all three fit, or `None` if no number is enough.

# %%
def my_fewest(parameters, memory, stage):
    raise NotImplementedError


# %%
check.fits(my_fewest)
# check.fits.hint()
# check.fits.solution()

# %% [markdown]
# ## One small model, shared out in several ways
#
# So far these are equations. Now a model that fits into two cores: a **transformer** that learns the letters of this
# repository's LICENSE. It turns each letter (a *token*) into a vector of 48 numbers (the *embedding*). Then come four
# blocks. Each adds two things to the vectors (the *residual path*):
#
# - **attention**: a token takes something from the tokens before it. Four matrices (`query`, `key`, `value`, `out`),
#   cut into 12 *heads* that compute apart from each other;
# - an **MLP**: two layers, `up` to 192 *hidden values* and `down` to 48.
#
# Before each stands a LayerNorm. At the end the **output layer** (`head` in the code) gives a score (a *logit*) for
# each letter that may come next.
#
# `lessons/l13_beyond_ddp/shard_model.py` trains it in several ways, on two ranks with gloo, on
# the CPU in 32 bits. Each way starts from the same weights and sees the same text.
#
# **Predict.** After a few updates each way is compared with one process that has the whole batches. By how much does
# any weight differ, at most?

# %%
my_difference = None  # such as 0.1

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank
# !torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py --steps {steps} \
#     --out results/live/13_two.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
two = json.loads(Path("results/live/13_two.json").read_text())
lesson.predicted(my_difference, max(result["weights_off"] for result in two["ways"].values()))
lesson.table([{"way": show.NAMES[way], "last loss": f"{result['losses'][-1]:.4f}",
               "loss off by": f"{result['loss_off']:.0e}",
               "weights off by": f"{result['weights_off']:.0e}"}
              for way, result in two["ways"].items() if way != "one"])

# %% [markdown]
# Differences near 1e-6 are rounding: the same sums in another order, and 32 bits have 7 digits. A way that computed
# something else would be off by far more. They all train the same model. Now one after another: what is shared out?
#
# ## ZeRO-1: the optimizer's state
#
# With DDP each rank has the mean of all gradients, and then all ranks make the same update: N times the same work, with
# N copies of the same state. With ZeRO-1 each rank updates one N-th of the weights, and keeps the state of these alone.
# So it needs the mean gradients of its own N-th, and afterwards the weights that the other ranks have updated. For each
# of the two there is a collective in lesson [04](04_collectives.ipynb): **reduce_scatter**, then **all_gather**.
#
# **Predict.** How many bytes does such a step send, in percent of what DDP sends?

# %%
my_sent = None  # percent

# %% [markdown]
# ### Exercise 2: your sharded optimizer
#
# Write the class `MyZero`. Each rank makes one, `MyZero(model.parameters(), optimizer_class, **options)`, while all
# ranks have the same weights. After each backward all ranks call `step()`. Then all have the weights that one process
# would have with the **mean** of the ranks' gradients. There is no DDP around the model.
#
# - A rank makes `optimizer_class(…, **options)` for one N-th of the values. Cut the values, not the list of tensors:
#   one tensor may have most of them. N need not divide their number.
# - A step sends no more than ZeRO-1 needs.
# - Parameters with `requires_grad=False` stay as they are, and need neither state nor messages.
# - A gradient may be `None`, on some ranks or on all. Count it as zeros.
#
# `dist.reduce_scatter(piece, pieces)` leaves in `piece` this rank's part of the sum, `dist.all_gather(pieces, piece)`
# collects what the ranks have. `pieces` is a list of N tensors of one size, such as `list(whole.chunk(N))`, which share
# the memory of `whole`.

# %%
# %%writefile results/live/13_my_zero.py
import torch
import torch.distributed as dist


class MyZero:
    def __init__(self, parameters, optimizer_class, **options):
        raise NotImplementedError

    def step(self):
        raise NotImplementedError


# %%
check.zero1("results/live/13_my_zero.py")
# check.zero1.hint()
# check.zero1.solution()

# %% [markdown]
# ### MyZero trains
#
# Your class trains the transformer, made larger (vectors of 144 numbers), beside DDP and PyTorch's own ZeRO-1. As long
# as the check has not said "Right", ours trains in its place, and table and picture say *ours*. Here are the three
# ways:
#
# (`placement` knows the rank's number, and `own_share` gives each rank its share of the sequences. A `Setup` holds the
# model, its optimizer, and the function that runs forward and backward. Without `gradient_as_bucket_view=True` DDP
# keeps the gradients twice.)

# %%
lesson.code(shard_ways.ddp, shard_ways.zero1, shard_ways.mine)

# %%
# !torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_optimizer.py --steps {steps} \
#     --optimizer {check.zero1.trains} --out results/live/13_zero1.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
zero1 = json.loads(Path("results/live/13_zero1.json").read_text())
of_mine, of_ddp = (sum(row["bytes"] for row in show.sent(zero1["ways"][way]))
                   for way in ("mine", "ddp"))
lesson.predicted(my_sent, 100 * of_mine / of_ddp, "%")
lesson.table(show.sharded_optimizers(zero1))
lesson.verdict([show.as_fast(zero1, other) for other in ("zero1", "ddp")])
plots.picture(show.zero1_beside_pytorch(zero1))

# %% [markdown]
# A ring's all-reduce *is* a reduce_scatter, then an all_gather. ZeRO-1 makes the update between the two. So it sends
# what DDP sends, and only the optimizer's state shrinks: weights and gradients stay whole. (*Optimizer state* is all
# that the optimizer keeps and the model does not. A copy of the rank's piece of the weights counts, too.)
#
# `ZeroRedundancyOptimizer` deals out **whole tensors**, so its ranks hold unequal parts. DDP's all-reduce stays, and
# after the update each rank broadcasts its tensors, a message each: the model is sent three times in place of twice.
#
# Bytes are counted as a ring sends them; NCCL's reduce_scatter does. That of gloo is an all-reduce inside (torch 2.14),
# so MyZero's times show no saving of bytes here, only that of messages: two, in place of one a tensor. And MyZero sends
# after backward, where DDP sends during backward: with hooks and buckets (lesson [06](06_ddp.ipynb)) a reduce_scatter
# can leave as early. FSDP does this, too.
#
# ## FSDP: the parameters, too
#
# Between two uses a rank keeps only its rows of each weight. Before a block computes, its weights are **all-gathered**;
# afterwards they are given back. In backward the same again, and then the gradients are **reduce-scattered**: each rank
# gets the sum for its own rows. `init_device_mesh` gives the ranks a shape: here a line. `fully_shard`, PyTorch's
# second FSDP (*FSDP2*), is called from the inside out: first on each block, then on the whole model, which takes what
# is left.

# %%
lesson.code(shard_ways.fsdp, shard_ways.shard_blocks)

# %%
lesson.table(show.held(two, "fsdp"))

# %% [markdown]
# *For a moment*: weights that are whole at one time, here one block and what stands outside the blocks. That is why
# each block has a `fully_shard` of its own. (On a GPU it is two blocks, because the next one is fetched while this one
# computes; with gloo on a CPU nothing overlaps.)
#
# The price: each step sends the weights twice and the gradients once, 1.5 times what DDP sends (ZeRO paper, section 7).
# With `reshard_after_forward=False` the weights stay after forward: more memory, and no more to send than DDP. That is
# what PyTorch has nearest to stage 2.
#
# A model that does not fit is never whole anywhere, not even at the start. Make it where tensors have a shape and no
# memory: `with torch.device("meta"): model = …`. Then `fully_shard` as above, then `model.to_empty(device=…)` and
# initialise, or load, each rank its own part. Make the optimizer **after** `fully_shard`, which replaces the
# parameters.
#
# ### Exercise 3: who keeps what?
#
# `model` is an `nn.Sequential` of three `nn.Linear` (with bias) and ReLUs between them; `mesh` is a line of all ranks.
# Write `my_shards(model, mesh)`:
#
# 1. **Before** you share anything out, work out what this rank will hold of each parameter: a dict
#    {name in `model.named_parameters()`: shape}. The three layers have 8, 4 and 2 rows, the check has 3 ranks.
#    [`fully_shard`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) cuts rows as `torch.chunk`
#    does; a rank that gets no row holds the shape `(0, …)`.
# 2. Share the model out so that never more than one layer is whole.
# 3. Return the dict.

# %%
# %%writefile results/live/13_shards.py
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def my_shards(model, mesh):
    raise NotImplementedError


# %%
check.shards("results/live/13_shards.py")
# check.shards.hint()
# check.shards.solution()

# %% [markdown]
# ## Tensor parallelism: each multiplication
#
# **A good place for a break.**
#
# ZeRO and FSDP share out what is *kept*. Each rank still computes whole layers, with its own share of the text.
# **Tensor parallelism** (TP: [Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)) shares out the *computing*. Each
# rank has some of the attention heads and some of the MLP's hidden values, and all ranks see **the same** text. After
# the attention, and after the MLP, an all-reduce adds up what the ranks have; backward has as many again.

# %%
lesson.code(shard_ways.tp, shard_ways.split_matrices)

# %% [markdown]
# `ColwiseParallel` cuts a layer's outputs, `RowwiseParallel` its inputs, so that nothing has to be sent between the
# two. (PyTorch keeps a weight as outputs × inputs. So ColwiseParallel cuts the *rows* of what you see.)
#
# **Predict.** Each of two ranks computes half of every matrix product. One process keeps activations for backward; how
# many of them does one of the two ranks keep? (What of a block is no matrix product?)

# %%
my_share = None  # "less than half", "half" or "more than half"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
tp, alone = (two["ways"][way]["ranks"][0]["activations"] for way in ("tp", "one"))
share = "more than half" if tp > 0.51 * alone else "half" if tp > 0.49 * alone else "less than half"
lesson.predicted(my_share, share)
lesson.table(show.held(two, "tp"))

# %% [markdown]
# A rank of DDP sees half of the text, so it keeps half of what one process keeps. A rank of TP sees all of the text.
# The LayerNorms and the residual path work on whole activations, on each rank alike. (*Sequence parallelism* shares out
# these, too: [Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198), from whose equations the activations of this
# lesson are predicted.) Each of these all-reduces is waited for, so TP wants the fastest links: those inside a node.
#
# ### Exercise 4: an MLP on all ranks
#
# `mlp` is `nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))`, the same on all ranks, and so is `x`. Write
# `my_mlp(mlp, x)` without `parallelize_module`, with slices of the weights and one collective. Every rank returns the
# whole output, and does no more than its share of the multiplications. Mind the biases.

# %%
# %%writefile results/live/13_mlp.py
import torch
import torch.distributed as dist


def my_mlp(mlp, x):
    raise NotImplementedError


# %%
check.mlp("results/live/13_mlp.py")
# check.mlp.hint()
# check.mlp.solution()

# %% [markdown]
# ## Pipeline: the layers
#
# Rank 0 has the first layers, rank 1 the last. To keep both busy, the batch is cut into **micro-batches**. *GPipe*
# ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)) runs all forwards, then all backwards. *1F1B*, one forward,
# one backward, starts a backward as soon as it can. So fewer micro-batches wait for their backward, and a rank keeps
# fewer activations. In PyTorch (`keep_stage` takes the other ranks' layers away, `watched` notes the times):

# %%
lesson.code(shard_ways.pipeline)

# %% [markdown]
# **Predict.** Two ranks, four micro-batches. For how many percent of the time does a rank wait, if every forward and
# every backward of a micro-batch takes equally long, and sending takes no time? This waiting is called the **bubble**.
# (Draw it: a line for each rank, a box for each micro-batch.)

# %%
my_bubble = None  # percent


# %% [markdown]
# ### Exercise 5: the order of 1F1B
#
# Write `my_order(rank, ranks, micro_batches)`. Return what this rank does, one after another: a list of `("forward",
# i)` and `("backward", i)`, each once for each micro-batch i, numbered from 0. A forward needs the activations of the
# rank before, a backward the gradient of the rank behind. (The last rank has the loss, and needs only its own forward.)
#
# - No ranks wait for each other in a circle.
# - A step takes no longer than GPipe's.
# - No rank keeps the activations of more micro-batches than it needs for that.

# %%
def my_order(rank, ranks, micro_batches):
    raise NotImplementedError


# %%
check.order(my_order)
# check.order.hint()
# check.order.solution()

# %% [markdown]
# ### Your order runs
#
# `in_order` works through the lists with `send` and `recv`. It trains the transformer beside PyTorch's two schedules.
# As long as the check has not said "Right", our order runs in place of yours, and is called *our order*.

# %%
lesson.code(pipeline.in_order)
order, whose = check.order.or_ours(my_order)
lists = [order(rank, ranks=2, micro_batches=4) for rank in range(2)]
_ = Path("results/live/13_order.json").write_text(json.dumps(lists))

# %%
# !torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py --steps {steps} \
#     --order results/live/13_order.json --out results/live/13_pipeline.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_bubble, 100 * memory.bubble(2, 4), "%")
run = json.loads(Path("results/live/13_pipeline.json").read_text())
of_gpipe = pipeline.computed([pipeline.gpipe(rank, 2, 4) for rank in range(2)])
computed = {"gpipe": of_gpipe, "1f1b": pipeline.computed(lists), "mine": pipeline.computed(lists)}
lesson.table(show.bubbles(run, computed, whose))
steps_measured = {name: run["ways"][way]["timeline"]
                  for way, name in show.pipelines(run, whose).items()}
plots.picture(show.orders(steps_measured, "milliseconds (measured)"))

# %% [markdown]
# With p ranks and m micro-batches the bubble is (p − 1) / (m + p − 1), for both schedules. What is measured also has
# the time for sending, and unequal stages: the last also has the output layer. (For this picture the model is larger,
# so that computing takes longer than sending. Each box begins and ends at its median of several steps.)
#
# By the formula the two differ in memory alone. With GPipe all micro-batches wait for their backward. With 1F1B at most
# as many wait as there are ranks; on the last rank it is one. With four ranks and eight micro-batches, computed from
# the same function:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
plots.picture(show.orders(
    {name: pipeline.computed([function(rank, 4, 8) for rank in range(4)])
     for name, function in (("GPipe", pipeline.gpipe), (f"{whose} order", order))},
    "time, in forwards of a micro-batch (computed)"))

# %% [markdown]
# Here is what all the ways keep:

# %%
plots.picture(show.kept(two))

# %% [markdown]
# Look first at which part is the largest. In this small model it is the activations, in every way.
# `torch.utils.checkpoint` makes them smaller, on one device, too: it keeps
# only the input of each block, and backward runs the block again. That is at most a third more to compute: backward
# has two products for each one of forward.
#
# Without several processes a pipeline looks simpler: one process puts half of the layers on `cuda:0` and half on
# `cuda:1`. Then one GPU works while the other waits. Such a model can be wrapped in DDP, with no `device_ids` ([DDP
# tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html)).
#
# Is the memory as predicted? `memory.count` knows shapes, and how each way cuts them. All bytes of all ranks:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = []
for way, result in two["ways"].items():
    expected = memory.count(SHAPE, way, two["world_size"], two["batch"], two["micro_batches"])
    ranks = 1 if way == "one" else two["world_size"]
    counted, expected = (pd.DataFrame(of_ranks[:ranks])[list(show.PARTS)]
                         for of_ranks in (result["ranks"], expected))
    rows.append({"way": show.NAMES[way], "counted, bytes": f"{counted.to_numpy().sum():,}",
                 "predicted, bytes": f"{expected.to_numpy().sum():,}",
                 "farthest off": f"{(counted - expected).abs().to_numpy().max():,}"})
lesson.table(rows)

# %% [markdown]
# *Farthest off* is the largest difference of any part on any rank. Where it is 0, the model of the memory is right to
# the byte.
#
# ## Four ranks, and a mesh of 2 × 2
#
# The ways can be combined. On a `DeviceMesh` of two dimensions TP runs along one and FSDP along the other: TP within a
# node, FSDP between nodes.

# %%
lesson.code(shard_ways.fsdp_tp)

# %%
# !torchrun --nproc_per_node=4 lessons/l13_beyond_ddp/shard_model.py --steps {steps} \
#     --way ddp fsdp tp fsdp_tp 1f1b --out results/live/13_four.json

# %%
four = json.loads(Path("results/live/13_four.json").read_text())
weights = ["head.weight", "blocks.0.up.weight", "blocks.0.down.weight", "blocks.3.query.weight"]
plots.picture(show.pieces(four, weights))

# %% [markdown]
# Each rank looked for its own values in the whole weight; nothing here is drawn by hand. FSDP cuts rows. TP cuts `up`
# by rows and `down` by columns. On the mesh, FSDP cuts TP's pieces once
# more. A rank of the pipeline has whole weights of its own layers.
#
# What does not work is said by an error. Two mistakes, tried on the two ranks above:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{"tried": mistake, "PyTorch says": message}
              for mistake, message in two["limits"].items()])

# %% [markdown]
# For TP the number of ranks must divide the number of attention heads and the width of the MLP. 1F1B needs at least as
# many micro-batches as ranks. FSDP and ZeRO-1 take any size.
#
# ## Further ways to cut
#
# - **Interleaved** pipelines give each rank several pieces of the model that do not follow each other: v pieces make
#   the bubble v times smaller, and send v times as often ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)).
#   **Zero-bubble** schedules cut a backward in two. Only the gradient of a block's *input* is waited for; that of its
#   *weights* fills the gaps ([Qi et al. 2024](https://arxiv.org/abs/2401.10241)). In PyTorch:
#   [`ScheduleInterleaved1F1B` and
#   `ScheduleInterleavedZeroBubble`](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).
# - **Context parallelism** cuts the sequence, in attention, too: each rank keeps the queries of its own tokens, and
#   keys and values go around a ring ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)). It is for long texts, where
#   activations are the largest part. In PyTorch: `torch.distributed.tensor.experimental.context_parallel`.
# - **Expert parallelism**: in a *mixture of experts* each token goes through a few of many MLPs. Each rank has some of
#   them. One all-to-all sends the tokens there, a second one back ([Lepikhin et al.
#   2020](https://arxiv.org/abs/2006.16668)). An expert's gradient is averaged over the ranks that hold this expert, a
#   smaller group than that of all other gradients.
#
# ## Which one, then?
#
# It depends on the size of the model, the number of devices, and how fast their links are. `memory.choose`
# tries each way, with several micro-batches, and with recomputing activations or not. It drops what does not fit into
# 90 % of 80 GB, and predicts the seconds of a step. Of the rest it takes **the simplest that is at most 1.35 times as
# slow as the fastest**. (For recomputing all activations it counts a third more time: this alone shall not decide.)
#
# **Predict.** Your `parameters` on your `devices`: which way?

# %%
my_way = None  # "DDP", "ZeRO-1", "FSDP", "TP + FSDP" or "TP + PP + ZeRO-1"

# %%
chosen, fits = memory.choose(parameters, memory.Cluster(devices))
lesson.predicted(my_way, chosen.way if chosen else "none fits")
lesson.table([{"way": way, "GB a device": f"{sum(plan.bytes.values()) / 1e9:.0f}",
               "seconds a step": f"{plan.seconds:.2f}", "": "take this" if plan is chosen else ""}
              for way, plan in fits.items()]
             or [{"way": "none", "": "nothing fits: take more devices"}])

# %%
counts, sizes = [2**i for i in range(11)], [10 ** (8 + i / 8) for i in range(33)]
links = {"InfiniBand, 400 Gbit/s a device": 50e9,  # bytes a second for each device
         "Ethernet, 100 Gbit/s a node": 100e9 / 8 / 8}
plots.picture(show.maps(links, counts, sizes, yours=(devices, parameters)))

# %% [markdown]
# Read it from below. As long as the model fits, DDP is the simplest. ZeRO-1 as PyTorch has it helps only in a narrow
# band, because 8 bytes a parameter stay whole and it sends the parameters once more. Then comes FSDP. On slow links two
# things change: ZeRO-1, whose messages nothing hides, drops out from some 32 devices on, and the largest models need TP
# and PP with ZeRO-1 in place of FSDP. DDP and FSDP send 8
# bytes a parameter each (gradients are summed in 32 bits, weights gathered in 16). (With `bf16_compress_hook` DDP would
# send half.) TP and pipelines (PP) appear where memory is at its limit, or where the links between nodes are slow: a
# pipeline sends only activations between its ranks.
#
# It is a model, not a measurement: **trust the regions, not their borders**, nor a single cell (micro-batches and
# stages are powers of two, so a small step can cost much). It assumes NVIDIA H100s, 8 a node, joined by NVLink
# (NVIDIA's link between the GPUs of a node; a [rack](https://www.nvidia.com/en-us/data-center/gb200-nvl72/) can join
# 72, which `per_node` would say). They reach 40 % of their arithmetic (Llama 3
# [reports](https://arxiv.org/abs/2407.21783) 38 to 43 %). A model has GPT-3's shape: vectors 128 times as long as it
# has layers. A step has 8 sequences of 4,096 tokens a device, and FSDP has
# `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)`. The sources stand in
# `lessons/l13_beyond_ddp/memory.py`. For other numbers: `python scripts/measure/predict.py memory --help`.
#
# ## What to remember
#
# 1. With Adam a parameter costs 16 bytes, and activations come on top. DDP holds all of it on every rank.
# 2. ZeRO and FSDP share out what is kept, TP each multiplication, a pipeline the layers. All train the same model.
# 3. Take the simplest that fits: DDP, then FSDP, and only then TP and pipelines.
#
# **Next:** [13b · FSDP2 as it is used](13b_fsdp2.ipynb). What do large trainings put around `fully_shard`?
