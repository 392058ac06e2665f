"""Low-rank correction of a layer's quantisation error, and the error before and after it.

The closed form of LQER and QERA (arXiv 2402.02446, 2410.06040): the singular vectors of the error, its input channels
weighed by the root mean square of what enters them, so that the output's error is least and not the weights'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from engines.precision.base import Conversion
from engines.reports import LayerError

if TYPE_CHECKING:
    from engines.precision.layers import QuantisedMatrix

# Up to this width an exact decomposition is quick; above, the leading directions are found by subspace iteration.
EXACT_WIDTH = 512
ITERATIONS, SPARE = 6, 8
# A channel that the calibration saw at rest still counts this share of the mean: other inputs may wake it.
LEAST_MOMENT = 1e-3


class Compensation(nn.Module):
    """Adds `up @ down @ input` to the output of a quantised matrix. Held in bf16, of all experts of a layer in one."""

    def __init__(self, down: Tensor, up: Tensor, gains: Tensor) -> None:
        """down (..., rank, in), up (..., out, rank); gains (rank,): the noise power that each term takes away."""
        super().__init__()
        self.down, self.up = nn.Buffer(down.to(torch.bfloat16)), nn.Buffer(up.to(torch.bfloat16))
        self.gains: list[float] = gains.tolist()

    @property
    def rank(self) -> int:
        return len(self.gains)

    @property
    def term_parameters(self) -> int:
        """Of one rank, over all experts."""
        return (self.down.numel() + self.up.numel()) // self.rank

    def cut(self, rank: int) -> None:
        """Keep the first terms only."""
        self.down = nn.Buffer(self.down[..., :rank, :].clone())
        self.up = nn.Buffer(self.up[..., :rank].clone())
        self.gains = self.gains[:rank]

    def add_to(self, out: Tensor, rows: Tensor, expert: int | None = None) -> None:
        """out (n, out) float32 is changed in place; rows (n, in)."""
        if not self.rank:
            return
        down, up = (self.down, self.up) if expert is None else (self.down[expert], self.up[expert])
        out.addmm_(rows.float() @ down.float().T, up.float().T)


def low_rank(error: Tensor, moments: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The factors (rank, in) and (out, rank) whose product is nearest to `error` (out, in) at inputs with `moments`.

    Third, (rank,), what each term takes from the error's power, the largest first.
    """
    weigh = moments.sqrt()
    weighed = error * weigh
    rank = min(rank, *error.shape)
    if min(error.shape) <= EXACT_WIDTH:
        left, values, right = torch.linalg.svd(weighed, full_matrices=False)
    else:
        left, values, right = _leading(weighed, rank + SPARE)
    return right[:rank] / weigh, left[:, :rank] * values[:rank], values[:rank].square()


def _leading(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first singular vectors by subspace iteration, with a start of its own, so that it is the same every time."""
    start = torch.randn(matrix.shape[1], rank, generator=torch.Generator().manual_seed(0)).to(matrix.device)
    basis = torch.linalg.qr(matrix @ start).Q
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis).Q).Q
    left, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ left, values, right


Parts = Sequence[tuple["QuantisedMatrix", Tensor, Tensor | None]]
"""Quantised matrix, its weights (..., out, in), and the inputs' moments (in,) or (experts, in), if they are known."""


def compensate(parts: Parts, how: Conversion) -> list[Compensation | None]:
    """The compensation of each matrix, None at rank 0. What it cost and gained is added to `how.records`."""
    signal = noise = 0.0
    made: list[Compensation | None] = []
    for matrix, weight, moments in parts:
        terms = []
        for expert in range(weight.shape[0]) if weight.ndim == 3 else (None,):
            exact = (weight if expert is None else weight[expert]).detach().float()
            seen = _seen(exact, moments if moments is None or moments.ndim == 1 or expert is None else moments[expert])
            error = exact - matrix.dequantised(expert)
            signal += _power(exact, seen)
            noise += _power(error, seen)
            if how.rank:
                terms.append(low_rank(error, seen, how.rank))
        if not terms:
            made.append(None)
            continue
        down, up, gains = zip(*terms, strict=True)
        if weight.ndim == 3:
            made.append(Compensation(torch.stack(down), torch.stack(up), torch.stack(gains).sum(dim=0)))
        else:
            made.append(Compensation(down[0], up[0], gains[0]))
    found = [compensation for compensation in made if compensation is not None]
    parameters = sum(weight.numel() for _, weight, _ in parts)
    how.records.append(Record(how.path, how.part, how.precision, signal or 1.0, noise, parameters, found))
    return made


@dataclass
class Record:
    """A quantised layer: powers of its output and of the error, and what may be taken away again."""

    path: str
    part: str
    precision: str
    signal: float
    noise: float
    parameters: int
    compensations: list[Compensation]

    def error(self) -> LayerError:
        gain = sum(sum(one.gains) for one in self.compensations)
        return LayerError(
            path=self.path,
            part=self.part,
            precision=self.precision,
            before=(self.noise / self.signal) ** 0.5,
            after=(max(0.0, self.noise - gain) / self.signal) ** 0.5,
            rank=max((one.rank for one in self.compensations), default=0),
            parameters=self.parameters,
            added_parameters=sum(one.down.numel() + one.up.numel() for one in self.compensations),
        )


def share_out(records: Sequence[Record], share: float) -> None:
    """Keep only so many terms that they are at most `share` of all parameters: those that gain most for their size.

    Gains count as shares of their own layer's output, so that a loud layer does not get all.
    """
    budget = share * sum(record.parameters for record in records)
    terms = [
        (gain / record.signal / one.term_parameters, one)
        for record in records
        for one in record.compensations
        for gain in one.gains
    ]
    kept: dict[int, int] = {}
    # Sorting keeps equal ones in order, and a layer's own gains fall, so that the first terms of each are taken.
    for _, one in sorted(terms, key=lambda term: -term[0]):
        if one.term_parameters <= budget:
            budget -= one.term_parameters
            kept[id(one)] = kept.get(id(one), 0) + 1
    for record in records:
        for one in record.compensations:
            one.cut(kept.get(id(one), 0))


def _seen(weights: Tensor, moments: Tensor | None) -> Tensor:
    """The inputs' mean squares (in,), none of them 0: a channel that was at rest may be woken by other inputs."""
    if moments is None:
        return torch.ones(weights.shape[1], device=weights.device)
    return moments.clamp_min(float(moments.mean()) * LEAST_MOMENT + torch.finfo(torch.float32).tiny)


def _power(weights: Tensor, moments: Tensor) -> float:
    """The output's mean square, summed over its channels, if input channels are independent."""
    return float((weights.square().sum(dim=0) * moments).sum())
