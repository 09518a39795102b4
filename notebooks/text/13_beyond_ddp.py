# ---
# jupyter:
#   course:
#     minutes: 105
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
# - estimate what a device must hold, and say which part of it ZeRO, FSDP, tensor parallelism and pipelines shard;
# - write an optimizer that shards its state, shard a matrix product, and order the work of a pipeline;
# - choose the simplest way that fits.
#
# **You need** lessons [04 · Messages](04_collectives.ipynb) and [06 · DistributedDataParallel](06_ddp.ipynb). (This
# lesson explains in a few words what it needs of autocast, which lesson [14](14_make_it_faster.ipynb) teaches.)
#
# **Time.** About 105 minutes for you, 2 for the machine. After the first 65 there is a place for a break.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, os
from pathlib import Path

import pandas as pd

from course import memory
from course.tiny_transformer import SHAPE
from lessons.l13_beyond_ddp import check, pipeline, shard_ways, show

# %% jupyter={"source_hidden": true} tags=["parameters", "hide-input"]
steps = 4  # updates of each run
parameters = 7e9  # of the model that we would like to train …
devices = 8  # … on so many GPUs of 80 GB

# %% [markdown]
# ## What has to fit
#
# A device holds four things: the parameters, their gradients, the optimizer's state, and the **activations**, which
# forward keeps for backward. Adam's state is two running averages for each parameter. To **shard** one of them over N
# ranks is to give each rank one N-th, its *shard*.
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
# 2020](https://arxiv.org/abs/1910.02054)) has three stages:
#
# 1. Stage 1 shards the optimizer's state.
# 2. Stage 2 shards the gradients, too.
# 3. Stage 3 shards the parameters, too. PyTorch calls it **FSDP**, *fully sharded data parallel*.
#
# The paper counts in another way than autocast: a parameter and its gradient have 16 bits (2 + 2 bytes), and the
# optimizer has the averages and a 32-bit copy of the parameter (12 bytes). Both count 16 bytes. Stage 1 shards the
# optimizer's part only: 12 of 16 in the paper (4 stay whole), 8 of 16 in PyTorch (8 stay whole). Here are both, for
# your `parameters` and `devices`, with the activations of one sequence of 4,096 tokens.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
rows = memory.shared_out(parameters, devices)
show.states(rows, 80e9, f"{show.short(parameters)} parameters on {devices} devices")
lesson.figure("What each device must hold (predicted), and the memory of a device (black line)."
              " Each stage of ZeRO shards one part more. PyTorch's ZeRO-1 leaves more whole "
              "than the paper's.")


# %% [markdown]
# *For a moment* stands for weights that exist only while the device computes with them: autocast's copies, and the
# layers that FSDP makes whole. (The paper's weights have 16 bits anyhow, so its bars need no copies.) The prediction
# leaves out two smaller things: scratch memory of the operators, and the scores of the last layer.
#
# ### Exercise 1: does it fit?
#
# Count as the paper does: 2 bytes for a parameter, 2 for its gradient, 12 for its optimizer state. Stage 0 shards
# nothing, stage 1 the optimizer's state, stage 2 also the gradients, stage 3 also the parameters. Return the smallest
# number of devices with `memory` bytes each on which all three fit, or `None` if no number is enough.

# %%
def my_fewest(parameters, memory, stage):
    raise NotImplementedError


# %%
check.fits(my_fewest)
# check.fits.hint()
# check.fits.solution()

# %% [markdown]
# ## One small model, sharded in several ways
#
# So far these are equations. The next model is small enough for two cores: a **transformer** that learns the letters of
# this repository's LICENSE. It turns each letter (a *token*) into a vector of 48 numbers (the *embedding*). Four blocks
# follow. Each adds two things to the vectors (the *residual path*):
#
# - **attention**, by which a token takes something from the tokens before it. It has four matrices (`query`, `key`,
#   `value`, `out`), cut into 12 *heads* that compute apart from each other;
# - an **MLP** of two layers, `up` to 192 *hidden values* and `down` to 48.
#
# A LayerNorm stands before each of them. At the end the **output layer** (`head` in the code) gives a score (a *logit*)
# for each letter that may come next.
#
# `lessons/l13_beyond_ddp/shard_model.py` trains it in several ways, on two ranks with gloo, on
# the CPU in 32 bits. Each way starts from the same weights and sees the same text.
#
# **Predict.** After a few updates the weights of each way are compared with those of one process that has the whole
# batches. What is the largest difference of any weight?

# %%
my_difference = None  # such as 0.1

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank
# !torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py \
#     --steps {steps} --out results/live/13_two.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
two = json.loads(Path("results/live/13_two.json").read_text())
lesson.predicted(my_difference, max(result["weights_off"] for result in two["ways"].values()))
lesson.table([{"way": show.NAMES[way], "last loss": f"{result['losses'][-1]:.4f}",
               "loss off by": f"{result['loss_off']:.0e}",
               "weights off by": f"{result['weights_off']:.0e}"}
              for way, result in two["ways"].items() if way != "one"])

# %% [markdown]
# Differences near 1e-6 are rounding: the ways add in another order, and 32 bits have 7 digits. A way that computed
# something else would be off by far more. They all train the same model. What does each of them shard?
#
# ## ZeRO-1: the optimizer's state
#
# With DDP each rank has the mean of all gradients, and then all ranks make the same update: N times the same work, with
# N copies of the same state. With ZeRO-1 each rank updates one N-th of the weights and keeps the state of these alone.
# It needs the mean gradients of its own N-th, and afterwards the weights that the other ranks have updated. Lesson
# [04](04_collectives.ipynb) has a collective for each of the two: **reduce_scatter**, then **all_gather**.
#
# **Predict.** How many bytes does such a step send, in percent of DDP's?

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
# `dist.reduce_scatter(piece, pieces)` leaves in `piece` this rank's part of the sum. `dist.all_gather(pieces, piece)`
# collects the ranks' pieces. `pieces` is a list of N tensors of one size, such as `list(whole.chunk(N))`, which share
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
# as the check has not said "Right", ours trains in its place, and table and figure say *ours*. Here are the three
# ways:
#
# (`placement` knows the rank's number, and `own_share` gives each rank its share of the sequences. A `Setup` holds the
# model, its optimizer, and the function that runs forward and backward. Without `gradient_as_bucket_view=True` DDP
# keeps the gradients twice.)

# %%
lesson.code(shard_ways.ddp, shard_ways.zero1, shard_ways.mine)

# %%
# !torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_optimizer.py \
#     --steps {steps} --optimizer {check.zero1.trains} --out results/live/13_zero1.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
zero1 = json.loads(Path("results/live/13_zero1.json").read_text())
of_mine, of_ddp = (sum(row["bytes"] for row in show.sent(zero1["ways"][way]))
                   for way in ("mine", "ddp"))
lesson.predicted(my_sent, 100 * of_mine / of_ddp, "%")
lesson.table(show.sharded_optimizers(zero1))
lesson.verdict([show.as_fast(zero1, other) for other in ("zero1", "ddp")])
show.zero1_beside_pytorch(zero1)
lesson.figure("MyZero halves the optimizer's state, sends as many bytes as DDP, and "
              "needs two messages. PyTorch's ZeRO-1 sends the model once more, a message "
              "for each tensor.")

# %% [markdown]
# A ring's all-reduce *is* a reduce_scatter, then an all_gather. ZeRO-1 makes the update between the two. So it sends as
# much as DDP, and only the optimizer's state shrinks: weights and gradients stay whole. (*Optimizer state* is
# everything that the optimizer keeps and the model does not. A copy of the rank's piece of the weights counts, too.)
#
# `ZeroRedundancyOptimizer` deals out **whole tensors**, so its ranks hold unequal parts. DDP's all-reduce stays. After
# the update each rank broadcasts its tensors, a message each, so the model is sent three times in place of twice.
#
# Bytes are counted as a ring sends them, and as NCCL's reduce_scatter does. The reduce_scatter of gloo is an all-reduce
# inside (torch 2.14), so MyZero's times show no saving of bytes here, only one of messages. MyZero sends after
# backward, where DDP sends during backward. With hooks and buckets (lesson [06](06_ddp.ipynb)) a reduce_scatter can
# leave as early, and FSDP's does.
#
# ## FSDP: the parameters, too
#
# Between two uses a rank keeps only its rows of each weight. Before a block computes, its weights are **all-gathered**;
# afterwards their memory is freed. Backward gathers them again, and then the gradients are **reduce-scattered**: each
# rank gets the sum for its own rows. `init_device_mesh` gives the ranks a shape, here a line. `fully_shard`, PyTorch's
# second FSDP (*FSDP2*), is called from the inside out: first on each block, then on the whole model, which takes the
# rest.

# %%
lesson.code(shard_ways.fsdp, shard_ways.shard_blocks)

# %%
lesson.table(show.held(two, "fsdp"))

# %% [markdown]
# *For a moment* counts the weights that are whole at one time: here one block and the tensors outside the blocks. That
# is why each block has a `fully_shard` of its own. (A GPU holds two whole blocks, because it fetches the next one while
# this one computes. With gloo on a CPU nothing overlaps.)
#
# The price is communication: each step sends the blocks' weights twice and the gradients once, nearly 1.5 times as much
# as DDP (ZeRO paper, section 7). What stands outside the blocks stays whole after forward, and is sent once. With
# `reshard_after_forward=False` the weights stay whole after forward. That needs more memory and sends no more than DDP;
# it is PyTorch's nearest to stage 2.
#
# A model that does not fit must never be whole anywhere, not even at the start. Create it on the *meta device*, where
# tensors have a shape and no memory: `with torch.device("meta"): model = …`. Call `fully_shard` as above, then
# `model.to_empty(device=…)`, and let each rank initialise, or load, its own shard. Make the optimizer **after**
# `fully_shard`, which replaces the parameters.
#
# ### Exercise 3: who keeps what?
#
# `model` is an `nn.Sequential` of three `nn.Linear` (with bias) and ReLUs between them; `mesh` is a line of all ranks.
# Write `my_shards(model, mesh)`:
#
# 1. **Before** you shard anything, work out what this rank will hold of each parameter: a dict
#    {name in `model.named_parameters()`: shape}. The three layers have 8, 4 and 2 rows, and the check has 3 ranks.
#    [`fully_shard`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) cuts rows as `torch.chunk`
#    does. A rank that gets no row holds the shape `(0, …)`, with the other dimensions whole.
# 2. Shard the model so that never more than one layer is whole.
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
# ZeRO and FSDP shard what a rank *keeps*. Each rank still computes whole layers, with its own share of the text.
# **Tensor parallelism** (TP: [Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)) shards the *computation*. Each
# rank has some of the attention heads and some of the MLP's hidden values, and all ranks see **the same** text. After
# the attention, and after the MLP, an all-reduce adds up the ranks' parts; backward has as many all-reduces again.

# %%
lesson.code(shard_ways.tp, shard_ways.split_matrices)

# %% [markdown]
# `ColwiseParallel` cuts a layer's outputs and `RowwiseParallel` its inputs, so that nothing has to be sent between the
# two. (PyTorch keeps a weight as outputs × inputs. So ColwiseParallel cuts the *rows* of the tensor.)
#
# **Predict.** Each of two ranks computes half of every matrix product. What share of one process's activations does
# each of them keep?

# %%
my_share = None  # "less than half", "half" or "more than half"

# %% jupyter={"source_hidden": true} tags=["hide-input"]
tp, alone = (two["ways"][way]["ranks"][0]["activations"] for way in ("tp", "one"))
share = "more than half" if tp > 0.51 * alone else "half" if tp > 0.49 * alone else "less than half"
lesson.predicted(my_share, share)
lesson.table(show.held(two, "tp"))

# %% [markdown]
# A rank of DDP sees half of the text, so it keeps half of the activations. A rank of TP sees all of the text. The
# LayerNorms and the residual path work on whole activations, on each rank alike. (*Sequence parallelism* shards these,
# too: [Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198). This lesson predicts activations by their
# equations.) Every all-reduce of TP makes the ranks wait, so TP needs the fastest links, those inside a node.
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
# ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)) runs all forwards, then all backwards. *1F1B* (one forward,
# one backward) starts a backward as soon as it can. So fewer micro-batches wait for their backward, and a rank keeps
# fewer activations. This is the code in PyTorch (`keep_stage` removes the other ranks' layers, `watched` notes the
# times):

# %%
lesson.code(shard_ways.pipeline)

# %% [markdown]
# **Predict.** There are two ranks and four micro-batches. What share of the time does a rank wait, if every forward and
# every backward of a micro-batch takes equally long, and sending takes no time? This waiting is called the **bubble**.
# (Draw it, with a line for each rank and a box for each micro-batch.)

# %%
my_bubble = None  # percent


# %% [markdown]
# ### Exercise 5: the order of 1F1B
#
# Write `my_order(rank, ranks, micro_batches)`. Return the order of this rank's work: a list of `("forward", i)` and
# `("backward", i)`, each once for each micro-batch i, numbered from 0. A forward needs the activations of the rank
# before, a backward the gradient of the rank behind. (The last rank has the loss, and needs only its own forward.)
#
# - No ranks wait for each other in a circle.
# - A step takes no longer than GPipe's.
# - Each rank keeps the activations of as few micro-batches as that permits.

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
# !torchrun --nproc_per_node=2 lessons/l13_beyond_ddp/shard_model.py \
#     --steps {steps} --order results/live/13_order.json --out results/live/13_pipeline.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.predicted(my_bubble, 100 * memory.bubble(2, 4), "%")
run = json.loads(Path("results/live/13_pipeline.json").read_text())
of_gpipe = pipeline.computed([pipeline.gpipe(rank, 2, 4) for rank in range(2)])
computed = {"gpipe": of_gpipe, "1f1b": pipeline.computed(lists), "mine": pipeline.computed(lists)}
lesson.table(show.bubbles(run, computed, whose))
steps_measured = {name: run["ways"][way]["timeline"]
                  for way, name in show.pipelines(run, whose).items()}
show.orders(steps_measured, "milliseconds (measured)")
lesson.figure("Each box is the forward (light) or backward (dark) of a micro-batch. Gaps are "
              "the bubble. GPipe begins no backward before the last forward; 1F1B frees the "
              "activations of the first micro-batches early.")

# %% [markdown]
# With p ranks and m micro-batches the bubble is (p − 1) / (m + p − 1), for both schedules. The measured bubble also
# contains the time for sending, and the stages are unequal: the last one has the output layer, too. (For this figure
# the model is larger, so that computing takes longer than sending. Each box begins and ends at its median of several
# steps.)
#
# By the formula the two differ in memory alone (if the measured steps differ, look at the widths of the boxes: the
# formula takes all forwards as equally long). With GPipe all micro-batches wait for their backward. With 1F1B at most
# as many wait as there are ranks, and on the last rank only one. The same functions give the order for four ranks and
# eight micro-batches:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.orders({name: pipeline.computed([function(rank, 4, 8) for rank in range(4)])
             for name, function in (("GPipe", pipeline.gpipe), (f"{whose} order", order))},
            "time, in forwards of a micro-batch (computed)")
lesson.figure("The two schedules take equally long. With 1F1B rank 3 starts its first "
              "backward at once, and at most four micro-batches of rank 0 wait for "
              "theirs; with GPipe eight wait on every rank.")

# %% [markdown]
# This is what each rank keeps, in all the ways:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.kept(two)
lesson.figure("Left, parameters, gradients and optimizer state; right, activations, on a scale "
              "of their own. FSDP2, TP and pipelines halve the left side. Only 1F1B keeps far "
              "fewer activations than DDP.")

# %% [markdown]
# Look first at which part is the largest. In this small model it is the activations, in every way.
# `torch.utils.checkpoint` makes them smaller, on one device, too: it keeps only the input of each block, and backward
# runs the block again. That adds at most a third to the computation, for backward has two products for each product of
# forward.
#
# A pipeline within one process looks simpler: half of the layers on `cuda:0`, half on `cuda:1`. Then one GPU works
# while the other waits. Such a model can be wrapped in DDP, without `device_ids` ([DDP
# tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html)).
#
# Is the memory as predicted? `memory.count` knows the shapes and how each way cuts them. The table has the bytes of all
# ranks:

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
# *Farthest off* is the largest difference of any part on any rank. Where it is 0, the prediction is right to the byte.
#
# ## Four ranks, and a mesh of 2 × 2
#
# The ways can be combined. On a `DeviceMesh` of two dimensions TP runs along one and FSDP along the other: TP within a
# node, FSDP between nodes.

# %%
lesson.code(shard_ways.fsdp_tp)

# %%
# !torchrun --nproc_per_node=4 lessons/l13_beyond_ddp/shard_model.py \
#     --steps {steps} --way ddp fsdp tp fsdp_tp 1f1b --out results/live/13_four.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
four = json.loads(Path("results/live/13_four.json").read_text())
weights = ["head.weight", "blocks.0.up.weight", "blocks.0.down.weight", "blocks.3.query.weight"]
show.pieces(four, weights)
lesson.figure("Which rank (number and colour) holds which piece of four weights. FSDP2 cuts "
              "rows; TP cuts `up` by rows and `down` by columns; on the mesh FSDP2 cuts the "
              "pieces of TP once more; a pipeline cuts no weight.")

# %% [markdown]
# Each rank found its own values in the whole weight, so the figure shows what the ranks really hold.
#
# Some combinations are refused with an error. These two were tried on the two ranks above:

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
#   **Zero-bubble** schedules cut a backward in two. Other ranks wait only for the gradient of a block's *input*; that
#   of its *weights* fills the gaps ([Qi et al. 2024](https://arxiv.org/abs/2401.10241)). In PyTorch:
#   [`ScheduleInterleaved1F1B` and
#   `ScheduleInterleavedZeroBubble`](https://docs.pytorch.org/docs/stable/distributed.pipelining.html).
# - **Context parallelism** cuts the sequence, in attention, too. Each rank keeps the queries of its own tokens, and
#   keys and values go around a ring ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)). It suits long texts, where
#   activations are the largest part. In PyTorch: `torch.distributed.tensor.experimental.context_parallel`.
# - **Expert parallelism**: in a *mixture of experts* each token goes through a few of many MLPs. Each rank has some of
#   them. One all-to-all sends the tokens there, a second one back ([Lepikhin et al.
#   2020](https://arxiv.org/abs/2006.16668)). An expert's gradient is averaged over **another group**: let 64 ranks form
#   4 groups of 16, each of which divides one full set of experts among its ranks. Each expert then exists 4 times, and
#   only these 4 ranks average its gradient. All other gradients are averaged over 64. A DDP around the whole model
#   would average different experts.
#
# ## Which one, then?
#
# **Take the simplest that fits.** Each step down this list costs more communication, or more code:
#
# 1. **DDP**, as long as model states and activations fit, with some room to spare.
# 2. **Activation checkpointing**, if activations are the largest part.
# 3. **FSDP**, if the model states do not fit. It sends nearly 1.5 times as much as DDP.
# 4. **TP within a node**, if the gathered weights and activations of FSDP do not fit, or if there are more devices than
#    sequences in the global batch. From some size on a larger batch helps little (lesson
#    [09](09_large_batch.ipynb)); then ranks must share the computation of one sequence.
# 5. **A pipeline between nodes**, if the links there are too slow for FSDP: it sends only activations.
#
# [Llama 3](https://arxiv.org/abs/2407.21783) combined FSDP, TP and a pipeline to train 405 billion parameters on 16,384
# GPUs (section 3.3.2). Measure on your own links: no formula here knows how much of the communication is hidden.
#

# %% [markdown]
# ## What to remember
#
# 1. With Adam a parameter costs 16 bytes, and activations come on top. DDP holds all of it on every rank.
# 2. ZeRO and FSDP shard what is kept, TP shards each multiplication, a pipeline the layers. All train the same model.
# 3. Take the simplest way that fits: DDP, then FSDP, and only then TP and pipelines.
#
# **Next:** [13b · FSDP2 as it is used](13b_fsdp2.ipynb). What do large trainings put around `fully_shard`?
