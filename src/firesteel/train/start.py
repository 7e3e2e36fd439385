"""Where training starts: a drafter's configuration for a target, and its first weights.

A drafter layer has the shape of a target layer, and a context's K/V are a product of the target's deep features: a
drafter that starts as the target's own last layers has nearly right K/V for its context from the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firesteel.errors import InvalidParameter
from firesteel.models.drafters.config import DrafterConfig, Kind
from firesteel.models.drafters.model import DrafterModel
from firesteel.train.lessons import Lesson


@dataclass(frozen=True, kw_only=True)
class Design:
    """The choices of a new drafter; the rest follows from its target.

    Fields:
        kind: "dflash", "dspark" or "dflash2".
        layers, block: of the backbone; block counts the anchor's row.
        causal: rows of a block see only those before them.
        taps: target layers, or None for as many as z-lab's rule spreads over the target, at most five.
        vocab: tokens of the draft vocabulary, or None for all.
        markov_rank: of the DSpark head.
        mask_token_id: an unused row of the target's table, or None for one that `choose_mask` finds.
        from_target: start from the target's last layers rather than at random.
    """

    kind: Kind = "dspark"
    layers: int = 3
    block: int = 5
    causal: bool = False
    taps: tuple[int, ...] | None = None
    vocab: int | None = None
    markov_rank: int = 64
    mask_token_id: int | None = None
    from_target: bool = True


def spread_taps(target_layers: int, count: int = 5) -> tuple[int, ...]:
    """`count` layers of a target, from its second to its third from last (z-lab's default rule)."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(sorted({round(1 + k * (target_layers - 4) / (count - 1)) for k in range(count)}))


def configure(design: Design, target_config: Any, name: str) -> DrafterConfig:
    """The drafter's configuration: its layers have the shape of the target's.

    Raises:
        InvalidParameter: a mask token, tap or vocabulary that the target does not have.
    """
    assert design.mask_token_id is not None, "choose_mask comes first"
    text = target_config.get_text_config(decoder=True)
    taps = design.taps or spread_taps(text.num_hidden_layers)
    if taps[-1] > text.num_hidden_layers - 2:
        raise InvalidParameter(f"tap {taps[-1]} is not below the last of the target's {text.num_hidden_layers} layers")
    if design.vocab is not None and not 0 < design.vocab <= text.vocab_size:
        raise InvalidParameter(f"a draft vocabulary of {design.vocab} does not fit a target of {text.vocab_size}")
    if design.kind == "dflash2" and design.vocab is not None:
        raise InvalidParameter("DFlash 2 scores pairs of the whole vocabulary: it has no reduced one")
    return DrafterConfig(
        kind=design.kind,
        anchor_first=design.kind == "dspark",
        block_size=design.block,
        mask_token_id=design.mask_token_id,
        target_layers=taps,
        target_hidden=text.hidden_size,
        hidden=text.hidden_size,
        layers=design.layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        intermediate=text.intermediate_size,
        eps=text.rms_norm_eps,
        vocab=text.vocab_size,
        draft_vocab=design.vocab or text.vocab_size,
        rope=dict(getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0}),
        causal=(design.causal,) * design.layers,
        windows=(None,) * design.layers,
        max_context=text.max_position_embeddings,
        markov_rank=design.markov_rank if design.kind == "dspark" else 0,
        confidence=design.kind == "dspark",
        confidence_markov=design.kind == "dspark",
        conv_kernel=2 if design.kind == "dflash2" else 0,
        selector_rank=256 if design.kind == "dflash2" else 0,
        target=name,
    )


def channel_scale(lessons: Sequence[Lesson]) -> Tensor:
    """`[F]` root mean square of each feature channel over the lessons, without their first tokens.

    A target's first token, where attention sinks, has a few channels a thousand times larger than any other token's.
    """
    total, count = torch.zeros(lessons[0].features.shape[-1], dtype=torch.float64), 0
    for lesson in lessons:
        rest = lesson.features[1:].double()
        total += rest.square().sum(0)
        count += len(rest)
    return (total / max(count, 1)).sqrt().clamp(min=1e-6).float()


def randomise(model: DrafterModel, seed: int) -> None:
    """Matrices normal with 0.02, the Markov head small, DFlash 2's convolutions the identity that they start as."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "kernel_projection" not in name:
            nn.init.normal_(parameter, std=0.01 if "markov" in name else 0.02, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


@torch.no_grad()
def begin_as_drafter(model: DrafterModel, source: DrafterModel, scale: Tensor) -> str:
    """Copy another drafter's weights, whose `fc` reads features as the target gives them; returns this in words."""
    model.load_state_dict(source.state_dict())
    model.fc.weight.mul_(scale)
    return "weights of the drafter that was named"


@torch.no_grad()
def begin_as_target(
    model: DrafterModel, tensors: Mapping[str, Tensor], scale: Tensor, lessons: Sequence[Lesson]
) -> str:
    """Copy the target's last layers into the drafter's; returns what was done, in words.

    The drafter sees features divided by `scale` and gives every layer one norm of them, with q and k normed per head;
    the target has a norm per layer and no q/k norms. So each layer's norm is folded into its q, k and v, and the gains
    of the q/k norms become the mean size of the target's queries and keys, measured on `lessons`.
    """
    config = model.config
    names = [f"model.layers.{index}." for index in range(sum(n.endswith("mlp.up_proj.weight") for n in tensors))]
    names = names[-config.layers :]
    if len(names) < config.layers:
        return f"random weights: the target has only {len(names)} layers to begin as"
    for at, layer in zip(names, model.layers, strict=True):
        if not _same_shapes(tensors, at, layer):
            return "random weights: the target's layers have another shape"
    hidden = config.target_hidden
    deep = scale[-hidden:]  # of the deepest tap
    states = torch.cat([lesson.features[1:, -hidden:].float() for lesson in lessons])
    size = states.square().mean(-1).sqrt().median()
    model.fc.weight.zero_()
    model.fc.weight[:, -hidden:] = torch.eye(config.hidden)
    sample = states[torch.randperm(len(states), generator=torch.Generator().manual_seed(0))[:2048]]
    normed = sample * torch.rsqrt(sample.square().mean(-1, keepdim=True) + config.eps)
    for at, layer in zip(names, model.layers, strict=True):
        gain = tensors[f"{at}input_layernorm.weight"].float()
        layer.input_layernorm.weight.copy_(size / deep)
        for part in "qkv":
            weight = tensors[f"{at}self_attn.{part}_proj.weight"].float()
            getattr(layer.self_attn, f"{part}_proj").weight.copy_(weight * (gain * deep / size))
            if part != "v":
                theirs = tensors.get(f"{at}self_attn.{part}_norm.weight")
                heads = (normed @ (weight * gain).T).unflatten(-1, (-1, config.head_dim))
                mean = heads.square().mean(-1).sqrt().mean().expand(config.head_dim)
                getattr(layer.self_attn, f"{part}_norm").weight.copy_(mean if theirs is None else theirs)
        layer.self_attn.o_proj.weight.copy_(tensors[f"{at}self_attn.o_proj.weight"])
        layer.post_attention_layernorm.weight.copy_(tensors[f"{at}post_attention_layernorm.weight"])
        for part in ("gate", "up", "down"):
            getattr(layer.mlp, f"{part}_proj").weight.copy_(tensors[f"{at}mlp.{part}_proj.weight"])
    model.norm.weight.copy_(tensors["model.norm.weight"])
    return f"weights of the target's last {config.layers} layers"


def choose_mask(counts: Sequence[int], added: Sequence[int], logical: int) -> int:
    """A token to stand for a mask: a row beyond the tokenizer's ids, else an added token that the data never use.

    Args:
        counts: of every row of the embedding table, how often the data holds it.
        added: the tokenizer's added ids; logical: how many ids it knows.

    Raises:
        InvalidParameter: every added token is in use.
    """
    if len(counts) > logical:
        return logical
    unused = [token for token in added if counts[token] == 0]
    if not unused:
        raise InvalidParameter("no token of the target is free to be the mask; name one with --mask-token")
    return max(unused)


def _same_shapes(tensors: Mapping[str, Tensor], at: str, layer: nn.Module) -> bool:
    """Whether the target has a matrix of the same shape for each of the layer's."""
    wanted = {name: p for name, p in layer.named_parameters() if p.dim() == 2 and "conv" not in name}
    return all(at + name in tensors and tensors[at + name].shape == p.shape for name, p in wanted.items())
