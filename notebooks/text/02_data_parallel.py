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
# **The question.** `nn.DataParallel` trains with several GPUs in one process. You change one line of your program. What
# does that line do in each step, and what does it cost?
#
# **You will be able to**
# - name the four phases of `DataParallel`'s `forward`, and write them yourself;
# - say what is cut, copied, lost or renamed when you wrap a model in it;
# - say why device 0 works longer and holds more than the others, and where you still meet `DataParallel`.
#
# **You need** [01 · Measure](01_measure.ipynb). No GPU.
#
# **Time.** About 45 minutes for you, 1 for the machine.

# %%
import glob, os, sys; here = any(glob.glob(up + "course/lesson.py") for up in ("", "../", "*/"))
here or os.system("git clone -qb v2.0 --depth 1 https://course.invalid/data-parallel")
sys.path[:0] = [".", "..", *glob.glob("*/")]; from course import lesson; lesson.begin()

# %% jupyter={"source_hidden": true} tags=["hide-input"]
import copy
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from unittest import mock

import pandas as pd
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel.scatter_gather import scatter

import utils
from course import compare
from course.timing import interleave
from lessons.l02_data_parallel import check, show
from lessons.l02_data_parallel.pretend_devices import (
    bytes_of, kept_for_backward, parallel_apply, replicate)

# %% jupyter={"source_hidden": true} tags=["hide-input", "parameters"]
devices = 4  # pretend devices, at least 2: each is a thread of this process
repeats = 7  # rounds of each measurement

# %% [markdown]
# ## One training step
#
# A **replica** is a copy of the model on one device. This is one training step of four devices with 64 rows:

# %% jupyter={"source_hidden": true} tags=["hide-input"]
show.steps(devices, rows=64)
lesson.figure("Read from left to right. `DataParallel`'s `forward` (blue) ends where it began: on "
              "device 0. In five of the nine columns device 0 works alone, and the others wait. "
              "The widths say nothing about time.")

# %% [markdown]
# `nn.DataParallel` needs GPUs. Here each device is a **pretend device**, a thread on the CPU: the phases and the
# results are the same, the times are not. A model and a batch:

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
# **2. Replicate**: copy the model to each device, and do so again in every step. PyTorch remembers that each replica
# was copied from the model. So `backward()` can carry the gradients back. The copying is called a *broadcast* (one to
# all); `grad_fn` names its backward. (On GPUs the replica of device 0 shares the model's own memory. Our `replicate`
# stands in the [file of the pretend devices](../lessons/l02_data_parallel/pretend_devices.py).)

# %%
replicas = replicate(model, len(pieces))
replicas[1][0].weight.grad_fn.name()

# %% [markdown]
# **3. Apply in parallel**: each replica computes its own piece, in a thread of its own.

# %%
lesson.code(parallel_apply)
outputs = parallel_apply(replicas, pieces)

# %% [markdown]
# **4. Gather**: join the outputs on device 0. `assert_close` raises an error if they differ from one device's outputs
# for the whole batch.

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
# ## The gradients
#
# The loss is the mean over all 64 rows. Each replica computes a gradient from its own rows.
#
# **Predict**: `DataParallel` makes one gradient from these four. One device computes another from all 64 rows. Divide
# the length of the first by the length of the second: what do you get?

# %%
my_factor = None  # how many times, ×

# %%
loss_of = nn.functional.cross_entropy
weights = list(model.parameters())
one_device = torch.autograd.grad(loss_of(model(batch), labels), weights)
parallel = torch.autograd.grad(loss_of(data_parallel(model, batch), labels), weights)

# %% jupyter={"source_hidden": true} tags=["hide-input"]
torch.testing.assert_close(parallel, one_device)
lesson.predicted(my_factor, round((parallel[0].norm() / one_device[0].norm()).item(), 3), "×")

# %% [markdown]
# It is the same gradient: `DataParallel` **adds up** the gradients of the replicas. The loss came *after* the gather
# and was divided by all 64 rows, so each replica's gradient is already a share of the whole. (DDP, which lesson
# [06](06_ddp.ipynb) builds, averages them instead: there each process has a loss of its own, divided by its own rows.)
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
# `chunk` rounds the size of a piece **up**. PyTorch's [tutorial][tutorial] shows it on GPUs: of a batch of 10 on 8
# GPUs, five GPUs get 2 rows each, and three get none.
#
# [tutorial]: https://docs.pytorch.org/tutorials/beginner/blitz/data_parallel_tutorial.html
#
# ## A model that counts
#
# This model counts the calls of its `forward`. Its BatchNorm layer keeps a running mean of the rows that it sees.
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
# the running mean starts at 0 and moves 10 % (momentum) towards the new mean
mean_of_device_0 = counting.norm.momentum * pieces[0].mean(0)
torch.testing.assert_close(counting.norm.running_mean, mean_of_device_0)

# %% [markdown]
# **A replica lives for one step.** Each replica counted its own call, and was then thrown away. BatchNorm kept the mean
# of **device 0's rows alone**, because the replica of device 0 shares the model's own buffers (tensors that are not
# trained). The [manual][manual] says both.
#
# There is worse: in training each replica normalises by its **own** 16 rows, not by all 64. This changes the outputs.
# Their largest difference from the outputs of one device:

# %%
whole_batch = counting(batch)
difference = (data_parallel(counting, batch) - whole_batch).abs().max()
print(f"{difference:.2f}, of outputs with standard deviation {whole_batch.std():.2f}")

# %% [markdown]
# The gradients differ, too. The equality that we checked above holds for layers that treat each row by itself, and
# BatchNorm looks at all rows of its piece. DDP has the same trouble; lesson [07](07_traps.ipynb) has the cure.
#
# [manual]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
#
# ## `nn.DataParallel` itself
#
# This is PyTorch's own `forward`. You know the four names.

# %%
lesson.code(nn.DataParallel.forward)

# %% [markdown]
# The three arguments of `nn.DataParallel(model, …)`:
#
# | argument | default | its meaning |
# |:--|:--|:--|
# | `device_ids` | all visible GPUs | the GPUs that compute; the first one is *device 0* |
# | `output_device` | `device_ids[0]` | the GPU that gathers the outputs; move the labels there |
# | `dim` | 0 | the dimension that is cut and joined; 1 where a tensor is time × batch × features |
#
# The `RuntimeError` in the code above is the one that people [meet
# first](https://github.com/kennethwdk/MLCReID/issues/5): **the model must be on the first GPU** when `forward` runs.
# `DataParallel` moves the pieces of the batch itself.
#
# Tutorials write `print(x.shape, x.device)` into `forward`. A hook, a function that PyTorch calls before `forward`,
# notes the same. On two GPUs ([Kaggle](../site/pages/systems.md) lends them) look here: it ought to note two calls, with
# half of the rows each.

# %%
gpus, seen = torch.cuda.device_count(), []
wrapped = nn.DataParallel(copy.deepcopy(model)).to("cuda:0" if gpus else "cpu")
wrapped.module.register_forward_pre_hook(
    lambda module, inputs: seen.append((list(inputs[0].shape), str(inputs[0].device))))
scores = wrapped(batch)
loss_of(scores, labels.to(scores.device)).backward()
print(f"GPUs: {gpus}; device_ids: {wrapped.device_ids}; calls of forward: {seen}")
print(wrapped)

# %% [markdown]
# - **Without a second GPU** `DataParallel` splits nothing and **says nothing**: `forward` runs once, on all 64 rows.
# - **Wrap, then move** (as above) or move, then wrap: both work, because `DataParallel` looks at the model in each step
#   ([since 2019](https://github.com/pytorch/pytorch/pull/17363)). [DDP][ddp] looks when it wraps: there, **move
#   first**.
# - **One loader** reads for all GPUs, and its `batch_size` is the whole batch. In DDP each process has its own loader.
#
# A `forward` may take more than one tensor. Here PyTorch's own `scatter` shares out five kinds of input between two
# devices. (Only its last step, the copy to a GPU, is replaced by `chunk`.)
#
# **Predict**: what does device 1 get of the list of four numbers?

# %%
my_numbers = None  # a list

# %%
inputs = {"a tensor": torch.arange(4), "a list of tensors": [torch.arange(4), torch.arange(2)],
          "a dict with a tensor": {"ids": torch.arange(4)}, "a list of numbers": [7, 8, 9, 10],
          "a string": "train"}
with mock.patch("torch.nn.parallel.scatter_gather.Scatter.apply",
                lambda devices, sizes, dim, tensor: tensor.chunk(len(devices), dim)):
    first, second = scatter(inputs, [0, 1])
lesson.predicted(my_numbers, second["a list of numbers"])
lesson.table([{"input": kind, "value": value, "device 0 gets": first[kind],
               "device 1 gets": second[kind]} for kind, value in inputs.items()])

# %% [markdown]
# - Scatter cuts **every tensor that has a dimension to cut**, also one inside a list, a tuple or a dict. That includes
#   a tensor of class weights, say, which should stay whole: make it a buffer of the model.
# - Scatter hands **every other object** whole to each device. So a list of labels or of file names is not cut, and no
#   longer fits its 2 rows.
#
# The wrapper puts the model one level deeper, as its attribute `module`. So every saved name changes:
#
# [ddp]: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html

# %%
saved, plain = wrapped.state_dict(), copy.deepcopy(model)
try:
    plain.load_state_dict(saved)
except RuntimeError as error:
    print(error)

# %% [markdown]
# There are two cures: save the model inside the wrapper, or take the prefix away. DDP adds the same prefix.

# %%
print(plain.load_state_dict(wrapped.module.state_dict()))
consume_prefix_in_state_dict_if_present(saved, "module.")  # changes `saved`
print(plain.load_state_dict(saved))

# %% [markdown]
# ## The price: time
#
# The median time of each phase of a step, for a larger model:

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
lesson.table([{"phase": phase, "ms": f"{1000 * length:.2f}",
               "share": f"{length / seconds.sum():.0%}"}
              for phase, length in seconds.items()])

# %% [markdown]
# Where device 0 works alone, **the others wait** (see the first figure). *Replicate* comes back in every step, and the
# model learns nothing from it. **These are the times of pretend devices, not of GPUs**: pretend devices share one
# memory, and one thread computes their backward. Between GPUs the batch, the model, the outputs and the gradients cross
# a link that is slower than memory.
#
# A published measurement on GPUs: 200 steps of GPT-2 on two TITAN RTX, joined by a fast link (NVLink), took 110.6 s
# with `DataParallel` and 101.9 s with DDP
# ([source](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many)). (One run each, without a spread.)
#
# ## The price: memory on device 0
#
# A small language model reads 64 sentences of 32 words. For each word it computes 4,096 scores: one for each word of
# its vocabulary. We count the bytes that each device holds in a step with Adam. Some of them are *kept for backward*:
# tensors that `forward` stores because `backward()` needs them. `kept_for_backward` runs a function, and returns its
# result and these bytes.
#
# The scores of one device are 16 × 32 × 4,096 numbers. How many does device 0 hold after the gather?
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

# %%
each = {"weights": bytes_of(reader.parameters()),
        "gradients": bytes_of(weight.grad for weight in reader.parameters()),
        "kept for backward": activations, "outputs": bytes_of([scores])}
state = bytes_of(part for of_weight in optimizer.state.values() for part in of_weight.values())
device_0 = each | {"Adam's state": state, "outputs": bytes_of([all_scores]),
                   "kept by the loss": kept_by_loss}
lesson.predicted(my_memory_ratio, sum(device_0.values()) / sum(each.values()), "×")
show.memory([device_0] + [each] * (devices - 1))
lesson.figure("Only device 0 holds the outputs of all rows, the tensors that the loss keeps, and "
              "Adam's state. Every other part is the same on all devices.")

# %% [markdown]
# The **fullest** device decides how large a batch can be. (Not all parts are there at the same moment. In `backward()`
# the gradient of the outputs is added, which is as large as the outputs.) Under DDP all devices hold equally much: each
# has Adam's state, and each has the outputs and the loss of its own rows only. Lesson [07](07_traps.ipynb) counts
# them.
#
# ## The price: Python's lock
#
# `DataParallel` computes in the threads of one process. Here `sum` of a `range` stands for a `forward` with much Python
# in it, `matrix_exp` for one that is all PyTorch.
#
# **Predict**: how many times as fast are 2 threads as 1, at the same sums?

# %%
my_python_speedup = None  # how many times, ×


# %%
def seconds_of(pool, work, pieces):
    start = time.perf_counter()
    list(pool.map(work, pieces))
    return time.perf_counter() - start


ranges, squares = [range(1_000_000)] * 4, [torch.randn(512, 512) / 30] * 4
kinds = {"Python, threads": (ThreadPoolExecutor, sum, ranges),
         "Python, processes": (lambda n: ProcessPoolExecutor(n, get_context("spawn")), sum, ranges),
         "matrices, threads": (ThreadPoolExecutor, torch.matrix_exp, squares)}
with ExitStack() as pools:
    rounds = interleave({(name, count): partial(seconds_of, pools.enter_context(workers(count)), work, pieces)
                         for name, (workers, work, pieces) in kinds.items() for count in (1, 2)}, repeats + 1)
seconds = {name: {count: rounds[name, count][1:] for count in (1, 2)} for name in kinds}  # the first round warms up

# %% jupyter={"source_hidden": true} tags=["hide-input"]
gains = {name: compare.ratio(of_kind[1], of_kind[2]) for name, of_kind in seconds.items()}
lesson.predicted(my_python_speedup, gains["Python, threads"].median, "×")
lesson.table([{"work": name, "1 worker, ms": f"{1000 * pd.Series(times[1]).median():.0f}",
               "2 workers, ms": f"{1000 * pd.Series(times[2]).median():.0f}",
               "times as fast": str(gains[name])} for name, times in seconds.items()])
gain = compare.ratio(seconds["Python, threads"][2], seconds["Python, processes"][2])
lesson.verdict("Python's sums, time of two threads / time of two processes: "
               f"{gain}." + " **That is the lock.**" * (gain.significant and gain.low > 1)
               + f" {compare.NOT_SHOWN}" * (gain.pairs >= compare.FEWEST and gain.low <= 1))

# %% [markdown]
# The *global interpreter lock* (GIL) lets only one thread of a process run Python at a time. (The usual builds of
# Python have it; the free-threaded ones do not.) PyTorch releases the lock inside an operation. `sum` of a `range` does
# not release it. Processes have a lock each, so they can gain. How much depends on more than the lock: each piece and
# each result is also a message between processes. So compare the threads with the processes, not with 2. (The numbers
# in brackets are the 95 % interval of lesson [01](01_measure.ipynb).)
#
# `DataParallel` has one interpreter that starts the work of all GPUs. Where a model has many small operations, the GPUs
# wait for that interpreter. DDP has one interpreter for each GPU.
#
# ## Which GPUs? `CUDA_VISIBLE_DEVICES`
#
# `CUDA_VISIBLE_DEVICES=0,3 python main.py --strategy dp` shows a program two GPUs, and numbers them anew. CUDA reads
# the variable itself. PyTorch repeats CUDA's rules in this function, to count GPUs before CUDA starts (its `_` warns
# that it may change):

# %%
rows = []
for visible in ("0,3", "3,0", "0,-1,2", "1,1", ""):
    with mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES=visible):
        numbers = torch.cuda._parse_visible_devices()
    rows.append({"CUDA_VISIBLE_DEVICES": f'"{visible}"', "GPUs, from cuda:0 on": numbers})
lesson.table(rows)


# %% [markdown]
# - The order counts. Numbers after a -1 are ignored, and a number that comes twice empties the whole list ([NVIDIA's
#   rules][rules]).
# - **A late change has no effect, and no error says so.** The cell above calls PyTorch's function five times; CUDA
#   reads the variable **once**, when its driver starts in the process. `import torch` does not start it. The first
#   tensor on a GPU does, and so does [`torch.cuda.is_available()`][available]. After that
#   `os.environ["CUDA_VISIBLE_DEVICES"] = "1"` hides no GPU: the program goes on using cuda:0. So set the variable in
#   front of the command.
# - CUDA counts the fastest GPU first. `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes it count as `nvidia-smi` does.
#
# [rules]: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
# [available]: https://github.com/pytorch/pytorch/blob/main/torch/cuda/__init__.py
#
# ## The verdict
#
# The [manual][dp] recommends DDP, "even if there is only a single node". The [DDP tutorial][ddp-tutorial] gives the
# reasons: threads compete for Python's lock, and each step replicates, scatters and gathers. In 2021 PyTorch's
# developers [considered removing](https://github.com/pytorch/pytorch/issues/65936) `DataParallel`. It is still there.
#
# | you meet `DataParallel` in | take DDP for |
# |:--|:--|
# | old code | all new code |
# | a quick try in a notebook: one line, no launcher | a training that takes longer than its start |
# | libraries that wrap the model unasked when they see several GPUs (Hugging Face's `Trainer`, [for instance][trainer]) | large models or outputs |
# | `python main.py --strategy dp`, to compare | much Python in `forward`; several machines |
#
# [dp]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
# [trainer]: https://github.com/NVIDIA-Merlin/Transformers4Rec/issues/473
# [ddp-tutorial]: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
#
# ## Exercise: a whole step by hand
#
# Write a training step of `DataParallel`, without threads, and without `replicate`, `parallel_apply` and `scatter`;
# `chunk` and `torch.cat` are allowed. Copy the model with `copy.deepcopy`: `backward()` then leaves the gradients in
# the copies, and you bring them back. Return the loss, which is the mean cross-entropy of the batch, and leave the
# gradient of the whole batch in the `.grad` of `model`'s weights. Call the copies only, never `model`. `devices` is a
# number. The last piece may be smaller than the others.

# %%
def my_step(model, batch, labels, devices):
    raise NotImplementedError


# %%
check.step(my_step)
# check.step.hint()
# check.step.solution()

# %% [markdown]
# Now your step trains on four pretend devices, beside a usual loop on one device. Both begin with the model from the
# beginning of this lesson, and see the same batch 20 times. (Until your step is right, ours stands in its place.)

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
lesson.figure("The dashed line covers the grey one: both trainings have the same loss.")
apart = (trained[0] - trained[1]).abs().max()
lesson.verdict(f"The largest difference between two weights after 20 steps: **{apart:.1e}**.")

# %% [markdown]
# It is the same training, apart from rounding.
#
# ## What to remember
#
# 1. `DataParallel` is one process. In each step it scatters the batch, replicates the model, applies the replicas in
#    threads, and gathers the outputs. It adds up the gradients.
# 2. Scatter cuts every tensor and nothing else. Whatever `forward` writes into a replica is lost. Saved names begin
#    with `module.`. Without a second GPU nothing is split, and no message says so.
# 3. Device 0 works longer and holds more than the others. DDP has no such device: use DDP for new code.
#
# **Next:** [03 · Processes and ranks](03_processes_and_ranks.ipynb). DDP runs several processes: how do they know who
# they are, and how do they find each other?
