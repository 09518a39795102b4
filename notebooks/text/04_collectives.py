# ---
# jupyter:
#   course:
#     minutes: 120
#     quick:
#       parameters:
#         patience: 2
#         ranks: 2
#       seconds: 45
#     seconds: 73
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Collectives
#
# **The question.** Ranks share no memory. How do they exchange data, and what happens if one of them does not take
# part?
#
# **You will be able to**
#
# - build a broadcast and an all-reduce out of messages between two ranks, and say what a star, a tree or a ring of
#   messages costs;
# - say what each rank holds after a broadcast, scatter, gather, reduce, all_gather, all_reduce, reduce_scatter or
#   all_to_all, and choose the one that fits;
# - write code that all ranks run together: gather tensors of unequal length, stop in the same step;
# - explain why ranks hang, and find out which rank waits where.
#
# **You need** lesson [03 · Processes and ranks](03_processes_and_ranks.ipynb): rank, world size, process group.
#
# **Time.** About 120 minutes for you, 2 for the machine. Take a break halfway, after *Yours and PyTorch's*.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, math, os
from pathlib import Path

from course import plots
from lessons.l04_collectives import check, collectives_shown as shown, hang_on_purpose, show

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # errors are shown once, by Python

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
ranks = 4  # of most runs below; 2 to 7
patience = 3  # seconds that ranks wait in vain, where they hang on purpose

# %% [markdown]
# ## Messages between two ranks
#
# One rank sends a tensor, and another receives it: all communication between ranks is made of such messages. Here is a
# whole program with one message. The cell writes it to a file, and the next cell starts it.

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
# !torchrun --nproc_per_node={ranks} results/live/04_first.py

# %% [markdown]
# Only the two ranks of the message make the calls; the others go on. (The ranks print in any order.) The backend is
# gloo here, which works on every CPU. With NCCL, for GPUs, the calls are the same, and each rank's tensors are on its
# GPU.
#
# The calls belong to **c10d**, the library behind `torch.distributed`. (Error messages use this name.) Three parts of
# PyTorch let processes work together:
#
# | | you write | what it does |
# |:--|:--|:--|
# | c10d | `dist.all_reduce(tensor)` | the ranks exchange tensors: this lesson |
# | DDP | `DistributedDataParallel(model)` | averages the ranks' gradients, by c10d: lesson [06](06_ddp.ipynb) |
# | RPC | `rpc.rpc_sync("worker1", torch.add, args=(a, b))` | one process calls a function in another; this course does without it |
#
# Each `send` needs its `recv`, and may wait for it. If two ranks both call `send` first and `recv` afterwards, both may
# wait for ever. `isend` and `irecv` only start a message, and return an object. `batch_isend_irecv` starts several at
# once, and returns a list of such objects. Call `wait()` on each: when it returns, the message has ended. So all ranks
# can pass something on to their right neighbour (the last rank's right neighbour is rank 0) and receive from the left
# one. `mine` is the rank's row of numbers, `ranks` the world size:

# %%
lesson.code(shown.shift)

# %% [markdown]
# The next program runs this function and all that follow, and records the numbers of every rank before and after. (Gloo
# of PyTorch 2.10 lacks `all_to_all`: there the program makes it out of scatters.)

# %%
# !torchrun --nproc_per_node={ranks} lessons/l04_collectives/collectives_shown.py \
#     --out results/live/04_collectives.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
demo = json.loads(Path("results/live/04_collectives.json").read_text())
show.before_after(demo, "shift")
lesson.figure("A row is a rank, a cell a number that it holds. The place of a digit and the "
              "colour tell the rank that it comes from: ones from rank 0, tens from rank 1, and "
              "so on. Example: 30 is the third number of rank 1.")

# %% [markdown]
# ## A broadcast, made of messages
#
# Before DDP trains, all ranks get the weights of rank 0. An operation that all ranks of a group call together is a
# **collective**; this one is a **broadcast**. PyTorch has it. How would you build it?
#
# **Predict.** Rank 0 of eight ranks has a tensor that all ranks need. In one **round** each rank sends at most one
# message, and receives at most one. How many rounds are needed, at least?

# %%
my_rounds = None  # a whole number

# %% [markdown]
# ### Exercise 1: `my_broadcast`
#
# All ranks call `my_broadcast(tensor, src)`. Afterwards the tensor of each rank holds the numbers of rank `src`. Use
# `send` and `recv`, or `isend` and `irecv`, and no collective. **Every right solution passes.** It must work for any
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
# In a **tree** every rank that has the tensor sends it on. So each round doubles the number of ranks that have it: 1,
# 2, 4, 8. For 8 ranks a tree needs 3 rounds.
#
# ## An all-reduce, made of messages
#
# In each step DDP averages the gradients of all ranks. Each rank divides its gradients by the number of ranks, and then
# **every rank gets the sum** of all ranks' results. (To divide first keeps a sum in half precision from overflowing.)
# This operation is an **all-reduce**. Ranks that begin with 1, 10, 100 and 1000 all end with 1111.
#
# ### Exercise 2: `my_all_reduce`
#
# All ranks call `my_all_reduce(tensor)`. Afterwards the tensor of each rank holds the sum over all ranks. The tensor
# has one dimension. Again use messages alone, and again every right solution passes.

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
# In a **star** of n ranks one rank receives n − 1 tensors, adds them up and sends the sum n − 1 times, while all others
# wait for it. In a **ring** all ranks do the same work. Each rank sends only to its right neighbour. The tensor is cut
# into n **chunks**, and in each step every rank sends one chunk, until all ranks have the whole sum.
#
# **Predict.** Four ranks make a ring. How many times the bytes of its tensor does each rank send, over all steps?

# %%
my_times = None  # times the bytes of the tensor

# %% jupyter={"source_hidden": true} tags=["hide-input"]
ring = demo["ring"]
show.ring(ring, "added")
lesson.figure("A column is a chunk, and the right neighbour is the row below (below the last row "
              "comes rank 0 again). A thick frame marks a sum that has just grown. In the last "
              "step each rank has one chunk with the colours of all ranks.")

# %% [markdown]
# Follow the column of rank 0's 1. This is the first half of the ring, the **reduce-scatter**: each rank *adds* the
# chunk that arrives to its own, and sends the sum on in the next step. After n − 1 steps each rank has one chunk of the
# whole sum. The second half is the **all-gather**: the whole sums go round once more, and each rank *copies* the chunk
# that arrives. This takes n − 1 steps, too:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.ring(ring, "copied")
lesson.figure("The chunks with all colours travel on. After the last step each rank has all of "
              "them.")

# %%
sent = sum(step["bytes"][0] for step in ring["steps"][1:])  # by rank 0
lesson.predicted(my_times, sent / ring["bytes"], "times its tensor")
lesson.table([{"tensor, bytes": ring["bytes"], "rank 0 sends, bytes": sent,
               "ranks with the right sums": f"{sum(ring['equal'])} of {len(ring['equal'])}",
               "decimal numbers differ by at most": f"{ring['floats']['off']:.0e}",
               "the same on all ranks": ring["floats"]["ranks_agree"]}])

# %% [markdown]
# Each rank sends 2(n − 1) chunks of one n-th of the tensor: **2(n − 1)/n** times the tensor. That is never more than
# twice, **however many ranks there are** ([Patarasuk and Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)); in
# the star one rank sends n − 1 times the tensor.
#
# Decimal numbers may differ from PyTorch's in the last digits, because they were added in another order. But no rank
# differs from another: each sum was made once, and then copied.
#
# Step through a ring of eight. Which rank is the first to hold the whole sum of chunk 0, and which is the last?

# %%
lesson.interactive("ring")

# %% [markdown]
# ### Exercise 3: `my_ring`
#
# Write the all-reduce once more, as a ring. (If your exercise 2 is a ring already, copy it.)
#
# Steps count from 0. In step s of the first half rank r sends chunk (r − s) mod n, and receives the chunk whose number
# is one lower, mod n. (In Python mod is `%`, and `-1 % 4` is 3.) With which chunk does the second half begin?
# `tensor.tensor_split(n)` gives the chunks: they share the tensor's memory, and their lengths may differ by one.

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
# Now your functions run beside `dist.broadcast` and `dist.all_reduce`. Until one of yours is right, ours stands in its
# place, and is labelled as ours.

# %%
yours = " ".join([check.broadcasted.file, check.all_reduced.file, check.ring.file])
# !torchrun --nproc_per_node={ranks} lessons/l04_collectives/own_collectives.py --yours {yours} \
#     --out results/live/04_own.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
run = json.loads(Path("results/live/04_own.json").read_text())
lesson.table(show.own_table(run))
show.messages_sent(run)
lesson.figure("A row is a rank, an arrow a message, and time goes to the right. A thick arrow is "
              "the whole tensor, a thin one a chunk. In a ring every rank sends in every round.")

# %% [markdown]
# Each **round** costs a little, however small its messages are. Each **byte** costs, too. Rounds come one after
# another. So take the largest message of each round, and add these sizes: these bytes travel *one after another*. Where
# each rank has a link of its own, they decide how long the bytes take. A tree needs few rounds, a ring few bytes one
# after another.
#
# **Predict.** A tensor of 1 KiB, on the ranks of this table. How many times as long as the all-reduce of exercise 2
# (ours is a star) does the ring of exercise 3 take?

# %%
my_factor = None  # times as long

# %% jupyter={"source_hidden": true} tags=["hide-input"]
small, large = show.ring_ratios(run)
lesson.predicted(my_factor, small.median, "times as long")
lesson.table(show.times_table(run))
show.own_times(run)
lesson.figure("A point is the median of seven rounds, a bar reaches from the fastest round to the "
              "slowest. Do not judge by the bars: the table compares each program with torch's, "
              "round by round.")
lesson.verdict(show.ring_verdict(run))

# %% [markdown]
# (Lesson [01](01_measure.ipynb) says when a difference counts.) The ranks share this machine's cores and its memory,
# and this explanation fits:
#
# - **A small tensor**: the *number of messages* counts. Each message needs a core, and in a ring all ranks want one in
#   every round.
# - **A large tensor**: a star and a ring move equally many bytes through this one memory, so the ring has no advantage
#   in bytes. (PyTorch's ring moves equally many. Where it is faster, bytes alone do not explain it: it adds one piece
#   while it sends another.)
# - **Between machines** each rank has a core and a link of its own. The messages of a round travel at the same time, so
#   the *rounds* count, and the bytes *one after another*. There the ring wins with a large tensor.
#
# PyTorch's own functions, in C++, are made of messages, too: with gloo the broadcast is a
# [tree](https://github.com/pytorch/gloo/blob/main/gloo/broadcast.cc), and the all-reduce a
# [ring](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc) that sends one piece while it adds another. NCCL
# has rings and [trees](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo). Lesson
# [08](08_performance.ipynb) measures the cost of a message.
#
# **This is half of the lesson: take a break.**
#
# ## One call, made by all ranks
#
# From here on we use the library's collectives. Eight of them move data. Two questions sort them: **who needs the
# result, and is something added up?** Where two stand in one place, a third question tells them apart: does each rank
# get the whole, or a part of its own?
#
# | | copied | added up |
# |:--|:--|:--|
# | one rank → all ranks | `broadcast`, `scatter` | |
# | all ranks → one rank | `gather` | `reduce` |
# | all ranks → all ranks | `all_gather`, `all_to_all` | `all_reduce`, `reduce_scatter` |
#
# Every rank runs the same line. Each function below returns the numbers that the rank holds afterwards.
#
# ## From one rank to all
#
# `broadcast`: every rank gets the numbers of rank `src`, into the tensor that it hands in. `scatter`: rank 0 has a list
# with one piece for each rank, and each rank gets its own piece.

# %%
lesson.code(shown.broadcast, shown.scatter)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.before_after(demo, "broadcast", "scatter")
lesson.figure("Both go from rank 0 to all. Broadcast gives each rank the whole, scatter a part.")

# %% [markdown]
# An arrow tells whose numbers a rank got. The library decides which way they take.
#
# ## From all ranks to one
#
# `gather` is scatter backwards: rank 0 gets a list. `reduce` **adds up** on the way. (`op=dist.ReduceOp.MAX`, `MIN` or
# `PRODUCT` combine the numbers in another way.)

# %%
lesson.code(shown.gather, shown.reduce)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.before_after(demo, "gather", "reduce")
lesson.figure("Both go from all ranks to rank 0. Gather keeps the numbers apart (one colour in a "
              "cell), reduce adds them up (all colours in a cell).")

# %% [markdown]
# After a `reduce` read the tensor on rank `dst` only, here rank 0. What the others hold is *not defined*: gloo may use
# their tensors for partial sums.
#
# ## From all ranks to all
#
# `all_` in a name means that every rank gets a result. `all_gather` copies, `all_reduce` adds up. `reduce_scatter` adds
# up like all_reduce, but each rank gets only its own part of the sum.

# %%
lesson.code(shown.all_gather, shown.all_reduce, shown.reduce_scatter)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.before_after(demo, "all_gather", "all_reduce", "reduce_scatter")
lesson.figure("All three go from all ranks to all. On the right, a cell with one colour was "
              "copied, a cell with all colours is a sum, and where a rank holds a single cell, "
              "each rank got a part.")

# %% [markdown]
# This course is about `all_reduce`: with it DDP averages the gradients of all ranks ([06](06_ddp.ipynb)).
#
# In `all_to_all` each rank has a list, one piece for each rank.
#
# **Predict.** Rank 1 begins with 10 20 30 40. What does it hold afterwards?

# %%
my_pieces = None  # a list of numbers, one for each rank

# %%
lesson.code(shown.all_to_all)
lesson.predicted(my_pieces, demo["all_to_all"][-1]["cells"][1])
show.before_after(demo, "all_to_all")
lesson.figure("Read each side as a table: the rows before are the columns after.")


# %% [markdown]
# `all_gather_into_tensor`, `reduce_scatter_tensor` and `all_to_all_single` take one large tensor in place of a list.
# Where speed counts, choose the first two: with NCCL the forms with lists copy the data once more.
#
# Not every backend can do everything ([the manual's
# table](https://docs.pytorch.org/docs/stable/distributed.html#backends); older versions can do less):
#
# | | gloo, CPU | gloo, GPU | nccl, GPU | mpi, CPU |
# |:--|:-:|:-:|:-:|:-:|
# | `send`, `recv`, `barrier` | ✓ | – | ✓ | ✓ |
# | `broadcast`, `scatter`, `gather`, `reduce` | ✓ | ✓ | ✓ | ✓ |
# | `all_gather`, `all_reduce`, `all_to_all` | ✓ | ✓ | ✓ | ✓ |
# | `reduce_scatter` | ✓ | ✓ | ✓ | – |
#
# nccl takes no CPU tensors, and PyTorch's own packages do not contain mpi.
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
# predictions, another 5, another none. **Every rank needs all predictions** in one tensor, those of rank 0 first. But
# with gloo all tensors of one `all_gather` must have the same shape. (With NCCL they may differ, but there, too, each
# rank must know all lengths before the call.) Write `my_join(mine)`, which returns the long tensor. The check runs your
# file on three ranks.

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
# A collective waits for the data that it needs from other ranks. `barrier` moves no data, it only waits: no rank goes
# on before every rank has called it. Here each rank works (sleeps) for a while, then calls it:

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
plots.timeline(events)
lesson.figure("All bars end together: the rank that comes last sets the time for all.")

# %% [markdown]
# With `async_op=True` a collective returns at once, and returns a **handle**. The rank goes on with work that does not
# need the result, and calls `handle.wait()` when it needs the result. Here the last rank comes late. How long do the
# others wait, and what do they do before?

# %%
lesson.code(shown.async_handle)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
times = demo["async_handle"]
events = show.intervals(times, {
    "late": ("work", "start", "before the call"),
    "own work": ("work", "after the call", "before wait()"),
    "wait()": ("wait", "before wait()", "after wait()")})
plots.timeline(events)
lesson.figure("The ranks that come in time do their own work while the collective waits for the "
              "last rank. Their wait is shorter by the length of that work.")

# %% [markdown]
# Without the handle these ranks would first wait, then work. DDP uses handles to compute backward and all-reduce at the
# same time. This is called **overlap** ([06](06_ddp.ipynb)).
#
# Until `wait()` has returned, the tensor belongs to the collective: do not read it, do not write it.
#
# With NCCL the call and `wait()` both return at once: `wait()` makes the GPU's queue wait, not Python. Work that you
# queue afterwards, on the same stream (the same queue of the GPU), is safe. But a clock needs
# `torch.cuda.synchronize()`, as in [01](01_measure.ipynb). (`barrier` is the exception: there Python waits.)
#
# ## A hang, on purpose
#
# A collective works only if **all ranks of the group call the same one, in the same order**. Here the last rank calls
# another:

# %%
lesson.code(hang_on_purpose.different)

# %% [markdown]
# **Predict.** Three ranks run this. Their process group has a `timeout` of a few seconds. Which ranks end with an
# error?

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
# Ranks 0 and 1 wait for rank 2's part of the sum. Rank 2 waits for a broadcast that rank 0 never sends. So the rank
# with the mistake is not the only one that fails. A rank that waits prints nothing until its time is up. Then gloo's
# message names neither the missing rank nor the collective.
#
# **With NCCL** the call raises no exception. A thread in the background, the *watchdog*, ends the process. Its line
# gives the number and the kind of the collective (`SeqNum=…, OpType=ALLREDUCE`), but not the missing rank. Compare
# these lines of all ranks: the rank that differs, or that is behind, leads to the mistake. NCCL does not check that the
# calls match: instead of a hang you may get [wrong
# numbers](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html).
#
# There are three ways to find out which rank waits where:
#
# **1. The stack of every rank.** The *stack* is the list of the functions that Python is inside at this moment.
# `faulthandler.dump_traceback_later(seconds)` prints it, with the line in each function, if the program is still
# running by then. In the same run, before the time was up:

# %%
lesson.table(show.stacks(seen["stack"]))

# %% [markdown]
# A rank that stands at another line than the rest leads to the mistake. If a job hangs already, `py-spy dump --pid …`
# shows its stacks from outside, where you may trace other processes.
#
# With NCCL the stack may show a later line, since a call only queues the work and returns. There use the **flight
# recorder**. Set `TORCH_FR_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` before the start: each rank then keeps
# its last collectives, with their number, kind, size, state and the line that called them, and writes them to a file at
# the timeout. `torchfrtrace` compares the files of all ranks ([variables and
# output](../TROUBLESHOOTING.md#a-hang-under-nccl-the-flight-recorder)). In lesson [12](12_break_it.ipynb) you read the
# files of 64 ranks yourself.
#
# **2. A barrier that names the missing rank.** `dist.monitored_barrier` (gloo only; in a job with nccl make a group for
# it: `dist.new_group(backend="gloo")`) waits like a barrier, and names a rank that did not come (with
# `wait_all_ranks=True`, all of them). Put it before the place that you suspect. Here rank 1 leaves too early, as after
# an `if` that not all ranks pass (`group` and `timeout` belong to our demo):

# %%
lesson.code(hang_on_purpose.one_stays_away)
lesson.table(show.messages(seen["barrier"]))

# %% [markdown]
# Read **rank 0's** line: it names the missing rank. The other ranks know only that something failed, or noticed
# nothing.
#
# **3. Compare the calls.** Set the environment variable `TORCH_DISTRIBUTED_DEBUG=DETAIL` before the groups are made.
# Before each collective the ranks then tell each other which one they are about to call. This works with nccl, too. Our
# function `different` again:

# %%
lesson.table(show.messages(seen["detail"])[:1])

# %% [markdown]
# The message names both ranks and both collectives, and it comes at once: compare its time with the first table of this
# section. The variable costs an extra exchange before each collective, so use it to search, not to train.
#
# ### Exercise 6: stop together
#
# Each rank may find a reason to stop training: a signal, a loss that no longer falls, a full disk. In every step each
# rank runs `if my_stop(want): break`, where `want` is its own wish, `True` or `False`. If one rank alone left the loop,
# the others would hang in their next all_reduce. Write `my_stop(want)`: **all ranks stop if at least one wants to**.

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
# ## What to remember
#
# 1. All ranks of a group call the same collectives in the same order, or they wait until the timeout.
# 2. Three questions find the right collective: who needs the result, is something added up, does each rank get the
#    whole or a part?
# 3. Collectives are made of messages. A tree needs few rounds. A ring needs few bytes: it is a `reduce_scatter`, then
#    an `all_gather`, and each rank sends 2(n − 1)/n times its tensor, however many ranks there are.
#
# **Next:** [05 · Who sees which image](05_distributed_sampler.ipynb). Before gradients can be added up, each rank needs
# images of its own.
