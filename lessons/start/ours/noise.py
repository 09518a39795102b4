"""The noise scale of the gradient, measured while ranks train."""

import torch
import torch.distributed as dist


class Noise:
    """McCandlish et al. 2018, appendix A.1: https://arxiv.org/abs/1812.06162

    A gradient of n images has on average the squared norm G + S / n. The noise scale is S / G images.
    """

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.own, self.mean = torch.zeros(()), torch.zeros(())  # squared norms, added up over updates
        for parameter in self.parameters:
            parameter.register_hook(self.before)

    def before(self, gradient):
        """A hook: backward() has the gradient of a parameter from this rank's images, and nothing is sent yet."""
        self.own += gradient.square().sum()

    def after(self):
        """The mean over the ranks has arrived in each parameter.grad."""
        self.mean += sum(parameter.grad.square().sum() for parameter in self.parameters)

    def scale(self, share, all_reduce):
        """The noise scale, in images, of the updates since the last call. `share`: a rank's images per update."""
        ranks = dist.get_world_size()
        own = self.own.clone()
        all_reduce(own)
        small, large = own / ranks, self.mean.clone()
        noise = (small - large) / (1 / share - 1 / (share * ranks))  # S
        true = small - noise / share  # G
        self.own.zero_(), self.mean.zero_()
        return (noise / true).item()
