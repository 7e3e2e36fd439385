"""A tiny random model that can be spoken to: a folder with a chat template and one token per character."""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from firesteel.model import Model
from tests import toys

TEMPLATE = (
    "{% for message in messages %}<start>{{ message['role'] }}\n{{ message['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)
CHARACTERS = string.printable[:95] + "\n"


def save(folder: Path, layers: int = 1) -> Path:
    """Write model and tokenizer. Its logits are nearly even, so that about every fifteenth token drawn is an end.

    A drafter needs a target of at least 3 layers to look at.
    """
    ids = {character: number for number, character in enumerate(["<start>", "<end>", *CHARACTERS])}
    backend = Tokenizer(models.BPE(ids, []))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", additional_special_tokens=["<start>"], chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    model = toys.model(vocab_size=len(ids), initializer_range=0.02, num_hidden_layers=layers)
    model.generation_config.eos_token_id = [ids[end] for end in ("<end>", *"{|}~^`")]
    model.save_pretrained(folder)
    return folder


def model(folder: Path) -> Model:
    """The model, fp32 and eager."""
    return Model.load(str(save(folder)), device="cpu", compiled=False)
