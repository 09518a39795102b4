# ---
# jupyter:
#   course:
#     minutes: 90
#     quick:
#       parameters:
#         epochs: 1
#         most: 3
#         patience: 2
#         rates: 400mbit
#         rounds: 1
#       seconds: 60
#     seconds: 160
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Messages
#
# **The question.** Every rank has a gradient, and all need the sum. Which messages make it, and which way is the
# fastest on which network?
#
# **At the end** your program adds up with a ring that you wrote, `mine/all_reduce.py`. You have counted its messages, and
# from the count you have predicted its time on two networks.
#
# **You will be able to**
#
# - send tensors from rank to rank, and say who waits for whom;
# - build an all-reduce out of messages, and count its rounds and bytes;
# - predict from the count how long it takes on a given network;
# - choose the collective that fits.
#
# **You need** lesson [03 · Processes and ranks](03_processes_and_ranks.ipynb): rank, world size, process group.
#
# **Time.** About 90 minutes for you, 3 for the machine.

# %%
from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import json, math, os
from pathlib import Path

from course import dial
from lessons.l04_collectives import check, collectives, show, solution

os.environ["OMP_NUM_THREADS"] = "1"  # one thread per rank

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
patience = 4  # seconds that a rank waits in vain, where one stays away on purpose
most = 8  # ranks, where messages are counted
rates = "100mbit 200mbit 400mbit"  # of the races
rounds = 7  # of each race
epochs = 2  # that your program trains

# %% [markdown]
# ## A message
#
# Four ranks wait in the background. A cell that begins with `%%px` runs on all of them. They have met in a gloo group.

# %%
lesson.live_ranks(4, timeout=patience)

# %% [markdown]
# One rank sends a tensor, and another receives it. All communication between ranks is made of such messages. The
# numbers show where they come from: ones belong to rank 0, tens to rank 1, hundreds to rank 2.

# %%
# %%px
import torch
import torch.distributed as dist

rank = dist.get_rank()
mine = torch.tensor([1, 2, 3, 4]) * 10**rank
before = mine.tolist()
if rank == 0:
    dist.send(mine, dst=3)
elif rank == 3:
    dist.recv(mine, src=0)
print(f"had {before}, has {mine.tolist()}")

# %% [markdown]
# Only the two ranks of the message make the calls. `recv` writes into the tensor that it is given.
#
# Each `send` needs a `recv` on the other rank, and may wait for it. Suppose that all ranks call `send` first and `recv`
# afterwards: then nobody receives yet, and all may wait for ever. `irecv` only *starts* to receive, and returns an
# object. Its `wait()` returns when the message has come. So all ranks can pass something on to their right neighbour at
# the same time. The right neighbour of the last rank is rank 0:

# %%
# %%px
mine = torch.tensor([1, 2, 3, 4]) * 10**rank
arriving = torch.empty_like(mine)
receipt = dist.irecv(arriving, src=(rank - 1) % 4)
dist.send(mine, dst=(rank + 1) % 4)
receipt.wait()
print(f"had {mine.tolist()}, and {arriving.tolist()} came")

# %% [markdown]
# `isend` is to `send` what `irecv` is to `recv`. With NCCL, for GPUs, the calls are the same.
#
# ## A broadcast
#
# Before the ranks train, all of them get the weights of rank 0. An operation that all ranks of a group call together is
# a **collective**. This one is a **broadcast**.
#
# **Predict.** Rank 0 of eight ranks has a tensor that all ranks need. In one **round** each rank sends at most one
# message, and receives at most one. How many rounds are needed, at least?

# %%
my_rounds = None  # a whole number

# %%
fewest = math.ceil(math.log2(8))  # a round at most doubles the ranks that have the tensor
lesson.predicted(my_rounds, fewest, "rounds", what="rounds of a broadcast")
lesson.code(solution.broadcast)

# %% [markdown]
# Every rank that has the tensor sends it on. The messages form a **tree**, and each round doubles the number of ranks
# that have the tensor. Here it runs on the four ranks:

# %%
# %%px
from lessons.l04_collectives.solution import broadcast

mine = torch.tensor([1, 2, 3, 4]) * 10**rank
broadcast(mine)
print(mine.tolist())

# %% [markdown]
# ## An all-reduce, in any way
#
# In each update the ranks need the mean of all gradients. So **every rank gets the sum** of all ranks' tensors, and
# divides it. This collective is an **all-reduce**. Ranks that begin with 1, 10, 100 and 1000 all end with 1111.
#
# ### Exercise 1: `star`
#
# All ranks call `star(tensor)`. Afterwards the tensor of each rank holds the sum over all ranks. Use messages alone. The
# simplest way is a **star**: all ranks send to rank 0, which adds up and sends the sum to all. **Every right solution
# passes**, for any number of ranks. The check runs your file on 2, 3 and 5 ranks, and counts your messages. The race
# below takes it.

# %%
# %%mine star.py
import torch
import torch.distributed as dist


def star(tensor):
    raise NotImplementedError


# %%
check.star("mine/star.py")
# check.star.hint()
# check.star.solution()

# %% [markdown]
# ## The ring
#
# In a star rank 0 adds up while all others wait for it. In a **ring** all ranks do the same work. Each rank sends only
# to its right neighbour. The tensor is cut into n **chunks**, for n ranks. In each step every rank sends one chunk,
# until all ranks have the whole sum.
#
# **Predict.** Four ranks make a ring. How many times the bytes of its tensor does each rank send, over all steps?

# %%
my_times = None  # times the bytes of the tensor

# %% jupyter={"source_hidden": true} tags=["hide-input"]
# %%px
from lessons.l04_collectives import collectives

collectives.write("results/live/04_collectives.json")

# %% jupyter={"source_hidden": true} tags=["hide-input"]
demo = json.loads(Path("results/live/04_collectives.json").read_text())
show.ring(demo["ring"], "added")
lesson.figure("A row is a rank, a column a chunk of one number. The right neighbour is the row below, and below the last "
              "row comes rank 0 again. A thick frame marks a sum that has just grown. In the last step each rank has "
              "one chunk with the colours of all ranks.")

# %% [markdown]
# Follow the column of rank 0's 1. This is the first half of the ring, the **reduce-scatter**: each rank *adds* the
# chunk that arrives to its own, and sends the sum on in the next step. After n − 1 steps each rank has one chunk of the
# whole sum. The second half is the **all-gather**: the whole sums go round once more, and each rank *copies* the chunk
# that arrives. This takes n − 1 steps, too:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.ring(demo["ring"], "copied")
lesson.figure("The chunks with all colours travel on. After the last step each rank has all of them.")

# %%
steps, chunks = len(demo["ring"]) - 1, len(demo["ring"][0]["cells"][0])
lesson.predicted(my_times, steps / chunks, "times its tensor", what="bytes of a ring")

# %% [markdown]
# Each rank sends 2(n − 1) chunks of one n-th of the tensor: **2(n − 1)/n** times the tensor. That is never more than
# twice, **however many ranks there are** ([Patarasuk and Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)).
#
# ### Exercise 2: your part of the program, `all_reduce`
#
# Write the ring. It changes `tensor` in place, on any number of ranks.
#
# Steps count from 0, as in the figures. Read off which chunk rank r sends in step s, and which one it receives. Write
# both as formulas with r, s and n. In Python `-1 % 4` is 3, so `%` brings you round the ring.
#
# `tensor.tensor_split(n)` gives n chunks. They share the tensor's memory, and their lengths may differ by one. Receive
# as above: `irecv`, then `send`, then `wait()`. The check first asks for the sum, and then for what your program needs
# besides.
#
# You can try the first half here. The ranks are simulated, and you step through your own messages. Each chunk begins one
# rank later there than in the figures, so that rank r ends with chunk r. The two puzzles that follow complete the ring,
# and the page gives it to you as a file for `mine/`.

# %%
lesson.puzzle("reduce_scatter")

# %%
# %%mine all_reduce.py
import torch
import torch.distributed as dist


def all_reduce(tensor):
    raise NotImplementedError


# %%
check.ring("mine/all_reduce.py")
# check.ring.hint()
# check.ring.solution()

# %% [markdown]
# ## Count
#
# Two more ways stand beside the star and the ring. In a tree each rank that has received sums sends its own sum on, and
# a broadcast brings the whole sum back. In the **direct** way each rank adds up one chunk: all others send it theirs at
# the same time, and it sends the sum of this chunk to all of them.

# %%
lesson.code(solution.direct)

# %% [markdown]
# The next program calls all of them on 2 ranks, on 3, and so on. It notes each message. Its rounds are those of a
# network in which **each pair of ranks has a cable of its own**: there a rank sends to several others in one round.
# Until one of your functions is right, ours stands in its place.

# %%
yours = f"{check.star.file} {check.ring.file}"
# !torchrun --nproc_per_node={most} lessons/l04_collectives/race.py --count \
#     --yours {yours} --out results/live/04_count.json

# %% jupyter={"source_hidden": true} tags=["hide-input"]
count = json.loads(Path("results/live/04_count.json").read_text())
show.messages_sent(count)
lesson.figure("A row is a rank, an arrow a message, and rounds go to the right. A thick arrow is a whole tensor, a thin "
              "one a chunk.")
lesson.table(show.counts_table(count))

# %% [markdown]
# On Linux the last column is the kernel's own count of the bytes on each connection, `dial.counted()`. It agrees with
# the count of messages, up to the headers that each message has. By these headers we know how many messages PyTorch's
# own all-reduce sends. With gloo it is a [ring](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc), too. It
# cuts each chunk in two, and so sends twice as many messages as our ring.
#
# Count the same for more ranks:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.busiest_by_ranks(count)
lesson.figure("Counted, not timed. A star's centre sends its tensor n − 1 times. In the ring and in the direct way no "
              "rank sends more than twice its tensor.")

# %% [markdown]
# ## Two networks
#
# Each message takes the time of its bytes, and rounds come one after another. So the largest message of each round,
# added up and divided by the rate, predicts the time.
#
# **On a mesh of cables** each pair of ranks has a cable of that rate, and a rank sends on all of its cables at once.
# The dial makes such a mesh on this machine: the kernel paces every connection between two ranks. **With one card per
# host** all messages of a rank share the rate of its card. Then a rank that sends to three others needs three rounds.
#
# **Predict.** Four ranks, a tensor of 4 MiB, 200 Mbit/s. Which of the four ways is the fastest on cables, and which
# with cards?

# %%
my_cables = None  # "star", "tree", "ring" or "direct"
my_cards = None

# %%
command = ("torchrun --nproc_per_node=4 lessons/l04_collectives/race.py --out results/live/04_race.json "
           f"--rates {rates} --rounds {rounds} --yours {check.star.file} {check.ring.file}")
if why := dial.missing():
    command = f"echo '{why}: a recorded run of the same command stands here.'"
# !{command}

# %% jupyter={"source_hidden": true} tags=["hide-input"]
source = "recorded" if why else "live"
race = json.loads(Path("results/recorded/lessons" if why else "results/live", "04_race.json").read_text())
cards = json.loads(Path("results/recorded/dial/cards.json").read_text())
lesson.predicted(my_cables, show.fastest(show.seconds_of(race, show.middle(race))), what="fastest, a cable per pair")
lesson.predicted(my_cards, show.fastest(show.with_cards(cards)), what="fastest, a card per host")
lesson.table(show.race_table(race))
show.networks(race, cards, source)
lesson.figure("The same message on three networks. Beside each bar its median, in milliseconds. The cards are recorded, "
              "with the course's functions on four network namespaces with a shaper each: results/recorded/dial has the "
              "command. The three axes have different lengths.")

# %% [markdown]
# The table shows the median of the rounds, and in brackets its interval of at least 95 % (lesson
# [01](01_measure.ipynb)).
#
# **On cables** the direct way wins. It needs two rounds, and each carries a quarter of the tensor. The ring needs six
# such rounds, one after another. A star whose centre serves all others at once needs two rounds as well, but each carries
# the whole tensor. The tree sends as few messages as the star, in twice as many rounds.
#
# **With cards** the ring and the direct way send the same: 1.5 tensors per card. Three tensors come to the star's centre
# through one card, and three leave by it, so the star is the slowest. The ring takes 1.07 times as long as its bytes
# need, and the direct way 1.30 times ([record](../results/recorded/dial/README.md)). We have not measured why. In the
# direct way three streams share each card, and in the ring one has it alone.
#
# So the network decides. Hosts usually have one card, or a few, and libraries use rings and
# [trees](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo) between them.
#
# ## Without a limit
#
# The third panel has another order, and the bytes do not explain it. Without a limit a message is a copy in one memory,
# and a core makes it. The machine of these outputs has two: **four ranks share two cores.**
#
# Take a tensor of 1 KiB first. It has next to no bytes, so what remains is the price of a message. The control is two
# ranks on the same two cores: there each rank has a core.

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.small_table(race))
lesson.verdict(show.price(race))

# %% [markdown]
# **Why does PyTorch's own all-reduce take several times the star's time?** The price of a message differs little from
# row to row, compared with the number of messages. PyTorch's all-reduce is a ring, made for large tensors. For 1 KiB,
# too, it sends all of a ring's messages, twice over. Are the shared cores the reason? Compare its two rows: if it is
# slower than the star with a core for each rank as well, they are not. For a small tensor the fewest messages win.
#
# **And with 4 MiB?** Now the copies and the sums are the work. An all-reduce cannot end before its busiest rank has done
# its part, nor before the cores have done everybody's:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.table(show.large_table(race))

# %% [markdown]
# The larger of the last two columns is a lower bound for the time. With four ranks on two cores the star is bound by its
# centre, and the ring by the cores: its four equal parts have to share them. So the two bounds come close, and so do the
# times. With a core for each rank only the busiest rank's part would be left as a bound, and the ring's is the smaller
# one.
#
# ## One call, made by all ranks
#
# From here on we use the library's collectives. Eight of them move data. Three questions sort them. **Who needs the
# result? Is something added up? Does each rank get the whole, or a part?**
#
# | | copied | added up |
# |:--|:--|:--|
# | one rank → all ranks | `broadcast`, `scatter` | |
# | all ranks → one rank | `gather` | `reduce` |
# | all ranks → all ranks | `all_gather`, `all_to_all` | `all_reduce`, `reduce_scatter` |
#
# Every rank runs the same line. Each function below returns the numbers that the rank holds afterwards. An arrow tells
# whose numbers a rank got. The library decides which way they take.

# %%
lesson.code(collectives.broadcast, collectives.scatter)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.before_after(demo, "broadcast", "scatter")
lesson.figure("Both go from rank 0 to all. Broadcast gives each rank the whole, scatter a part.")

# %%
lesson.code(collectives.gather, collectives.reduce)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.before_after(demo, "gather", "reduce")
lesson.figure("Both go from all ranks to rank 0. Gather keeps the numbers apart, reduce adds them up. What the other "
              "ranks hold after a reduce is not defined: gloo may use their tensors for partial sums.")

# %%
lesson.code(collectives.all_gather, collectives.all_reduce, collectives.reduce_scatter)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.before_after(demo, "all_gather", "all_reduce", "reduce_scatter")
lesson.figure("All three go from all ranks to all. A cell with one colour was copied, a cell with all colours is a sum. "
              "Reduce_scatter and all_gather are the two halves of the ring.")

# %% [markdown]
# In `all_to_all` each rank has a list, one piece for each rank.
#
# **Predict.** Rank 1 begins with 10 20 30 40. What does it hold afterwards?

# %%
my_pieces = None  # a list of numbers, one for each rank

# %%
lesson.code(collectives.all_to_all)
lesson.predicted(my_pieces, demo["all_to_all"][1][1], what="after all_to_all")
show.before_after(demo, "all_to_all")
lesson.figure("Read each side as a table: the rows before are the columns after.")

# %% [markdown]
# With `async_op=True` a collective returns at once, and returns an object to wait for. The rank goes on with work that
# does not need the result. Here rank 3 comes half a second late, and each rank has 0.2 s of other work:

# %%
# %%px
import time

dist.barrier()  # moves no data: nobody goes on before all have called it
start = time.perf_counter()
if rank == 3:
    time.sleep(0.5)
work = dist.all_reduce(torch.ones(4), async_op=True)
time.sleep(0.2)
before = time.perf_counter()
work.wait()
print(f"waited {time.perf_counter() - before:.1f} s, done after {time.perf_counter() - start:.1f} s")

# %% [markdown]
# Ranks 0 to 2 did their work while the collective waited for rank 3. To compute while messages travel is called
# **overlap**: lesson [06](06_ddp.ipynb) does it with gradients. Until `wait()` has returned, the tensor belongs to the
# collective. Do not read it, and do not write it.
#
# ## A rank stays away
#
# A collective works only if **all ranks of the group call the same one, in the same order**. Here rank 2 leaves one
# out, as after an `if` that not all ranks pass. Before you run the cell, say which ranks end with an error.

# %%
# %%px
try:
    if rank != 2:
        dist.all_reduce(torch.ones(4))
    print("goes on")
except RuntimeError as error:
    print("gives up:", str(error).split("] ")[-1].split(". ")[0])

# %% [markdown]
# The rank with the mistake goes on. The others wait, until the timeout of their group. Whoever gives up first closes
# its connections, and another may then see only that. The messages name neither the rank that is missing nor the
# collective.
#
# A ring made of messages tells more, since each of its messages can be seen. We call the course's ring the same way, in
# a new group, and note which message each rank waits for:

# %%
lesson.live_ranks(4, timeout=patience)

# %%
# %%px
from lessons.l04_collectives import messages
from lessons.start.ours.all_reduce import all_reduce

with messages.recorded() as events:
    try:
        if rank != 2:
            all_reduce(torch.ones(4))
        print("goes on")
    except RuntimeError:
        print(f"waited {messages.waits_for(events)}")

# %% [markdown]
# Read it as a chain: rank 0 waits for rank 1, and rank 1 for rank 2. Rank 3 waits for rank 2, too. The chain ends at the
# rank that waits for nobody. So do not look for the rank with the error, but for the one that the others wait for. With
# gloo `dist.monitored_barrier()` names it. With NCCL [the flight
# recorder](../TROUBLESHOOTING.md#a-hang-under-nccl-the-flight-recorder) does, and lesson [12](12_break_it.ipynb) reads
# it.
#
# ## Your program
#
# `mine/train.py` now adds up with `mine/all_reduce.py`: the loss, the right answers on the test images, and the sums of
# the weights by which it compares the ranks in the end. The gradients follow in lesson [06](06_ddp.ipynb). One process,
# two ranks and three, the same batch in each update:

# %%
# !python mine/train.py --epochs {epochs} --images 1536
# !torchrun --nproc_per_node=2 mine/train.py --epochs {epochs} --images 1536
# !torchrun --nproc_per_node=3 mine/train.py --epochs {epochs} --images 1536

# %% [markdown]
# The losses agree to rounding: in float32 a sum in another order may differ in its last digit. The first line of each
# run says whose parts it has. And the number that is better:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
lesson.verdict(show.ring_verdict(race))

# %%
lesson.predictions()

# %% [markdown]
# ## What to remember
#
# 1. Count the rounds and the largest message of each: that predicts the time, on a given network.
# 2. A ring is a reduce_scatter, then an all_gather. Each rank sends 2(n − 1)/n times its tensor, however many there
#    are.
# 3. All ranks of a group call the same collectives in the same order. Who stays away keeps all others waiting.
#
# **Next:** [05 · Who sees which image](05_distributed_sampler.ipynb). Before gradients can be added up, each rank needs
# images of its own.

# %% [markdown]
# ## For reference
#
# <details><summary>What torch.distributed is made of, and which backend can do what</summary>
#
# | part | what it does | lesson |
# |:--|:--|:--|
# | c10d: messages, collectives, process groups | the ranks exchange tensors | this one |
# | `DistributedDataParallel` | averages the ranks' gradients | [06](06_ddp.ipynb) |
# | `fully_shard` (FSDP2) | each rank keeps a part of the model | [13](13_shard_kept.ipynb) |
# | tensor parallelism, pipelines (TP, PP) | each rank computes a part of the model | [14](14_shard_computed.ipynb) |
# | `DTensor`, `DeviceMesh` | a tensor in parts on a grid of ranks; FSDP2 and TP are built on them | [13](13_shard_kept.ipynb) |
# | `torchrun` | starts the ranks | [03](03_processes_and_ranks.ipynb), [10](10_launchers.ipynb) |
#
# [PyTorch's overview](https://docs.pytorch.org/tutorials/beginner/dist_overview.html) has the same list. Older pages
# name three parts: c10d, DDP and RPC, "built on c10d". RPC calls a function in another process, and its messages go
# through TensorPipe. Start nothing new with it ([10](10_launchers.ipynb)).
#
# `broadcast_object_list`, `scatter_object_list`, `gather_object` and `all_gather_object` send any Python object. They
# pack it with pickle: convenient, slow, and not for data that you do not trust. `all_gather_into_tensor`,
# `reduce_scatter_tensor` and `all_to_all_single` take one large tensor in place of a list.
#
# [Backends and what they can do](https://docs.pytorch.org/docs/stable/distributed.html#backends):
#
# | | gloo, CPU | gloo, GPU | nccl, GPU | mpi, CPU |
# |:--|:-:|:-:|:-:|:-:|
# | `send`, `recv`, `barrier` | ✓ | – | ✓ | ✓ |
# | `broadcast`, `scatter`, `gather`, `reduce` | ✓ | ✓ | ✓ | ✓ |
# | `all_gather`, `all_reduce`, `all_to_all` | ✓ | ✓ | ✓ | ✓ |
# | `reduce_scatter` | ✓ | ✓ | ✓ | – |
#
# nccl takes no CPU tensors, xccl is its like for Intel's GPUs, and PyTorch's own packages do not contain mpi. With NCCL a
# call and its `wait()` only queue work on the GPU: a clock needs `torch.cuda.synchronize()`.
#
# </details>
