# ---
# jupyter:
#   course:
#     minutes: 100
#     quick:
#       parameters:
#         updates: 4
#         rates: 300mbit none
#         rounds: 1
#       seconds: 60
#     seconds: 240
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 · Shard what is kept
#
# **The question.** Under DDP every rank keeps the whole model, all gradients and the whole state of the optimizer. What
# if that does not fit? What can the ranks share, and what must they then send?
#
# **At its end** there are `mine/zero.py` and `mine/fsdp.py`. Under the same budget of memory, your program trains a
# model of twice as many blocks as DDP can.
#
# **You need** `reduce_scatter` and `all_gather` ([04](04_collectives.ipynb)), hooks and buckets ([06](06_ddp.ipynb)),
# and the dial and *faster* ([08](08_performance.ipynb)).
#
# **Time.** About 100 minutes for you, 4 for the machine. The second of two sittings begins with *MyFSDP*.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

from course import dial, one_process, plots, step_memory
from lessons.l13_shard_kept import check, show

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank: a process computes on one core

# %% tags=["parameters"]
updates = 150  # of the program, where its loss is compared
rates = "300mbit none"  # of the network, where strategies are timed
rounds = 12  # of each strategy

# %% [markdown]
# ## A budget
#
# From here to lesson 16 your program is `mine/train_gpt.py`: a small GPT that learns Python's manual, byte by byte.
# `--strategy NAME` imports `NAME.py`, which says how the ranks train one model together.
#
# A **GPT** turns each byte into a vector of 128 numbers (the *embedding*). Four equal **blocks** change the vectors. A
# block has *attention*, by which a byte takes something from the bytes before it, and an *MLP* of two matrices. At the
# end the *head* gives a score for each byte that may come next. The head's weight **is** the embedding's. A **crop** is
# a sequence of 64 bytes from the text.
#
# **The budget: 7 MB kept per rank.** *Kept* is what a rank holds between two updates: weights, gradients, the
# optimizer's state. The meter counts all tensors of torch, over the time of one update.

# %%
budget = 7e6  # bytes
meter = "torchrun --nproc_per_node=2 -m course.step_memory --out results/live"
# !{meter}/13_ddp mine/train_gpt.py --strategy ddp --parts ours
curves = {"DDP": step_memory.read("results/live/13_ddp")[0]}
print(f"DDP keeps {step_memory.kept(curves['DDP']) / 1e6:.1f} MB per rank")

# %% [markdown]
# The run breaks the budget. Each parameter takes 4 bytes for its value, 4 for its gradient, and 8 for the two averages
# that Adam keeps, all in float32. Two blocks in place of four would fit, and learn less.
#
# ## ZeRO-1: the optimizer's state
#
# All ranks make the same update with the same state. **ZeRO, stage 1**: rank r updates one N-th of the values, and
# keeps the state of these alone ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)).
#
# **Predict.** How many bytes does such an update send, in percent of DDP's?

# %%
my_sent = None  # percent

# %% [markdown]
# Write `MyZero`, an optimizer. There is no DDP around the model. After each backward all ranks call `step()`. Then all
# have the weights that one process has with the **mean** of the ranks' gradients.
#
# `reduce_scatter_single(piece, whole)` leaves in `piece` this rank's part of the sum of the ranks' `whole`.
# `all_gather_single(whole, piece)` collects the ranks' pieces. The check begins with an easy model, and makes it
# harder.

# %%
# %%mine zero.py
import torch
import torch.distributed as dist

from course.timing import all_gather_single, reduce_scatter_single


class MyZero(torch.optim.Optimizer):
    def __init__(self, parameters, make_optimizer):
        self.trained = list(parameters)
        super().__init__(self.trained, {})  # an Optimizer's zero_grad()
        raise NotImplementedError  # self.optimizer = make_optimizer([…]) for what this rank updates

    def step(self):
        raise NotImplementedError


def parallelize(model, make_optimizer):
    return model, MyZero(model.parameters(), make_optimizer)


# %%
check.zero("mine/zero.py")
# check.zero.hint()
# check.zero.solution()

# %% [markdown]
# The kernel counts the bytes of an update with DDP and with MyZero:

# %%
why = dial.missing()  # None where this machine has a dial
run, folder = ("echo recorded:", "results/recorded/lessons") if why else ("", "results/live")
count = f"{run} torchrun --nproc_per_node=2 -m course.dial --count {folder}/13_bytes_"
# !{count}ddp.json mine/train_gpt.py --strategy ddp --parts ours --updates 4 > results/live/13_count.txt
# !{count}zero.json mine/train_gpt.py --strategy zero --parts {check.zero.parts} --updates 4 > results/live/13_count.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
counted = show.sent({"DDP": f"{folder}/13_bytes_ddp.json",
                     f"MyZero ({check.zero.whose})": f"{folder}/13_bytes_zero.json"}, parameters=829_696)
lesson.table(counted)
lesson.predicted(my_sent, show.percent(f"{folder}/13_bytes_zero.json", f"{folder}/13_bytes_ddp.json"), "%",
                 what="bytes of MyZero")

# %% [markdown]
# A ring's all-reduce *is* a reduce-scatter, then an all-gather, and each of the two sends half of it. ZeRO-1 makes the
# update between the two. So with NCCL it sends as much as DDP, 100 %, and only the optimizer's state shrinks. Gloo's
# reduce-scatter sends as much as an all-reduce: that is the other half here.
#
# Does your program with it train what one process trains?

# %%
# The sizes are such that 3 ranks do not divide the parameters.
# !python -m course.one_process --ranks 2,3 mine/train_gpt.py --strategy zero --parts {check.zero.parts} \
#     --width 36 --layers 3 --batch 24 --context 16
# !{meter}/13_zero mine/train_gpt.py --strategy zero --parts {check.zero.parts}
curves["MyZero"] = step_memory.read("results/live/13_zero")[0]
print(f"MyZero ({check.zero.whose}) keeps {step_memory.kept(curves['MyZero']) / 1e6:.1f} MB per rank")

# %% [markdown]
# Less, and still more than the budget. PyTorch's own is `ZeroRedundancyOptimizer` (`--parts torch`). It deals out
# whole tensors, so its ranks keep unequal parts. **Here the first sitting ends.**
#
# ## MyFSDP: everything
#
# Why does a rank keep weights that it does not update? Because it computes with them. But it computes one block at a
# time. **Fully sharded** (ZeRO, stage 3): a rank keeps one N-th of all. What a block needs it gets when it needs it.
#
# The class has one `Unit` per block, and one for the rest of the model. A unit is a flat tensor, in whose memory its
# parameters lie, and this rank's `shard` of it. The optimizer gets the shards. You write the rest, in four steps.
#
# ### Step 1: gather and free
#
# A tensor and its views share one storage: `tensor.untyped_storage()`. Its `resize_(0)` gives the memory back, and the
# views keep their shapes. Write `free`, and `gather`: if the unit has no memory, it gets it back, and the all-gather
# **begins** (`async_op=True`). Nobody waits here. A collective takes no `nn.Parameter`, but its `detach()`. FSDP2 calls
# the two *reshard* and *unshard*.

# %%
# %%mine fsdp.py
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from course.timing import all_gather_single, reduce_scatter_single


class Unit:
    def __init__(self, parameters):
        self.parameters, self.ranks = list(parameters), dist.get_world_size()
        self.sizes = [each.numel() for each in self.parameters]
        self.flat = self.pack(self.parameters)
        self.shard = nn.Parameter(self.flat.chunk(self.ranks)[dist.get_rank()].clone())
        for each, values in zip(self.parameters, self.flat.split([*self.sizes, self.padding()]), strict=False):
            each.data = values.view_as(each)  # in the flat tensor's memory
        self.bytes, self.work = self.flat.nbytes, None
        self.free()

    def padding(self):
        return -sum(self.sizes) % self.ranks

    def pack(self, tensors):
        """One flat tensor of all values, and zeros at its end, so that the ranks divide its length."""
        return torch.cat([*(each.detach().flatten() for each in tensors), tensors[0].new_zeros(self.padding())])

    def gather(self):
        """Begin to make the parameters whole; self.work.wait() waits until they are."""
        raise NotImplementedError

    def free(self):
        raise NotImplementedError


class MyFSDP(nn.Module):
    def __init__(self, module, blocks):
        super().__init__()
        self.module, self.reducing = module, []
        inside = {each for block in blocks for each in block.parameters()}
        rest = [each for each in module.parameters() if each not in inside]
        self.units = [Unit(rest), *(Unit(block.parameters()) for block in blocks)]
        self.shards = [unit.shard for unit in self.units]
        for number, part in enumerate([module, *blocks]):
            part.register_forward_pre_hook(partial(self.before_forward, number))
            if number:  # unit 0 stays whole until its gradients have left
                part.register_forward_hook(partial(self.after_forward, number))
                part.register_full_backward_pre_hook(partial(self.before_backward, number))
            for each in self.units[number].parameters:
                each.register_post_accumulate_grad_hook(partial(self.arrived, number))

    def forward(self, *inputs):
        return self.module(*inputs)

    def whole(self):
        """{name: tensor}, all of the weights, on each rank; all ranks call it together."""
        for unit in self.units:
            unit.gather()
            unit.work.wait()
        weights = {name: value.clone() for name, value in self.module.state_dict().items()}
        for unit in self.units:
            unit.free()
        return weights

    def before_forward(self, number, *_):
        pass

    def after_forward(self, number, *_):
        pass

    def before_backward(self, number, *_):
        pass

    def arrived(self, number, parameter):
        pass

    def finish(self):
        pass


def parallelize(model, make_optimizer):
    parallel = MyFSDP(model, model.blocks)
    return parallel, make_optimizer(parallel.shards)


# %%
check.pieces("mine/fsdp.py")
# check.pieces.hint()
# check.pieces.solution()

# %% [markdown]
# ### Step 2: forward
#
# The hooks are registered: unit `number` calls `before_forward` and `after_forward`. Unit 0 has no
# `after_forward`: backward begins with the head, whose weight is unit 0's. A `gather()` only begins: wait before the
# unit computes.

# %%
# %%mine fsdp.py MyFSDP
def before_forward(self, number, *_):
    raise NotImplementedError


def after_forward(self, number, *_):
    raise NotImplementedError


# %%
check.in_forward("mine/fsdp.py")
# check.in_forward.hint()
# check.in_forward.solution()

# %% [markdown]
# ### Step 3: backward
#
# `arrived(number, parameter)` is called when a gradient of the unit is there. `finish()` comes after each backward of
# an update's last micro-batch, as in DDP. When it returns, each `unit.shard.grad` is this rank's part of the mean
# gradient, of all micro-batches since `zero_grad()`. A reduce-scatter may run while backward goes
# on: note it in `self.reducing`, and wait for it in `finish()`.

# %%
# %%mine fsdp.py MyFSDP
def before_backward(self, number, *_):
    raise NotImplementedError


def arrived(self, number, parameter):
    raise NotImplementedError


def finish(self):
    raise NotImplementedError


# %%
check.in_backward("mine/fsdp.py")
# check.in_backward.hint()
# check.in_backward.solution()

# %% [markdown]
# ### Step 4: prefetch one block ahead
#
# Each block now waits for its weights, and while it computes the network is idle. Change two methods.

# %%
# %%mine fsdp.py MyFSDP
def before_forward(self, number, *_):
    raise NotImplementedError


def before_backward(self, number, *_):
    raise NotImplementedError


# %%
check.ahead("mine/fsdp.py")
# check.ahead.hint()
# check.ahead.solution()

# %% [markdown]
# ### What does it save?
#
# Both of your classes train in turns, on a network of 300 Mbit/s and on one without a limit.
#
# **Predict.** On which of the two does gathering one block ahead save more milliseconds per update?

# %%
my_network = None  # "300mbit", "none" or "the same"

# %%
# !{run} torchrun --nproc_per_node=2 lessons/l13_shard_kept/ahead.py --rates {rates} --rounds {rounds} \
#     --out {folder}/13_ahead.json
ahead = json.loads(Path(f"{folder}/13_ahead.json").read_text())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.ahead(ahead)
lesson.figure("Medians. Orange: how much longer than an update that sends nothing: waiting, packing and copying."
              + (" Recorded." if why else ""))
lesson.predicted(my_network, show.saves_more(ahead), what="where one block ahead saves more")
lesson.table(show.claims(ahead))

# %% [markdown]
# At 300 Mbit/s a block's weights travel for about as long as a block computes: there is much to hide. Without a limit a
# gather is a copy in this machine's memory, made by the cores that compute: there is little to hide. And why is so much
# left at 300 Mbit/s? An update sends about twice the weights' bytes, as is counted below. They travel for longer than
# the update computes, so the best overlap cannot hide them all.
#
# The film of one update at 300 Mbit/s, with the gathers in their lanes:

# %%
# !{run} torchrun --nproc_per_node=2 -m course.dial --rate 300mbit -m doctor --steps 3:4 \
#     --film {folder}/13_film_3.json mine/train_gpt.py --parts ours --strategy lessons.l13_shard_kept.when_needed \
#     --updates 6 2> results/live/13_film_3.txt
# !{run} torchrun --nproc_per_node=2 -m course.dial --rate 300mbit -m doctor --steps 3:4 \
#     --film {folder}/13_film_4.json mine/train_gpt.py --strategy fsdp --parts {check.ahead.parts} --updates 6 \
#     2> results/live/13_film_4.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
plots.films({"When needed (ours)": f"{folder}/13_film_3.json",
             f"One block ahead ({check.ahead.whose})": f"{folder}/13_film_4.json"}, step=3)
lesson.figure("The fourth update. Above a rank waits for each all-gather, and its forward and backward have gaps. Below "
              "the next block's all-gather travels while this block computes, and most gaps close."
              + (" Recorded." if why else ""))

# %% [markdown]
# ## What a rank holds
#
# Is it one process's training, and does it keep the budget?

# %%
parts = check.ahead.parts
# !python -m course.one_process --ranks 2,3 mine/train_gpt.py --strategy fsdp --parts {parts} \
#     --width 36 --layers 3 --batch 24 --micro-batches 2 --context 16
# !{meter}/13_fsdp mine/train_gpt.py --strategy fsdp --parts {parts}
curves["MyFSDP"] = step_memory.read("results/live/13_fsdp")[0]
print(f"MyFSDP keeps {step_memory.kept(curves['MyFSDP']) / 1e6:.1f} MB per rank, the budget is {budget / 1e6:g}")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.kept(curves, parameters=829_696, ranks=2)
lesson.figure("The sum 4 + 4 + 8 bytes, and what each strategy shards on two ranks. Diamonds are what the meter counted.")
plots.memory(curves, budget)
lesson.figure("One update of four blocks. The mountain is activations: forward piles them up, backward uses them. "
              "Sharding lowers the ground that it stands on.")

# %% [markdown]
# The score is the loss on held-out text after the same number of tokens. Within 7 MB DDP has room for two blocks of
# this width.

# %%
# !{meter}/13_two mine/train_gpt.py --strategy ddp --parts ours --layers 2 > results/live/13_count.txt
two = step_memory.kept(step_memory.read("results/live/13_two")[0])
print(f"DDP with two blocks keeps {two / 1e6:.2f} MB per rank")
# !torchrun --nproc_per_node=2 mine/train_gpt.py --strategy ddp --parts ours --layers 2 --updates {updates} --report 50
# !torchrun --nproc_per_node=2 mine/train_gpt.py --strategy fsdp --parts {parts} --layers 4 --updates {updates} \
#     --report 50

# %% [markdown]
# ## `fully_shard`
#
# PyTorch's own takes the same places: `fully_shard(block)` for each block, then `fully_shard(model)`.

# %%
# !cat lessons/start/pytorch/fsdp.py
# !{run} torchrun --nproc_per_node=2 -m course.dial --count {folder}/13_bytes_torch.json mine/train_gpt.py \
#     --strategy fsdp --parts torch --updates 4 --report 2
# !{run} torchrun --nproc_per_node=2 -m course.dial --count {folder}/13_bytes_mine.json mine/train_gpt.py \
#     --strategy fsdp --parts {parts} --updates 4 --report 2
# !{run} torchrun --nproc_per_node=2 -m course.dial --count {folder}/13_bytes_bf16.json mine/train_gpt.py \
#     --strategy fsdp_bf16 --parts torch --updates 4 --report 2

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.sent({"MyFSDP": f"{folder}/13_bytes_mine.json",
                        "fully_shard": f"{folder}/13_bytes_torch.json",
                        "fully_shard, bf16": f"{folder}/13_bytes_bf16.json"}, parameters=829_696))

# %% [markdown]
# The losses of the first two agree, and they send the same bytes, but for some dozens. On two ranks a gather of S bytes
# sends S / 2 from each. Each block is gathered twice, the rest once: about one S. A ring's reduce-scatter sends S / 2.
# Gloo's sends as much as an all-reduce, S. So about 2 S are counted here, and NCCL sends about 1.5 S. DDP sends S.
#
# **bf16 mixed precision** is the third run: `MixedPrecisionPolicy(param_dtype=torch.bfloat16,
# reduce_dtype=torch.float32)`. Forward and backward compute in bf16. What is gathered has half of the bytes, and the
# sums of gradients stay in float32: many small values added up in bf16, which has 8 significant bits, would get lost.
#
# `fully_shard` adds: parameters that are **DTensors**, which know their mesh and how they are cut; a model that is made
# on the **meta device** and is never whole anywhere; and prefetching on GPU streams of its own
# (`set_modules_to_forward_prefetch`)
# ([manual](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)). Its time is not compared here: its
# streams are made for GPUs.
#
# ## Make it fit
#
# Now a budget on the **peak memory**: 24 MB at the worst moment. The mountain is activations. Two tools lower it.
#
# - **Micro-batches** (gradient accumulation): fewer crops at one time. Under FSDP each micro-batch gathers and reduces
#   everything again.
# - **Activation checkpointing**: a block keeps its input alone, and backward computes the rest once more.

# %%
from lessons.l13_shard_kept.fit import recompute

lesson.code(recompute)
# !torchrun --nproc_per_node=2 lessons/l13_shard_kept/fit.py --budget 24 --out results/live/13_fit.json

# %% [markdown]
# Without either, the most is the mountain that you have seen. Choose the number of micro-batches (1, 2 or 4) and of
# recomputed blocks (0 to 4), so that it fits, and that neither could be smaller.

# %%
def my_choice():
    raise NotImplementedError  # return micro-batches, recomputed blocks


# %%
check.fit(my_choice)
# check.fit.hint()
# check.fit.solution()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
choice, whose = check.fit.or_ours(my_choice)
show.choices(json.loads(Path("results/live/13_fit.json").read_text()), choice())
lesson.figure(f"Measured with MyFSDP. The ring is {whose} choice.")

# %% [markdown]
# Recomputing the last block as well changes the peak hardly at all. Backward begins with it, so its activations must be
# there at that moment in any case, kept or recomputed.
#
# ## Clip a gradient that nobody has
#
# `--clip 0.1` shortens a gradient that is longer than 0.1. Each rank has a part of it. This strategy clips by the norm
# of what the rank has:

# %%
from lessons.l13_shard_kept.solution import OwnNorm

lesson.code(OwnNorm.clip)
small = "--parts ours --width 36 --layers 3 --batch 24 --context 16 --clip 0.1"
print(one_process.compare("mine/train_gpt.py", f"{small} --strategy lessons.l13_shard_kept.own_norm".split(), [2])[1])


# %% [markdown]
# No rank fails, and it is another training. Write it right, in `MyFSDP`: with the same factor, `1e-6` included, as one
# process's `clip_grad_norm_` has it. That function does it itself where gradients are DTensors.

# %%
# %%mine fsdp.py MyFSDP
def clip(self, max_norm):
    """Shorten the gradient of the whole model to that norm."""
    raise NotImplementedError


# %%
check.clip("mine/fsdp.py")
# check.clip.hint()
# check.clip.solution()

# %%
# !python -m course.one_process --ranks 2,3 mine/train_gpt.py --strategy fsdp --parts {check.clip.parts} \
#     --width 36 --layers 3 --batch 24 --context 16 --clip 0.1

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Weights, gradients and Adam's averages take 4 + 4 + 8 bytes per parameter. ZeRO-1 shards the last, FSDP all.
# 2. FSDP: gather, compute, free; gather again, compute, reduce-scatter, free. One block ahead hides the gathers behind
#    computing, where messages take time.
# 3. What is kept and what is held at most are two budgets. Sharding lowers the first; micro-batches and activation
#    checkpointing lower the second.
#
# **Next:** [14 · Shard what is computed](14_shard_computed.ipynb). A block itself is cut into pieces.
