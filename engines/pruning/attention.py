from dataclasses import dataclass

from engines.pruning.base import Selection, Selector, Visual, select_top
from engines.settings import setting


@dataclass(frozen=True)
class AttentionReceived(Selector):
    """Tokens that the end of the prompt looks at, chosen inside the language model.

    The layers up to `layer` see every token; those after it compute and cache only the kept ones. The score is the
    attention that a token receives in that layer from the prompt's last token, averaged over the heads.
    """

    name = "attention"
    label = "Attention received"
    help = "Drops tokens inside the language model: those to which the end of the prompt pays the least attention."
    source = "FastV (arXiv 2403.06764): attention received from the last token after an early layer."

    layer: int = setting(
        2,
        label="After layer",
        help="Layers up to this one see every token. Where it cannot be done there, the result names the layer taken.",
        low=1,
        high=64,
        step=1,
    )

    @property
    def asked_layer(self) -> int:
        return self.layer

    def select(self, visual: Visual, keep: int) -> Selection:
        assert visual.attention is not None, "the engine hands over the attention of the layer"
        scores = visual.attention.float().cpu()
        return Selection(select_top(scores, keep), scores)
