"""Muon with a batched orthogonalisation, beside AdamW for what is not a matrix inside the network.

Muon (Jordan et al., 2024): the momentum of a weight matrix is replaced by the nearest matrix with equal
singular values before it is applied, which makes the rare directions of a gradient count as much as the
common ones. Fused experts are stacks of matrices and are treated as such.
"""

from __future__ import annotations

import torch
from torch import nn

from engines.demo.workers import share_work

# Quintic iteration that pushes all singular values into about [0.7, 1.2]; coefficients from the paper.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_MOMENTUM = 0.95
# A step of Muon has a root mean square of about this much, so that one learning rate fits both optimizers.
_STEP_RMS = 0.2


def orthogonalise(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Nearest (semi-)orthogonal matrices of a stack (..., rows, columns), approximately.

    Computed in bfloat16, as its authors do: the iteration corrects its own rounding, and takes half the time.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(iterations):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Muon over parameters of two or more dimensions; leading dimensions are stacks of matrices."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update. Parameters of equal shape are orthogonalised in one batch."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[tuple[nn.Parameter, torch.Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(tuple(parameter.shape), []).append((parameter, parameter.grad))
            for shape, members in alike.items():
                directions = []
                for parameter, gradient in members:
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    momentum = state["momentum"]
                    momentum.lerp_(gradient, 1 - _MOMENTUM)
                    directions.append(gradient.lerp(momentum, _MOMENTUM))  # Nesterov's look ahead
                stack = torch.stack(directions)
                if len(shape) > 3:  # a convolution: one row an output channel
                    stack = stack.flatten(2)
                # The dearest part of a step, and the same for every worker, whose gradients are alike.
                steps = share_work(stack.flatten(0, -3), orthogonalise)
                scale = _STEP_RMS * max(steps.shape[-2:]) ** 0.5
                for (parameter, _), step in zip(members, steps.view(-1, *shape), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(step, alpha=-group["lr"] * scale)


class Optimizers:
    """Muon for the matrices inside the two towers, AdamW for everything else; used like one optimizer."""

    # Embeddings and the router are not maps between hidden states. The mergers are, but so wide that
    # orthogonalising them would cost more time than it gains.
    NOT_MUON = ("embed_tokens", "pos_embed", "lm_head", "merger", "gate.weight")

    def __init__(self, model: nn.Module, heads: nn.Module, lr: float, weight_decay: float):
        inner, matrices, vectors = [], [], list(heads.parameters())
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                vectors.append(parameter)
            elif any(part in name for part in self.NOT_MUON):
                matrices.append(parameter)
            else:
                inner.append(parameter)
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)
        self.muon = Muon(inner, lr, weight_decay)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for part in (self.adam, self.muon) for group in part.param_groups for p in group["params"]]

    def set_learning_rate(self, rate: float) -> None:
        for part in (self.adam, self.muon):
            for group in part.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        self.adam.zero_grad(set_to_none=True)
        self.muon.zero_grad(set_to_none=True)

    def step(self) -> None:
        self.adam.step()
        self.muon.step()

    def state_dict(self) -> dict:
        return {"adam": self.adam.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.adam.load_state_dict(state["adam"])
        self.muon.load_state_dict(state["muon"])
