"""Compiled packages: the kernels of `kernels/`, built once for this processor and kept in the user's cache folder.

A package is a shared library of a few hundred kilobytes that holds no weights: one build serves every model, dtype,
batch, thread count and choice of taps. It is named by a hash of all that went into it (sources, compiler, flags,
processor), built in a temporary folder by a child process and moved into place, and its checksum is kept beside it: a
truncated library can kill the process that maps it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch  # noqa: F401  (its OpenMP runtime must be loaded before the library looks for one)

from firesteel.errors import PackageError
from firesteel.paths import cache_folder
from firesteel.processor import lines

SOURCES = Path(__file__).parent / "kernels"
BUILDER = SOURCES / "build.py"
VERSION = 6
"""Raised when the structs shared with `native.py` change."""
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w")
USUAL_SECONDS = 20


@functools.cache
def compiler() -> str:
    """Path of a C++ compiler: $CXX, c++, g++ or clang++. Raises PackageError when there is none."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if path := shutil.which(name):
            return path
    raise PackageError(
        "the compiled mode needs a C++ compiler (c++, g++ or clang++, or CXX in the environment): "
        "install one, for example with `apt install g++`; the eager mode works without"
    )


@functools.cache
def processor() -> str:
    """What the compiler may use here: the instruction set flags of the processors, or their name."""
    known = lines("model name", "flags", "Features", "CPU part")
    return "\n".join(known) or f"{platform.machine()} {platform.processor()}"


def command(output: Path) -> list[str]:
    """The compiler's command line that makes `output`."""
    tune = "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native"
    # torch has loaded an OpenMP runtime already, and the library's functions are found there: one pool of threads, not
    # two that wait for the same cores.
    return [compiler(), *FLAGS, tune, "-fopenmp", "-o", str(output), str(SOURCES / "decoder.cpp")]


@functools.cache
def key() -> str:
    """Hash of everything a package depends on."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256()
    for part in (str(VERSION), version, processor(), " ".join(command(Path("library"))[:-1])):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.glob("*.[ch]*")):
        digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def path() -> Path:
    """Where this machine's package is or will be."""
    return cache_folder("packages") / f"kernels-{key()}.so"


class Build:
    """A build under way in a child process, or one that was done before.

    Attributes:
        failure: why there will be no package, once that is known; eager code goes on.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self.started = time.monotonic()
        self._process: subprocess.Popen[str] | None = None
        self._library: ctypes.CDLL | None = None
        try:
            self.path = path()
            if _intact(self.path):
                self._library = _open(self.path)
            else:
                self._start()
        except (PackageError, OSError) as error:
            self.failure = str(error)

    def ready(self) -> bool:
        """Whether the package can be used now. Never waits; sets `failure` when the build has failed."""
        if self._process is not None and self._process.poll() is not None:
            self._finish()
        return self._library is not None

    def progress(self) -> str:
        """A line for the user."""
        if self.failure:
            return f"kernels: {self.failure}"
        if self.ready():
            return f"kernels: ready ({self.path.name})"
        passed = time.monotonic() - self.started
        return f"kernels: building for this processor, {passed:.0f} s (usually {USUAL_SECONDS} s, once)"

    def library(self, timeout_s: float = 600.0) -> ctypes.CDLL:
        """The loaded library, waiting for the build. Raises PackageError when it fails or takes longer."""
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired as error:
                self.stop()
                raise PackageError(f"the build of the kernels took more than {timeout_s:.0f} s") from error
        if not self.ready() or self._library is None:
            raise PackageError(self.failure or "the build of the kernels was stopped")
        return self._library

    def stop(self) -> None:
        """Ends a build under way; nothing of it stays."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None
        shutil.rmtree(self._work, ignore_errors=True)
        self.failure = "the build of the kernels was stopped"

    def _start(self) -> None:
        self._work = self.path.parent / f"build-{os.getpid()}-{secrets.token_hex(4)}"
        compile_it = command(self._work / "library.so")
        self._process = subprocess.Popen(
            [sys.executable, str(BUILDER), str(self._work), str(self.path), *compile_it],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # at most a few lines
            text=True,
            start_new_session=True,  # Ctrl-C is for the reply, not for the build; and the build may outlive the reply
        )

    def _finish(self) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        _, errors = process.communicate()
        try:
            if process.returncode != 0 or not _intact(self.path):
                raise PackageError(errors.strip() or f"the build of the kernels ended with {process.returncode}")
            self._library = _open(self.path)
        except (PackageError, OSError) as error:
            self.failure = str(error)


def start_build() -> Build:
    """Starts building this machine's package in a child process, unless it is there already. Never raises."""
    return Build()


def _intact(file: Path) -> bool:
    """Whether the package is there and whole; a damaged one counts as absent and is built again."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == file.with_suffix(".sha256").read_text().strip()
    except OSError:
        return False


def _open(file: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(file))
    if library.firesteel_version() != VERSION:
        raise PackageError(f"{file} is of version {library.firesteel_version()}, not {VERSION}")
    return library
