"""From what a user calls a target to its configuration, its tokenizer and, when asked for, its model.

A target is a folder in the Hugging Face format, a GGUF file, a hub id, or the default's short name. A GGUF file is
de-quantised once and kept as safetensors, so that the second start is quick.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.status import Status

from firesteel.default_target import DEFAULT_TARGET, default_file
from firesteel.errors import FiresteelError, TargetNotFound, UnsupportedModel
from firesteel.models.compact import FAMILIES
from firesteel.models.target import refuse_reason
from firesteel.paths import cache_folder, made_whole

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer


@dataclass(frozen=True)
class LoadedTarget:
    """A target's configuration and tokenizer; its transformers model comes when somebody asks for it.

    Fields:
        name: what the user asked for.
        folder: the weights on this disk or the hub id.
        config, tokenizer: transformers' objects.
        dtype, device: of the model.
        stop_ids: tokens that end a reply, from the generation configuration.
    """

    name: str
    folder: str
    config: PretrainedConfig
    tokenizer: Tokenizer
    dtype: torch.dtype
    device: torch.device
    stop_ids: tuple[int, ...]

    @cached_property
    def model(self) -> PreTrainedModel:
        """The transformers model, loaded on first use (its code alone takes seconds to import).

        Raises:
            TargetNotFound, UnsupportedModel: its weights are missing or cannot be read.
        """
        from transformers import AutoModelForCausalLM

        with _status(f"loading {self.name}"), _told(self.name):
            return AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype).to(self.device)


def resolve(target: str) -> str:
    """The folder or hub id of `target`, a GGUF file converted on the way.

    Raises:
        TargetNotFound: a path that does not exist.
        UnsupportedModel: a GGUF file that cannot be read.
    """
    if target == DEFAULT_TARGET:
        return str(_converted(default_file()))
    path = Path(target).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise TargetNotFound(f"no such file: {target}")
        return str(_converted(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise TargetNotFound(f"{target} is a folder without a config.json, so it is not a model")
        return str(path)
    looks_like_hub_id = target.count("/") == 1 and not target.startswith((".", "/", "~"))
    if path.exists() or not looks_like_hub_id:
        raise TargetNotFound(
            f"no target {target!r}: give a folder in the Hugging Face format, a .gguf file, a hub id (owner/name) or "
            f"{DEFAULT_TARGET}"
        )
    return target


def load(target: str = DEFAULT_TARGET, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LoadedTarget:
    """Load a target's configuration and tokenizer.

    Raises:
        TargetNotFound: neither on this disk nor on the hub.
        UnsupportedModel: not a decoder-only model whose state can be rolled back over a tree.
    """
    folder = resolve(target)
    from transformers import AutoTokenizer, GenerationConfig

    _quiet(local=Path(folder).is_dir())
    with _status(f"loading {target}"), _told(target):
        config = _configuration(folder)
        if reason := refuse_reason(config):
            raise UnsupportedModel(reason)
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config)
        try:
            eos = GenerationConfig.from_pretrained(folder).eos_token_id
        except OSError:  # a model without a generation configuration
            eos = None
    eos = tokenizer.eos_token_id if eos is None else eos
    stop_ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return LoadedTarget(target, folder, config, tokenizer, dtype, torch.device(device), stop_ids)


def _configuration(folder: str) -> PretrainedConfig:
    """The configuration of a model.

    A folder that we converted names every field in its file, so that transformers' generic class will do for it: the
    class of a family pulls in torch.distributed and sympy, which take seconds to import.
    """
    from transformers import AutoConfig, PretrainedConfig

    if Path(folder).parent == cache_folder("targets"):
        values = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        if values.get("model_type") in FAMILIES:
            config = PretrainedConfig.from_dict(values)
            config.model_type = values["model_type"]
            return config
    return AutoConfig.from_pretrained(folder)


@contextmanager
def _told(target: str) -> Iterator[None]:
    """Errors of loading, as ours and in one line."""
    try:
        yield
    except OSError as error:
        raise TargetNotFound(f"cannot load target {target!r}: {_first_line(error)}") from error
    except FiresteelError:
        raise
    except ValueError as error:
        raise UnsupportedModel(f"cannot load target {target!r}: {_first_line(error)}") from error


def _quiet(*, local: bool) -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    if local:
        logging.disable_progress_bar()  # a second's work; a download keeps its bars


def _status(text: str) -> Status:
    return Console(stderr=True).status(text)


def _converted(file: Path) -> Path:
    """The folder with the de-quantised twin of a GGUF file, made on first use."""
    stat = file.stat()
    identity = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    folder = cache_folder("targets") / f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _quiet(local=False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    Console(stderr=True).print(f"converting {file.name} to safetensors, once (about a minute) ...")
    try:
        with made_whole(folder) as made:
            options = {"gguf_file": file.name}
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
            # Without this, recent transformers keeps the weights packed in GGUF blocks.
            unpacked = GgufConfig(dequantize=True)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, **options, dtype=torch.float32, quantization_config=unpacked
            )
            model.save_pretrained(made)
            tokenizer.save_pretrained(made)
    except (ValueError, OSError, KeyError, IndexError, struct.error, RuntimeError) as error:
        raise UnsupportedModel(f"cannot read the GGUF file {file}: {_first_line(error)}") from error
    return folder


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
