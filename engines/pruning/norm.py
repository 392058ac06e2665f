from dataclasses import dataclass

from engines.pruning.base import Selection, Selector, Visual, select_top


@dataclass(frozen=True)
class L2Norm(Selector):
    """Tokens of the largest Euclidean norm."""

    name = "l2_norm"
    label = "L2 norm"
    help = "Keeps the tokens with the largest embedding norm."
    source = "Magnitude as importance, the simplest content-based score."

    def select(self, visual: Visual, keep: int) -> Selection:
        scores = visual.embeddings.float().norm(dim=-1).cpu()
        return Selection(select_top(scores, keep), scores)
