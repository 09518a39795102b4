# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         steps: 2
#       seconds: 60
#     seconds: 95
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13b · FSDP2 as it is used
#
# **The question.** Large trainings rarely call `fully_shard` alone. What do they put around it, and what does each part
# save, and cost?
#
# **You will be able to**
#
# - use FSDP2 with 16 bits, recomputed activations, a copy in each node, clipped gradients and checkpoints;
# - make a model fit into a given memory, and predict what it needs;
# - say whether each part changes what is kept, what is sent, or what is computed.
#
# **You need** the section *FSDP: the parameters, too* of lesson [13](13_beyond_ddp.ipynb); for *Checkpoints*, δ of
# [11](11_fault_tolerance.ipynb) and its DCP. (This lesson explains in a few words what it
# needs of autocast and `torch.compile`, which lesson [14](14_make_it_faster.ipynb) teaches.)
#
# **Time.** About 80 minutes for you, 2 for the machine.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, os
from pathlib import Path

from course import memory
from course.tiny_transformer import SHAPE
from lessons.l13b_fsdp2 import check, compiled_graphs, shard_in_use, show

# %% jupyter={"source_hidden": true} tags=["parameters", "hide-input"]
steps = 8  # updates of each run, and one more than the timed checkpoints
megabytes = 6  # of a rank, for the model that you make fit

# %% [markdown]
# ## Four ranks, five ways
#
# The transformer of lesson [13](13_beyond_ddp.ipynb) learns the letters of this repository's LICENSE, on four ranks
# with gloo. It trains in five ways: in one process alone, with FSDP2 as in 13, in 16 bits, with recomputed activations,
# and as HSDP (a copy in each node, below). Each way starts from the same weights. Two ranks then load the checkpoint
# that the four have written.

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank
# !rm -rf results/live/13b_dcp
# !torchrun --nproc_per_node=4 lessons/l13b_fsdp2/shard_in_use.py \
#     --steps {steps} --save results/live/13b_dcp --out results/live/13b_in_use.json
# !torchrun --nproc_per_node=2 lessons/l13b_fsdp2/shard_in_use.py \
#     --steps {steps} --load results/live/13b_dcp --out results/live/13b_loaded.json

# %% [markdown]
# ## 16 bits
#
# With a `MixedPrecisionPolicy` FSDP2 casts each rank's rows to 16 bits (**bfloat16**) before it gathers them, and sums
# the gradients in 32 bits. (`ready` makes the optimizer and the function that runs forward and backward.)

# %%
lesson.code(shard_in_use.mixed)

# %% [markdown]
# **Predict.** FSDP2 gathers each block's weights twice a step, all others once, and reduce-scatters the gradients once.
# If the weights have 16 bits, what share of the bytes does a rank still send?

# %%
my_bytes = None  # percent

# %% jupyter={"source_hidden": true} tags=["hide-input"]
in_use = json.loads(Path("results/live/13b_in_use.json").read_text())
in_16, in_32 = (sum(row["bytes"] for row in show.messages(in_use, way))
                for way in ("mixed", "fsdp"))
lesson.predicted(my_bytes, 100 * in_16 / in_32, "%")
lesson.table(show.beside(in_use, "mixed"))
mixed = in_use["ways"]["mixed"]
lesson.verdict(f"The first gradient is off by {mixed['gradient_off']:.1%} of its length, and the "
               f"change that training made in the weights by {mixed['change_off']:.1%}.")

# %% [markdown]
# Parameters, gradients and Adam's averages stay in 32 bits. The weights that are whole *for a moment* have 16 bits, and
# so have most activations. (With `torch.autocast` FSDP2 would gather 32-bit weights, and each operation would cast
# them.)
#
# bfloat16 has 8 bits for the digits of a number, so each rounding may be off by 2⁻⁸, which is 0.4 %. The weights are
# off by more: Adam moves each weight by about its learning rate a step, however small the gradient. Where a gradient is
# near 0, rounding may change its sign.
#
# **Eight bits.** GPUs from the H100 on multiply 8-bit numbers (FP8) about twice as fast as bfloat16. FSDP2 can then
# gather 8-bit weights: torchao casts each shard before the all-gather, and one small all-reduce finds a scale for each
# weight. For Llama 3 70B on 128 H100s PyTorch's authors
# [report](https://dev-discuss.pytorch.org/t/enabling-float8-all-gather-in-fsdp2/2359) 1.5 times the speed of bfloat16,
# and owe a fifth of the gain to the all-gather. What would this model send?

# %%
in_8 = sum(memory.sent_by_fsdp(SHAPE, shards=4, gathered=1).values())
f"{in_8 / in_32:.0%} of the bytes with weights in 32 bits (predicted)"

# %% [markdown]
#
# ## Recomputed activations
#
# `checkpoint_wrapper` goes around each block, and `fully_shard` around the wrapped block. (This *checkpoint* is no
# file, but the point from which backward runs the block again.)

# %%
lesson.code(shard_in_use.recomputed)
lesson.table(show.beside(in_use, "recomputed"))
counted, predicted = show.recomputed(in_use, SHAPE)
lesson.verdict(f"Recomputing adds **{counted:.0%}** to the operations of a step; "
               f"predicted: {predicted:.0%}.")

# %% [markdown]
# To compute all of forward once more would add a third, because backward has two products for each product of forward.
# But the output layer is not computed again, and neither is the last product of a block, `down`: nothing in the block's
# backward needs its output.
#
# *Activations* are the tensors that forward keeps. *Most tensors at one time* also counts the recomputed activations of
# one block, and the gradients. Nothing more is sent, because backward gathers the block anyhow.
#
# ### Exercise 1: make it fit
#
# A rank has `limit` bytes, and the model needs more. You can choose three things: which modules get a `fully_shard` of
# their own, in which precision they compute, and which blocks are recomputed. Only the last adds to the computation of
# a step. Write `my_fsdp(model, mesh, limit, kept)`:
#
# 1. **Choose** so that a step fits into `limit`, with as few recomputed blocks as you can. Parameters and Adam's
#    averages stay in 32 bits.
# 2. Shard the model on `mesh`, a line of `mesh.size()` ranks. `model.blocks` is a dict of blocks, all alike, named
#    "0", "1", …; `my_fsdp` may replace them.
# 3. Return the bytes that you **predict** for a rank at the worst moment of a step: parameters, gradients, Adam's
#    averages, weights that are whole for a moment, and activations. The sum may be off by a quarter.
#
# `kept` says how many bytes of activations stay for backward in 32 bits: `kept["block"]` in a block, `kept["input"]` in
# a recomputed block, `kept["head"]` behind the blocks. Compute the sum first, for 0, 1, 2, … recomputed blocks.

# %%
# %%writefile results/live/13b_my_fsdp.py
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def my_fsdp(model, mesh, limit, kept):
    raise NotImplementedError


# %%
check.fit("results/live/13b_my_fsdp.py")
# check.fit.hint()
# check.fit.solution()

# %% [markdown]
# ### Your choice trains
#
# It trains a model of eight blocks that is to fit into `megabytes` on each of two ranks. As long as the check
# has not said "Right", ours trains in its place, and table and figure say *our*.

# %%
# !torchrun --nproc_per_node=2 lessons/l13b_fsdp2/fit.py \
#     --steps {steps} --choice {check.fit.trains} \
#     --limit {megabytes * 1e6} --out results/live/13b_fit.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
fitted = json.loads(Path("results/live/13b_fit.json").read_text())
lesson.table(show.costs(fitted))
show.fitted(fitted)
lesson.figure("What a rank needs at the worst moment of a step, beside the limit. 16 "
              "bits halve the tensors of a step; recomputing removes most activations "
              "that are left. The choice fits, and its prediction is on the safe side.")

# %% [markdown]
# The measured value is the most that lives at one time: shards, Adam's averages, and every tensor that a step makes,
# scratch memory of the operators, too. The prediction adds up parts that do not all live at the same moment: a block is
# recomputed when other blocks' activations are gone, and the gradients are complete only at the end. So the prediction
# is a little high, which is the safe side.
#
# Recompute the *first* blocks. Backward comes to them last, when the activations of the others are gone.
#
# ## HSDP: a copy in each node
#
# `fully_shard` on a mesh of two dimensions is **HSDP** (*hybrid*): it shards along the second dimension and keeps
# copies along the first. Let ranks 0 and 1 be one node, 2 and 3 another.

# %%
lesson.code(shard_in_use.hsdp)

# %% [markdown]
# **Predict.** A ring of four ranks is 0 → 1 → 2 → 3 → 0, with ranks 0 and 1 on one node: two of its four links go from
# node to node. Add up the bytes that all ranks send over such links in a step. What share of FSDP2's does HSDP send?

# %%
my_crossing = None  # percent

# %% jupyter={"source_hidden": true} tags=["hide-input"]
arguments = {"fsdp": {"shards": 4}, "mixed": {"shards": 4, "gathered": 2},
             "recomputed": {"shards": 4}, "hsdp": {"shards": 2, "copies": 2}}
predicted = {way: memory.sent_by_fsdp(SHAPE, **arguments[way]) for way in arguments}
lesson.table([{"way": show.IN_USE[way], "collective": row["collective"], "type": row["type"],
               "ranks": " ".join(map(str, row["ranks"])),
               "rank 0 sends in a step, bytes": f"{row['bytes']:,}",
               "predicted, bytes": f"{predicted[way][row['collective']]:,}"}
              for way in predicted for row in show.messages(in_use, way)])
plain, hybrid = (show.crossing(in_use, way) for way in ("fsdp", "hsdp"))
lesson.predicted(my_crossing, 100 * hybrid / plain, "%")
lesson.verdict(f"All ranks together send {plain:,} bytes a step from node to node with FSDP2, and "
               f"{hybrid:,} with HSDP: **{hybrid / plain:.0%}** of it.")

# %% [markdown]
# With FSDP2 every message goes around all ranks. With HSDP weights are gathered within a node. Between nodes only
# gradients are all-reduced, and of these only the rank's own shard. So slow links between nodes carry less; the price
# is memory, a whole model in each node. (In a ring of n ranks each sends (n − 1)/n of the data for an all-gather.)
#
# ## Clipping, and what a DTensor is
#
# `fully_shard` turns each parameter into a **DTensor** (*distributed tensor*). It has the shape of the whole and the
# values of its own shard, and knows the mesh and how it is cut. `to_local()` is this rank's shard; `full_tensor()`
# makes it whole on each rank, by a collective: **all** ranks must call it.
#
# Clipping needs the norm of **all** gradients. The first function is right, the second is a typical mistake. The table
# has the norms of the first step:

# %%
lesson.code(shard_in_use.clip, shard_in_use.clip_own_shards)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([{"": "one process" if name == "one" else name, "type of the norm": result["type"],
               "the norm, rank by rank": "  ".join(f"{norm:.3f}" for norm in result["norms"][
                   :1 if name == "one" else None]),
               "sent, bytes": f"{result['sent']:,}",
               "any weight, off by": f"{result['weights_off']:.0e}"}
              for name, result in in_use["clip"].items()])

# %% [markdown]
# With `clip` the norm is a DTensor, too: PyTorch adds up over the ranks. To print it, call `full_tensor()` on all
# ranks, not on rank 0 alone. With `clip_own_shards` no rank fails, but each divides by another number, so the result is
# no multiple of the gradient. (The squares of its four norms add up to the square of the right one. The optimizer is
# SGD here. Adam divides the length out again, so the mistake hides longer.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
clip = in_use["clip"]["clip"]
lesson.verdict(f"For the norm each rank sends {clip['sent']:,} bytes, in {clip['calls']} "
               f"all-reduce of {clip['parameters']} numbers, one for each parameter. For "
               f"full_tensor() of all gradients it sends {clip['all_gathered']:,} bytes.")

# %% [markdown]
# ## Checkpoints
#
# `torch.distributed.checkpoint` (DCP, lesson [11](11_fault_tolerance.ipynb)) has each rank write its shards. Four ranks
# trained and saved. Two ranks loaded the checkpoint and trained on. One process that never stopped is the reference.

# %%
lesson.code(shard_in_use.state_of, shard_in_use.load)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
loaded = json.loads(Path("results/live/13b_loaded.json").read_text())["loaded"]
lesson.table([{"run": run, "ranks": len(result["rows"]),
               "rows of the output layer": " ".join(map(str, result["rows"])),
               "checksum of all weights": result["checksum"], "in the end off by": off}
              for run, result, off in (
                  ("saved", in_use["saved"], "–"),
                  ("loaded, trained on", loaded, f"{loaded['weights_off']:.0e}"))])

# %% [markdown]
# `async_save` returns as soon as it has copied the state. A thread writes the copy while training goes on. What does
# that do to δ of lesson [11](11_fault_tolerance.ipynb), the time that a checkpoint takes from training, and to the best
# interval √(2 δ M)? A larger model is saved in both ways, in turns:

# %%
lesson.code(shard_in_use.save, shard_in_use.save_meanwhile)
between = 54 * 24 * 3600 / 419  # M of lesson 11, of Llama 3's training: seconds
lesson.table(show.held_up(in_use, between))
lesson.verdict(show.meanwhile(in_use))

# %% [markdown]
# The checkpoint holds the weights of the moment of the call, whatever training does meanwhile.
#
# Here the ranks share their cores with the writer, so training becomes slower while it writes, and δ may be no smaller.
# Where GPUs train, the CPU is free to write: for a model with 7 billion parameters PyTorch and IBM
# [report](https://pytorch.org/blog/reducing-checkpointing-times) that a checkpoint held up training for 6.3 s in place
# of 148.8 s.
#
# A late checkpoint has a price, too: after a failure before it is whole, training goes back to the previous one. On
# average each failure then loses the writing time once more. The last column adds it, beside lesson 11's shares for
# writing and for repeated work.
#
# The checkpoint is whole when `.result()` of the object that `async_save` returned has returned. Until then do not
# start the next checkpoint, and do not delete the last. Its collectives need a group of their own (`process_group`), or
# they mix with those of training.
#
# ## torch.compile
#
# `torch.compile` (lesson [14](14_make_it_faster.ipynb)) turns a model into *graphs*, and computes each graph as a
# whole. But DDP sends a bucket as soon as its gradients are there, and one graph for all of backward would deliver them
# all at its end. So PyTorch cuts the graph at DDP's buckets (the *DDPOptimizer*).

# %%
# !torchrun --nproc_per_node=2 lessons/l13b_fsdp2/compiled_graphs.py \
#     --out results/live/13b_compiled.json

# %%
lesson.code(compiled_graphs.ddp, compiled_graphs.fsdp_blocks)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
compiled = json.loads(Path("results/live/13b_compiled.json").read_text())
lesson.table([{"compiled": name, "graphs": len(result["graphs"]) or "–",
               "operations in each": " ".join(map(str, result["graphs"])) or "–",
               "gradient, off by": result.get("error") or f"{result['off']:.0e}"}
              for name, result in compiled.items()])

# %% [markdown]
# (This is the larger model of the checkpoints, so that there are several buckets. For the first bucket the DDPOptimizer
# takes 1 MB, whatever you set.) FSDP2 gathers between the blocks, and this part is not compiled. The blocks are alike,
# so one graph serves them all. `fullgraph=True` allows no cut, so PyTorch refuses it. Here the graphs are only counted,
# not turned into machine code, so no time is compared.
#
# ## What production uses
#
# *Optional reading.* Few people write these loops by hand. Each engine adds something to what you know:
#
# | engine | adds | the loop |
# |:--|:--|:--|
# | [torchtitan](https://github.com/pytorch/torchtitan) | FSDP2, TP, pipelines from a configuration file | its own, to copy from |
# | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM) | TP, sequence parallelism, interleaved pipelines, a sharded optimizer | its own |
# | [DeepSpeed](https://www.deepspeed.ai/) | ZeRO 1 to 3 from a JSON file; *offload*: state in the CPU's memory or on disk | yours, around its engine |
# | [Accelerate](https://huggingface.co/docs/accelerate) | one loop for one GPU, DDP, FSDP or DeepSpeed | yours |
# | [Lightning Fabric](https://lightning.ai/docs/fabric/stable/) | the same; strategy and precision are two arguments | yours |
# | [Ray Train](https://docs.ray.io/en/latest/train/train.html) | workers on a Ray cluster, started anew after a failure | yours, in a function |
#
# `scripts/rivals/` has `main.py`'s loop under some of them; tests of the course compare their weights with `main.py`'s.
#
# Older is the *parameter server* ([Li et al.
# 2014](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu)). It holds the parameters;
# workers fetch them and send gradients back. If no worker waits, updates are **asynchronous**: a gradient may belong to
# older weights. DDP's updates are **synchronous**. (Lesson [10](10_launchers.ipynb) tells the fate of RPC, which was
# made for this.)
#
# ## Where it goes
#
# *Optional reading.*
#
# | | what it is | source, as of |
# |:--|:--|:--|
# | torchtitan | PyTorch's own large trainings: FSDP2, TP, pipelines and context parallelism, composed | [Liang et al.](https://arxiv.org/abs/2410.06511), October 2024 |
# | torchft | of several copies (DDP, HSDP) a failed one drops out for some steps, and comes back; the others go on | lesson [11](11_fault_tolerance.ipynb) shows a recorded run of version 0.2.0 |
# | Monarch | one program steers all processes as *actors*, in place of one program a rank | [package](https://pypi.org/project/torchmonarch/0.8.0.dev20261021/), a pre-release of October 2026 |
# | torchcomms | another interface to collectives, with several backends | [its README](https://github.com/meta-pytorch/torchcomms), "experimental", read in November 2026 |
# | symmetric memory | GPUs read each other's memory, so that a kernel can compute and send at once | [manual](https://docs.pytorch.org/docs/2.14/symmetric_memory.html), "alpha", August 2026 |
#
# ## What to remember
#
# 1. 16 bits halve the weights that are gathered and most activations. Recomputing frees activations for more
#    computation. HSDP keeps most messages within a node for more memory.
# 2. Wrap each block, compute in 16 bits, and recompute only as many blocks as still do not fit.
# 3. Norms, checkpoints and graphs belong to the whole model: let PyTorch put the shards together.
#
# **Next:** [14 · Make it faster](14_make_it_faster.ipynb). Before you add devices, how much faster can each of them be?
