"""A drafter in training: what it says of every slot of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firesteel.models.drafters.backbone import Context
from firesteel.models.drafters.model import DrafterModel
from firesteel.train.batches import Batch
from firesteel.train.losses import Said, scores_fused


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

    def forward(self, batch: Batch) -> Said:
        """What the drafter says of every slot."""
        model = self.drafter
        h = self.states(batch)
        states, head, e = h, model.head, None
        if model.markov_head is not None:
            e = model.markov_head.embed(batch.before)
            states = torch.cat([h, model.markov_head.forced(batch.before, h)], dim=-1)
            head = torch.cat([model.head, model.markov_head.markov_w2.weight], dim=1)
        log_q, alpha, agreement = scores_fused(states.flatten(0, -2), head, batch.slots)
        confidence = None if model.confidence_head is None else model.confidence_head(h, e).flatten()
        selector = None
        if model.candidate_selector is not None:
            selector = self._log_path(h.flatten(0, -2), batch)
        return Said(log_q, alpha, agreement, confidence, selector)

    def _log_path(self, h: Tensor, batch: Batch) -> Tensor:
        """`[N]` log-probability that the path selector walks to the label, among the candidates and the label.

        Candidates are the likeliest tokens of each row; a label that is not among them takes the last one's place.
        """
        model, label = self.drafter, batch.slots.label.clamp(min=0)[:, None]
        most = model.config.selector_top
        with torch.no_grad():
            candidates = torch.cat([model.logits(part).topk(most).indices for part in h.split(1024)])
            there = (candidates == label).any(-1, keepdim=True)
            candidates[:, -1:] = torch.where(there, candidates[:, -1:], label)
            place = (candidates == label).int().argmax(-1, keepdim=True)
        unary = model.shape_logits((model.head[candidates] @ h[..., None])[..., 0].float())
        pairs = model.candidate_selector.pair_scores(batch.before.flatten()[:, None], candidates, h)[:, 0]
        return (unary + pairs.float()).log_softmax(-1).gather(1, place)[:, 0]

    @torch.no_grad()
    def fold(self) -> dict[str, Tensor]:
        """The drafter's own tensors, for features as the target gives them."""
        tensors = {name: tensor.detach().clone() for name, tensor in self.drafter.stored()}
        tensors["fc.weight"] /= self.scale
        return tensors
