# ---
# jupyter:
#   course:
#     minutes: 100
#     quick:
#       parameters:
#         images: 1152
#         epochs: 1
#       seconds: 50
#     seconds: 75
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Traps and capstone
#
# **The question.** A mistake in data-parallel training seldom raises an error. How do you notice it, find it and repair
# it?
#
# **What you will have at the end**
#
# - three broken versions of your program, repaired;
# - the last two parts of your program, `backward.py` and `save.py`: no line that matters is the course's any more;
# - a training script for one process, turned into DDP by you and shown to train the same.
#
# **You need** your program with its parts from lessons [03](03_processes_and_ranks.ipynb) to [06](06_ddp.ipynb). The
# course's parts stand in for those that you have not written.
#
# **Time.** About 100 minutes for you, 2 for the machine. It is two sittings: the traps and the last two parts (55
# minutes), then the capstone (45).

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

import torch

from course import dial, plots
from course.one_process import compare
from lessons.l07_traps import capstone, check, show
from trainer import data

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank

# %% tags=["parameters"]
ranks = [2, 3]  # of trap 3
images, epochs = 3072, 2  # of the runs of your program at the end

# %% [markdown]
# ## Two questions
#
# Ask two questions of any data-parallel program.
#
# 1. **Are the ranks one model?** The weights are the same on all ranks, after every update.
# 2. **Is it the model of one process?** One process that takes the whole batch computes the same weights.
#
# `course.one_process` answers both. It runs a program in one process and on several ranks, in float64, and names the
# first update in which they part. In float32, rounding alone would part them sooner or later.
#
# The next cell plants three traps: three copies of your program, each with one mistake that somebody made in good
# faith. Each trains to its end. Do not compare them with `train.py`: your own scripts will have no twin to be compared
# with.

# %%
# !python lessons/l07_traps/plant.py

# %% [markdown]
# ## Trap 1
#
# ### Notice
#
# The exit status is 1 where an answer is "no". `|| true` lets the notebook go on.

# %%
# !python -m course.one_process --ranks 2 mine/trap_1.py --images 1152 --epochs 1 || true

# %% [markdown]
# The ranks are not one model, and the answer names the update in which they part. It also says whether the gradients
# agreed by then.
#
# ### Locate
#
# A film records every rank: what it computes, its messages, its loss, and a digest of weights and gradients per step.
# Steps are counted from 0, and updates from 1: update 2 is step 1. `torchrun` reports at length that the program has failed, so its messages go to a file.

# %%
# !torchrun --nproc_per_node=2 -m doctor --film results/live/07_trap_1.json --steps 6 \
#     mine/trap_1.py --images 1152 --epochs 1 2> results/live/07_trap_1.txt || true
film = json.loads(Path("results/live/07_trap_1.json").read_text())["film"]
print(*film["verdicts"], sep="\n")
lesson.table(show.step_by_step(film))

# %% [markdown]
# Look at the first step after which the weights differ. The gradients are the same there, so every message arrived and
# `MyDDP` did its work. Then each rank made its update. What did the ranks know that they did not share? Compare the two
# losses with those of the step before.
#
# ### Repair
#
# Open `mine/trap_1.py` in JupyterLab's file browser, repair it and save it. On one process the program does what its
# author wanted. Keep that, and let its ranks do the same.

# %%
capstone.trap_1("mine/trap_1.py")
# capstone.trap_1.hint()
# capstone.trap_1.solution()

# %% [markdown]
# ## Trap 2

# %%
# !python -m course.one_process --ranks 2 mine/trap_2.py --images 1152 --epochs 1 || true

# %% [markdown]
# One model, and not that of one process. `train.py` compares the ranks' weights at its end, so it says nothing about
# this trap.
#
# The answer tells where to look.
#
# | they part | look at |
# |:--|:--|
# | before the first update | how the first weights are made and sent |
# | the gradient is longer or shorter, in the same direction | a sum in place of a mean, a mean taken twice |
# | the gradient points elsewhere | which images an update takes, and how much each counts in the mean |
# | the gradients agree, the weights differ | the optimizer: its learning rate, its clipping, whether it steps |
#
# Repair `mine/trap_2.py`.

# %%
capstone.trap_2("mine/trap_2.py")
# capstone.trap_2.hint()
# capstone.trap_2.solution()

# %% [markdown]
# ## Trap 3
#
# Here we ask from Python, and let the programs run to their ends to see what they print.

# %%
answers = compare("mine/trap_3.py", ["--images", 1152, "--epochs", 1], ranks=ranks, to_end=True)
for answer in answers:
    print(answer)
    print(*[line for line in answer.printed.splitlines() if line.startswith("epoch")])

# %% [markdown]
# All answers are yes, on every number of ranks: the weights are right. So a third question is needed. **Does the program
# print what one process prints?** Compare the lines above, and repair `mine/trap_3.py`.

# %%
capstone.trap_3("mine/trap_3.py")
# capstone.trap_3.hint()
# capstone.trap_3.solution()

# %% [markdown]
# ## Micro-batches
#
# A rank's share of a batch may not fit in its memory. So it takes the share in parts, the *micro-batches*, one after
# another. `backward()` adds to `.grad`, and one update follows all of them. This is *gradient accumulation*.
#
# DDP sends gradients in every `backward()`. Inside `with parallel.no_sync():` it sends none, and the gradients only add
# up on their rank.
#
# ### Exercise: `backward.py`
#
# Write the part that `train.py` calls in every update.
#
# - `parallel` is the wrapped model, and `loss_function(outputs, labels)` is the mean over its rows.
# - `images` and `labels` are this rank's share, and `micro_batches` is the number of parts.
# - Leave the gradient of the whole batch in the parameters, and return the mean loss of the share, a tensor.
# - No forward gets more than one part, and a batch costs no more messages than without micro-batches.

# %%
# %%mine backward.py
import torch


def backward(parallel, loss_function, images, labels, micro_batches):
    raise NotImplementedError


# %%
check.backward("mine/backward.py")
# check.backward.hint()
# check.backward.solution()

# %% [markdown]
# Now your program runs with four micro-batches, over connections of 150 Mbit/s, and is filmed.

# %%
slow = "" if dial.missing() else "-m course.dial --rate 150mbit"
# !torchrun --nproc_per_node=2 {slow} -m doctor --film results/live/07_micro_batches.json --steps 2:4 \
#     mine/train.py --images 768 --epochs 1 --micro-batches 4 2> results/live/07_micro_batches.txt
plots.lanes("results/live/07_micro_batches.json", range(3, 4))
lesson.figure("One update of four micro-batches: four times forward and backward on each rank, and messages during the "
              "last backward alone.")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
film = json.loads(Path("results/live/07_micro_batches.json").read_text())["film"]
of_step = [each for each in film["messages"] if each["rank"] == 0 and each["step"] == 3]
backwards = [each for each in film["spans"] if (each["rank"], each["step"], each["name"]) == (0, 3, "backward")]
lesson.table([{"in one update of rank 0": "backward passes", "number": len(backwards)},
              {"in one update of rank 0": "messages, one per bucket", "number": len(of_step)},
              {"in one update of rank 0": "messages, if each backward sent", "number": len(backwards) * len(of_step)}])
if reason := dial.missing():
    print("Without a limit on the connections:", reason)

# %% [markdown]
# ## A file that any program can load
#
# A wrapper changes the names of the weights. `MyDDP`, like PyTorch's, holds the model as `self.module`:

# %%
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
wrapped = torch.nn.ModuleDict({"module": model})  # as DDP(model) holds it
print("the model:  ", *model.state_dict())
print("the wrapper:", *wrapped.state_dict())

# %% [markdown]
# ### Exercise: `save.py`
#
# `save(parallel, file)` is called on all ranks, and also in a process that runs alone. Write the weights to `file`, so
# that a program without a wrapper can load them.

# %%
# %%mine save.py
import torch


def save(parallel, file):
    raise NotImplementedError


# %%
check.save("mine/save.py")
# check.save.hint()
# check.save.solution()

# %% [markdown]
# **A good place for a break.** The second sitting is the capstone.
#
# ## Capstone: your own DDP program
#
# `examples/minimal.py` trains a small network in one process. Nothing of it is hidden:

# %%
# !cat examples/minimal.py

# %% [markdown]
# **The task.** Make of it a program that `torchrun` can start as 1, 2, 3 or more ranks, with
# `DistributedDataParallel`.
#
# - **The same training.** On any number of ranks the weights are those of your program on one rank: `BATCH` images per
#   update of all ranks together, the same learning rate, a new order in every epoch. The order may differ from that of
#   `minimal.py`.
# - **True metrics.** One line per epoch, as `minimal.py` prints it: the loss of all training images, and the accuracy
#   over all test images, each counted once.
# - **One file**, `SAVE`, which the model of `minimal.py` can load.
# - **One GPU per rank**, where there are any.
#
# Leave the images, the network and `EPOCHS` as they are. The next cell copies `minimal.py` to `mine/capstone.py`, and
# never writes over yours. Open that file from JupyterLab's file browser, change it and save it. One solution is
# `examples/minimal_ddp.py`. Compare it with yours afterwards.

# %%
# !test -e mine/capstone.py || cp examples/minimal.py mine/capstone.py

# %% [markdown]
# To start it yourself, take away the first `# `. With all of MNIST it takes some minutes, and writes `minimal.pt` in this
# folder. Before you change anything, two ranks print two lines per epoch. Why?

# %%
# # !torchrun --nproc_per_node=2 mine/capstone.py --data {data.FOLDER}

# %% [markdown]
# The check runs your file on 1, 2 and 3 ranks, with 210 training images and 23 test images, and asks the three
# questions of this lesson. It tells you the first thing that is not right yet. Where ranks wait for each other, the
# doctor names the lines: `torchrun --nproc_per_node=2 -m doctor mine/capstone.py`.

# %%
capstone.program("mine/capstone.py")
# capstone.program.hint()
# capstone.program.solution()

# %% [markdown]
# ## Your program, and PyTorch's parts
#
# Your program once more, with all its parts and four micro-batches. Then PyTorch's own parts take their places:
# `DistributedDataParallel`, `DistributedSampler`, `dist.all_reduce`.

# %%
# !torchrun --nproc_per_node=2 mine/train.py --images {images} --epochs {epochs} --micro-batches 4 \
#     --save results/live/07_weights.pt
# !torchrun --nproc_per_node=2 mine/train.py --images {images} --epochs {epochs} --micro-batches 4 --parts torch
print("in the file:", *torch.load("results/live/07_weights.pt", weights_only=True))

# %% [markdown]
# The first line of each run says whose parts it has. The losses agree, with one round of messages per update in place
# of four.
#
# ## The same program, hardened
#
# `main.py` is what practitioners copy. It does what your program does, and defends itself. Read it from top to bottom
# now; this table says where you know it from.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.same_program())

# %% [markdown]
# <details><summary><b>For reference: other traps</b></summary>
#
# | trap | which question notices it | what to do |
# |:--|:--|:--|
# | [forward of `ddp.module`](../gallery/ddp_module.py), not of `ddp` | one model? | call the wrapper in training |
# | [`.double()` or `.to()` after wrapping](../lessons/l07_traps/cards/converted_late.py) | one model? | wrap last; only `torch.compile` comes later |
# | [a layer replaced](../gallery/replaced_head.py), or [frozen](../gallery/frozen_late.py), after wrapping | one model? | the same: wrap last |
# | [a parameter without gradient](../gallery/unused_parameter.py) | an error, one step late | remove it, or `find_unused_parameters=True`, which [costs time](https://docs.pytorch.org/docs/stable/notes/ddp.html) |
# | [gradients clipped before the mean](../gallery/clip_early.py) | that of one process? | clip what has been averaged |
# | loss with `reduction="sum"` | that of one process? | divide by the images of one rank; DDP takes the mean over ranks |
# | [BatchNorm](../gallery/batchnorm.py) sees one rank's images | that of one process? | on GPUs `nn.SyncBatchNorm.convert_sync_batchnorm(model)`, before DDP: two more messages per layer |
# | dropout draws [the same places](../gallery/same_seed.py) on all ranks | none: dropout is never that of one process | `torch.manual_seed(seed + rank)`, after the model is made |
# | [rank 0's loss](../gallery/rank_0_loss.py) printed as that of all | the printed numbers | add up sums and counts, then divide |
# | a file with [`module.`](../gallery/module_prefix.py) or [`_orig_mod.`](../gallery/compiled_prefix.py) | at loading | `consume_prefix_in_state_dict_if_present(state, "module.")` of `torch.nn.modules.utils` |
# | a file from GPU 0 [fills GPU 0](../gallery/map_location.py) | `nvidia-smi` | `torch.load(file, map_location="cpu")` |
#
# **Uneven inputs.** If one rank has more batches than the others, its `backward()` waits for their all-reduces until the
# timeout. Or it meets the first `backward()` of their next epoch: then nothing waits, and the ranks are one step apart.
# There are three repairs.
#
# - *Pad or drop*, as `DistributedSampler` does. With momentum or Adam take one of these.
# - [`Join`](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html): within `with Join([ddp_model]):` a
#   rank without images answers DDP's all-reduces with zeros, and each image counts once. It answers no `all_reduce` of
#   your own. Such a rank makes no optimizer step, so its momentum differs from then on.
# - *Weight by images*, where batches differ in size: all-reduce the count, then call `backward()` on the sum of the
#   losses × world size / count. DDP divides by the world size.
#
# DDP sends rank 0's buffers, such as BatchNorm's running means, to all ranks before each forward
# (`forward_sync_buffers`, before PyTorch 2.13 `broadcast_buffers`). With a GPU for each rank say
# `device_ids=[local_rank]`: then DDP refuses a model that is still on the CPU. A rank of DDP holds the whole model, its
# gradients and its optimizer's state, however many ranks there are: lesson [13](13_shard_kept.ipynb) shards them. To
# continue a training a file must hold more than weights: lesson [11](11_fault_tolerance.ipynb).
#
# </details>
#
# ## What to remember
#
# 1. Ask three questions of a data-parallel program. Are the ranks one model? Is it that of one process? Does it print
#    what one process prints?
# 2. Whatever decides over an update must be the same on all ranks, and a mean over ranks is right only over equal
#    counts.
# 3. `no_sync` stands around forward and backward of every micro-batch but the last. One rank saves the inner model.
#
# **Next:** [08 · Performance](08_performance.ipynb): what your ranks gain, and what limits them.
