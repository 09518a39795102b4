# ---
# jupyter:
#   course:
#     minutes: 120
#     quick:
#       parameters:
#         patience: 2
#         ranks: 2
#       seconds: 50
#     seconds: 75
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Collectives
#
# **The question.** Ranks share no memory. How do they exchange data, and what if one of them does not take part?
#
# **You will be able to**
#
# - build a broadcast and an all-reduce of messages between two ranks, and say what a star, a tree or a ring of messages
#   costs;
# - say what each rank holds after a broadcast, scatter, gather, reduce, all_gather, all_reduce, reduce_scatter or
#   all_to_all, and choose the one that fits;
# - write code that ranks run together: gather tensors of unequal length, stop together;
# - explain why ranks hang, and find out which rank waits where.
#
# **You need** lesson [03 · Processes and ranks](03_processes_and_ranks.ipynb): rank, world size, process group.
#
# **Time.** About 120 minutes for you, 2 for the machine. Take a break halfway, after *Yours and PyTorch's*.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import json, math, os
from pathlib import Path

import matplotlib.pyplot as plt

from course import plots
from lessons.l04_collectives import check, collectives_shown as shown, hang_on_purpose, show

# %% tags=["parameters"]
ranks = 4  # of most runs below; 2 to 7
patience = 3  # seconds that ranks wait in vain, where they hang on purpose

# %% [markdown]
# ## Messages between two ranks
#
# One rank sends a tensor, another receives it: everything that ranks exchange is made of such messages. Here is a whole
# program with one message. The cell writes it to a file, the next one starts it.

# %%
# %%writefile results/live/04_first.py
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
mine = torch.tensor([1, 2, 3, 4]) * 10**rank
before = mine.tolist()
if rank == 0:
    dist.send(mine, dst=last)
elif rank == last:
    dist.recv(mine, src=0)
print(f"rank {rank} had {before}, has {mine.tolist()}\n", end="")  # in one piece
dist.barrier()  # waits for all: nobody leaves while another still connects
dist.destroy_process_group()

# %%
os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # errors are shown once, by Python
# !torchrun --nproc_per_node={ranks} results/live/04_first.py

# %% [markdown]
# Only the two ranks concerned make the calls; the others go on. (The ranks print in any order.) The backend is gloo
# here, which works on every CPU. With NCCL, for GPUs, the calls are the same, and each rank's tensors are on its GPU.
#
# A second program does this and all that follows, and records what every rank held before and after. (Gloo of PyTorch
# 2.10 lacks `all_to_all`: there the program makes it of scatters.)

# %%
# !torchrun --nproc_per_node={ranks} lessons/l04_collectives/collectives_shown.py \
#     --out results/live/04_collectives.json

# %%
demo = json.loads(Path("results/live/04_collectives.json").read_text())
plots.picture(show.before_after(demo["send_recv"], "send, recv"))

# %% [markdown]
# A row is a rank, a cell is a number that it held. Rank 0 starts with 1 2 3 4, rank 1 with 10 20 30 40, and so on: **the
# place of a digit tells the rank that it came from**, later also in a sum. The colours say the same.
#
# Each `send` needs its `recv`, and may wait for it. If two ranks both `send` first, to `recv` afterwards, both may wait
# for ever. `isend` and `irecv` only start a message, and `batch_isend_irecv` starts several at once; the `wait()` of
# what they return ends it. So all ranks can pass something on to their right neighbour (the last rank's right neighbour
# is rank 0) and receive from the left one. `mine` is the rank's row of numbers, `ranks` the world size:

# %%
lesson.code(shown.shift)
plots.picture(show.before_after(demo["shift"], "everybody to the right"))

# %% [markdown]
# ## A broadcast, made of messages
#
# Before DDP trains, all ranks get the weights of rank 0. Such an operation, which all ranks of a group call together, is
# a **collective**; this one is a **broadcast**. PyTorch has it. How would you build it?
#
# **Predict.** Eight ranks, and rank 0 has a tensor that all need. In a **round** each rank sends one message at most,
# and receives one at most. How many rounds are needed, at least?

# %%
my_rounds = None

# %% [markdown]
# ### Exercise 1: `my_broadcast`
#
# All ranks call `my_broadcast(tensor, src)`. Afterwards each has the numbers of rank `src`, in the tensor that it
# handed in. Use `send` and `recv`, or `isend` and `irecv`, and no collective. **Any way that is right passes**, on any
# number of ranks. The check runs your file on 2, 3 and 5 ranks, counts the messages, and names their shape.

# %%
# %%writefile results/live/04_broadcast.py
import torch
import torch.distributed as dist


def my_broadcast(tensor, src):
    raise NotImplementedError


# %%
check.broadcasted("results/live/04_broadcast.py")
# check.broadcasted.hint()
# check.broadcasted.solution()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
fewest = math.ceil(math.log2(8))  # a round at most doubles the ranks that have it
lesson.predicted(my_rounds, fewest, "rounds")

# %% [markdown]
# ## An all-reduce, made of messages
#
# After each backward pass DDP adds up the gradients of all ranks: **every rank gets the sum**. This is an
# **all-reduce**. Ranks that begin with 1, 10, 100 and 1000 all end with 1111.
#
# ### Exercise 2: `my_all_reduce`
#
# All ranks call `my_all_reduce(tensor)`; afterwards each has the sum over all ranks in it. The tensor has one dimension.
# Again messages alone, and again any way that is right passes.

# %%
# %%writefile results/live/04_all_reduce.py
import torch
import torch.distributed as dist


def my_all_reduce(tensor):
    raise NotImplementedError


# %%
check.all_reduced("results/live/04_all_reduce.py")
# check.all_reduced.hint()
# check.all_reduced.solution()

# %% [markdown]
# ## The ring
#
# In a **star** with n ranks one rank receives n − 1 tensors, adds them up and sends the sum n − 1 times, while all
# others wait for it. In a **ring** all ranks work alike. Each sends only to its right neighbour. The tensor is cut into
# n **chunks**, and in each step every rank sends one chunk, until all ranks have the whole sum.
#
# **Predict.** Four ranks make a ring. How many times the bytes of its tensor does each rank send, over all steps?

# %%
my_times = None  # times the bytes of the tensor

# %%
ring = demo["ring"]
plots.picture(show.ring(ring, "added"))

# %% [markdown]
# The right neighbour is the row below; below the last row comes rank 0 again. A column is a chunk. An arrow leads to
# each number that has just arrived. Follow the column of rank 0's 1.
#
# This is the first half, **reduce-scatter**: what arrives is *added*, and sent on in the next step. After n − 1 steps
# each rank has one chunk of the whole sum. The second half is **all-gather**: the whole sums go round once more, and are
# *copied*. It takes n − 1 steps, too:

# %%
plots.picture(show.ring(ring, "copied"))

# %%
sent = sum(step["bytes"][0] for step in ring["steps"][1:])  # by rank 0
lesson.predicted(my_times, sent / ring["bytes"], "times its tensor")
lesson.table(show.ring_table(ring))

# %% [markdown]
# Each rank sends 2(n − 1) chunks of one n-th of the tensor: **2(n − 1)/n** times the tensor. That is never more than
# twice, **however many ranks there are** ([Patarasuk and Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002));
# in the star one rank sends n − 1 times the tensor.
#
# Decimal numbers may differ from PyTorch's in the last digits, since they were added in another order. But the ranks
# do not differ from each other: each sum was made once, and then copied.
#
# Step through a ring of eight. Which rank is the first to hold the whole sum of chunk 0, and which is the last?

# %%
lesson.interactive("ring")

# %% [markdown]
# ### Exercise 3: `my_ring`
#
# Write the all-reduce once more, as a ring. (If yours of exercise 2 is one already, copy it.)
#
# Steps count from 0, and in step 0 rank r sends chunk r. `tensor.tensor_split(n)` gives the chunks: they share the
# tensor's memory, and their lengths may differ by one.

# %%
# %%writefile results/live/04_ring.py
import torch
import torch.distributed as dist


def my_ring(tensor):
    raise NotImplementedError


# %%
check.ring("results/live/04_ring.py")
# check.ring.hint()
# check.ring.solution()

# %% [markdown]
# ## Yours and PyTorch's
#
# Now your functions run beside `dist.broadcast` and `dist.all_reduce`, on two and on more ranks. Ours stands in the
# place of each that is not right yet, and is called so.

# %%
yours = " ".join([check.broadcasted.file, check.all_reduced.file, check.ring.file])

# %%
# !torchrun --nproc_per_node=2 lessons/l04_collectives/own_collectives.py --yours {yours} \
#     --out results/live/04_own_2.json
# !torchrun --nproc_per_node={ranks} lessons/l04_collectives/own_collectives.py --yours {yours} \
#     --out results/live/04_own_{ranks}.json

# %%
files = [Path(f"results/live/04_own_{count}.json") for count in sorted({2, ranks})]
runs = [json.loads(file.read_text()) for file in files]
lesson.table(show.own_table(runs[-1]))
plots.picture(show.messages_sent(runs[-1]))

# %% [markdown]
# A row is a rank, and each arrow a message, from one round to the next; a thick one is the whole tensor. Two things
# cost time. Each **round** costs a little, however small the message is. And each **byte** costs: add up the largest
# message of each round, and you have the tensors that travel *one after another*. A tree needs few rounds, a ring few
# bytes.
#
# **Predict.** A tensor of 32 MiB on the larger number of ranks. How many times as long as the ring of exercise 3 does
# the all-reduce of exercise 2 take?

# %%
my_factor = None

# %% jupyter={"source_hidden": true} tags=["hide-input"]
factor = show.times_as_long(runs[-1], "04_all_reduce", "04_ring")
lesson.predicted(my_factor, factor, "times as long")
lesson.table(show.times_table(runs))
plots.picture(show.own_times(runs))

# %% [markdown]
# A point is the median of five rounds of measurement, a bar reaches from the fastest to the slowest. Where the bars of
# two overlap, they are not told apart.
#
# On the left rounds count, on the right bytes. All ranks share this machine's cores and memory: between machines, each
# with a link of its own, bytes one after another count for more. PyTorch's own, in C++, are made of messages, too: with
# gloo the broadcast is a [tree](https://github.com/pytorch/gloo/blob/main/gloo/broadcast.cc), the all-reduce a
# [ring](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc) that sends one piece while it adds another. NCCL
# has rings and [trees](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo). Lesson
# [08](08_predict_scaling.ipynb) measures what a message costs.
#
# **This is half of the lesson: take a break.**
#
# ## One call, made by all ranks
#
# From here on the library's collectives are used. Each rank runs the same line; the line moves data between them:

# %%
lesson.code(shown.broadcast)
plots.picture(show.before_after(demo["broadcast"], "broadcast"))

# %% [markdown]
# `broadcast`: every rank gets what rank `src` has, into the tensor that it hands in. `mine` is the rank's row of
# numbers: the ones are rank 0's, the tens rank 1's. An arrow tells whose numbers a rank got; which way they took is the
# library's business.
#
# Eight collectives move data. Two questions sort them: **who needs the result, and is something added up?** Where two
# stand in one place a third tells them apart: does each rank get the whole, or its own part?
#
# | | copied | added up |
# |:--|:--|:--|
# | one rank → all ranks | `broadcast`, `scatter` | |
# | all ranks → one rank | `gather` | `reduce` |
# | all ranks → all ranks | `all_gather`, `all_to_all` | `all_reduce`, `reduce_scatter` |
#
# ## From one rank to all
#
# `scatter`: rank 0 has a list with one piece for each rank. Each rank gets its own piece. (Each function below returns
# what the rank holds afterwards.)

# %%
lesson.code(shown.scatter)
plots.picture(show.before_after(demo["scatter"], "scatter"))

# %% [markdown]
# ## From all ranks to one
#
# `gather` is scatter backwards: rank 0 gets a list.

# %%
lesson.code(shown.gather)
plots.picture(show.before_after(demo["gather"], "gather"))

# %% [markdown]
# `reduce` **adds up** on the way. (`op=dist.ReduceOp.MAX`, `MIN` or `PRODUCT` do something else than add.)

# %%
lesson.code(shown.reduce)
plots.picture(show.before_after(demo["reduce"], "reduce", empty="not defined"))

# %% [markdown]
# Only rank 0, the `dst`, has the result. What the others hold is *not defined*: gloo may use their tensors for sums
# that are on the way. After a reduce, read the tensor on `dst` only.
#
# ## From all ranks to all
#
# `all_` in a name means: every rank gets a result. `all_gather` copies, `all_reduce` adds up.

# %%
lesson.code(shown.all_gather)
plots.picture(show.before_after(demo["all_gather"], "all_gather"))

# %%
lesson.code(shown.all_reduce)
plots.picture(show.before_after(demo["all_reduce"], "all_reduce"))

# %% [markdown]
# `all_reduce` is the one that this course is about: with it DDP adds up the gradients of all ranks, to divide the sum
# by their number ([06](06_ddp.ipynb)).
#
# `reduce_scatter` adds up like all_reduce, but each rank gets only its own part of the sum.

# %%
lesson.code(shown.reduce_scatter)
plots.picture(show.before_after(demo["reduce_scatter"], "reduce_scatter"))

# %% [markdown]
# In `all_to_all` each rank has a list, one piece for each rank.
#
# **Predict.** Rank 1 begins with 10 20 30 40. What does it hold afterwards?

# %%
my_pieces = None  # a list of numbers, one for each rank

# %%
lesson.code(shown.all_to_all)
lesson.predicted(my_pieces, demo["all_to_all"][-1]["cells"][1])
plots.picture(show.before_after(demo["all_to_all"], "all_to_all"))


# %% [markdown]
# Read the picture as a table: its rows have become columns.
#
# `all_gather_into_tensor`, `reduce_scatter_tensor` and `all_to_all_single` take one large tensor in place of a list.
# Where speed counts, choose the first two: with NCCL their lists are copied once more.
#
# ### Exercise 4: which one fits?
#
# - **a**: rank 0 has drawn a random number that all ranks are to use
# - **b**: every rank needs the mean of all ranks' losses
# - **c**: rank 0 prints how many answers were right, on all ranks together
# - **d**: rank r updates only the r-th part of the weights; for this it needs that part of the summed gradients
# - **e**: after that, every rank needs all weights again
# - **f**: each rank has sorted its rows by the rank that they belong to; now each row goes to its owner
#
# Move no more than is needed. Return a dict with a name for each letter: `{"a": "…", "b": "…", …}`.

# %%
def my_choices():
    raise NotImplementedError


# %%
check.choices(my_choices)
# check.choices.hint()
# check.choices.solution()

# %% [markdown]
# ### Exercise 5: unequal lengths
#
# After an evaluation each rank holds its own predictions: a tensor of whole numbers, with one dimension. One rank has 3
# of them, another 5, another none. **Every rank needs all of them** in one tensor, those of rank 0 first. But with gloo
# all tensors of one `all_gather` must have the same shape. (With NCCL they may differ, but there, too, each rank must
# know all lengths before.) Write `my_join(mine)`, which returns the long tensor. The check runs your file on three
# ranks.

# %%
# %%writefile results/live/04_join.py
import torch
import torch.distributed as dist


def my_join(mine):
    raise NotImplementedError


# %%
check.joined("results/live/04_join.py")
# check.joined.hint()
# check.joined.solution()

# %% [markdown]
# ## Who waits for whom
#
# A collective waits for what it needs from the other ranks. `barrier` moves no data, it only waits: nobody goes on
# before all have come. Each rank works (sleeps) for a while, then calls it:

# %%
lesson.code(shown.barrier)

# %% [markdown]
# **Predict.** With four ranks: how long does rank 0 wait in `barrier`?

# %%
my_wait = None  # milliseconds

# %% jupyter={"source_hidden": true} tags=["hide-input"]
times = demo["barrier"]
lesson.predicted(my_wait, 1000 * (times["leaves"][0] - times["arrives"][0]), "ms")
events = show.intervals(times, {
    "work": ("work", "start", "arrives"),
    "barrier": ("wait", "arrives", "leaves")})
plots.timeline(events, plt.subplots(figsize=(13, 4.5))[1])
plt.show()

# %% [markdown]
# The last rank to come sets the time for all.
#
# With `async_op=True` a collective returns at once, with a **handle**. Work that does not need the result can go on;
# `handle.wait()` comes when the result is needed. Here the last rank comes late. How long do the others wait, and what
# do they do before?

# %%
lesson.code(shown.async_handle)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
times = demo["async_handle"]
events = show.intervals(times, {
    "late": ("work", "start", "before the call"),
    "own work": ("work", "after the call", "before wait()"),
    "wait()": ("wait", "before wait()", "after wait()")})
plots.timeline(events, plt.subplots(figsize=(13, 4.5))[1])
plt.show()
parts = {"the call, ms": ("before the call", "after the call"),
         "own work, ms": ("after the call", "before wait()"),
         "`wait()`, ms": ("before wait()", "after wait()")}
lesson.table([{"rank": rank} | {part: f"{1000 * (times[end][rank] - times[begin][rank]):.1f}"
                                for part, (begin, end) in parts.items()}
              for rank in range(len(times["start"]))])

# %% [markdown]
# The ranks that came in time work while the collective waits for the last one. Without the handle they would first
# wait, then work. In this way DDP computes backward and makes its all-reduces at the same time, which is called overlap
# ([06](06_ddp.ipynb)).
#
# Until `wait()` has returned, the tensor belongs to the collective: do not read it, do not write it.
#
# With NCCL the call and `wait()` both return at once: `wait()` makes the GPU's queue wait, not Python. What you queue
# afterwards is safe. But a clock needs `torch.cuda.synchronize()`, as in [01](01_one_device.ipynb). (`barrier` is the
# exception: there Python waits.)
#
# ## A hang, on purpose
#
# A collective works only if **all ranks of the group call the same one, in the same order**. Here the last rank calls
# another:

# %%
lesson.code(hang_on_purpose.different)

# %% [markdown]
# **Predict.** Three ranks run this. Each waits a few seconds at most: the `timeout` of its process group. Which ranks
# end with an error?

# %%
my_ranks = None  # a list, such as [0, 2]

# %%
# !torchrun --nproc_per_node=3 lessons/l04_collectives/hang_on_purpose.py --timeout {patience} \
#     --out results/live/04_hang.json

# %%
seen = json.loads(Path("results/live/04_hang.json").read_text())
failed = [rank for rank, rank_result in enumerate(seen["stack"]) if rank_result["error"]]
lesson.predicted(my_ranks, failed)
lesson.table(show.messages(seen["stack"]))

# %% [markdown]
# Ranks 0 and 1 wait for rank 2's part of the sum. Rank 2 waits for a broadcast that rank 0 never sends: not only the
# rank with the mistake fails. A rank that waits says nothing until its time is up, and then gloo's message names neither
# the rank that it waited for nor the collective.
#
# **With NCCL** no exception comes from the call. A thread in the background, the *watchdog*, ends the process, and its
# line names the number and the kind of the collective (`SeqNum=…, OpType=ALLREDUCE`), but not who is missing. Compare
# these lines of all ranks: the rank that differs, or is behind, leads to the mistake. NCCL does not check that the
# calls fit: instead of a hang, [wrong
# numbers](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html) may come.
#
# Three ways to find out who waits where:
#
# **1. The stack of every rank.** `faulthandler.dump_traceback_later(seconds)` prints the lines that Python is in, if it
# is still running by then. In the same run, before the time was up:

# %%
lesson.table(show.stacks(seen["stack"]))

# %% [markdown]
# A rank that stands at another line than the rest leads to the mistake. For a job that hangs already, `py-spy dump
# --pid …` shows the same from outside, if you may trace other processes. With NCCL the stack may show a later line,
# since a call only queues the work and returns. For this PyTorch's [flight
# recorder](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html) keeps the last collectives of each
# rank, and `torchfrtrace` compares what it wrote.
#
# **2. A barrier that names.** `dist.monitored_barrier` (gloo only; in a job with nccl make a group for it:
# `dist.new_group(backend="gloo")`) waits like a barrier, and then says who did not
# come. Put it before the place that you suspect. Here rank 1 leaves too early, as after an `if` that not all ranks
# pass (`group` and `timeout` belong to our demo):

# %%
lesson.code(hang_on_purpose.one_stays_away)
lesson.table(show.messages(seen["barrier"]))

# %% [markdown]
# Read **rank 0's** line: it names the missing rank. The others know only that something failed, or noticed nothing.
#
# **3. Compare the calls.** With the environment variable `TORCH_DISTRIBUTED_DEBUG=DETAIL`, set before the groups are
# made, the ranks tell each other before each collective which one they are about to call. It works with nccl, too. Our
# function `different` again:

# %%
lesson.table(show.messages(seen["detail"])[:1])

# %% [markdown]
# The message names both ranks and both collectives. Compare its time with that in the first table of this section. It
# costs an extra exchange before each collective: use it to search, not to train.
#
# ### Exercise 6: stop together
#
# Each rank may find a reason to stop training: a signal, a loss that no longer falls, a full disk. In every step each
# rank calls `if my_stop(want): break`, where `want` is its own wish, `True` or `False`. If one rank alone left the
# loop, the others would hang in their next all_reduce. Write `my_stop(want)`: **all ranks stop if at least one wants
# to**.

# %%
# %%writefile results/live/04_stop.py
import torch
import torch.distributed as dist


def my_stop(want):
    raise NotImplementedError


# %%
check.stopped("results/live/04_stop.py")
# check.stopped.hint()
# check.stopped.solution()

# %% [markdown]
# In error messages these calls have the name of their library, *c10d*. More: [Writing distributed
# applications](https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html) and [the manual of
# torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html).
#
# ## What to remember
#
# 1. All ranks of a group call the same collectives in the same order, or they wait until the timeout.
# 2. Three questions find the right one: who needs the result, is something added up, and is it the whole or a part?
# 3. Collectives are made of messages. A tree needs few rounds. A ring needs few bytes: it is a `reduce_scatter`, then an
#    `all_gather`, and each rank sends 2(n − 1)/n times its tensor, however many ranks there are.
#
# **Next:** [05 · Who sees which image](05_distributed_sampler.ipynb). Before gradients can be added up, each rank needs
# images of its own.
