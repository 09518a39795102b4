# ---
# jupyter:
#   course:
#     minutes: 75
#     quick:
#       parameters:
#         rounds: 1
#         updates: 3
#         rates: 100mbit none
#         tokens: 5120
#         seeds: "0"
#         strategies: ddp pipe
#       seconds: 60
#     seconds: 410
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Shard what is computed
#
# **The question.** A batch has fewer crops than there are ranks, and one rank cannot hold what it computes. How do
# several ranks compute *one* crop?
#
# **At its end** there are `mine/tensor.py`, tensor parallelism with its backward, and `mine/pipe.py`, a pipeline in the
# order 1F1B. Both train what one process trains. A model trains under a budget of memory that one process breaks.
#
# **You need** collectives ([04](04_collectives.ipynb)), DDP ([06](06_ddp.ipynb)), and what FSDP shards
# ([13](13_shard_kept.ipynb)).
#
# **Time.** About 75 minutes for you, 7 for the machine. Before *Pipeline* is a good place for a break.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json
import os
from pathlib import Path

from course import dial, one_process
from lessons.l14_shard_computed import check, schedule, show
from lessons.start.ours.gpipe import my_order as gpipe_order

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank: a process computes on one core

# %% tags=["parameters"]
rounds = 12  # of each strategy that is timed
updates = 6  # of each training that is compared with one process
rates = "100mbit 1gbit none"  # of the network, where DDP and tensor parallelism are timed
tokens = 51200  # that the model under the budget learns from
seeds = "0 1 2"  # of its first weights and its crops
strategies = "ddp fsdp_tp tensor gpipe pipe"  # whose memory is measured

# %% [markdown]
# ## The budget
#
# A rank may hold **32 MB** of tensors, at the worst moment of an update. The batch has 2 crops of 256 bytes. There are
# four ranks. Your score is the val loss after the same number of tokens, the median of three seeds. A wider model may
# learn more from them, and needs more memory. So: how wide can it be?

# %%
BUDGET = 32  # MB per rank, at the worst moment of an update
task = "--batch 2 --context 256"

# %%
# !torchrun --nproc_per_node=4 mine/train_gpt.py --strategy ddp {task} 2>&1 | grep -m 1 multiple
# !python -m course.step_memory --out results/live/14_alone mine/train_gpt.py {task} --width 256 \
#     > results/live/14_memory.txt

# %%
print(f"one process, width 256: {show.largest('results/live/14_alone'):.1f} MB, and the budget is {BUDGET} MB")

# %% [markdown]
# DDP, and FSDP as well, give each rank crops of its own. Two crops make at most two shares: data parallelism can use
# two of the four ranks. What is left is the computation of a crop.
#
# ## Tensor parallelism: an MLP on all ranks
#
# A block's MLP is `down(gelu(up(x)))`, two matrices without bias. All ranks get the same x. Each rank holds its share
# of **both** matrices, and multiplies by it. **One** all-reduce makes the output whole ([Shoeybi et al.
# 2019](https://arxiv.org/abs/1909.08053)).
#
# Write two layers. `Column(whole)` takes the place of `up`, and `Row(whole)` that of `down`: each keeps its piece of
# the weight of `whole`, an `nn.Linear`. PyTorch's weight is [outputs, inputs]. `Copy` and `Sum` are a pair of
# `torch.autograd.Function`: forward and backward of an operation, which autograd then uses. Write `Sum.forward`, too;
# both backward stay as they are for now. `group` says between which ranks; `None` are all.

# %%
# %%mine tensor.py
import torch
import torch.distributed as dist
from tensor_parallel import TensorParallel
from torch import nn
from torch.nn.functional import linear


class Copy(torch.autograd.Function):
    """x, the same on all ranks, goes into a product with this rank's piece of a weight."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group  # kept for backward
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None  # of x, and of group


class Sum(torch.autograd.Function):
    """x is this rank's part of a sum, which then is the same on all ranks."""

    @staticmethod
    def forward(ctx, x, group):
        raise NotImplementedError

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Column(nn.Module):
    def __init__(self, whole, group=None):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(...)  # this rank's piece of whole.weight

    def forward(self, x):
        return linear(Copy.apply(x, self.group), self.weight)


class Row(nn.Module):
    def __init__(self, whole, group=None):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(...)

    def forward(self, x):
        return Sum.apply(linear(x, self.weight), self.group)


def parallelize(model, make_optimizer):
    parallel = TensorParallel(model, Column, Row)
    return parallel, make_optimizer(parallel.parameters())


# %%
check.layers("mine/tensor.py")
# check.layers.hint()
# check.layers.solution()

# %% [markdown]
# `TensorParallel`, the course's, puts your layers into each block and gathers the pieces at the end. Attention, norms
# and embeddings stay whole, and every rank computes the same with them: this lesson cuts the MLPs alone.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.block()
lesson.figure("x·A can be cut by the columns of A, and gelu takes each value for itself. The product with B is then cut "
              "by rows, where only a part of a sum comes out. PyTorch keeps a weight transposed: columns in the formula "
              "are rows of its tensor.")

# %% [markdown]
# ### Does it train?
#
# The forward is right. The program trains with your two layers, and both backward hand the gradient on as it comes.
#
# **Predict.** Does the loss fall? Are the ranks one model, and is it the model of one process?

# %%
my_falls = None  # "yes" or "no"
my_equal = None  # "yes" or "no"

# %%
first = check.first_program()
small = "--width 32 --layers 2 --context 16 --batch 8"
# !torchrun --nproc_per_node=2 {first} --strategy tensor {small} --updates 60 2>&1 | tee results/live/14_first.txt \
#     | grep -o -e "^update.*" -e "The ranks are not one model"
[_, forward_only] = one_process.compare(first, f"--strategy tensor {small}".split(), [2], updates)
print(forward_only)
lesson.predicted(my_falls, show.falls("results/live/14_first.txt"), what="the loss falls")
lesson.predicted(my_equal, "yes" if forward_only.equal else "no", what="equal to one process")


# %% [markdown]
# The loss falls, and no operation failed. Only at its end does the program notice that the ranks are not one model. The
# comparison names the first update and the parameter in which they part. That is why a strategy is judged by this
# comparison, and not by its loss.
#
# ### The backward
#
# What is each rank's gradient after `loss.backward()`, and what should it be? Write both `backward`, so that each
# parameter has the gradient that it has in one process. The two returned values are the gradients of x and of group.

# %%
# %%mine tensor.py Copy
@staticmethod
def backward(ctx, gradient):
    raise NotImplementedError


# %%
# %%mine tensor.py Sum
@staticmethod
def backward(ctx, gradient):
    raise NotImplementedError


# %%
check.pair("mine/tensor.py")
# check.pair.hint()
# check.pair.solution()

# %% [markdown]
# Copy and Sum are each other's backward: Megatron-LM calls the pair *f* and *g*. Forward copies where backward adds up,
# and the other way round.

# %%
print("whose tensor.py:", check.pair.whose)
# !python -m course.one_process --ranks 2,4 --updates {updates} \
#     mine/train_gpt.py --strategy tensor --parts {check.pair.parts} {small}

# %% [markdown]
# The MLP must have pieces of one size. On three ranks:

# %%
# !torchrun --nproc_per_node=3 mine/train_gpt.py --strategy tensor --parts ours 2>&1 | grep -o 'An MLP[^:]*' | head -1

# %% [markdown]
# ### PyTorch's own
#
# `parallelize_module` replaces a layer's weight by a `DTensor`, and knows the same pair:

# %%
# !grep -v '^"""' lessons/start/pytorch/tensor.py | sed -n '/^def/,$p'
# !torchrun --nproc_per_node=2 mine/train_gpt.py --strategy tensor --parts {check.pair.parts} {small} --report 60
# !torchrun --nproc_per_node=2 mine/train_gpt.py --strategy tensor --parts torch {small} --report 60

# %% [markdown]
# The losses are the same. One trap: each `ColwiseParallel` adds up the gradient of its own input. Where attention has
# three layers for queries, keys and values, that makes three all-reduces of one gradient, unless `PrepareModuleInput`
# converts their common input once. Here `up` alone reads its input, and there is one.
#
# ## Which of the two sends less?
#
# Per update DDP sends gradients. Tensor parallelism sends activations. Both train on two ranks, with 4 crops per update
# and with 48.
#
# **Predict.** On a network of 100 Mbit/s, which is faster with 4 crops per update? And with 48?

# %%
my_few, my_many = None, None  # "TP", "DDP" or "no significant difference"

# %%
why = dial.missing()  # None where this machine has a dial, else a line that says why not
run, folder = ("echo recorded:", "results/recorded/lessons") if why else ("", "results/live")
parts = check.pair.parts
count = f"{run} torchrun --nproc_per_node=2 -m course.dial --rate 1gbit --count {folder}/14"
gpt = f"mine/train_gpt.py --parts {parts} --updates 3"
# !for how in ddp tensor; do for many in 4 48; do \
#     {count}-$$how-$$many.json {gpt} --strategy $$how --batch $$many > results/live/14_count.txt || exit 1; done; done

# %% jupyter={"source_hidden": true} tags=["hide-input"]
counts = {f"{show.NAMES[way]}, {crops} crops": json.loads(Path(f"{folder}/14-{way}-{crops}.json").read_text())
          for crops in (4, 48) for way in ("ddp", "tensor")}
lesson.table(show.sent(counts))

# %%
race = f"{run} torchrun --nproc_per_node=2 lessons/l14_shard_computed/race.py --strategies ddp tensor --parts {parts}"
# !{race} --batch 4 --rates {rates} --rounds {rounds} --out {folder}/14_few.json
# !{race} --batch 48 --rates {rates} --rounds {rounds} --updates 1 --out {folder}/14_many.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
races = {title: json.loads(Path(f"{folder}/{name}.json").read_text())
         for title, name in (("4 crops per update", "14_few"), ("48 crops per update", "14_many"))}
show.races(races)
lesson.figure("Medians of interleaved rounds on two ranks." + (" Recorded." if why else ""))
lesson.table(show.claims(races))
lesson.predicted(my_few, show.winner(races["4 crops per update"], "100mbit"), what="faster with 4 crops")
lesson.predicted(my_many, show.winner(races["48 crops per update"], "100mbit"), what="faster with 48 crops")

# %% [markdown]
# DDP sends as many bytes as the model has parameters, however many tokens there are. Tensor parallelism sends tokens
# times width values, twice per block, however many hidden values the MLP has. With few tokens it sends less and is
# faster, with many DDP is. At 100 Mbit/s the bytes decide. Without a limit a message must still be copied, and it
# counts what else is divided: DDP divides all multiplications, and here tensor parallelism those of the MLPs alone,
# with two collectives per block for which all ranks wait.
#
# So tensor parallelism belongs on the fastest links, inside a node. It is used where a layer, or a batch of one crop
# per rank, is too large for a device.
#
# **A good place for a break.**
#
# ## Pipeline: the layers
#
# Rank 0 has the first blocks, the last rank the last ones. To keep all of them busy, the batch is cut into
# **micro-batches**. GPipe ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)) runs all forwards, then all
# backwards. Meanwhile each rank keeps the activations of all micro-batches.
#
# Write `my_order(rank, ranks, micro_batches)`: the order of this rank's work, a list of `("forward", i)` and
# `("backward", i)`, each once for each micro-batch i, numbered from 0. A forward needs the activations of the rank
# before, a backward the gradient of the next rank. The last rank has the loss, and needs only its own forward.
#
# An update must take no longer than GPipe's, and each rank must keep as few micro-batches as that permits.

# %%
# %%mine pipe.py
from pipeline import Pipeline


def my_order(rank, ranks, micro_batches):
    raise NotImplementedError


def parallelize(model, make_optimizer):
    parallel = Pipeline(model, my_order)
    return parallel, make_optimizer(parallel.parameters())


# %%
check.order("mine/pipe.py")
# check.order.hint()
# check.order.solution()

# %% [markdown]
# ### Your order runs
#
# This order is **1F1B**: one forward, one backward ([Narayanan et al. 2021](https://arxiv.org/abs/2006.09503)).
# `Pipeline`, the course's, works through the list with `isend` and `recv`. The embedding's weight is also the head's
# ([16](16_language_model.ipynb)): rank 0 has it, and the last rank, so the two add up its gradient.

# %%
order, whose = check.order.or_ours("mine/pipe.py")
pipe_parts = check.order.parts
# !python -m course.one_process --ranks 2,3 --updates {updates} mine/train_gpt.py --strategy pipe --parts {pipe_parts} \
#     {small} --layers 5 --micro-batches 4
# !torchrun --nproc_per_node=2 mine/train_gpt.py --strategy pipe --parts {pipe_parts} {small} --micro-batches 4 --report 60
# !torchrun --nproc_per_node=2 mine/train_gpt.py --strategy pipe --parts torch {small} --micro-batches 4 --report 60

# %% [markdown]
# The last line is PyTorch's `Schedule1F1B`: the same loss. And how long does an update take, beside GPipe's?
#
# **Predict.** Two ranks, eight micro-batches; each forward and each backward takes equally long, and sending takes
# nothing. What share of the time does a rank wait? This waiting is called the **bubble**.

# %%
my_bubble = None  # percent

# %%
pipes = "--strategies gpipe pipe --batch 32 --micro-batches 8 --updates 1"
race = f"torchrun --nproc_per_node=2 lessons/l14_shard_computed/race.py {pipes} --parts {pipe_parts} --rounds {rounds}"
# !{race} --draw --out results/live/14_kept.json
# !env -u MALLOC_TRIM_THRESHOLD_ -u MALLOC_MMAP_MAX_ {race} --out results/live/14_given_back.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
pipes = {title: json.loads(Path(f"results/live/14_{name}.json").read_text())
         for title, name in (("kept for the next update", "kept"), ("given back to the system", "given_back"))}
events = pipes["kept for the next update"]["events"]
computed = {name: schedule.computed([each(rank, 4, 8) for rank in range(4)])
            for name, each in (("gpipe", gpipe_order), ("pipe", order))}
show.schedules({
    "GPipe, four ranks: computed": (computed["gpipe"], "time, in forwards of a micro-batch"),
    "GPipe, two ranks: measured": (events["gpipe"], "milliseconds"),
    f"1F1B ({whose} order), four ranks: computed": (computed["pipe"], "time, in forwards of a micro-batch"),
    f"1F1B ({whose} order), two ranks: measured": (events["pipe"], "milliseconds")})
lesson.figure("A number is a micro-batch, a gap is the bubble. The two schedules have the same bubble. 1F1B begins with "
              "the backwards early, so few micro-batches wait for theirs.")
bubble = schedule.waiting(schedule.computed([order(rank, 2, 8) for rank in range(2)]))[1]
lesson.predicted(my_bubble, 100 * bubble, "%", what="the bubble")
lesson.table(show.causes(pipes))

# %% [markdown]
# With p ranks and m micro-batches the bubble is (p − 1) / (m + p − 1), for both. More micro-batches make it smaller.
#
# The formula has no difference between the two, and yet GPipe takes longer here, with more CPU time. CPU time does not
# count waiting, so the cause is not the bubble. Nor is it page faults, which fresh memory costs: in the first row the C
# library keeps memory, and there are hardly any; in the second it gives memory back, and the ratio stays. We have not
# found the cause.
#
# ## What do they save?
#
# All strategies train the same model on the same 32 crops per update in the same **8 micro-batches**, on four ranks.
#
# **Predict.** Which one holds the least at the worst moment *above* what it keeps between two updates?

# %%
my_least = None  # "DDP", "FSDP × TP", "TP", "GPipe" or "1F1B"

# %%
meter = "torchrun --nproc_per_node=4 -m course.step_memory --out"
same = "mine/train_gpt.py --batch 32 --micro-batches 8"
whose_part = {"tensor": parts, "fsdp_tp": parts, "pipe": pipe_parts}
each = " ".join(f"{way}:{whose_part.get(way, 'ours')}" for way in strategies.split())
# !for way in {each}; do {meter} results/live/14_${{way%:*}} {same} --strategy ${{way%:*}} --parts ${{way#*:}} \
#     > results/live/14_memory.txt || exit 1; done
# !{meter} results/live/14_whole mine/train_gpt.py --batch 32 --parts ours > results/live/14_memory.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
folders = {"DDP, one batch": "results/live/14_whole"} | {
    f"{show.NAMES[strategy]}, 8 micro-batches": f"results/live/14_{strategy}" for strategy in strategies.split()}
show.memory(folders)
lesson.figure("The same 32 crops per update on four ranks. Kept are weights, the optimizer's state and gradients. On "
              "top come activations, mostly.")
least = min(strategies.split(), key=lambda each: show.on_top(f"results/live/14_{each}"))
lesson.predicted(my_least, show.NAMES[least], what="the least on top")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
if "gpipe" in strategies.split():
    show.memory_over_time({"GPipe": "results/live/14_gpipe", f"1F1B, {whose} order": "results/live/14_pipe"})
    lesson.figure("With GPipe every rank climbs to all micro-batches. With 1F1B rank r keeps as many as there are ranks from "
                  "r to the last: four, three, two, one. The meter slows the ranks down: read the heights, not the times.")

# %% [markdown]
# Look first at the two rows of DDP. **The micro-batch saves memory**, with every strategy, also on one device: of a
# crop whose backward has ended nothing is kept. A pipeline needs many micro-batches to keep its ranks busy, and GPipe
# keeps all of them, so it gives this away. 1F1B keeps at most as many as there are ranks.
# That is all that it saves.
#
# What a pipeline, TP and FSDP save beside it is in the blue parts: weights, gradients and the optimizer's state. And
# with TP a rank computes on all crops: the MLPs' hidden values are cut, and what stands between them is not.
#
# ## FSDP × TP on a mesh of 2 × 2
#
# Strategies combine. `init_device_mesh` numbers the ranks in two dimensions. TP runs between two neighbours (in a
# node), FSDP across (between nodes). Your two layers take part: `group` is the pair of neighbours.

# %%
# !sed -n '/^def/,$p' lessons/start/ours/fsdp_tp.py
# !torchrun --nproc_per_node=4 lessons/l14_shard_computed/pieces.py --strategies tensor fsdp_tp pipe --parts {parts} \
#     --out results/live/14_pieces.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.pieces(json.loads(Path("results/live/14_pieces.json").read_text()))
lesson.figure("Number and colour: a rank; grey: several have it. TP cuts `up` by rows of its tensor and `down` by columns, and leaves attention "
              "whole. On the mesh FSDP cuts the rows of these pieces once more, and those of attention. A pipeline cuts "
              "no weight: block 0 is rank 0's, block 3 rank 3's.")

# %% [markdown]
# Each value of each weight was its own number before the strategy took the model. So the figure shows what the ranks
# really hold. Is it still one process's training?

# %%
# !python -m course.one_process --ranks 4 --updates {updates} mine/train_gpt.py --strategy fsdp_tp --parts {parts} {small}
# !python -m course.one_process --ranks 4 --updates {updates} mine/train_gpt.py --strategy fsdp_tp --parts torch {small}

# %% [markdown]
# **Experts.** In a *mixture of experts* each token goes through a few of many MLPs, and the ranks of a group share
# them. An expert's gradient then holds the tokens of its whole group already: its copies are to be **added up and
# divided by the number of all ranks**, as any other gradient. A mean over the copies alone is as many times too large
# as the group has ranks: [Megatron-LM, PR 5956](https://github.com/NVIDIA/Megatron-LM/pull/5956). FSDP2 has
# [`set_gradient_divide_factor`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) for it. This
# lesson has not run one.
#
# **More names.** *Interleaved* and *zero-bubble* schedules make the bubble smaller
# ([`torch.distributed.pipelining`](https://docs.pytorch.org/docs/stable/distributed.pipelining.html)). *Sequence
# parallelism* cuts what TP leaves whole ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)). *Context
# parallelism* cuts the sequence ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)).
#
# ## Under the budget
#
# Back to the 32 MB, the 2 crops of 256 bytes and the four ranks. Choose a strategy, a width (a multiple of 16), a
# number of layers and of micro-batches. The score to beat is one process, with the widest model that fits in 2
# micro-batches.

# %%
my_run = None  # such as "--strategy tensor --width 160 --layers 4 --micro-batches 1"
alone = "--width 144 --micro-batches 2"

# %%
course_s = "--strategy pipe --width 256 --layers 4 --micro-batches 2"
chosen = my_run or course_s
parts_of = pipe_parts if "pipe" in chosen else parts
long = f"{task} --updates {tokens // 512} --report {tokens // 512}"
# !python -m course.step_memory --out results/live/14_alone mine/train_gpt.py {task} {alone} > results/live/14_memory.txt
# !torchrun --nproc_per_node=4 -m course.step_memory --out results/live/14_budget mine/train_gpt.py --parts {parts_of} \
#     {task} {chosen} > results/live/14_memory.txt
# !for seed in {seeds}; do python mine/train_gpt.py {long} {alone} --seed $$seed; done | tee results/live/14_alone.txt
# !for seed in {seeds}; do torchrun --nproc_per_node=4 mine/train_gpt.py --parts {parts_of} {long} {chosen} \
#     --seed $$seed; done | tee results/live/14_budget.txt

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table([show.score(name, f"results/live/14_{file}", BUDGET)
              for name, file in (("one process", "alone"), ("your run" if my_run else "the course's run", "budget"))])

# %% [markdown]
# In so short a training the seeds of one model differ by more than two neighbouring widths do. Believe a difference only
# where no seed of one model is among those of the other.

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Tensor parallelism cuts each multiplication. Forward has an all-reduce behind the second matrix, backward one
#    before the first: without it the loss falls, and it is another training.
# 2. TP sends activations in each block, DDP gradients once per update. Few tokens and fast links are for TP, many
#    tokens for DDP.
# 3. A micro-batch saves memory with every strategy. A pipeline needs many, and 1F1B keeps no more of them than there
#    are ranks.
#
# **Next:** [15 · Communicate less](15_talk_less.ipynb). What if the link between two nodes is slow?
