"""A drafter in training: what it says of every slot of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firesteel.models.drafters.backbone import Context
from firesteel.models.drafters.model import DrafterModel
from firesteel.train.batches import Batch
from firesteel.train.losses import scores_fused


class Pupil(nn.Module):
    """A drafter whose `fc` reads features divided by `scale`, channel by channel.

    Raw features have channels thousands of times larger than others, and an optimiser that steps alike in all would
    only ever see those. `fold` gives the drafter the plain features' weights.
    """

    def __init__(self, drafter: DrafterModel, scale: Tensor) -> None:
        super().__init__()
        self.drafter = drafter
        self.register_buffer("scale", scale)  # [F]

    def states(self, batch: Batch) -> Tensor:
        """`[C, A, D, H]`: the states that predict each draft."""
        model = self.drafter
        keys, values = model.context(batch.features / self.scale, batch.places)
        context = Context(keys, values, batch.places, batch.seen)
        h = model.block(model.rows(batch.tokens, model.config.block_size), batch.anchors, context)
        return h if model.config.anchor_first else h[:, :, 1:]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of every slot, flat `[N]`: log q of its label, alpha, and the confidence logit."""
        model = self.drafter
        h = self.states(batch)
        states, head, e = h, model.head, None
        if model.markov_head is not None:
            e = model.markov_head.embed(batch.before)
            states = torch.cat([h, model.markov_head.forced(batch.before, h)], dim=-1)
            head = torch.cat([model.head, model.markov_head.markov_w2.weight], dim=1)
        log_q, alpha = scores_fused(states.flatten(0, -2), head, batch.slots)
        confidence = None if model.confidence_head is None else model.confidence_head(h, e).flatten()
        return log_q, alpha, confidence

    @torch.no_grad()
    def fold(self) -> dict[str, Tensor]:
        """The drafter's own tensors, for features as the target gives them."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.drafter.stored()}
        tensors["fc.weight"] /= self.scale
        return tensors
