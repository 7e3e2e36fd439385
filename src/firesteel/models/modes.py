"""Eager or compiled: which forward a target runs on.

    eager      transformers' own code (int8: the compact decoder in torch). Starts at once; the plain twin.
    compiled   kernels built once for this processor, for the common family on a CPU. Same results within rounding.

By default the compiled forward is used once its kernels are built: the first time they are built in the background
while the eager forward already answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from firesteel.errors import UnsupportedModel
from firesteel.models.compact import CompactDecoder, supports
from firesteel.models.drafters.blocks import Blocks, NativeBlocks, TorchBlocks, supports_blocks
from firesteel.models.drafters.model import DrafterModel
from firesteel.models.fast import CompactTarget
from firesteel.models.loading import LoadedTarget
from firesteel.models.native import NativeDecoder
from firesteel.models.package import Build, start_build
from firesteel.models.quantize import quantize
from firesteel.models.target import Target, TargetShape
from firesteel.models.weights import from_folder, from_transformers, in_files


class Modes:
    """The forwards of one loaded target.

    Args:
        loaded: the target.
        dtype: "fp32", "bf16" or "int8".
        compiled: True waits for the kernels, False never uses them, None uses them once they are there.
        taps: layers (0-based, rising) whose outputs a drafter wants to see.
        say: takes lines of progress.

    Raises:
        UnsupportedModel: int8, or `compiled=True`, for a model or device that has no compact decoder.
        PackageError: `compiled=True` and the kernels cannot be built.
    """

    def __init__(
        self,
        loaded: LoadedTarget,
        dtype: str,
        compiled: bool | None,
        *,
        taps: Sequence[int] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._loaded, self._dtype, self._taps, self._say = loaded, dtype, tuple(taps), say
        self._shape = TargetShape.of(loaded.config)
        reason = supports(loaded.config)
        if loaded.device.type != "cpu":
            reason = f"the kernels run on a CPU, not on {loaded.device}"
        if reason and (dtype == "int8" or compiled):
            raise UnsupportedModel(f"{loaded.name} cannot run {'compiled' if compiled else 'in int8'}: {reason}")
        self._build: Build | None = None if reason or compiled is False else start_build()
        self._eager: Target | None = None
        self._compiled: Target | None = None
        if compiled:
            self._wait()

    @property
    def target(self) -> Target:
        """The best forward that is ready now."""
        if self._compiled is None and self._build is not None and self._build.ready():
            self._compiled = self._native(self._build)
        if self._compiled is not None:
            return self._compiled
        if self._eager is None:
            self._eager = self._plain()
        return self._eager

    @property
    def name(self) -> str:
        """ "compiled" or "eager": what `target` is now."""
        return "compiled" if self.target is self._compiled else "eager"

    def blocks(self, drafter: DrafterModel) -> Blocks:
        """The backbone pass of a drafter, its embedding and head lent, on the same kind of forward as `target`."""
        if self.target is self._compiled and self._build is not None and supports_blocks(drafter) is None:
            return NativeBlocks(drafter, self._build, self._dtype)
        return TorchBlocks(drafter)

    def _wait(self) -> None:
        assert self._build is not None
        if not self._build.ready():
            self._say(self._build.progress())
        begun = time.monotonic()
        self._build.library()
        if (took := time.monotonic() - begun) > 1.0:
            self._say(f"kernels built in {took:.0f} s and kept")

    def _compact(self) -> CompactDecoder:
        loaded = self._loaded
        if in_files(loaded.folder, loaded.config) is None:
            decoder = from_folder(loaded.folder, loaded.config, loaded.dtype, taps=self._taps)
        else:
            decoder = from_transformers(loaded.model, taps=self._taps)
        return quantize(decoder) if self._dtype == "int8" else decoder

    def _plain(self) -> Target:
        if self._dtype != "int8":
            from firesteel.models.hf import TransformersTarget  # seconds of imports that the compiled forward spares

            return TransformersTarget(self._loaded.model, taps=self._taps)
        return self._over(self._compact())

    def _native(self, build: Build) -> Target:
        return self._over(NativeDecoder(self._compact(), build))

    def _over(self, decoder: CompactDecoder | NativeDecoder) -> Target:
        # int8 too keeps its cache in bf16: the weights' own error is far larger, and it halves what
        # attention reads.
        cache_dtype = torch.float32 if self._dtype == "fp32" else torch.bfloat16
        return CompactTarget(decoder, self._shape, cache_dtype, self._loaded.device)
