"""What a block drafter is: the numbers of its backbone and heads, whatever file format they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from firesteel.errors import InvalidParameter

Kind = Literal["dflash", "dspark", "dflash2"]
MarkovKind = Literal["vanilla", "gated", "rnn"]
Family = Literal["qwen3", "gemma4"]


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """One block drafter.

    A block is the anchor and then masks. Two layouts of its rows exist, and telling them apart is everything:

        anchor first   row j (position a + j) predicts the token at a + j + 1; a block of B rows drafts B tokens
        in place       row j predicts the token at its own position a + j; row 0 is unused, B rows draft B - 1 tokens

    Fields:
        kind: which heads it has; "dflash" has none.
        anchor_first: the layout of its rows.
        block_size: rows it was trained on, the anchor's included.
        mask_token_id: row of the embedding table that stands for a mask.
        target_layers: 0-based target layers whose outputs are its features, rising.
        target_hidden: width of one such output.
        hidden, layers, heads, kv_heads, head_dim, intermediate, eps: the backbone.
        vocab: rows of the embedding table; draft_vocab: rows of its head. Fewer in the head need `d2t`.
        rope: transformers' rope parameters; the drafter's own, not the target's.
        family: whose decoder layers the backbone has; values_from_keys: Gemma 4's values are its unrotated keys.
        attention_bias: q, k, v and o have biases.
        causal: per layer, whether a row sees only the rows of its block before it.
        windows: per layer, sliding window in tokens, or None.
        max_context: positions the rotary embedding is meant for, or None.
        markov_rank: 0 for no Markov head; markov_kind: its variant.
        confidence: has a confidence head; confidence_markov: which sees the predecessor's Markov row too.
        conv_kernel, conv_group: taps and channels per group of the convolutions; 0 taps for none.
        selector_rank, selector_top: of the path selector; rank 0 for none.
        embedding_scale, output_multiplier, softcap: of the input, of the logits.
        target: name of the target it was trained for, where the file says so.
    """

    kind: Kind
    anchor_first: bool
    block_size: int
    mask_token_id: int
    target_layers: tuple[int, ...]
    target_hidden: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    vocab: int
    draft_vocab: int
    rope: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    family: Family = "qwen3"
    values_from_keys: bool = False
    attention_bias: bool = False
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    max_context: int | None = None
    markov_rank: int = 0
    markov_kind: MarkovKind = "vanilla"
    confidence: bool = False
    confidence_markov: bool = False
    conv_kernel: int = 0
    conv_group: int = 16
    selector_rank: int = 0
    selector_top: int = 16
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        def require(holds: bool, text: str) -> None:
            if not holds:
                raise InvalidParameter(f"a drafter's {text}")

        require(self.block_size >= 2, f"block has at least 2 rows, not {self.block_size}")
        require(len(self.target_layers) >= 1, "target_layers name at least one layer")
        require(
            list(self.target_layers) == sorted(set(self.target_layers)) and self.target_layers[0] >= 0,
            f"target_layers rise from 0, unlike {list(self.target_layers)}",
        )
        require(self.heads % self.kv_heads == 0, f"{self.heads} heads share {self.kv_heads} key heads unevenly")
        require(len(self.causal) == len(self.windows) == self.layers, "layers each have a direction and a window")
        require(
            0 <= self.mask_token_id < self.vocab,
            f"mask token is a row of its embedding table: {self.mask_token_id} is not below {self.vocab}",
        )
        require(self.markov_kind in ("vanilla", "gated", "rnn"), f"Markov head is not {self.markov_kind!r}")
        require(self.family in ("qwen3", "gemma4"), f"layers are Qwen3's or Gemma 4's, not {self.family!r}")
        require(self.family == "gemma4" or not self.values_from_keys, "values are its keys only in Gemma 4's layers")
        require(self.family == "qwen3" or not self.conv_kernel, "convolutions wrap Qwen3's layers only")
        require(not self.conv_kernel or self.hidden % self.conv_group == 0, "convolution groups divide its width")

    @property
    def drafts(self) -> int:
        """Tokens that a full block drafts."""
        return self.block_size if self.anchor_first else self.block_size - 1

    @property
    def reduced(self) -> bool:
        """Whether its head knows only part of the vocabulary (a head padded beyond it knows all)."""
        return self.draft_vocab < self.vocab

    @property
    def uniform(self) -> bool:
        """Whether all layers see the same rows of a block."""
        return len(set(self.causal)) == 1
