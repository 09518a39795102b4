"""main.py's training loop under Hugging Face Accelerate: the same model, data, order of images, optimizer and run log.

    python scripts/rivals/accelerate_loop.py --epochs 2
    torchrun --nproc_per_node=2 scripts/rivals/accelerate_loop.py --epochs 2 --log-file results/live/accelerate.jsonl

Process group, device, DDP and backward are Accelerate's, with its defaults; the rest is main.py's
(course/framework_run.py). It takes main.py's options, except those that Accelerate decides: --strategy, --backend,
--dist-url, --sync-bn.
Accelerate comes with `pip install -e '.[rivals]'`. scripts/measure/benchmark.py compares the two.
"""

from datetime import timedelta

from course import framework_run, rank_program


def train(args, placement, run):
    from accelerate import Accelerator, __version__
    from accelerate.utils import InitProcessGroupKwargs

    group = InitProcessGroupKwargs(backend=placement.backend, timeout=timedelta(seconds=args.timeout))
    accelerator = Accelerator(cpu=args.device == "cpu", kwargs_handlers=[group] if args.strategy == "ddp" else [])
    args.framework = f"accelerate {__version__}"
    # The loader is not prepared: the sampler shares the images out already.
    framework_run.train_with(args, placement, run, accelerator.device, accelerator.prepare, accelerator.backward)


if __name__ == "__main__":
    rank_program.start(framework_run.run, train, __doc__, "accelerate")
