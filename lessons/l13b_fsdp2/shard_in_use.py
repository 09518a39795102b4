"""FSDP2 as it is used: 16-bit weights, recomputed activations, a copy in each node, clipping, checkpoints.

    torchrun --nproc_per_node=4 lessons/l13b_fsdp2/shard_in_use.py --save build/dcp --out \\
        results/live/13b_in_use.json
    torchrun --nproc_per_node=2 lessons/l13b_fsdp2/shard_in_use.py --load build/dcp --out \\
        results/live/13b_loaded.json

The first trains the small transformer in several ways, each from the same weights and on the same text, and compares it
with one process: how far its first gradient and its last weights are off, what each rank holds and sends. Then it
writes a checkpoint (torch.distributed.checkpoint, DCP), from which the second goes on, on another number of ranks.
All on CPUs with gloo.
"""

import contextlib
import queue
import shutil
import statistics
import time
import weakref
import zlib
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from course import rank_program
from course import tiny_transformer as tiny
from course.sent import Sent
from course.sharding import Setup, Watchdog, adam, apart, fsdp, one_process, own_share, shard_blocks, whole
from trainer import launch
from trainer.files import check_output, check_writable
from trainer.options import nonempty_path, positive

RANKS = 4  # HSDP's mesh is 2 x 2
MOST = 0.5  # the norm that clipping leaves; that of the first gradients is larger
RATE = 0.3  # of SGD
LARGER = replace(tiny.SHAPE, hidden=384)  # for timed checkpoints: some 90 MB with Adam's averages


# ------------------------------------------------------------------------------------------------ the ways


def ready(model, placement):
    return Setup(model, adam(model), own_share(model, placement.rank, placement.world_size))


def mixed(model, placement):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard_blocks(model, init_device_mesh("cpu", (placement.world_size,)), mp_policy=policy)
    return ready(model, placement)


def recomputed(model, placement):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for name, block in model.blocks.items():
        model.blocks[name] = checkpoint_wrapper(block)  # it keeps what goes into the block, and nothing else
    return fsdp(model, placement)


def hsdp(model, placement):
    mesh = init_device_mesh("cpu", (2, placement.world_size // 2), mesh_dim_names=("replicate", "shard"))
    shard_blocks(model, mesh)
    return ready(model, placement)


WAYS = {"one": one_process, "fsdp": fsdp, "mixed": mixed, "recomputed": recomputed, "hsdp": hsdp}


# ------------------------------------------------------------------------------------------------ clipping


def clip(model):
    return nn.utils.clip_grad_norm_(model.parameters(), MOST)  # the same call as without FSDP


def clip_own_shards(model):
    own = [parameter.grad.to_local() for parameter in model.parameters()]
    norm = nn.utils.get_total_norm(own)  # of this rank's rows alone
    for gradient in own:
        gradient *= min(1, MOST / norm)
    return norm


# ------------------------------------------------------------------------------------------------ counting


class Alive(TorchDispatchMode):
    """Within `with`: `most`, the largest number of bytes that tensors made within it occupy at one time."""

    def __init__(self):
        self.storages, self.most = {}, 0
        super().__init__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "full_tensor") for kind in types):
            return NotImplemented
        out = function(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(out)):
            self.storages[tensor.untyped_storage()._cdata] = weakref.ref(tensor.untyped_storage())
        there = {place: storage for place, known in self.storages.items() if (storage := known()) is not None}
        self.storages = {place: self.storages[place] for place in there}
        self.most = max(self.most, sum(storage.nbytes() for storage in there.values()))
        return out


def named(model):
    """{name: parameter}, as without checkpoint_wrapper."""
    return {name.replace("_checkpoint_wrapped_module.", ""): value for name, value in model.named_parameters()}


def gradients(model):
    return {name: whole(parameter.grad) for name, parameter in named(model).items()}


def weights(model):
    return {name: whole(parameter).clone() for name, parameter in named(model).items()}


def turned(mine, other):
    """The length of the difference of two gradients, or of two changes of the weights, as a share of the second."""
    flat, of_other = (torch.cat([each[name].flatten() for name in other]) for each in (mine, other))
    return ((flat - of_other).norm() / of_other.norm()).item()


def train(setup, steps, shape):
    """(the trained values to be compared, the bytes that this rank held and sent). At least two steps, because the
    counters of the last step would themselves keep some of the tensors that `Alive` counts in the first."""
    start = weights(setup.model)
    saved, sent, alive = tiny.SavedForBackward(setup.model), Sent(), Alive()
    multiplied = FlopCounterMode(display=False)
    for step, (tokens, targets) in enumerate(tiny.batches(steps, shape), start=1):
        setup.optimizer.zero_grad()
        with contextlib.ExitStack() as counting:
            for counter in {1: (alive,), steps: (saved, multiplied, sent)}.get(step, ()):
                counting.enter_context(counter)
            setup.backward(tokens, targets)
        if step == 1:
            first = gradients(setup.model)
        setup.optimizer.step()
    end = weights(setup.model)
    trained = {"gradient": first, "weights": end, "change": {name: end[name] - start[name] for name in end}}
    return trained, {"held": tiny.held(setup.model, setup.optimizer, saved), "alive": alive.most, "sent": sent.rows(),
                     "operations": multiplied.get_total_flops(), "types": types(setup)}


def types(setup):
    """{part: type of its values, as they are stored between two steps}."""
    states = [value for state in setup.optimizer.state.values() for value in state.values() if value.dim()]
    parts = {"parameters": [*setup.model.parameters()], "gradients": [each.grad for each in setup.model.parameters()],
             "optimizer state": states}
    return {part: " ".join(sorted({str(each.dtype).removeprefix("torch.") for each in tensors}))
            for part, tensors in parts.items()}


def fresh(shape=tiny.SHAPE):
    torch.manual_seed(0)  # the same weights for each way, and on each rank
    return tiny.TinyTransformer(shape)


def compared(placement, steps, watchdog, ways=WAYS, shape=tiny.SHAPE):
    """{way: how far it is off from one process, and [rank] -> the bytes that it held and sent}."""
    results, reference = {}, None
    for way, make in ways.items():
        watchdog.beat(way)
        trained, counted = train(make(fresh(shape), placement), steps, shape)
        reference = reference or trained
        results[way] = {"gradient_off": turned(trained["gradient"], reference["gradient"]),
                        "change_off": turned(trained["change"], reference["change"]),
                        "weights_off": apart(trained["weights"], reference["weights"]),
                        "ranks": launch.gathered(counted)}
    return results


def clippings(placement, steps, watchdog):
    """Both ways to clip, with SGD: Adam divides the length of a gradient out again."""
    results, reference = {}, None
    for name, make, function in (("one", one_process, clip), ("clip", fsdp, clip),
                                 ("clip_own_shards", fsdp, clip_own_shards)):
        watchdog.beat(name)
        setup = make(fresh(), placement)
        setup.optimizer, norms = torch.optim.SGD(setup.model.parameters(), RATE), []
        for tokens, targets in tiny.batches(steps):
            setup.optimizer.zero_grad()
            setup.backward(tokens, targets)
            with Sent() as sent:
                norms.append(function(setup.model))
            setup.optimizer.step()
        with Sent() as gathering:
            gradients(setup.model)
        trained = weights(setup.model)
        reference = reference or trained
        results[name] = {"type": type(norms[0]).__name__, "norms": launch.gathered(whole(norms[0]).item()),
                         "weights_off": apart(trained, reference),
                         "parameters": len(named(setup.model)), "calls": sum(sent.calls.values()),
                         "sent": sum(sent.bytes.values()), "all_gathered": sum(gathering.bytes.values())}
    return results


# ------------------------------------------------------------------------------------------------ checkpoints


def state_of(setup):
    """The state that DCP writes, and reads into: each rank has its own part of it."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(setup.model, setup.optimizer)
    return {"model": model, "optimizer": optimizer}


def save(setup, folder):
    dcp.save(state_of(setup), storage_writer=dcp.FileSystemWriter(folder))


def save_meanwhile(setup, folder, group):
    return dcp.async_save(state_of(setup), storage_writer=dcp.FileSystemWriter(folder), process_group=group)


def load(setup, folder):
    from torch.distributed.checkpoint.state_dict import set_state_dict

    state = state_of(setup)
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    set_state_dict(setup.model, setup.optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])


def update(setup, batches):
    for tokens, targets in batches:
        setup.optimizer.zero_grad()
        setup.backward(tokens, targets)
        setup.optimizer.step()


def checksum(setup):
    """Of all weights, whole: equal where they are equal bit for bit."""
    crc = 0
    for value in weights(setup.model).values():
        crc = zlib.crc32(value.numpy().tobytes(), crc)
    return f"{crc:08x}"


def saved(placement, steps, watchdog, folder):
    """Train, and write the checkpoint: {checksum, rows of the output layer on each rank}."""
    setup = fsdp(fresh(), placement)
    update(setup, tiny.batches(steps))
    watchdog.beat("save")
    save(setup, folder)
    return {"checksum": checksum(setup), "rows": launch.gathered(len(tiny.plain(setup.model.head.weight)))}


def loaded(placement, steps, watchdog, folder):
    """Read the checkpoint, and go on: the same as `saved`, and how far the weights are off from those of one process
    that nothing has stopped."""
    watchdog.beat("load")
    torch.manual_seed(1)  # other weights than those that were saved
    setup, alone = fsdp(tiny.TinyTransformer(), placement), one_process(fresh(), placement)
    load(setup, folder)
    read = {"checksum": checksum(setup), "rows": launch.gathered(len(tiny.plain(setup.model.head.weight)))}
    update(setup, list(tiny.batches(2 * steps))[steps:])
    update(alone, tiny.batches(2 * steps))
    return read | {"weights_off": apart(weights(setup.model), weights(alone.model))}


def timed(placement, writes, watchdog, folder):
    """Seconds that a checkpoint of a larger model takes from training, on the slowest rank; medians of `writes`.

    `save` and `async_save`: until the call returns. Then training goes on until async_save's checkpoint is whole. Its
    `steps` together take `slower` seconds more than as many steps at other times. `as it was`: the checkpoint holds the
    weights of the moment of the call.
    """
    setup = fsdp(fresh(LARGER), placement)
    group = dist.new_group(backend="gloo")  # the writer's own group: its collectives must not come between training's
    few = [[each[:placement.world_size] for each in next(tiny.batches(1, LARGER))]]
    update(setup, few)
    measured, steps = [], []
    for write in range(writes):
        watchdog.beat(f"checkpoint {write}")
        began = moment()
        update(setup, few)
        updated = moment()
        save(setup, folder / f"timed {write}")
        saved = moment()
        at_the_call = checksum(setup)
        called = moment()
        response = save_meanwhile(setup, folder / f"timed meanwhile {write}", group)
        returned = time.perf_counter()
        writing, when = getattr(response, "upload_completion", response), queue.SimpleQueue()
        writing.add_done_callback(lambda _, when=when: when.put(time.perf_counter()))
        steps.append(0)
        while not on_all_ranks(not when.empty()):
            update(setup, few)
            steps[-1] += 1
        ended = time.perf_counter()
        writing.result()  # its error, if there is one
        measured.append((updated - began, saved - updated, returned - called, when.get() - called, ended - returned))
    slowest = torch.tensor(launch.gathered(measured)).amax(0).T  # [step, save, ...][write]
    step, save_, held_up, until_whole = slowest[:4].median(1).values.tolist()
    slower = statistics.median(max(0, training - count * step)
                               for training, count in zip(slowest[4].tolist(), steps, strict=True))
    load(setup, folder / f"timed meanwhile {write}")
    as_it_was = checksum(setup) == at_the_call
    dist.barrier()
    if placement.rank == 0:
        for each in folder.glob("timed *"):
            shutil.rmtree(each)
    bytes_ = sum(parameter.numel() for parameter in setup.model.parameters()) * (4 + 8)
    return {"bytes": bytes_, "save": save_, "async_save": held_up, "until whole": until_whole,
            "steps": statistics.median(steps), "slower": slower, "as it was": as_it_was,
            "rounds": {"save": slowest[1].tolist(), "async_save": slowest[2].tolist()}}


def moment():
    """The time at which all ranks have reached this call."""
    dist.barrier()
    return time.perf_counter()


def on_all_ranks(mine):
    """Whether `mine` is true on all ranks: they must make the same number of steps."""
    flag = torch.tensor(int(mine))
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag)


# ------------------------------------------------------------------------------------------------ command


def parse():
    parser = rank_program.parser(__doc__, out="write the results to this file, as JSON", timeout=60)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--save", type=nonempty_path, metavar="FOLDER", help="compare all, and write a checkpoint there")
    task.add_argument("--load", type=nonempty_path, metavar="FOLDER", help="go on from the checkpoint there")
    parser.add_argument("--steps", type=positive(int), default=4, help="updates N of each way; each way of saving is "
                        "timed N - 1 times; default: 4")
    args = parser.parse_args()
    with parser.one_line():
        if args.steps < 2:
            raise ValueError(f"--steps {args.steps}: two or more, for each is counted in another way")
        placement = launch.find_placement("cpu", "gloo")
        if args.save and (placement.world_size != RANKS or placement.nodes > 1):
            raise ValueError(f"--save is for {RANKS} ranks of one machine: torchrun --nproc_per_node={RANKS}")
        if args.load and placement.world_size < 2:
            raise ValueError("--load is for 2 ranks or more: torchrun --nproc_per_node=2")
        if args.load and not (args.load / ".metadata").is_file():
            raise ValueError(f"--load {args.load}: no checkpoint there (no .metadata); write one with --save")
        if args.save and (args.save / ".metadata").exists():
            raise ValueError(f"--save {args.save}: holds a checkpoint already; name a folder of its own for each")
        check_output("--out", args.out)
        if args.save:
            check_writable("--save", args.save)
    return args, placement


def main():
    args, placement = parse()
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        watchdog = Watchdog(placement, args.timeout + 30)
        results = {"world_size": placement.world_size, "batch": tiny.BATCH}
        if args.save:
            results |= {"ways": compared(placement, args.steps, watchdog),
                        "clip": clippings(placement, args.steps, watchdog),
                        "saved": saved(placement, args.steps, watchdog, args.save),
                        "timed": timed(placement, args.steps - 1, watchdog, args.save)}
        else:
            results["loaded"] = loaded(placement, args.steps, watchdog, args.load)
    if placement.rank == 0:
        rank_program.write_json(args.out, results)
        print(f"{placement.world_size} ranks: " + ("compared and saved" if args.save else "loaded, and trained on"))


if __name__ == "__main__":
    rank_program.start(main)
