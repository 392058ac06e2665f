"""How far two clouds of embeddings are apart, and whether chance alone would put them so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Cloud = npt.NDArray[np.float64]
ALARM = 0.07
_DIRECTIONS, _SWAPS = 128, 499
_SIGNIFICANT = 0.01
# With fewer pairs no p-value can be below the bound: they have fewer than 1 / 0.01 different swaps.
FEWEST_PAIRS = 8


@dataclass(frozen=True)
class WassersteinDrift:
    """Distances of embeddings of length 1, so from 0 to 2."""

    observed: float
    by_chance: float
    """The mean over random swaps within the pairs: what so few samples of one distribution are apart."""
    p_value: float
    """Share of the swaps that put the clouds at least as far apart."""
    pairs: int

    @property
    def drift(self) -> float:
        """Observed less what chance gives; not below 0."""
        return max(0.0, self.observed - self.by_chance)

    @property
    def alarm(self) -> bool:
        return self.drift > ALARM and self.p_value <= _SIGNIFICANT and self.pairs >= FEWEST_PAIRS


def sliced_wasserstein(one: Cloud, other: Cloud, directions: Cloud) -> float:
    """Sliced 1-Wasserstein distance of two clouds of the same number of points, (n, size) each.

    The mean over the directions (size, k) of the distance between the sorted projections (Rabin et al., 2011;
    Bonneel et al., 2015), divided by the mean projection of a unit vector: a cloud that was moved as a whole by some
    distance is just that distance away, in any number of dimensions.
    """
    apart = np.abs(np.sort(one @ directions, axis=0) - np.sort(other @ directions, axis=0)).mean()
    return float(apart / _mean_projection(one.shape[1]))


def wasserstein_drift(one: Cloud, other: Cloud, seed: int = 0) -> WassersteinDrift:
    """Of the embeddings of paired answers, (pairs, size) each, against swapping the answers within pairs.

    Two samples of one distribution are never 0 apart, the less so the fewer they are. If both sides answer alike in
    distribution, swapping a pair changes nothing, so the swapped distances say what chance gives: their mean is
    taken off, and the alarm asks for p <= 0.01 besides, which bounds false alarms by 1 %.
    """
    if one.shape != other.shape or not len(one):
        raise ValueError(f"Clouds of shapes {one.shape} and {other.shape} cannot be paired.")
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((one.shape[1], _DIRECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    observed = sliced_wasserstein(one, other, directions)
    ours, theirs = one @ directions, other @ directions
    by_chance = np.empty(_SWAPS)
    for index in range(_SWAPS):
        swap = rng.random((len(one), 1)) < 0.5
        first, second = np.where(swap, theirs, ours), np.where(swap, ours, theirs)
        by_chance[index] = np.abs(np.sort(first, axis=0) - np.sort(second, axis=0)).mean()
    by_chance /= _mean_projection(one.shape[1])
    # The observed one counts among the swaps: it is the one that swaps nothing.
    p_value = (1 + int((by_chance >= observed - 1e-12).sum())) / (_SWAPS + 1)
    return WassersteinDrift(observed, float(by_chance.mean()), p_value, len(one))


def _mean_projection(size: int) -> float:
    """Mean absolute coordinate of a random unit vector."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)
