"""What one GPU does with a step of the small language model: float32, TF32, bf16, bf16 compiled, and under DDP.

    torchrun --nproc_per_node=1 scripts/measure/one_gpu.py --out FOLDER
    torchrun --nproc_per_node=1 scripts/measure/one_gpu.py --out FOLDER --rehearse

Writes FOLDER/gpt.json (seconds of a step in interleaved rounds, graphs, graph breaks, new graphs of another batch,
memory along a step) and FOLDER/profile.txt, FOLDER/profile.json.gz (one step of the bf16 model, as a Chrome trace).
Needs CUDA. --rehearse: a tiny model on the CPU, to see that all of it works: no memory, and its times say nothing.
scripts/measure/gpu_pictures.py draws the files.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from course.timing import interleave, timed
from examples.minimal_gpt import GPT, loss_of
from trainer.options import positive

CONTEXT, WIDTH, LAYERS, BATCH = 512, 1024, 12, 32  # 152 million parameters
STEPS = 5  # of each variant in a round
TINY = 16, 16, 2, 4  # the same four, to rehearse


class Variant:
    """A model of its own, with its optimizer, and what stands around its forward."""

    def __init__(self, size, device, precision: str, bf16: bool = False, compiled: bool = False, ddp: bool = False):
        torch.manual_seed(0)
        self.precision, self.bf16, self.device = precision, bf16, device
        self.model = GPT(*size).to(device)
        if ddp:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device == "cuda")
        self.graph_breaks = self.graphs = None
        if compiled:
            self.model.compile()

    def step(self, windows: torch.Tensor) -> torch.Tensor:
        """One update from windows of bytes, [crops, context + 1]; returns the loss."""
        torch.set_float32_matmul_precision(self.precision)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = loss_of(self.model, windows)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def warm(self, windows: torch.Tensor) -> float:
        """Seconds of the first three steps: what compiling costs."""
        counters = torch._dynamo.utils.counters
        counters.clear()
        start = time.perf_counter()
        for _ in range(3):
            self.step(windows)
        wait(self.device)
        self.graph_breaks = dict(counters["graph_break"])
        self.graphs = counters["stats"].get("unique_graphs", 0)
        return time.perf_counter() - start

    def recompiled(self, windows: torch.Tensor) -> int:
        """How many graphs another batch adds: half as many crops, as at the end of an epoch."""
        counters = torch._dynamo.utils.counters
        before = counters["stats"].get("unique_graphs", 0)
        self.step(windows[: len(windows) // 2])
        return counters["stats"].get("unique_graphs", 0) - before


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def memory_along_a_step(variant: Variant, windows: torch.Tensor) -> list[tuple[str, int]]:
    """(where, bytes allocated) after each block's forward and backward, and after the update."""
    samples = []

    def note(where):
        samples.append((where, torch.cuda.memory_allocated()))

    handles = []
    for number, block in enumerate(variant.model.blocks):
        handles.append(block.register_forward_hook(lambda *_, n=number: note(f"forward {n}")))
        handles.append(block.register_full_backward_hook(lambda *_, n=number: note(f"backward {n}")))
    note("before")
    with torch.autocast(variant.device, torch.bfloat16, enabled=variant.bf16):
        loss = loss_of(variant.model, windows)
    note("loss")
    loss.backward()
    note("backward done")
    variant.optimizer.step()
    note("update")
    variant.optimizer.zero_grad()
    note("gradients gone")
    for handle in handles:
        handle.remove()
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files; made if it is missing")
    parser.add_argument("--rounds", type=positive(int), default=9, help="interleaved rounds (%(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with a tiny model")
    args = parser.parse_args()
    if not (torch.cuda.is_available() or args.rehearse) or os.environ.get("WORLD_SIZE") != "1":
        parser.error("needs a CUDA GPU (or --rehearse), and torchrun --nproc_per_node=1")
    args.out.mkdir(parents=True, exist_ok=True)
    on_gpu = not args.rehearse
    if on_gpu:
        torch.cuda.set_device(0)
    device, (context, width, layers, batch) = ("cuda", (CONTEXT, WIDTH, LAYERS, BATCH)) if on_gpu else ("cpu", TINY)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    windows = torch.randint(256, (batch, context + 1), generator=torch.Generator().manual_seed(0)).to(device)
    variant = partial(Variant, (context, width, layers), device)

    results = {"gpu": torch.cuda.get_device_name(0) if on_gpu else "no GPU: a rehearsal", "torch": torch.__version__,
               "context": context, "width": width, "layers": layers, "batch": batch, "steps of a round": STEPS,
               "variants": {}}
    memory = variant("highest", bf16=True)
    memory.step(windows)
    results["parameters"] = sum(parameter.numel() for parameter in memory.model.parameters())
    results["memory"] = memory_along_a_step(memory, windows) if on_gpu else []
    del memory
    variants = {"fp32": variant("highest"), "tf32": variant("high"), "bf16": variant("highest", bf16=True),
                "bf16 ddp": variant("highest", bf16=True, ddp=True),
                "bf16 compiled": variant("highest", bf16=True, compiled=True),
                "bf16 compiled ddp": variant("highest", bf16=True, compiled=True, ddp=True)}
    for name, each in variants.items():
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_gpu else 0
        first = each.warm(windows)
        peak = torch.cuda.max_memory_allocated() - before if on_gpu else None
        results["variants"][name] = {"first three steps, seconds": first, "graphs": each.graphs,
                                     "graph breaks": each.graph_breaks,
                                     "peak bytes above the start": peak}
    programs = {name: partial(timed, partial(each.step, windows), STEPS, windows.device)
                for name, each in variants.items()}
    for name, seconds in interleave(programs, args.rounds).items():
        results["variants"][name]["seconds per step"] = seconds
    for name, each in variants.items():  # after the rounds: the graph of another batch may be used for this one, too
        results["variants"][name]["new graphs of half a batch"] = each.recompiled(windows)
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as trace:
        variants["bf16"].step(windows)
        wait(device)
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = trace.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=60)
    (args.out / "profile.txt").write_text(table, encoding="utf-8")
    trace.export_chrome_trace(str(args.out / "profile.json.gz"))
    (args.out / "gpt.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    for name, facts in results["variants"].items():
        median = sorted(facts["seconds per step"])[args.rounds // 2]
        print(f"{name:18} {1e3 * median:7.2f} ms per step, {batch * context / median:10,.0f} tokens/s, "
              f"{facts['graphs']} graph(s), {sum(facts['graph breaks'].values())} break(s)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
