"""Who decodes in `bench peers`: llama.cpp's server, transformers' generate, and firesteel, all on the client's clock.

    llama                    llama-server as it is
    llama-dspark             the same with `--spec-type draft-dspark`, at its default of three drafted tokens
    transformers             generate()
    transformers-lookup      generate() with its prompt-lookup assistance
    off, chain:4, adaspark   firesteel's policies, called as in `bench decode`

The clock starts when the first tokens arrive and stops when the last ones have. What came first is not counted: with it
came the prompt, and engines differ in whether they draft in that round already.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from firesteel.bench import peers
from firesteel.bench.decode import Arm, parse_arms
from firesteel.bench.llama_server import TRACE, LlamaServer, served
from firesteel.errors import InvalidParameter, unknown
from firesteel.export_command import gguf_name, write
from firesteel.model import Model
from firesteel.models.loading import resolve
from firesteel.policy import NAMES
from firesteel.sampling import SamplingParams

PEERS = ("llama", "llama-dspark", "transformers", "transformers-lookup")
PLAIN = {"llama.cpp": "llama", "transformers": "transformers", "firesteel": "off"}
"""Each engine's arm without speculation."""
CONTEXT = 4096  # of llama-server: it makes room for all of it at once
LOOKUP_TOKENS = 10  # most that transformers copies in a round; of an n-gram of at most two tokens, its default


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One reply as its client saw it.

    Fields:
        tokens: ids in their order; a server holds back those of an unfinished character, so that some may be missing.
        text: without what ends it.
        count: tokens generated, the one that ended it included.
        first: of them, those that came at once at the beginning.
        seconds: from then to the end.
        rounds: passes of the target in these seconds; None where nobody says.
        parts: milliseconds of these rounds by what took them; what is not in it nobody said.
        own_seconds: the same time on a server's own clock; None where there is no server between.
    """

    tokens: list[int]
    text: str
    count: int
    first: int
    seconds: float
    rounds: int | None
    parts: Mapping[str, float] = field(default_factory=dict)
    own_seconds: float | None = None

    @property
    def timed(self) -> int:
        """Tokens that came while the clock ran."""
        return self.count - self.first


class Contender(Protocol):
    """An engine with its settings."""

    name: str
    engine: str

    def reply(self, ids: Sequence[int], most: int) -> Reply:
        """Answer a prompt greedily with at most `most` tokens."""
        ...


@dataclass(frozen=True)
class LlamaContender:
    """llama.cpp's server over HTTP on this machine."""

    name: str
    server: LlamaServer
    engine: str = "llama.cpp"

    def reply(self, ids: Sequence[int], most: int) -> Reply:
        """See `Contender.reply`."""
        drafted_ms = self.server.drafted_ms()
        begun, first, tokens, pieces = 0.0, 0, [], []
        chunk: dict[str, Any] = {}
        for chunk in self.server.stream(ids, most):
            if not begun:
                begun, first = time.perf_counter(), chunk["tokens_predicted"]
            tokens += chunk["tokens"]
            pieces.append(chunk["content"])
        seconds, timings = time.perf_counter() - begun, chunk["timings"]
        drafted = "draft_n" in timings
        count = timings["predicted_n"]
        return Reply(
            tokens=tokens,
            text="".join(pieces),
            count=count,
            first=first,
            seconds=seconds,
            rounds=count - first - timings.get("draft_n_accepted", 0),
            parts={"draft": self.server.drafted_ms(after=drafted_ms) - drafted_ms} if drafted else {},
            own_seconds=timings["predicted_ms"] / 1e3,
        )


@dataclass(frozen=True)
class TransformersContender:
    """transformers' generate in this process; `options` switch its assistance on."""

    name: str
    model: Any
    tokenizer: Any
    options: Mapping[str, Any]
    engine: str = "transformers"

    def reply(self, ids: Sequence[int], most: int) -> Reply:
        """See `Contender.reply`."""
        import torch

        clock = _Clock()
        prompt = torch.tensor([list(ids)])
        with torch.inference_mode():
            self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=most,
                do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id,
                streamer=clock,
                **self.options,
            )
        (begun, head), *rest = clock.arrivals[1:]  # the prompt comes back first
        tokens = [*head, *(token for _, some in rest for token in some)]
        return Reply(
            tokens=tokens,
            text=self.tokenizer.decode(tokens, skip_special_tokens=True),
            count=len(tokens),
            first=len(head),
            seconds=rest[-1][0] - begun if rest else 0.0,
            rounds=len(rest),
        )


class _Clock:
    """A streamer of transformers' that notes when tokens come; each call is a round."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, list[int]]] = []

    def put(self, value: Any) -> None:
        tokens = value.flatten().tolist()
        self.arrivals.append((time.perf_counter(), tokens))

    def end(self) -> None: ...


@dataclass(frozen=True)
class FiresteelContender:
    """One of our policies in this process."""

    name: str
    model: Model
    arm: Arm
    engine: str = "firesteel"

    def reply(self, ids: Sequence[int], most: int) -> Reply:
        """See `Contender.reply`."""
        self.arm.parts.clear()
        request = self.model.request(ids, SamplingParams(temperature=0.0, max_tokens=most))
        # Not `Model.complete`: a Ctrl-C is to end the benchmark, not the reply.
        arrivals = [(time.perf_counter(), len(output.tokens)) for output in self.arm.engine.run([request])]
        draft, verify, host = (sum(ms) for ms in zip(*self.arm.parts, strict=True)) if self.arm.parts else (0.0,) * 3
        return Reply(
            tokens=list(request.output),
            text=request.text.text,
            count=len(request.output),
            first=arrivals[0][1],
            seconds=arrivals[-1][0] - arrivals[0][0],
            rounds=len(arrivals) - 1,
            parts={"draft": draft, "verify": verify, "host": host},
        )


def check_arms(names: Sequence[str]) -> None:
    """Raise InvalidParameter for an arm that nobody knows or that is there twice, before anything is loaded."""
    for name in names:
        if name not in PEERS and name.partition(":")[0].partition("@")[0] not in NAMES:
            raise unknown("arm", name, (*PEERS, *NAMES))
    if len(set(names)) < len(names):
        raise InvalidParameter(f"an arm is there twice: {','.join(names)}")


@contextmanager
def contenders(
    names: Sequence[str], model: Model, *, threads: int, server_options: Sequence[str] = ()
) -> Iterator[list[Contender]]:
    """Make these arms ready at the model's dtype; servers run until the block ends.

    Args:
        names: see `check_arms`; transformers' arms are left out in int8, of which it has no twin.
        model: its drafter is exported for llama.cpp, anew each time.
        server_options: more words for llama-server's command line.
    """
    drafter = None if model.drafter is None else str(model.drafter.folder)
    if "llama-dspark" in names and drafter is None:
        raise InvalidParameter("llama-dspark needs a drafter, and there is none for this target")
    with ExitStack() as stack:
        made: list[Contender] = []
        for name in names:
            if name.startswith("llama"):
                file = peers.gguf_file(resolve(model.loaded.name), model.dtype)
                words = f"-c {CONTEXT} -np 1 -t {threads} -lv {TRACE}".split()
                if name == "llama-dspark" and drafter is not None:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gguf"
                    write(drafter, folder, "gguf", model.loaded.name, model.dtype)
                    words += ["--spec-type", "draft-dspark", "-md", str(folder / gguf_name(model.dtype))]
                made.append(LlamaContender(name, stack.enter_context(served("-m", file, *words, *server_options))))
            elif name.startswith("transformers"):
                if model.dtype == "int8":
                    continue
                options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if name == "transformers-lookup" else {}
                made.append(TransformersContender(name, model.loaded.model, model.loaded.tokenizer, options))
            else:
                [arm] = parse_arms(model, name, None)
                made.append(FiresteelContender(name, model, arm))
        yield made
