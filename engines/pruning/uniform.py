from dataclasses import dataclass

import torch

from engines.pruning.base import Selection, Selector, Visual


@dataclass(frozen=True)
class Uniform(Selector):
    """Tokens spread evenly over the grid."""

    name = "uniform"
    label = "Uniform grid"
    help = "Tokens spread evenly over each image and frame group, whatever it shows and whatever the scope."
    source = "Control; evenly spaced rows, evenly spaced tokens in each."
    # Evenly spaced means something only on a grid, so every grid keeps its own share.
    scope = "frame"

    def select(self, visual: Visual, keep: int) -> Selection:
        # The number of rows used is chosen so that the spacing is about the same down and across; each used row
        # then takes its share, shifted by half a step every other row so that columns do not line up.
        (grid,) = visual.groups
        rows, columns = grid.rows, grid.columns
        used = round((keep * rows / columns) ** 0.5)
        used = max(-(-keep // columns), min(used, rows, keep))
        kept = []
        for position in range(used):
            row = (2 * position + 1) * rows // (2 * used)
            share = (position + 1) * keep // used - position * keep // used
            shift = 0.25 if share < columns and position % 2 else 0.0
            kept += [row * columns + int((index + 0.5 + shift) * columns / share) for index in range(share)]
        return Selection(torch.tensor(sorted(kept)), None)
