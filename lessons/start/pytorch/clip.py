"""Clip gradients of which some are tensors and some DTensors, or DTensors of several meshes."""

import torch


@torch.no_grad()
def clip_grad_norm(model, max_norm):
    """torch.nn.utils.clip_grad_norm_ for such a model: it refuses to add up their norms."""
    gradients = [each.grad for each in model.parameters()]
    norms = [gradient.norm() for gradient in gradients]
    whole = torch.stack([norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]).norm()
    for gradient in gradients:
        gradient *= min(1.0, max_norm / (whole.item() + 1e-6))
