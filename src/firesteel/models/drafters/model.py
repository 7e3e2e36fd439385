"""A whole block drafter: backbone, embedding, output head and the heads of its kind.

Embedding and output head are the target's. A checkpoint may carry copies of them; without, they are lent with `lend`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from firesteel.errors import InvalidParameter
from firesteel.models.drafters.backbone import Backbone
from firesteel.models.drafters.config import DrafterConfig
from firesteel.models.drafters.heads import ConfidenceHead, MarkovHead, PathSelector

LENT = ("embed_tokens.weight", "lm_head.weight")


class DrafterModel(Backbone):
    """See the modules of its parts for shapes.

    Attributes:
        embed: `[vocab, H]`, frozen.
        head: `[draft_vocab, H]`, frozen.
        kept: `int64[draft_vocab]` the target id of each draft id, rising; None when they are the same.
    """

    embed: Tensor | None
    head: Tensor | None
    kept: Tensor | None

    def __init__(self, config: DrafterConfig, kept: Tensor | None = None) -> None:
        super().__init__(config)
        if config.reduced != (kept is not None):
            raise InvalidParameter("a drafter needs d2t exactly when its head knows only part of the vocabulary")
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.confidence else None
        self.candidate_selector = PathSelector(config) if config.selector_rank else None
        for name, value in (("embed", None), ("head", None), ("kept", kept)):
            self.register_buffer(name, value, persistent=False)

    def lend(self, embed: Tensor, head: Tensor) -> None:
        """Use a target's embedding and output head `[>= vocab, H]`, whose kept rows become the draft head.

        Neither replaces a copy that the drafter has of its own.
        """
        like = self.fc.weight
        if self.embed is None:
            self.embed = embed.to(like.device, like.dtype)
        if self.head is None:
            head = head[: self.config.draft_vocab] if self.kept is None else head[self.kept.to(head.device)]
            self.head = head.to(like.device, like.dtype)

    def rows(self, anchors: Tensor, count: int) -> Tensor:
        """Embedded blocks `[..., count, H]`: each anchor token `[...]`, then masks."""
        assert self.embed is not None, "a drafter without an embedding of its own needs lend()"
        ids = anchors.new_full((*anchors.shape, count), self.config.mask_token_id)
        ids[..., 0] = anchors
        return F.embedding(ids, self.embed) * self.config.embedding_scale

    def logits(self, h: Tensor) -> Tensor:
        """Base logits fp32 `[..., draft_vocab]` of final-normed states, before any head's correction."""
        assert self.head is not None, "a drafter without a head of its own needs lend()"
        return self.shape_logits(F.linear(h, self.head).float())

    def shape_logits(self, logits: Tensor) -> Tensor:
        """The multiplier, then the soft cap."""
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if (cap := self.config.softcap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def conditional(
        self,
        base: Tensor,  # [n, draft_vocab]  base logits of a row of each block
        h: Tensor,  # [n, H]  and its state
        before: Tensor,  # int64 [n]  target id of the token before the predicted one
        state: Tensor | None,  # [n, r]  what a recurrent Markov head remembers of the tokens before; None at the start
    ) -> tuple[Tensor, Tensor | None]:
        """Logits `[n, draft_vocab]` given the token before, and the state after it. No backbone pass.

        DFlash 2 knows only the likeliest few tokens of a row: the others have a logit of -inf.
        """
        if self.markov_head is not None:
            factor, state = self.markov_head.step(self.markov_head.embed(before), h, state)
            return base + self.markov_head.bias(factor).float(), state
        if self.candidate_selector is not None:
            top = base.topk(min(self.config.selector_top, base.shape[-1]))
            pairs = self.candidate_selector.pair_scores(before[:, None], top.indices, h)[:, 0]
            return torch.full_like(base, -torch.inf).scatter(1, top.indices, top.values + pairs.float()), None
        return base, None

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        return draft_ids if self.kept is None else self.kept[draft_ids]

    def stored(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of what is the drafter's own, as checkpoints name them."""
        yield from self.state_dict().items()
