"""Everything that the next update depends on. A training that was killed goes on from it, with the same bits."""

import io

import torch
import torch.distributed as dist


class Checkpoint:
    def __init__(self, file, model, optimizer, scheduler, replace):
        self.file, self.replace = file, replace
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def save(self, epoch, step, losses):
        """All ranks call it, after `step` updates of the epoch; `losses` are those of this rank in this epoch."""
        ranks = [{"losses": losses, "rng": torch.get_rng_state()}]
        if dist.is_initialized():  # what each rank has of its own
            ranks, own = [None] * dist.get_world_size(), ranks[0]
            dist.all_gather_object(ranks, own)
        if not dist.is_initialized() or dist.get_rank() == 0:
            state = {name: part.state_dict() for name, part in self.parts.items()}
            data = io.BytesIO()
            torch.save({**state, "epoch": epoch, "step": step, "ranks": ranks}, data)
            self.replace(self.file, data.getvalue())

    def restore(self):
        """(epoch, step, losses), as they were saved, on as many ranks as now, or on another number of them."""
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        state = torch.load(self.file)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        epoch, step, ranks = state["epoch"], state["step"], state["ranks"]
        if len(ranks) == world_size:
            torch.set_rng_state(ranks[rank]["rng"])
            return epoch, step, ranks[rank]["losses"]
        torch.manual_seed(hash((epoch, step, rank)))  # the old states belong to other ranks
        losses = torch.stack([torch.stack(each["losses"]) for each in ranks]).mean(0)  # the ranks had equal shares
        return epoch, step, list(losses)
