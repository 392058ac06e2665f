"""How much of each local neighbourhood a reduced vision tower leaves as the whole tower has it.

Two figures for every merged visual token: how alike the responses of its 3 x 3 neighbourhood are, and how many of the
tokens most similar to it are still the same ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NEAREST = 8
# Rows whose similarities to all others are held at a time.
_ROWS = 512


def neighbourhood_similarity(full: Tensor, reduced: Tensor, rows: int, columns: int) -> Tensor:
    """(tokens,) in [-1, 1]: cosine between the two towers' responses of each token's 3 x 3 neighbourhood.

    `full` and `reduced` are (rows x columns, hidden), row by row. A response is the features of all the
    neighbourhood's tokens, less their mean, so that what an offset common to all of them does is left out; at the
    edge the neighbourhood has fewer tokens. Where there is nothing to compare, it is 1 if neither has a response
    and 0 if one has.
    """
    ours, theirs = (rows_.double().T.reshape(1, -1, rows, columns) for rows_ in (full, reduced))

    def covariance(one: Tensor, other: Tensor) -> Tensor:
        means = _mean_3x3(one), _mean_3x3(other)
        return (_mean_3x3((one * other).sum(1, keepdim=True)) - (means[0] * means[1]).sum(1, keepdim=True)).flatten()

    # What rounding leaves of an even neighbourhood, as a share of its power, is no response.
    floors = [1e-12 * _mean_3x3(one.square().sum(1, keepdim=True)).flatten() for one in (ours, theirs)]
    powers = [
        torch.where(power <= floor, 0.0, power)
        for power, floor in zip((covariance(ours, ours), covariance(theirs, theirs)), floors, strict=True)
    ]
    scale = (powers[0] * powers[1]).sqrt()
    neither = (powers[0] == 0) & (powers[1] == 0)
    cosine = (covariance(ours, theirs) / scale.clamp_min(torch.finfo(scale.dtype).tiny)).clamp(-1.0, 1.0)
    return torch.where(neither, 1.0, torch.where(scale == 0, 0.0, cosine))


def neighbour_overlap(full: Tensor, reduced: Tensor, nearest: int = NEAREST) -> Tensor:
    """(tokens,) in 0-1: of each token's `nearest` most similar other tokens by cosine, the share that both towers
    have in common. With fewer other tokens, of all of them; a token alone has nothing to lose: 1."""
    k = min(nearest, len(full) - 1)
    if k == 0:
        return torch.ones(len(full), device=full.device)
    units = [F.normalize(rows.float(), dim=-1) for rows in (full, reduced)]
    shares = []
    for start in range(0, len(full), _ROWS):
        marks = []
        for unit in units:
            similarity = unit[start : start + _ROWS] @ unit.T
            similarity.diagonal(start).fill_(-torch.inf)
            nearest_ones = similarity.topk(k, dim=1).indices
            marks.append(torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, nearest_ones, True))
        shares.append((marks[0] & marks[1]).sum(dim=1) / k)
    return torch.cat(shares)


def _mean_3x3(grid: Tensor) -> Tensor:
    """(1, channels, rows, columns): the mean over each place's neighbourhood, as far as it lies inside."""
    return F.avg_pool2d(grid, 3, stride=1, padding=1, count_include_pad=False)
