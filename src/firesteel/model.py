"""The front door: load a target, make requests for it, decode them."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from firesteel.default_target import DEFAULT_TARGET
from firesteel.engine.block_drafter import BlockDrafter
from firesteel.engine.drafter import Drafter, NoDrafter
from firesteel.engine.engine import Engine, EngineConfig
from firesteel.engine.request import Request
from firesteel.engine.text import TextStream
from firesteel.errors import FiresteelError, InvalidParameter, PromptTooLong, unknown
from firesteel.models.drafters.blocks import Blocks
from firesteel.models.drafters.checkpoint import LoadedDrafter, load_drafter
from firesteel.models.drafters.pairs import drafter_for
from firesteel.models.identity import owner
from firesteel.models.loading import LoadedTarget, load
from firesteel.models.modes import Modes
from firesteel.models.target import Target
from firesteel.models.weights import embedding_and_head
from firesteel.policy import Policy, make
from firesteel.rounds import RoundReport
from firesteel.sampling import SamplingParams
from firesteel.store.file import store_folder
from firesteel.store.memory import Memory

DTYPES = ("fp32", "bf16", "int8")
NGRAM = "ngram"
"""The drafter's name where there is none: each request's own text, which needs no weights."""


@dataclass
class Model:
    """A target ready to decode, and its tokenizer.

    Used in a `with`, or closed, it writes what its policies learned; else that is written when the process ends.

    Fields:
        loaded: the model as it was loaded.
        modes: its forwards, eager and compiled.
        dtype: "fp32", "bf16" or "int8".
        drafter: the target's drafter; None where drafts come from each request's own text alone.
        load_s: seconds from asking to ready.
        store: the folder of what policies learn; None where nothing is taken up and nothing kept.
        say: takes lines of progress and of what went wrong.
    """

    loaded: LoadedTarget
    modes: Modes
    dtype: str
    drafter: LoadedDrafter | None
    load_s: float
    store: Path | None = None
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)
    _memories: weakref.WeakSet[Memory] = field(default_factory=weakref.WeakSet, repr=False)
    _blocks: tuple[Target, Blocks] | None = field(default=None, repr=False)
    _names: Any = field(default_factory=itertools.count, repr=False)

    @classmethod
    def load(
        cls,
        target: str = DEFAULT_TARGET,
        *,
        dtype: str = "fp32",
        device: str | None = None,
        compiled: bool | None = None,
        drafter: str | None = None,
        taps: Sequence[int] = (),
        store: bool | str | Path = True,
        say: Callable[[str], None] = lambda line: None,
    ) -> Model:
        """Load a target.

        Args:
            target: a folder in the Hugging Face format, a GGUF file, a hub id, or the default's name.
            dtype: "fp32", "bf16" or "int8".
            device: "cpu", "cuda", ...; None takes CUDA where it is.
            compiled: see `firesteel.models.modes.Modes`.
            drafter: a folder or hub id; "ngram" for none; None for the one that is known for this target.
            taps: layers (0-based, rising) whose outputs are to be seen where no drafter says so.
            store: where policies go on from what they learned in earlier processes, and keep what they learn: True for
                the user's own place, a folder for another, False for nowhere.
            say: takes lines of progress.

        Raises:
            InvalidParameter: an unknown dtype, or a store that is no folder.
            TargetNotFound, UnsupportedModel, MissingTool: see `firesteel.models.loading.load`; and for the drafter
                `firesteel.models.drafters.checkpoint.load_drafter`.
        """
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
        begun, kept_in = time.perf_counter(), store_folder(store)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = load(target, torch.bfloat16 if dtype == "bf16" else torch.float32, device)
        own = cls._load_drafter(drafter, loaded, say)
        if own is not None:
            taps = own.model.config.target_layers
        modes = Modes(loaded, dtype, compiled, taps=taps, say=say)
        _ = modes.target  # made now, so that the time to load is all of it
        return cls(loaded, modes, dtype, own, time.perf_counter() - begun, kept_in, say)

    @staticmethod
    def _load_drafter(name: str | None, loaded: LoadedTarget, say: Callable[[str], None]) -> LoadedDrafter | None:
        """The named drafter, checked against the target before its weights are read, its embedding and head lent."""
        if name == NGRAM:
            return None
        known = drafter_for(loaded.name)
        if name is None and known is None:
            say(f"no drafter is known for {loaded.name}: drafting from each request's own text (n-grams)")
            return None
        asked, name = name is not None, name or str(known)
        if "/" not in name and not Path(name).is_dir():  # no hub id either
            raise unknown("drafter", name, (NGRAM, "a folder", "a hub id"))
        # On a CPU fp32 whatever the target's dtype: its own kernels keep it as they like, and torch's are quickest so.
        dtype = torch.float32 if loaded.device.type == "cpu" else loaded.dtype
        try:
            drafter = load_drafter(name, dtype=dtype, device=loaded.device, target_config=loaded.config)
        except FiresteelError as error:  # nobody asked for it: its faults are a line, not the end
            if asked:
                raise
            say(f"{error}; drafting from each request's own text (n-grams)")
            return None
        for note in drafter.notes:
            say(note)
        drafter.model.lend(*embedding_and_head(loaded))
        return drafter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what the policies of this model's engines have learned since it was last written."""
        for memory in [*self._memories]:
            memory.save()

    @property
    def target(self) -> Target:
        """The forward that a new engine runs on: compiled when that is ready, else eager."""
        return self.modes.target

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer knows how this model is spoken to."""
        return bool(self.loaded.tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of raw text.

        Raises:
            InvalidParameter: empty text, and the tokenizer has no token to begin with.
        """
        ids = list(self.loaded.tokenizer(text).input_ids)
        if not ids and self.loaded.tokenizer.bos_token_id is not None:
            ids = [self.loaded.tokenizer.bos_token_id]
        if not ids:
            raise InvalidParameter("the prompt is empty")
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation (`role`, `content`) up to where the reply begins.

        Raises:
            InvalidParameter: the tokenizer has no chat template.
        """
        if not self.has_chat_template:
            raise InvalidParameter(f"{self.loaded.name} has no chat template; use raw text (--raw)")
        tokenizer = self.loaded.tokenizer
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def engine(
        self,
        policy: str = "auto",
        *,
        width: int | None = None,
        drafter: Drafter | None = None,
        config: EngineConfig = EngineConfig(),  # noqa: B008 (frozen)
        record: Callable[[RoundReport], None] | None = None,
    ) -> Engine:
        """An engine over this target. Without another `drafter` it gets the model's own, which `off` has no use for."""
        vocab_size = min(len(self.loaded.tokenizer), self.target.shape.vocab_size)
        chosen, own = make(policy, width=width), None
        if drafter is None and policy != "off":
            own = self.drafter
        # Of somebody else's drafter only its name is known: nothing is kept of what is learned over it.
        memory = self._memory(chosen, own) if drafter is None or isinstance(drafter, NoDrafter) else None
        if own is not None:
            drafter = BlockDrafter(
                own.model,
                self._draft_blocks(own),
                slots=config.slots,
                vocab_size=vocab_size,
                cache_dtype=self.target.dtype,
            )
        engine = Engine(
            self.target,
            chosen,
            drafter=drafter,
            config=config,
            vocab_size=vocab_size,
            record=record,
            learned=None if memory is None else memory.after,
        )
        if memory is not None:
            weakref.finalize(engine, memory.save)  # when the engine is gone, and at the latest when the process ends
        return engine

    def _memory(self, policy: Policy, drafter: LoadedDrafter | None) -> Memory | None:
        """What a policy goes on from, taken up by it; None without a store, and for a policy that never learns."""
        if self.store is None or not policy.state():
            return None
        belongs_to = owner(self.loaded, self.dtype, compiled=self.modes.name == "compiled", drafter=drafter)
        memory = Memory(policy, self.store, belongs_to, say=self.say)
        self._memories.add(memory)
        return memory

    def _draft_blocks(self, drafter: LoadedDrafter) -> Blocks:
        """The drafter's pass, packed once for each forward that the target has run on."""
        if self._blocks is None or self._blocks[0] is not self.target:
            self._blocks = self.target, self.modes.blocks(drafter.model)
        return self._blocks[1]

    def request(self, ids: Sequence[int], params: SamplingParams, *, name: str | None = None) -> Request:
        """A request for this target.

        Raises:
            PromptTooLong: the prompt leaves no room for a token.
            InvalidParameter: a token id that the vocabulary does not have.
        """
        most = self.target.shape.max_context
        if len(ids) >= most:
            raise PromptTooLong(f"the prompt has {len(ids)} tokens, but {self.loaded.name} has a context of {most}")
        vocab_size = self.target.shape.vocab_size
        params.check_vocab(vocab_size)
        if bad := [token for token in ids if not 0 <= token < vocab_size]:
            raise InvalidParameter(f"token id {bad[0]} is not in the vocabulary of {vocab_size}")
        return Request(
            id=name or f"request-{next(self._names)}",
            prompt=list(ids),
            params=params,
            stop_ids=frozenset(self.loaded.stop_ids),
            max_context=most,
            text=TextStream(self.loaded.tokenizer, params.stop),
        )

    def complete(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        engine: Engine,
        on_text: Callable[[str], None] = lambda text: None,
    ) -> Request:
        """Decode one request to its end, handing out text as it comes; on Ctrl-C it ends with what there is."""
        request = self.request(ids, params)
        try:
            for output in engine.run([request]):
                on_text(output.text)
        except KeyboardInterrupt:
            request.text.close()
            engine.abort(request)
            on_text(request.text.delta())
        return request


def report(request: Request, engine: Engine) -> dict[str, Any]:
    """One finished request as the JSON object of `generate --json`, without the time to load."""
    speculation, decode_s = request.speculation, request.timing.decode_s
    n = len(request.output)
    return {
        "text": request.text.text,
        "token_ids": list(request.output),
        "finish_reason": request.finish_reason,
        "usage": {"prompt_tokens": len(request.prompt), "completion_tokens": n},
        "speculation": {
            "policy": engine.policy.name,
            "drafter": engine.drafter.name,
            "rounds": speculation.rounds,
            "offered": speculation.offered,
            "accepted": speculation.accepted,
            "rows": speculation.rows,
            "tokens_per_round": n / speculation.rounds if speculation.rounds else None,
        },
        "timing": {
            "prefill_s": request.timing.prefill_s,
            "decode_s": decode_s,
            "decode_tokens_per_s": n / decode_s if decode_s > 0 else None,
        },
    }
