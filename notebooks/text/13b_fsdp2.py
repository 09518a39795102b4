# ---
# jupyter:
#   course:
#     minutes: 80
#     quick:
#       parameters:
#         steps: 2
#       seconds: 60
#     seconds: 85
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
# - say what each part changes: what is kept, what is sent, or what is computed.
#
# **You need** *FSDP: the parameters, too* of lesson [13](13_beyond_ddp.ipynb); for *Checkpoints* δ of
# [11](11_fault_tolerance.ipynb) and DCP of [11b](11b_restart_one.ipynb). What lesson [14](14_make_it_faster.ipynb)
# teaches of autocast and `torch.compile` is said here in a few words.
#
# **Time.** About 80 minutes for you, 2 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json, os
from pathlib import Path

from course import plots
from lessons.l13_beyond_ddp import memory
from lessons.l13_beyond_ddp.tiny_transformer import SHAPE
from lessons.l13b_fsdp2 import check, compiled_graphs, shard_in_use, show

# %% tags=["parameters"]
steps = 4  # updates of each run
megabytes = 6  # of a rank, for the model that you make fit

# %% [markdown]
# ## Four ranks, five ways
#
# The transformer of lesson [13](13_beyond_ddp.ipynb) learns the letters of this repository's LICENSE, on four ranks
# with gloo: by one process alone, with FSDP2 as in 13, in 16 bits, with recomputed activations, and as HSDP. Each way
# starts from the same weights. Two ranks then load the checkpoint that the four have written.

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread a rank
# !rm -rf results/live/13b_dcp
# !torchrun --nproc_per_node=4 lessons/l13b_fsdp2/shard_in_use.py --steps {steps} \
#     --save results/live/13b_dcp --out results/live/13b_in_use.json
# !torchrun --nproc_per_node=2 lessons/l13b_fsdp2/shard_in_use.py --steps {steps} \
#     --load results/live/13b_dcp --out results/live/13b_loaded.json

# %% [markdown]
# ## 16 bits
#
# With a `MixedPrecisionPolicy` FSDP2 makes each rank's rows 16-bit (**bfloat16**) before it gathers them, and sums the
# gradients in 32 bits. (`ready` makes the optimizer, and `backward` as for DDP.)

# %%
lesson.code(shard_in_use.mixed)

# %% [markdown]
# **Predict.** FSDP2 gathers the weights twice a step and reduce-scatters the gradients once. Now the weights have 16
# bits. How many percent of its bytes does a rank still send?

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
# What is kept has 32 bits: parameters, gradients, Adam's averages. What is there *for a moment* has 16, and so have
# most activations. (With `torch.autocast` FSDP2 would gather 32-bit weights, and each operation would cast them. On an
# H100 [torchao](https://github.com/pytorch/ao/tree/main/torchao/float8) can gather 8-bit weights, too.)
#
# bfloat16 has 8 bits for the digits of a number, so each rounding may be off by 2⁻⁸, which is 0.4 %. The weights are
# off by more: Adam moves each weight by about its learning rate a step, however small the gradient. Where a gradient is
# near 0, rounding may change its sign.
#
# ## Recomputed activations
#
# `checkpoint_wrapper` around each block, and then `fully_shard` around that. (This *checkpoint* is no file: it is the
# point from which backward starts the block again.)

# %%
lesson.code(shard_in_use.recomputed)
lesson.table(show.beside(in_use, "recomputed"))
counted, predicted = show.recomputed(in_use, SHAPE)
lesson.verdict(f"Recomputing adds **{counted:.0%}** to the operations of a step; predicted: "
               f"{predicted:.0%}.")

# %% [markdown]
# All of forward once more would be a third, because backward has two products for each product of forward. But the
# output layer is not made again, and neither is the last product of a block, `down`: nothing in the block's backward
# needs its output.
#
# *Activations* are what forward keeps; *most tensors at one time* also has one block's activations, made again, and the
# gradients. Nothing more is sent: backward has gathered the block anyhow.
#
# ### Exercise 1: make it fit
#
# A rank has `limit` bytes, and the model needs more. You have three means: which modules get a `fully_shard` of their
# own, in which precision they compute, and which blocks are recomputed. Only the last gives a step more to compute.
# Write `my_fsdp(model, mesh, limit, kept)`:
#
# 1. **Choose** so that a step fits into `limit`, with as few blocks recomputed as you can. Parameters and Adam's
#    averages stay in 32 bits.
# 2. Share the model out on `mesh`, a line of `mesh.size()` ranks. `model.blocks` is a dict of blocks, all alike, named
#    "0", "1", …; `my_fsdp` may replace them.
# 3. Return the bytes that you **predict** for a rank at the worst moment of a step: parameters, gradients, Adam's
#    averages, weights that are whole for a moment, and activations. A sum that is off by a quarter will do.
#
# `kept` says how many bytes of activations stay for backward in 32 bits: `kept["block"]` in a block, `kept["input"]` in
# a recomputed block, `kept["head"]` behind the blocks. Do the sum first, for 0, 1, 2, … recomputed blocks.

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
# has not said "Right", ours trains in its place, and table and picture say *our*.

# %%
# !torchrun --nproc_per_node=2 lessons/l13b_fsdp2/fit.py --steps {steps} \
#     --choice {check.fit.trains} --limit {megabytes * 1e6} --out results/live/13b_fit.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
fitted = json.loads(Path("results/live/13b_fit.json").read_text())
lesson.table(show.costs(fitted))
plots.picture(show.fitted(fitted))

# %% [markdown]
# Measured is the most that lives at one time: shards, Adam's averages, and every tensor that a step makes, scratch
# memory of the operators, too. The prediction adds up parts that do not all live at the same moment: a block is made
# again when other blocks' activations are gone, and the gradients are complete only at the end. So it is a little high,
# which is the safe side.
#
# The *first* blocks are the ones to recompute. Backward comes to them last, when the activations of the others are
# gone.
#
# ## HSDP: a copy in each node
#
# `fully_shard` on a mesh of two dimensions is **HSDP**: it shares out along the second, and keeps a copy along the
# first. Take the ranks 0 and 1 as one node, 2 and 3 as another.

# %%
lesson.code(shard_in_use.hsdp)

# %% [markdown]
# **Predict.** Add up what all ranks send from node to node in a step. How many percent of FSDP2's bytes does HSDP send?

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
# With FSDP2 all that is sent goes between all ranks. With HSDP weights are gathered within a node. Between nodes only
# gradients are all-reduced, and of these only the rank's own shard. So slow links between nodes carry less; the price
# is memory, a whole model in each node. (Predicted: whole pieces of rows, n − 1 of n of which a rank sends in a ring.)
#
# ## Clipping, and what a DTensor is
#
# A **DTensor** (*distributed tensor*) is what `fully_shard` makes of a parameter. It has the shape of the whole and the
# values of its own shard, and knows the mesh and how it is cut. `to_local()` is this rank's shard; `full_tensor()`
# makes it whole on each rank, by a collective: **all** ranks must call it.
#
# To clip gradients, the norm of **all** of them is needed. These are the right way, and a mistake; the norms are those
# of the first step:

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
# ranks, not on rank 0 alone. With `clip_own_shards` no rank fails, and each divides by its own number: what comes out
# is no multiple of the gradient. (The squares of its four norms add up to the square of the right one. The optimizer is
# SGD here. Adam divides the length out again, so the mistake hides longer.)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
clip = in_use["clip"]["clip"]
lesson.verdict(f"For the norm each rank sends {clip['sent']:,} bytes, in {clip['calls']} "
               f"all-reduce of {clip['parameters']} numbers, one for each parameter. For "
               f"full_tensor() of all gradients it sends {clip['all_gathered']:,} bytes.")

# %% [markdown]
# ## Checkpoints
#
# `torch.distributed.checkpoint` (DCP, lesson [11b](11b_restart_one.ipynb)) has each rank write its shards. Four ranks
# trained and saved; two loaded, and trained on. They are compared with one process that never stopped.

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
# `async_save` returns as soon as it has copied the state. A thread writes the copy, and training goes on. What becomes
# of δ of lesson [11](11_fault_tolerance.ipynb), the time that a checkpoint takes from training, and of the best
# interval √(2 δ M)? A larger model is saved in both ways:

# %%
lesson.code(shard_in_use.save, shard_in_use.save_meanwhile)
between = 54 * 24 * 3600 / 419  # M of lesson 11: seconds between two failures of Llama 3's training
lesson.table(show.held_up(in_use, between))
lesson.verdict(show.meanwhile(in_use))

# %% [markdown]
# The checkpoint holds the weights of the moment of the call, whatever training does meanwhile.
#
# Ranks on a CPU share their cores with the threads that write. Where GPUs train, the CPU has more time to write.
#
# To be whole only later has a price, too: a failure before that goes back to the checkpoint before. On average that
# costs each failure as many seconds as a checkpoint takes to be whole after the return. The last column has them,
# beside lesson 11's shares of writing and of work made again.
#
# It is whole when `.result()` of what `async_save` returned has come. Until then do not start the next one, and do not
# delete the last. Its collectives need a group of their own (`process_group`), or they come between those of training.
#
# ## torch.compile
#
# `torch.compile` (lesson [14](14_make_it_faster.ipynb)) makes *graphs* of a model, each computed as one. But DDP sends
# a bucket as soon as its gradients are there. With one graph for all of backward they would all come at its end. So
# PyTorch cuts the graph at DDP's buckets (the *DDPOptimizer*).

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
# takes 1 MB, whatever you set.) Under FSDP2 the gathering stands between the blocks and is not compiled. The blocks are
# alike, so one graph serves them all; with `fullgraph=True`, which allows no cut, it is refused. Here the graphs
# are counted and not made into machine code, so no time is compared.
#
# ## What production uses
#
# *Optional reading.* Few people write these loops by hand. What each engine adds to what you know:
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
# older weights. DDP's updates are **synchronous**. (Lesson [10](10_launchers.ipynb) says what has become of RPC, which
# was made for this.)
#
# ## Where it goes
#
# *Optional reading.*
#
# | | what it is | source, as of |
# |:--|:--|:--|
# | torchtitan | PyTorch's own large trainings: FSDP2, TP, pipelines and context parallelism, composed | [Liang et al.](https://arxiv.org/abs/2410.06511), October 2024 |
# | torchft | of several copies (DDP, HSDP) a failed one drops out for some steps, and comes back; the others go on | version 0.2.0 runs in lesson [11b](11b_restart_one.ipynb) |
# | Monarch | one program steers all processes as *actors*, in place of one program a rank | [package](https://pypi.org/project/torchmonarch/0.8.0.dev20261021/), a pre-release of October 2026 |
# | torchcomms | another interface to collectives, with several backends | [its README](https://github.com/meta-pytorch/torchcomms), "experimental", read in November 2026 |
# | symmetric memory | GPUs read each other's memory, so that a kernel can compute and send at once | [manual](https://docs.pytorch.org/docs/2.14/symmetric_memory.html), "alpha", August 2026 |
#
# ## What to remember
#
# 1. 16 bits change what is sent and what is kept for a moment; recomputing changes what is kept; HSDP changes to
#    whom it is sent.
# 2. Wrap each block, compute in 16 bits, and recompute only as many blocks as still do not fit.
# 3. Norms, checkpoints and graphs belong to the whole model: let PyTorch put the shards together.
#
# **Next:** [14 · Make it faster](14_make_it_faster.ipynb). Before you add devices: how much faster is one of them?
