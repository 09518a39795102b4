# ---
# jupyter:
#   course:
#     minutes: 45
#     quick:
#       parameters:
#         repeats: 1
#       seconds: 15
#     seconds: 20
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · DataParallel
#
# **The question.** `nn.DataParallel` trains with several GPUs in one process, and costs you one changed line. What does
# that line do in each step, and what is its price?
#
# **You will be able to**
# - name the four steps of `DataParallel`, and write them yourself;
# - say what is lost, cut or renamed when a model is wrapped in it;
# - say why device 0 is slower and fuller than the others, and when `DataParallel` is still met.
#
# **You need** [01 · One device](01_one_device.ipynb). No GPU.
#
# **Time.** About 45 minutes for you, 1 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v1.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %%
import copy
import timeit
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from unittest import mock

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

import utils
from lessons.l02_data_parallel import check, show
from lessons.l02_data_parallel.pretend_devices import (
    bytes_of, kept_for_backward, parallel_apply, replicate)

# %% tags=["parameters"]
devices = 4  # pretend devices, at least 2: each is a thread of this process
repeats = 7  # runs of each measurement

# %% [markdown]
# ## One training step
#
# A schematic: who does what, not how long it takes. Blue: the `forward` of `DataParallel`; orange: the rest of your
# training step. A **replica** is a copy of the model on one device.

# %%
show.steps(devices, rows=64)
plt.show()

# %% [markdown]
# `nn.DataParallel` needs GPUs. Here the devices are **pretend devices**, threads on the CPU: the same steps and
# results, other times. A model and a batch:

# %%
torch.set_num_threads(1)  # a pretend device computes with one core at most
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 20))
batch, labels = torch.randn(64, 40), torch.randint(20, (64,))

# %% [markdown]
# **1. Scatter**: cut the batch into one piece for each device.

# %%
pieces = batch.chunk(devices)
[list(piece.shape) for piece in pieces]

# %% [markdown]
# **2. Replicate**: copy the model to each device, in every step again. Each weight of a replica is a copy made by an
# operation that autograd records, so `backward()` can follow it back to the model's own weight. `grad_fn` shows the
# operation, a broadcast. (On GPUs the copy of device 0 shares the model's own memory. Our `replicate` stands in
# [one file](../lessons/l02_data_parallel/pretend_devices.py) with all of the pretend devices.)

# %%
replicas = replicate(model, len(pieces))
replicas[1][0].weight.grad_fn.name()

# %% [markdown]
# **3. Apply in parallel**: each replica computes its own piece, in a thread of its own.

# %%
lesson.code(parallel_apply)
outputs = parallel_apply(replicas, pieces)

# %% [markdown]
# **4. Gather**: join the outputs on device 0. They are those of the whole batch, else `assert_close` raises an error.

# %%
scores = torch.cat(outputs)
torch.testing.assert_close(scores, model(batch))


# %% [markdown]
# As a function:

# %%
def data_parallel(model, batch):
    pieces = batch.chunk(devices)
    replicas = replicate(model, len(pieces))
    outputs = parallel_apply(replicas, pieces)
    return torch.cat(outputs)


# %% [markdown]
# ## The way back
#
# The loss is the mean over all 64 rows. Each replica gets a gradient, and from these the model gets one.
#
# **Predict**: compare it with the gradient that one device computes from the whole batch. How many times as large is
# it?

# %%
my_factor = None  # how many times, ×

# %%
loss_of = nn.functional.cross_entropy
weights = list(model.parameters())
one_device = torch.autograd.grad(loss_of(model(batch), labels), weights)
parallel = torch.autograd.grad(loss_of(data_parallel(model, batch), labels), weights)
torch.testing.assert_close(parallel, one_device)
lesson.predicted(my_factor, round((parallel[0].norm() / one_device[0].norm()).item(), 3), "×")

# %% [markdown]
# The same gradient: those of the replicas are **added up**. The loss came *after* the gather and was divided by all 64
# rows, so each of them is a share. (DDP, which lesson 06 builds, has one process per device,
# each with a model, an optimizer and a loss of its own. It takes the mean: each process divides by its own rows.)
#
# ## A batch that does not divide
#
# **Predict**: 5 rows on 4 devices. Which device gets how many?

# %%
my_pieces = None  # rows on each device, in a list such as [5, 0, 0, 0]

# %%
rows = []
for size in (64, 10, 5, 3, 1):
    sizes = [len(piece) for piece in torch.empty(size, 40).chunk(devices)]
    rows.append({"batch": size, "rows on each device": sizes + [0] * (devices - len(sizes))})
lesson.predicted(my_pieces, rows[2]["rows on each device"])
lesson.table(rows)

# %% [markdown]
# `chunk` rounds the size of a piece **up**. Recorded [elsewhere][tutorial]: of a batch of 10 on 8 GPUs, five GPUs get 2
# rows each, and three get none.
#
# [tutorial]: https://docs.pytorch.org/tutorials/beginner/blitz/data_parallel_tutorial.html
#
# ## A model that counts
#
# This model counts the calls of its `forward`. Its BatchNorm keeps a running mean of what it sees.
#
# **Predict**: what is `counting.calls` after one step on 4 devices?

# %%
my_calls = None  # a whole number


# %%
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.norm = 0, nn.BatchNorm1d(40)

    def forward(self, batch):
        self.calls += 1
        return self.norm(batch)


counting = Counting()
data_parallel(counting, batch)
lesson.predicted(my_calls, counting.calls)
mean_of_device_0 = counting.norm.momentum * pieces[0].mean(0)
torch.testing.assert_close(counting.norm.running_mean, mean_of_device_0)

# %% [markdown]
# **Replicas live for one step.** Each of them counted, and was thrown away. And BatchNorm kept the mean of **device 0's
# rows alone**, whose replica has the model's own buffers (tensors that are not trained). The [manual][manual] says
# both.
#
# Worse: while it trains, each replica normalises by its **own** rows, not by all 64. So the outputs are not those of
# one device, by up to:

# %%
(data_parallel(counting, batch) - counting(batch)).abs().max().item()

# %% [markdown]
# The outputs differ, and so do the gradients. What we proved above holds for layers that treat each row by itself.
# BatchNorm looks at all rows of its piece. DDP has the same trouble, and lesson [06b](06b_ddp_traps.ipynb) the cure.
#
# [manual]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
#
# ## `nn.DataParallel` itself
#
# Its `forward`. You know the four names.

# %%
lesson.code(nn.DataParallel.forward)

# %% [markdown]
# Its error is what people [meet first](https://github.com/kennethwdk/MLCReID/issues/5): **the model must be on the
# first GPU** when `forward` runs. Scatter moves the batch. You move the labels to where the outputs are.
#
# Now on this machine. A hook, a function that PyTorch calls for us, notes how many rows each call of
# `forward` sees. On two GPUs ([Kaggle](../site/pages/kaggle.md) lends them) look at this: `forward` ought to run twice,
# on half of the rows each.

# %%
gpus, seen = torch.cuda.device_count(), []
wrapped = nn.DataParallel(copy.deepcopy(model)).to("cuda:0" if gpus else "cpu")
wrapped.module.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
scores = wrapped(batch)
loss_of(scores, labels.to(scores.device)).backward()
print(f"GPUs: {gpus}; rows that each call of forward saw: {seen}")
print(wrapped)

# %% [markdown]
# - **Without a second GPU** `DataParallel` splits nothing, and **says nothing**: `forward` runs once, on all 64 rows.
# - **Wrap, then move** (as above) or move, then wrap: both work, for `DataParallel` looks at the model in each step
#   ([since 2019](https://github.com/pytorch/pytorch/pull/17363)). [DDP][ddp] looks when it wraps: there, **move
#   first**.
# - **One loader** reads for all GPUs; its `batch_size` is the whole batch. In DDP each process has its own.
# - **Every tensor among the inputs is cut**, also class weights, say. Make those a buffer of the model.
#
# The wrapper adds a level, `(module)`, to the model and to every saved name:
#
# [ddp]: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html

# %%
saved, plain = wrapped.state_dict(), copy.deepcopy(model)
try:
    plain.load_state_dict(saved)
except RuntimeError as error:
    print(error)

# %% [markdown]
# Two cures: save the model inside, or take the prefix away. DDP adds the same prefix.

# %%
print(plain.load_state_dict(wrapped.module.state_dict()))
consume_prefix_in_state_dict_if_present(saved, "module.")  # changes `saved`
print(plain.load_state_dict(saved))

# %% [markdown]
# ## The price: time
#
# The median time of each phase of a step, with a larger model:

# %%
large = nn.Sequential(nn.Linear(40, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 20))
optimizer = torch.optim.Adam(large.parameters(), fused=True)
many, answers = torch.randn(64 * devices, 40), torch.randint(20, (64 * devices,))
steps = []
for _ in range(repeats + 2):
    optimizer.zero_grad()
    timer = utils.PhaseTimer(torch.device("cpu"))
    pieces = many.chunk(devices)
    timer.mark("scatter")
    replicas = replicate(large, len(pieces))
    timer.mark("replicate")
    outputs = parallel_apply(replicas, pieces)
    timer.mark("apply")
    scores = torch.cat(outputs)
    timer.mark("gather")
    loss = loss_of(scores, answers)
    timer.mark("loss")
    loss.backward()
    timer.mark("backward")
    optimizer.step()
    timer.mark("update")
    steps.append(timer.totals())
seconds = pd.DataFrame(steps[2:]).median()  # the first two warm up

# %% jupyter={"source_hidden": true} tags=["hide-input"]
done_by = {"scatter": "device 0, for all", "replicate": "device 0, to all", "apply": "all devices",
           "gather": "all, to device 0", "loss": "device 0", "backward": "all devices",
           "update": "device 0", "**the whole step**": ""}
lengths = {**seconds, "**the whole step**": seconds.sum()}
lesson.table([{"step": phase, "on GPUs this is done by": done_by[phase],
               "ms here": f"{1000 * length:.2f}", "share here": f"{length / seconds.sum():.0%}"}
              for phase, length in lengths.items()])

# %% [markdown]
# In the table, where device 0 works, **the others wait**. *Replicate* comes back in every step, and teaches the model
# nothing. **The times are those of pretend devices, not of GPUs**: these share memory, and one thread computes their
# backward. Between GPUs the batch, the model, the outputs and the gradients cross a link that is slower than memory.
#
# On GPUs, recorded elsewhere: 200 steps of GPT-2 on two TITAN RTX, joined by a fast link (NVLink), took 110.6 s with
# `DataParallel` and 101.9 s with DDP ([source](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many)).
#
# ## The price: memory on device 0
#
# A small language model reads 64 sentences of 32 words, and gives 4,096 scores for each word: one for each word of its
# vocabulary. We count the bytes that each device
# holds in a step, with Adam.
#
# **Predict**: how many times as much does device 0 hold as device 1?

# %%
my_memory_ratio = None  # how many times, ×

# %%
vocabulary = 4096
reader = nn.Sequential(nn.Embedding(vocabulary, 256), nn.Linear(256, 1024), nn.ReLU(),
                       nn.Linear(1024, 256), nn.Linear(256, vocabulary))
sentences = torch.randint(vocabulary, (64, 32))
piece = sentences.chunk(devices)[0]


def loss_of_words(scores, words):
    return loss_of(scores.flatten(0, 1), words.flatten())


scores, activations = kept_for_backward(reader, piece, weights=reader.parameters())
all_scores = torch.cat([scores] * devices)[:len(sentences)]  # as device 0 gathers them
loss, kept_by_loss = kept_for_backward(loss_of_words, all_scores, sentences)
loss.backward()
optimizer = torch.optim.Adam(reader.parameters())
optimizer.step()

# %% [markdown]
# Who holds what? *Kept for backward* is what `forward` stores because `backward()` needs it.

# %%
each = {"weights": bytes_of(reader.parameters()),
        "gradients": bytes_of(weight.grad for weight in reader.parameters()),
        "kept for backward": activations, "outputs": bytes_of([scores])}
state = bytes_of(part for of_weight in optimizer.state.values() for part in of_weight.values())
device_0 = each | {"Adam's state": state, "outputs": bytes_of([all_scores]),
                   "kept by the loss": kept_by_loss}
lesson.predicted(my_memory_ratio, sum(device_0.values()) / sum(each.values()), "×")
show.memory([device_0] + [each] * (devices - 1))
plt.show()

# %% [markdown]
# Under `DataParallel` the outputs of the whole batch, the loss and Adam's state are on device 0 alone, and the
# **fullest** device decides how large a batch can be. (Not all parts are there at the same moment. In `backward()` the
# gradient of the outputs comes on top, as large as they are.) Under DDP each device holds as much as the others, Adam's
# state too, but only its own outputs and loss: lesson [06b](06b_ddp_traps.ipynb).
#
# ## The price: Python's lock
#
# The *global interpreter lock* (GIL) lets one thread of a process run Python at a time. (The usual builds of Python
# have it, the free-threaded ones have not.) PyTorch lets go of it inside an operation. `sum` of a `range` does not: it
# stands for a `forward` full of Python.
#
# **Predict**: how many times as fast are 2 threads as 1, at the same sums?

# %%
my_python_speedup = None  # how many times, ×

# %%
ranges, squares = [range(1_000_000)] * 4, [torch.randn(512, 512) / 30] * 4
kinds = {"Python, threads": (ThreadPoolExecutor, sum, ranges),
         "Python, processes": (lambda n: ProcessPoolExecutor(n, get_context("spawn")), sum, ranges),
         "matrices, threads": (ThreadPoolExecutor, torch.matrix_exp, squares)}
measured = {}
for name, (workers, work, pieces) in kinds.items():
    for count in (1, 2):
        with workers(count) as pool:
            list(pool.map(work, pieces))  # starts the workers
            measured[name, count] = timeit.repeat(
                "list(pool.map(work, pieces))", number=1, repeat=repeats, globals=globals())

# %% jupyter={"source_hidden": true} tags=["hide-input"]
fastest = {key: min(seconds) for key, seconds in measured.items()}  # disturbed least
gains = {name: fastest[name, 1] / fastest[name, 2] for name in kinds}
threads, processes, _ = gains.values()
lesson.predicted(my_python_speedup, threads, "×")
lesson.table([{"work": name, "1 worker, ms": f"{1000 * fastest[name, 1]:.0f}",
               "2 workers, ms": f"{1000 * fastest[name, 2]:.0f}", "times as fast": f"{gain:.2f}"}
              for name, gain in gains.items()])
lesson.verdict(show.lock(threads, processes))

# %% [markdown]
# `DataParallel` has one interpreter that starts the work of all GPUs. With many small operations they wait for it. DDP
# has one interpreter for each GPU.
#
# ## Which GPUs? `CUDA_VISIBLE_DEVICES`
#
# `CUDA_VISIBLE_DEVICES=0,3 python main.py --strategy dp` gives a program two GPUs, numbered anew. PyTorch's reader of
# the variable (`_`: it may change):

# %%
rows = []
for visible in ("0,3", "3,0", "0,-1,2", "1,1", ""):
    with mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES=visible):
        numbers = torch.cuda._parse_visible_devices()
    rows.append({"CUDA_VISIBLE_DEVICES": f'"{visible}"', "GPUs, from cuda:0 on": numbers})
lesson.table(rows)


# %% [markdown]
# - The order counts, and what follows -1 is not seen. A number twice makes the whole list empty ([NVIDIA's
#   rules][rules]).
# - The cell calls PyTorch's reader five times. CUDA itself reads the variable **once**, when CUDA's driver starts in
#   the process. `import torch` does not start it. The first tensor on a GPU does, and
#   [`torch.cuda.is_available()`][available] too. So set it in front of the command.
# - CUDA counts the fastest GPU first. `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes it count as `nvidia-smi` does.
#
# [rules]: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
# [available]: https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py
#
# ## The verdict
#
# The [manual][dp] recommends DDP, "even if there is only a single node". The [DDP tutorial][ddp-tutorial] says why:
# threads that compete for Python's lock, replicas in each step, scatter, gather. In 2021 PyTorch's developers [thought
# of removing](https://github.com/pytorch/pytorch/issues/65936) `DataParallel`. It is still there.
#
# | you meet `DataParallel` in | take DDP for |
# |:--|:--|
# | old code | all that you write anew |
# | a quick try in a notebook: one line, no launcher | training that takes longer than starting it |
# | libraries that wrap the model unasked when they see several GPUs (Hugging Face's `Trainer`, [seen here][trainer]) | large models or outputs |
# | `python main.py --strategy dp`, to compare | much Python in `forward`; several machines |
#
# [dp]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
# [trainer]: https://github.com/NVIDIA-Merlin/Transformers4Rec/issues/473
# [ddp-tutorial]: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
#
# ## Exercise: a whole step by hand
#
# Without threads and without the course's functions. Copy the model with `copy.deepcopy`: then the gradients stay in
# the copies, and you bring them back. Return the loss, the mean cross-entropy of the batch, and leave the gradient of
# the whole batch in the `.grad` of `model`'s weights. Call `forward` of the copies only, never of `model`. `devices` is
# a number. The last piece may be smaller than the others.

# %%
def my_step(model, batch, labels, devices):
    raise NotImplementedError


# %%
check.step(my_step)
# check.step.hint()
# check.step.solution()

# %% [markdown]
# Now your step trains, on four pretend devices, beside a usual loop on one device: the model of the beginning, the same
# batch 20 times. (While yours is not right yet, ours stands in its place.)

# %%
function, whose = check.step.or_ours(my_step)


def usual_step(model, batch, labels, devices):
    loss = loss_of(model(batch), labels)
    loss.backward()
    return loss


curves, trained = {}, []
for name, step in {"one device": usual_step, f"{whose} step, 4 devices": function}.items():
    network = copy.deepcopy(model)
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.01), []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(step(network, batch, labels, 4).item())
        optimizer.step()
    curves[name] = losses
    trained.append(nn.utils.parameters_to_vector(network.parameters()))

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.losses(curves)
plt.show()
apart = (trained[0] - trained[1]).abs().max()
lesson.verdict(f"The largest difference between two weights after 20 steps: **{apart:.1e}**.")

# %% [markdown]
# One line hides the other: it is the same training, but for rounding.
#
# ## What to remember
#
# 1. `DataParallel` is one process. In each step it scatters the batch, replicates the model, applies the replicas in
#    threads, and gathers the outputs. Gradients are added up.
# 2. What `forward` writes into a replica is lost, saved names begin with `module.`, and without a second GPU nothing is
#    split, and nothing said.
# 3. Device 0 does more and holds more than the others. DDP has no such device: it is what you write today.
#
# **Next:** [03 · Processes and ranks](03_processes_and_ranks.ipynb)
# DDP is several processes: what they are called, and how they find each other.
