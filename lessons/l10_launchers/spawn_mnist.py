"""MNIST on several processes with mp.spawn: plain `python` starts this script, and the script its ranks.

    python lessons/l10_launchers/spawn_mnist.py --n-gpus 2                 a process on each of two GPUs; without, \\
        on the CPU
    python lessons/l10_launchers/spawn_mnist.py --n-gpus 2 --device cpu    two processes on the CPU

mp.spawn tells a process its rank, and no more. What torchrun would have told it stands in `be_rank`. The training is
that of `torchrun --nproc_per_node=2 main.py --dataset mnist --optimizer sgd --lr 0.01`, and so are the weights.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import utils
from course import rank_program, shortcuts
from trainer import checkpoint, data, launch, models
from trainer.files import check_output
from trainer.options import nonempty_path, positive


def check(args):
    """Number of GPUs to use. ValueError, one line, for what cannot work: before anything is started."""
    if "RANK" in os.environ:
        raise ValueError("it starts its ranks itself: use plain python, not torchrun")
    gpus = torch.cuda.device_count() if args.device == "auto" else 0
    if 0 < gpus < args.n_gpus:
        raise ValueError(f"--n-gpus {args.n_gpus}, but torch sees {gpus} GPU(s): use --n-gpus {gpus}, or --device cpu")
    if not args.n_gpus <= args.samples <= 60_000 or args.test_samples > 10_000:
        raise ValueError(f"--samples must be {args.n_gpus} (one a rank) to 60000, and --test-samples up to 10000")
    if not 0 <= args.port < 2**16:
        raise ValueError(f"--port {args.port} is no port: use one from 1024 to 65535, or leave --port out")
    if args.save_model is not None:
        check_output("--save-model", args.save_model)
    try:
        data.get_dataset("mnist", args.data_path)  # once, before the ranks ask for it
    except OSError as error:
        raise ValueError(f"--data-path: {error}. Connect to a network once, or name a folder with mnist.pt") from None
    return gpus


def open_store(port):
    """The key-value store in which the ranks find each other. The parent serves it, so its port is taken at once:
    a free port that was only looked up could be another's by the time that rank 0 wants it."""
    try:
        return dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        why = "is in use on this machine" if "EADDRINUSE" in str(error) else f"cannot be had ({error})".splitlines()[0]
        raise ValueError(f"--port {port} {why}: name another, or leave --port out and a free one is taken") from None


def be_rank(rank, args, port):
    """The whole life of one process; mp.spawn passes its number first."""
    os.environ.update({  # what torchrun would have set
        "RANK": str(rank), "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(args.n_gpus), "LOCAL_WORLD_SIZE": str(args.n_gpus),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already: the parent serves it
    })
    placement = launch.find_placement(args.device)
    launch.init_distributed_mode(placement, timeout=args.timeout)
    try:
        train(placement, args)
    finally:
        launch.end_distributed_mode()
    if placement.backend == "gloo":
        shortcuts.exit_now()  # a thread of gloo may abort Python's own ending


def train(placement, args):
    torch.manual_seed(placement.rank)  # dropout must differ between ranks; DDP sends rank 0's first weights to all
    if placement.device.type == "cpu":
        shortcuts.defer_compiler()  # nothing is compiled here
    device, (train_set, test_set) = placement.device, data.load(args, placement)
    raw_model = models.ConvNet(channels=1, image_size=28).to(device)
    model = DistributedDataParallel(raw_model, device_ids=[device] if device.type == "cuda" else None)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, fused=True)
    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        start, sums = time.perf_counter(), torch.zeros(3, dtype=torch.float64, device=device)
        for images, labels in loader:
            logits = model(images)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            sums += utils.count(logits, labels, loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss, hits, images = utils.all_sum(sums)  # over all ranks
        seconds = time.perf_counter() - start
        val_loss, val_accuracy = utils.evaluate(  # over all ranks
            model.module, utils.shard_loader(test_set, placement), placement.device)
        if placement.rank == 0:
            print(f"Epoch: {epoch}, Loss: {loss / images:.4f}, acc: {hits / images:.4f}, time cost: {seconds:.2f}s, "
                  f"val loss: {val_loss:.4f}, val acc: {val_accuracy:.4f}", flush=True)
    if args.save_model and placement.rank == 0:  # not model.state_dict(): its names begin with "module."
        checkpoint.save_model(model.module, args.save_model)


def main():
    parser = rank_program.parser(__doc__, timeout=60)
    parser.set_defaults(dataset="mnist")
    add = parser.add_argument
    add("--n-gpus", "--n_gpus", type=positive(int), default=1, metavar="N",
        help="ranks, each a process with a GPU of its own; where there is no GPU, N processes on the CPU")
    add("--device", choices=["auto", "cpu"], default="auto", help="auto: the GPUs where there are some")
    add("--epochs", type=positive(int), default=2, help="passes over the training images")
    add("--batch-size", type=positive(int), default=64, help="images a step, for each process")
    add("--lr", type=positive(float), default=0.01, help="learning rate of SGD with momentum 0.9")
    add("--samples", type=positive(int), default=60_000, help="train on the first so many images")
    add("--test-samples", type=positive(int), default=10_000, help="evaluate on the first so many images")
    add("--data-path", type=nonempty_path, default=data.FOLDER, help="folder of the data files")
    add("--port", type=int, default=0, help="where the ranks meet, on this machine; default: any that is free")
    add("--save-model", help="write the trained weights to this file")
    args = parser.parse_args()
    with rank_program.stoppable(parser, signal.default_int_handler):  # a stop from outside ends the ranks, too
        gpus = check(args)
        store = open_store(args.port)
        where = "GPUs" if gpus else "CPU (--device cpu)" if args.device == "cpu" else "CPU: no GPU here"
        print(f"{args.n_gpus} process(es) on the {where}; they meet at 127.0.0.1:{store.port}", flush=True)
        try:
            mp.spawn(be_rank, (args, store.port), nprocs=args.n_gpus, daemon=True)  # daemon: none outlives this process
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            sys.exit(f"spawn_mnist.py: a rank failed, and the others were ended: {str(error).strip()}")


if __name__ == "__main__":
    main()
