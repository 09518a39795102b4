# ---
# jupyter:
#   course:
#     quick:
#       parameters:
#         repeats: 2
#       seconds: 20
#     seconds: 25
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · DataParallel
#
# One process, several GPUs, one changed line: what does `nn.DataParallel` do in a step, and what does it cost?

# %%
import glob, sys
sys.path.insert(0, next(found[:-17] for place in (".", "..", "*") for found in glob.glob(f"{place}/course/lesson.py")))
from course import lesson; lesson.begin()

# %%
import copy
import inspect
import math
import os
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest import mock

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.patches import Patch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

import utils
from course import plots
from course.checks import lesson_02 as check

# %% tags=["parameters"]
devices = 4  # pretend devices, at least 2: each is a thread of this process
repeats = 7  # runs of each measurement


# %% [markdown]
# ## The four steps, by hand
#
# 1. **Scatter**: cut the batch into one piece for each device.
# 2. **Replicate**: copy the model to each device.
# 3. **Apply in parallel**: one thread for each device runs its copy on its piece.
# 4. **Gather**: join the outputs on the first device.
#
# `nn.DataParallel` needs GPUs. The four steps do not: here the devices are **pretend devices**, threads on the CPU.
# First a model that says what its `forward` sees.

# %%
class Model(nn.Module):
    """Batches [N, 40] to scores [N, 20]."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 20))

    def forward(self, batch):
        scores = self.layers(batch)
        device = getattr(self, "pretend_device", batch.device)
        print(f"inside, on {device}: {list(batch.shape)} in, {list(scores.shape)} out\n", end="")  # one write a thread
        return scores


torch.set_num_threads(1)  # a pretend device computes with one core at most
torch.manual_seed(0)
model = Model()
batch, labels = torch.randn(64, 40), torch.randint(20, (64,))


# %% [markdown]
# **Step 1, scatter.** Tensors are cut. Lists and dictionaries are looked into. All else goes to each device as it is.

# %%
def scatter(value, devices, dim=0):
    """What each device gets of `value`, in a list. The rules of torch.nn.parallel.scatter_gather."""
    if isinstance(value, torch.Tensor):
        return list(value.chunk(devices, dim))
    if isinstance(value, (list, tuple, dict)) and value:
        parts = value.items() if isinstance(value, dict) else value
        return [type(value)(part) for part in zip(*(scatter(part, devices, dim) for part in parts), strict=False)]
    return [value] * devices


# %% [markdown]
# **Step 2, replicate**, is the one with a trick. There is one model to train, so the gradients of all copies must come
# back to it. What is copied on the way forward is **added up** on the way back.

# %%
class Broadcast(torch.autograd.Function):
    """Forward: a copy of the weights for each device. Backward: the gradients of the copies, added up."""

    @staticmethod
    def forward(ctx, devices, *weights):
        ctx.devices = devices
        return tuple(weight.clone() for _ in range(devices) for weight in weights)

    @staticmethod
    def backward(ctx, *gradients):
        each = len(gradients) // ctx.devices
        copies = (gradients[i * each:(i + 1) * each] for i in range(ctx.devices))
        return None, *(sum(same_weight) for same_weight in zip(*copies, strict=True))


# %% [markdown]
# Now all four.

# %%
class DataParallelByHand(nn.Module):
    """What nn.DataParallel does in a step, on pretend devices. Its methods have the same names."""

    def __init__(self, module, devices, dim=0):
        super().__init__()
        self.module, self.devices, self.dim = module, devices, dim

    def forward(self, *inputs):
        pieces = self.scatter(inputs)
        replicas = self.replicate(len(pieces))  # no more than there are pieces
        outputs = self.parallel_apply(replicas, pieces)
        return self.gather(outputs)

    def scatter(self, inputs):
        return scatter(inputs, self.devices, self.dim)

    def replicate(self, count):
        """(module, its tensors by name) for each device: everything but the weights is copied, the weights broadcast."""
        weights, replicas = dict(self.module.named_parameters()), []
        copies = iter(Broadcast.apply(count, *weights.values()))
        for i in range(count):
            replica = copy.deepcopy(self.module, {id(weight): weight for weight in weights.values()})
            replica.pretend_device = f"pretend:{i}"
            replicas.append((replica, {name: next(copies) for name in weights}))
        replicas[0][1].update(self.module.named_buffers())  # the first device works on the model's own buffers
        return replicas

    def parallel_apply(self, replicas, pieces):
        training = torch.is_grad_enabled()  # every thread has this switch for itself

        def run(replica, piece):
            with torch.set_grad_enabled(training):
                return functional_call(*replica, piece)

        with ThreadPoolExecutor(len(replicas)) as threads:
            return list(threads.map(run, replicas, pieces))

    def gather(self, outputs):
        return torch.cat(outputs, self.dim)


# %% [markdown]
# **Predict**: a batch of 64 rows of 40 features, on 4 devices (or as many as you have set above). How many rows does each
# `forward` see, and how many rows has the output outside?

# %%
my_rows_inside, my_rows_outside = 64, 64  # your numbers

# %%
parallel = DataParallelByHand(model, devices)
scores = parallel(batch)
print(f"outside: {list(scores.shape)}     (you said {my_rows_inside} inside, {my_rows_outside} outside)")

# %% [markdown]
# `forward` ran once for each device, each time with a part of the batch. The code outside saw none of it. (The lines come
# in any order: the threads run at the same time.)
#
# So under `DataParallel` the batch size is that of the **whole** batch. Under DDP you give it for each process.

# %% [markdown]
# ## Does it train the same?
#
# **Predict**: the loss is the mean over all 64 outputs. Are the gradients those of one device with the whole batch, or
# smaller by the number of devices?

# %%
my_factor = 0.25  # the gradient by hand / the gradient on one device


# %%
def gradients(network, batch, labels):
    """The gradient of each weight; the loss is the mean over the whole batch."""
    loss = nn.functional.cross_entropy(network(batch), labels)
    return torch.autograd.grad(loss, list(network.parameters()))


def largest_difference(some, others):
    return max((a - b).abs().max().item() for a, b in zip(some, others, strict=True))


layers = model.layers  # the same network, without the printing
one_device = gradients(layers, batch, labels)
by_hand = gradients(DataParallelByHand(layers, devices), batch, labels)
difference = largest_difference(one_device, by_hand)
factor = sum((a * b).sum() for a, b in zip(one_device, by_hand, strict=True)) / sum((a * a).sum() for a in one_device)
print(f"largest difference in a gradient: {difference:.1e}, largest gradient: {max(g.abs().max() for g in one_device):.1e}")
print(f"by hand / one device: {factor:.4f}     (you said {my_factor})")
assert difference < 1e-6

# %% [markdown]
# The same, up to rounding. The loss was computed **after** the gather, over the whole batch, so each copy's gradient is
# already its share. They are added, not averaged. (DDP averages, because there each rank's loss is a mean of its own.)
#
# A widely read [guide](https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many) says of `DataParallel` that
# gradients are "averaged". The [manual](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html) says
# "summed", as you have just seen.
#
# ## A batch that does not divide
#
# **Predict**: now a batch of 5. Which device gets how many rows?

# %%
my_pieces = [1, 1, 1, 2]  # your numbers

# %%
table = []
for size in (64, 10, 5, 3, 1):
    rows, answers = torch.randn(size, 40), torch.randint(20, (size,))
    pieces = scatter(rows, devices)
    difference = largest_difference(gradients(layers, rows, answers),
                                    gradients(DataParallelByHand(layers, devices), rows, answers))
    assert difference < 1e-6
    table.append({"batch": size, "rows on each device": [len(piece) for piece in pieces], "replicas used": len(pieces),
                  "largest difference in a gradient": f"{difference:.0e}"})
print(f"You said {my_pieces} for a batch of 5 on {devices} devices.")
pd.DataFrame(table).set_index("batch")


# %% [markdown]
# `chunk` rounds the size of a piece **up** and cuts until nothing is left. So some devices may get nothing, and then no
# copy is made for them: they wait. The gradient is right each time.
#
# ## What happens in a replica stays there
#
# The replicas live for one step. Whatever `forward` writes into the module is written into a copy and lost.

# %%
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.norm = 0, nn.BatchNorm1d(40)

    def forward(self, batch):
        self.calls += 1
        return self.norm(batch)


counting = Counting()
DataParallelByHand(counting, devices)(batch)
first_piece = scatter(batch, devices)[0]
statistics = {"the whole batch": batch, f"the first device's {len(first_piece)} rows": first_piece}
print(f"calls counted: {counting.calls}")
for whose, rows in statistics.items():
    difference = (counting.norm.running_mean - 0.1 * rows.mean(0)).abs().max()  # 0.1: BatchNorm's momentum
    print(f"running mean against {whose}: largest difference {difference:.0e}")

# %% [markdown]
# The counter did not move. Of BatchNorm's statistics only those of the first device are kept: that replica works on the
# model's own buffers. Both as in the [manual of `nn.DataParallel`][manual].
#
# [manual]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
#
# ## `nn.DataParallel` itself
#
# These lines are the heart of PyTorch's own `forward`. You know the four names.

# %%
heart = re.compile(r"if .*self\.device_ids|return|self\.(scatter|replicate|parallel_apply|gather)\(")
source = inspect.getsource(nn.DataParallel.forward).splitlines()[1:]
print(textwrap.dedent("\n".join(line for line in source if heart.search(line))))

# %% [markdown]
# No device: the batch is passed on. One: too. Else the four steps. On this machine:

# %%
gpus = torch.cuda.device_count()
device = torch.device("cuda:0" if gpus else "cpu")
parallel = nn.DataParallel(copy.deepcopy(model).to(device))
print(f"GPUs: {gpus}, device_ids: {parallel.device_ids}")
scores = parallel(batch.to(device))
print(f"outside, on {scores.device}: {list(scores.shape)}")

# %%
Markdown({
    0: "This machine has no GPU for `DataParallel`. It split nothing and **said nothing**: `forward` saw the whole batch, "
       "once. Your program runs, and you may believe that it is parallel.",
    1: "With one GPU there is nothing to split: `forward` saw the whole batch, once, and no message says so.",
}.get(gpus, f"`forward` ran once on each of the GPUs that got a piece, and the output is on `{scores.device}`."))

# %% [markdown]
# And on several GPUs? **Recorded elsewhere**: a [PyTorch tutorial][tutorial] prints what each `forward` sees on 2, 3 and 8 GPUs,
# for batches of 30 and of 10 rows. Beside it, what our `scatter` does.
#
# [tutorial]: https://docs.pytorch.org/tutorials/beginner/blitz/data_parallel_tutorial.html

# %%
recorded = {(2, 30): [15, 15], (3, 30): [10, 10, 10], (8, 30): [4, 4, 4, 4, 4, 4, 4, 2],
            (2, 10): [5, 5], (3, 10): [4, 4, 2], (8, 10): [2, 2, 2, 2, 2]}  # its lines come in any order: sorted here
by_scatter = {(count, size): [len(piece) for piece in scatter(torch.empty(size, 5), count)] for count, size in recorded}
assert by_scatter == recorded
pd.DataFrame([{"GPUs": count, "batch": size, "rows in each forward (recorded)": seen, "by hand": by_scatter[count, size],
               "GPUs without work": count - len(seen)} for (count, size), seen in recorded.items()]).set_index("GPUs")

# %% [markdown]
# The same cuts. Eight GPUs with a batch of 10: three of them wait, as above.
#
# Three options:
#
# | option | default | what it says |
# |:--|:--|:--|
# | `device_ids` | all GPUs that are visible | which to use. The model must be on the first: else a RuntimeError says so |
# | `output_device` | the first | where the outputs are gathered. The loss is computed there: the labels must be there too |
# | `dim` | 0 | which dimension counts the rows of the batch: inputs are cut, and outputs joined, along it |

# %%
if gpus >= 2:
    two = nn.DataParallel(copy.deepcopy(model).to("cuda:0"), device_ids=[0, 1], output_device=1)
    print("output_device=1:", two(batch.to("cuda:0")).device)
else:
    print("device_ids, output_device: need 2 GPUs, not run here")
sentences = torch.randn(7, 64, 40)  # 64 sentences of 7 words: recurrent networks often want the words first
for dim in (0, 1):
    print(f"dim={dim}: {list(sentences.shape)} becomes", [list(piece.shape) for piece in scatter(sentences, devices, dim)])

# %% [markdown]
# With `dim=0` this batch is cut between the words of each sentence. No error: only a model that learns from torn
# sentences.
#
# ### Inputs that are more than one tensor
#
# Dictionaries, lists and plain values can be inputs, too. **Predict**: here is one with 64 rows and with a weight for each
# of 20 classes. How many class weights does device 0 get?

# %%
my_class_weights = 20  # your number

# %%
inputs = {"rows": batch, "class weights": torch.ones(20), "temperature": 0.5, "names": ["a", "b"]}


def brief(value):
    return f"tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


first, *_, last = pieces = scatter(inputs, devices)
print(f"You said that device 0 gets {my_class_weights} class weights.")
pd.DataFrame({"input": {key: brief(value) for key, value in inputs.items()},
              "device 0 gets": {key: brief(value) for key, value in first.items()},
              f"device {len(pieces) - 1} gets": {key: brief(value) for key, value in last.items()}})

# %% [markdown]
# - Tensors are cut, wherever they stand. **Also those that are no batch**: the class weights were torn apart.
#   Make such a tensor a buffer of the model.
# - Numbers, strings and other objects are the *same* object on each device. Do not write into them.
# - `DataParallel` gathers dictionaries, lists and tuples of tensors, too. If `forward` returns one number, a loss say, you
#   get a vector with one number from each device.
#
# ### The prefix `module.`
#
# The wrapper adds a level to every name, also where it splits nothing.

# %%
saved = parallel.state_dict()
print("saved:", list(saved))
plain = Model()
try:
    plain.load_state_dict(saved)
except RuntimeError as error:
    print(f"\nRuntimeError: {error}")

# %% [markdown]
# **The cure**: save the model inside, `parallel.module.state_dict()`. For a file that already has the prefix, PyTorch has
# a function that takes it away. DDP adds the same prefix, with the same cure.

# %%
print("the model inside:", plain.load_state_dict(parallel.module.state_dict()))
consume_prefix_in_state_dict_if_present(saved, "module.")  # changes `saved`
print("prefix taken away:", plain.load_state_dict(saved))

# %% [markdown]
# ## What it costs: a timeline
#
# One training step of the hand-made version, from its own clock. The model is larger now, so that there is something to
# see: about a million weights, 64 rows for each device.
#
# **Predict**: which takes longest: scatter, replicate, apply, gather, loss, backward or update?

# %%
my_longest = "apply"

# %%
events = []  # (device, step, start, end)


@contextmanager
def span(step, device=0):
    start = time.perf_counter()
    yield
    events.append((device, step, start, time.perf_counter()))


class TimedParallel(DataParallelByHand):
    def scatter(self, inputs):
        with span("scatter"):
            return super().scatter(inputs)

    def replicate(self, count):
        with span("replicate"):
            return super().replicate(count)

    def gather(self, outputs):
        with span("gather"):
            return super().gather(outputs)


class Timed(nn.Module):
    """Notes when its device computes forward, and when the gradient of each copied weight was ready."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, rows):
        with span("apply", int(self.pretend_device.removeprefix("pretend:"))):
            scores = self.layers(rows)
        for weight in self.parameters():
            weight.register_hook(lambda gradient: ready.append(time.perf_counter()))
        return scores


def training_step(network):
    optimizer.zero_grad()
    scores = network(rows)
    with span("loss"):
        loss = nn.functional.cross_entropy(scores, answers)
    with span("backward"):
        loss.backward()
    with span("update"):
        optimizer.step()


large = nn.Sequential(nn.Linear(40, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 20))
optimizer = torch.optim.Adam(large.parameters(), fused=True)
rows, answers = torch.randn(64 * devices, 40), torch.randint(20, (64 * devices,))
timelines, plain_ms = [], []
for number in range(repeats + 2):
    start = time.perf_counter()
    training_step(large)
    plain = time.perf_counter() - start

    events, ready = [], []
    training_step(TimedParallel(Timed(large), devices))
    if number >= 2:  # the first two warm up
        timeline = pd.DataFrame(events, columns=["device", "step", "start", "end"]).set_index("step")
        adding = timeline.loc[["backward"]].assign(start=max(ready)).rename({"backward": "add up gradients"})
        timeline.loc["backward", "end"] = max(ready)  # the copies' gradients are there: the rest adds them up
        timelines.append(pd.concat([timeline, adding]).reset_index())
        plain_ms.append(1000 * plain)

length = [1000 * (each["end"].max() - each["start"].min()) for each in timelines]
step = timelines[sorted(range(repeats), key=length.__getitem__)[repeats // 2]]  # the one of median length
step[["start", "end"]] = 1000 * (step[["start", "end"]] - step["start"].min())
spent = step.groupby("step", sort=False).agg(start=("start", "min"), end=("end", "max")).sort_values("start")
spent["ms"] = spent["end"] - spent["start"]

# %%
colours = {"scatter": plots.COLOURS[3], "replicate": plots.COLOURS[1], "apply": plots.PHASES["forward"],
           "gather": plots.COLOURS[6], "loss": plots.GREY, "backward": plots.PHASES["backward"],
           "add up gradients": plots.COLOURS[4], "update": plots.PHASES["update"]}
ax = plt.subplots(figsize=(14, 2.5 + 0.8 * devices))[1]
everywhere = step["step"] == "backward"  # one thread computes it for all replicas
ax.barh(step["device"].where(~everywhere, (devices - 1) / 2), step["end"] - step["start"], left=step["start"],
        color=step["step"].map(colours), height=everywhere.map({True: devices - 0.3, False: 0.7}))
ax.set_yticks(range(devices), [f"device {number}" for number in range(devices)])
ax.invert_yaxis()
ax.grid(axis="y", visible=False)
ax.set_xlabel("milliseconds")
ax.legend(handles=[Patch(color=colours[name], label=f"{name}: {ms:.{1 if ms >= 0.1 else 2}f} ms") for name, ms in spent["ms"].items()], ncols=4,
          loc="lower left", bbox_to_anchor=(-0.02, 1), frameon=False, columnspacing=1.2, handlelength=1.2, fontsize=16)
ax.set_title("One training step on pretend devices", pad=76)
plt.show()

# %%
total = step["end"].max()
alone = spent["ms"].drop(["apply", "backward"]).sum()
Markdown(
    f"You predicted {my_longest}; it was **{spent['ms'].idxmax()}**. "
    f"On this machine ({utils.cores()} cores for {devices} pretend devices) the step took {total:.1f} ms. Replicate took "
    f"**{spent.loc['replicate', 'ms'] / total:.0%}** of it, with nothing learned: after the update the copies are old, so "
    f"each step begins with new ones. For **{alone / total:.0%}** of the step only device 0 had work: it copied, gathered, "
    f"computed the loss, added up and updated. The same step in one thread, without `DataParallel`, took "
    f"{pd.Series(plain_ms).median():.1f} ms.")

# %% [markdown]
# Read the picture with care. The *order* is that of the real thing: only the `apply` and `backward` bars are shared work.
# The *lengths* are not:
#
# - Here scatter is a view of memory, and gather a small copy. With GPUs both cross a bus, and so do the copies of the
#   model and their gradients.
# - Here one thread computes the `backward` of all replicas, drawn as one block. With GPUs autograd has a thread for each
#   of them ([engine.cpp](https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp)).
#
# ## What it costs: the interpreter lock
#
# Threads of one Python process take turns: the *global interpreter lock* (GIL) lets one of them run Python at a time.
# PyTorch lets go of the lock while it computes inside one operation. So it depends on what `forward` does.
#
# Three kinds of work, each cut for 1, 2 and 4 workers: a `forward` full of Python in threads, one large matrix product
# after the other in threads, and the same Python in processes, as DDP would run it.
#
# **Predict**: how many times as fast is the Python `forward` with 4 threads as with 1?

# %%
my_python_speedup = 4.0  # your number


# %%
def python_work(values):
    """Pure Python: the interpreter has work at each number."""
    return [math.tanh(sum(math.sin(value + k) for k in range(500))) for value in values]


class PythonHeavy(nn.Module):
    def forward(self, rows):
        return torch.tensor(python_work(rows.flatten().tolist())).view_as(rows)


class TensorHeavy(nn.Module):
    def forward(self, rows):
        for _ in range(10):
            rows = (rows @ square).tanh()
        return rows


square = torch.randn(1024, 1024) / 32
workers = (1, 2, 4)


def seconds_in_threads(module, rows, count):
    """One parallel apply. Neither module has weights: there is nothing to replicate."""
    pieces = scatter(rows, count)
    start = time.perf_counter()
    with torch.no_grad(), ThreadPoolExecutor(count) as threads:
        list(threads.map(module, pieces))
    return time.perf_counter() - start


worker = "import math, sys\n\n" + inspect.getsource(python_work) + """
print("ready", flush=True)
for line in sys.stdin:
    python_work([float(number) for number in line.split()])
    print("done", flush=True)
"""


def start_processes(count):
    """Processes that wait for numbers. They get no torch: they need none."""
    started = [subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for _ in range(count)]
    for process in started:
        process.stdout.readline()  # ready
    return started


def seconds_in_processes(processes, rows):
    lines = [" ".join(map(str, piece.flatten().tolist())) + "\n" for piece in scatter(rows, len(processes))]
    start = time.perf_counter()
    for process, line in zip(processes, lines, strict=True):
        process.stdin.write(line)
        process.stdin.flush()
    for process in processes:
        process.stdout.readline()  # done
    return time.perf_counter() - start


python_rows, tensor_rows = torch.randn(64, 40), torch.randn(512, 1024)
processes, measurements = {count: start_processes(count) for count in workers}, []
for _ in range(repeats):
    for count in workers:  # in turn, so that what disturbs one disturbs all
        measurements.append({"workers": count,
                             "Python, threads": seconds_in_threads(PythonHeavy(), python_rows, count),
                             "matrix products, threads": seconds_in_threads(TensorHeavy(), tensor_rows, count),
                             "Python, processes": seconds_in_processes(processes[count], python_rows)})
for process in sum(processes.values(), []):
    process.communicate(timeout=60)  # no more lines: it ends
measured = pd.DataFrame(measurements).groupby("workers").min()  # seconds; the fastest run was disturbed least
speedups = measured.loc[1] / measured
measured.round(3)

# %%
ax = plt.subplots(figsize=(12, 6))[1]
speedups.T.plot.bar(ax=ax, color=["#BFD9EA", plots.COLOURS[5], plots.COLOURS[0]], width=0.8, rot=0)
for container in ax.containers:
    ax.bar_label(container, fmt="%.2f", fontweight="bold", padding=2)
ax.axhline(1, color=plots.GREY, linestyle="--", linewidth=2, zorder=0.5)
ax.grid(axis="x", visible=False)
ax.set(ylabel="times as fast as one worker", ylim=(0, 1.2 * speedups.max().max()))
ax.set_title(f"The same work, cut for several workers ({utils.cores()} cores)", pad=46)
ax.legend(ax.containers, [f"{count} worker{'s' if count > 1 else ''}" for count in workers], ncols=3, loc="lower left",
          bbox_to_anchor=(-0.02, 1), frameon=False)
plt.show()

# %%
lock = getattr(sys, "_is_gil_enabled", lambda: True)()
best = speedups.drop(index=1)
Markdown(
    f"You predicted {my_python_speedup:g} for the Python `forward` with 4 threads. On this machine it was "
    f"**{speedups.loc[4, 'Python, threads']:.2f}**; the matrix products came to "
    f"{best['matrix products, threads'].max():.2f} at best, Python in processes to {best['Python, processes'].max():.2f}. "
    + ("" if lock else "This Python was built **without** the lock, so its threads need not take turns. ")
    + ("With the lock it cannot be far from 1: other programs disturbed the measurement, run it again. "
       if lock and not 0.8 < speedups.loc[4, "Python, threads"] < 1.2 else "")
    + ("There is one core here, so nothing can be faster with more workers. " if utils.cores() == 1 else
       f"More than the {utils.cores()} cores cannot work at a time. ")
    + ("The processes gained little: other programs had the cores, run it again."
       if utils.cores() > 1 and best["Python, processes"].max() < 1.2 else ""))

# %% [markdown]
# With `DataParallel` one interpreter must start the work of all GPUs. A GPU with large matrices is busy long after it was
# started, and the lock hardly matters. With many small operations, or with Python code between them, the GPUs wait for
# the interpreter. **One process for each GPU** has one interpreter for each GPU. That is DDP.
#
# ## What it costs: memory on device 0
#
# We count the bytes that each device holds in a step, from the tensors of a small language model: it reads 64 sentences of
# 32 words and gives each of 4,096 words a score, at every place. The optimizer is Adam.
#
# **Predict**: how many times as much does device 0 hold as device 1, under `DataParallel` with 4 devices?

# %%
my_memory_ratio = 1.0  # your number

# %%
vocabulary, places = 4096, 32
reader = nn.Sequential(nn.Embedding(vocabulary, 256), nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256),
                       nn.Linear(256, vocabulary))
sentences = torch.randint(vocabulary, (64, places))


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kept_by(function, *tensors):
    """(result, bytes that autograd keeps for its backward): the weights, counted elsewhere, are left out."""
    weights, kept = {weight.untyped_storage().data_ptr() for weight in reader.parameters()}, {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()  # shared memory counts once
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function(*tensors)
    return result, sum(size for address, size in kept.items() if address not in weights)


def loss_of(scores, sentences):
    return nn.functional.cross_entropy(scores.flatten(0, 1), sentences.flatten())


piece = sentences.chunk(4)[0]
scores, activations = kept_by(reader, piece)
loss, loss_piece = kept_by(loss_of, scores, piece)
loss.backward()
all_scores = torch.zeros(64, places, vocabulary, requires_grad=True)
loss_all = kept_by(loss_of, all_scores, sentences)[1]
adam = torch.optim.Adam(reader.parameters())
adam.step()

weights = bytes_of(reader.parameters())
grads = bytes_of(weight.grad for weight in reader.parameters())
state = bytes_of(value for values in adam.state.values() for value in values.values())
common = {"weights": weights, "gradients": grads, "kept for backward": activations}
holds = {
    "DataParallel": [{**common, "Adam's state": state, "outputs": bytes_of([all_scores]), "kept by the loss": loss_all}]
    + [{**common, "outputs": bytes_of([scores])}] * 3,
    "DDP": [{**common, "Adam's state": state, "DDP's buckets": grads, "outputs": bytes_of([scores]),
             "kept by the loss": loss_piece}] * 4,
}

# %%
shades = {"weights": plots.COLOURS[0], "gradients": plots.COLOURS[5], "Adam's state": plots.COLOURS[2],
          "DDP's buckets": plots.COLOURS[3], "kept for backward": plots.GREY, "outputs": plots.COLOURS[4],
          "kept by the loss": plots.COLOURS[1]}
fig, axes = plt.subplots(1, 2, figsize=(16, 5.5), sharex=True, sharey=True)
megabytes = {way: pd.DataFrame(rows, columns=list(shades)).fillna(0) / 1e6 for way, rows in holds.items()}
for (way, table), ax in zip(megabytes.items(), axes, strict=True):
    table.plot.barh(stacked=True, ax=ax, color=list(shades.values()), width=0.7, legend=False)
    ax.bar_label(ax.containers[-1], [f" {total:.0f}" for total in table.sum(axis=1)], fontweight="bold")
    ax.set_yticks(range(4), [f"device {number}" for number in range(4)])
    ax.set(xlabel="MB (million bytes)", title=way)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.1)
axes[0].invert_yaxis()
fig.legend(handles=[Patch(color=colour, label=name) for name, colour in shades.items()], ncols=4, frameon=False,
           loc="outside upper left", columnspacing=1.2, handlelength=1.2)
plt.show()

# %%
dp, ddp = (table.sum(axis=1) for table in megabytes.values())
Markdown(
    f"You predicted {my_memory_ratio:g}. Under `DataParallel` device 0 holds **{dp[0] / dp[1]:.1f} times** as much as "
    f"device 1 ({dp[0]:.0f} MB and {dp[1]:.0f} MB). The fullest device decides how large the batch can be: under DDP it "
    f"holds {ddp.max():.0f} MB, which is {ddp.max() / dp.max():.0%} of device 0's. All four together hold "
    f"{dp.sum():.0f} MB under `DataParallel` and {ddp.sum():.0f} MB under DDP.")

# %% [markdown]
# - `DataParallel`: outputs of the whole batch, loss, Adam's state and update are on device 0 alone. The more outputs,
#   the more uneven.
# - DDP: everyone holds everything for its own part. Nobody holds the whole batch.
# - *DDP's buckets* are a second copy of the gradients, for sending; `gradient_as_bucket_view=True`
#   [saves it](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html).
#
# What is counted: what lives on past its operation. Temporary memory, and what the allocator holds in reserve, come on
# top.
#
# ## Which GPUs? `CUDA_VISIBLE_DEVICES`
#
# This variable tells a process which GPUs exist. Here is a child process that was given "0,3". It needs no GPU to say how
# PyTorch reads the variable.

# %%
# !CUDA_VISIBLE_DEVICES=0,3 python -c "import os, torch; print('variable:', os.environ['CUDA_VISIBLE_DEVICES']); print('cuda:0 and cuda:1 are GPUs', *torch.cuda._parse_visible_devices())"

# %% [markdown]
# The program sees GPUs 0 and 1, **numbered anew**. It must say `cuda:1` for GPU 3, and `cuda:3` is an error.
# (`_parse_visible_devices` is PyTorch's own function; its underscore says that it may change.)
#
# **Predict**: how many GPUs does the program see for `0,-1,2`? And for `1,1`?

# %%
my_seen = [2, 2]  # your numbers

# %%
print(f"You said {my_seen[0]} for 0,-1,2 and {my_seen[1]} for 1,1.")
table = []
for visible in ("0,3", "3,0", "2", "0,-1,2", "1,1", ""):
    with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible):
        seen = torch.cuda._parse_visible_devices()
    table.append({"CUDA_VISIBLE_DEVICES": f'"{visible}"', "GPUs seen": len(seen),
                  **{f"cuda:{i}": f"GPU {seen[i]}" if i < len(seen) else "–" for i in range(2)}})
pd.DataFrame(table).set_index("CUDA_VISIBLE_DEVICES")

# %% [markdown]
# The order counts. What follows -1 is not seen, and an empty string hides all
# ([NVIDIA's rules](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html)).
# A GPU named twice: PyTorch then counts none.
#
# **When is it read?** Once, when CUDA starts in the process. `import torch` does not start it, the first use of a GPU
# does, and `torch.cuda.is_available()` may ask the driver already. A later change is not seen ([one of many who were surprised](https://github.com/pytorch/pytorch/issues/23544)).
# CUDA counts the fastest GPU first, `nvidia-smi` the first in the machine: `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes CUDA count as `nvidia-smi` does.
# Where there are GPUs, a child process is given the last of them, and changes the variable too late.

# %%
print(f"CUDA has started in this notebook: {torch.cuda.is_initialized()}")
child = """
import os, torch
visible = os.environ["CUDA_VISIBLE_DEVICES"]
print(f"child, given {visible}: {torch.cuda.device_count()} GPU, cuda:0 is", torch.cuda.get_device_properties(0).uuid)
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # too late: CUDA has started
print(f"child, after a change to nothing: {torch.cuda.device_count()} GPU, a tensor on", torch.zeros(1).cuda().device)
"""
if gpus:
    last = torch.cuda._parse_visible_devices()[gpus - 1]
    print(f"here: {gpus} GPU(s), cuda:{gpus - 1} is", torch.cuda.get_device_properties(gpus - 1).uuid)
    print(subprocess.run([sys.executable, "-c", child], env=os.environ | {"CUDA_VISIBLE_DEVICES": str(last)},
                         capture_output=True, text=True, check=True, timeout=120).stdout)
else:
    print("A GPU under its new number, and a change that comes too late: need a GPU, not run here.")

# %% [markdown]
# So set it **in front of the command**: `CUDA_VISIBLE_DEVICES=0,3 python main.py --strategy dp`. In a notebook: in the
# first cell, before anything uses a GPU. If that is too late, restart the kernel.
#
# ## Why DDP is recommended instead
#
# The [manual][manual] recommends DDP, also on one machine. Someone has measured it: GPT-2, 200 steps with 4 samples for
# each GPU, 2 TITAN RTX, in 2021 ([one GPU][one]; [the others][many]). Two GPUs take twice the samples in a step, so equal
# seconds are a speed-up of 2.
#
# [manual]: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
# [one]: https://github.com/huggingface/transformers/issues/9371
# [many]: https://huggingface.co/docs/transformers/v4.49.0/perf_train_gpu_many

# %%
published = pd.DataFrame([("one GPU", 1, 102), ("DataParallel, NVLink", 2, 110.6), ("DDP, NVLink", 2, 101.9),
                          ("DDP, NVLink off", 2, 131.4)], columns=["run", "GPUs", "seconds"]).set_index("run")
published["samples/s"] = (200 * 4 * published["GPUs"] / published["seconds"]).round(2)
published["speed-up"] = (published["samples/s"] / published.loc["one GPU", "samples/s"]).round(2)

ax = plt.subplots(figsize=(12, 4.5))[1]
colour = [plots.GREY, plots.COLOURS[1], plots.COLOURS[0], plots.COLOURS[0]]
bars = ax.barh(published.index, published["samples/s"], height=0.6, color="white", edgecolor=colour, hatch="/", linewidth=3)
ax.bar_label(bars, [f" {each['samples/s']:.1f}  (speed-up {each['speed-up']:.2f})" for _, each in published.iterrows()],
             fontweight="bold")
ax.invert_yaxis()
ax.margins(x=0.55)
ax.grid(axis="y", visible=False)
ax.set_xlabel("samples a second")
ax.set_title("GPT-2 on 2 TITAN RTX (recorded elsewhere)", pad=12)
plt.show()

# %%
dp_time, ddp_time, slow_time = published["seconds"].iloc[1:]
Markdown(
    f"With NVLink DP needed {dp_time / ddp_time - 1:.0%} more time than DDP. With NVLink switched off DDP needed "
    f"{slow_time / dp_time - 1:.0%} more than DP: the link decides. That last comparison is not quite fair: DP had NVLink. "
    "How DP does without was not published there.")


# %% [markdown]
# | take `DataParallel` for | take DDP for |
# |:--|:--|
# | a quick try: one line, no launcher, any notebook | training that takes longer than starting it |
# | a small model whose batch is large, on 2 GPUs | more than 2 GPUs, large models, large outputs |
# | old code that expects one process and the whole batch | Python-heavy `forward`, more than one machine |
# | | anything that you write anew |
#
# Whether it is faster for *your* model only a measurement says: `python main.py --strategy dp` and
# `torchrun --nproc_per_node=2 main.py` write the same log.
#
# ## Exercises
#
# Each has a hint, and the solution is one call away: take the `#` away. Run a check as often as you like.
#
# **1. Scatter without `chunk`.** Cut a batch along its first dimension: no more pieces than devices, none empty, no row
# lost, in order, and no piece longer than it must be.

# %%
def my_split(batch, devices):
    """A list of tensors, one for each device that is used."""
    raise NotImplementedError


# %%
check.split_batch(my_split)
# check.split_batch.hint()
# check.split_batch.solution()

# %% [markdown]
# **2. Sum or mean?** `gradients` is a list: the gradient of the same weight from each replica. `rows` says how many rows each
# replica had. The loss was a mean over the gathered batch. Return the gradient that the optimizer should get.

# %%
def my_combine(gradients, rows):
    raise NotImplementedError


# %%
check.combine(my_combine)
# check.combine.hint()
# check.combine.solution()

# %% [markdown]
# **3. Take the prefix away.** `state` is a dictionary from names to tensors. Return one in which the prefix `module.` is gone
# from the names that begin with it. Nothing else changes. Write it yourself, without PyTorch's function.

# %%
def my_plain_names(state):
    raise NotImplementedError


# %%
check.plain_names(my_plain_names)
# check.plain_names.hint()
# check.plain_names.solution()

# %% [markdown]
# **4. Which GPU is it?** A program was started with `CUDA_VISIBLE_DEVICES=visible` and uses `cuda:index`. Return the number of
# the GPU in the machine, or `None` if the program cannot see so many. `visible` holds whole numbers and commas, or
# nothing; a negative number ends the list.

# %%
def my_physical_gpu(visible, index):
    raise NotImplementedError


# %%
check.physical_gpu(my_physical_gpu)
# check.physical_gpu.hint()
# check.physical_gpu.solution()

# %% [markdown]
# ## Where next
#
# - **DDP** does without three of the four steps. Each process reads its own part of the data, so nothing is scattered.
#   The copies of the model stay, and stay equal, so nothing is replicated. Each computes its own loss, so nothing is
#   gathered. What is left is one all-reduce of the gradients, during `backward`.
# - Next: [03 · Processes and ranks](03_processes_and_ranks.ipynb), for DDP is several processes. Then
#   [05 · Who sees which image](05_distributed_sampler.ipynb) deals the data out, [06 · DDP](06_ddp.ipynb) builds the all-reduce
#   from nothing, and [07 · Performance](07_performance.ipynb) measures it with 2, 4 and 8 processes.
