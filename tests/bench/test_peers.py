"""What we read from llama.cpp's programs, and what a machine without them is told. No program runs here."""

from pathlib import Path

import pytest

from firesteel.bench import peers
from firesteel.errors import FiresteelError, InvalidParameter, MissingTool, TargetNotFound

# Three cells of `llama-bench -o json -p 1,8 -n 0 -d 128 -embd 0,1 -fa on,off -r 3`, most of their fields left out.
LLAMA_BENCH = """[
  {"build_number": 0, "n_threads": 2, "flash_attn": 1, "embeddings": false,
   "n_prompt": 1, "n_gen": 0, "n_depth": 128, "avg_ns": 13000000, "stddev_ns": 4358898,
   "samples_ns": [ 10000000, 18000000, 11000000 ], "samples_ts": [ 100.0, 55.6, 90.9 ]},
  {"build_number": 0, "n_threads": 2, "flash_attn": 1, "embeddings": true,
   "n_prompt": 8, "n_gen": 0, "n_depth": 128, "avg_ns": 30000000, "stddev_ns": 0,
   "samples_ns": [ 30000000, 30000000, 30000000 ], "samples_ts": [ 266.7, 266.7, 266.7 ]},
  {"build_number": 0, "n_threads": 2, "flash_attn": 0, "embeddings": true,
   "n_prompt": 8, "n_gen": 0, "n_depth": 128, "avg_ns": 20000000, "stddev_ns": 0,
   "samples_ns": [ 20000000, 20000000, 20000000 ], "samples_ts": [ 400.0, 400.0, 400.0 ]}
]"""

KL_DIVERGENCE = """====== KL divergence statistics ======
Mean    KLD:   0.002345 ±   0.000123
Maximum KLD:   0.456789
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "firesteel" / "llama.cpp"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def install(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_records_hold_the_median_of_the_faster_attention_in_milliseconds() -> None:
    """A mean would let one interrupted repetition (18 ms above) into the curve."""
    assert peers.read_llama_bench(LLAMA_BENCH, "int8") == [
        {"engine": "llama.cpp", "mode": "native", "dtype": "int8", "context": 128, "rows": 1, "ms": 11.0},
        {"engine": "llama.cpp", "mode": "native-rows", "dtype": "int8", "context": 128, "rows": 8, "ms": 20.0},
    ]


@pytest.mark.parametrize("output", ["", "error: failed to load model", "[{}]", "[1]"])
def test_other_output_is_an_error_that_shows_it(output: str) -> None:
    with pytest.raises(peers.PeerError, match="llama-bench printed no records"):
        peers.read_llama_bench(output, "int8")


def test_mean_kl() -> None:
    assert peers.read_mean_kl(KL_DIVERGENCE) == 0.002345
    with pytest.raises(peers.PeerError, match="no mean KL"):
        peers.read_mean_kl("Maximum KLD:   0.456789")


def test_missing_programs_are_an_error_that_names_the_make_target(cache: Path, target: Path) -> None:
    with pytest.raises(MissingTool, match=r"llama-bench.*make llama-cpp") as raised:
        peers.program("llama-bench")
    assert isinstance(raised.value, FiresteelError)
    with pytest.raises(MissingTool, match=r"converter.*make llama-cpp"):
        peers.width_curve(target)
    with pytest.raises(MissingTool, match="llama-perplexity"):
        peers.q8_0_mean_kl(target, "text.txt")


def test_bad_targets_and_names(cache: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetNotFound, match="nowhere"):
        peers.gguf_file(tmp_path / "nowhere", "bf16")
    with pytest.raises(InvalidParameter, match="did you mean 'int8'"):
        peers.gguf_file(target, "int4")


def test_a_target_is_converted_once_and_again_when_its_weights_change(cache: Path, target: Path) -> None:
    install(cache / "source" / "convert_hf_to_gguf.py", "import sys; open(sys.argv[-1], 'w').write(sys.argv[3])")
    made = peers.gguf_file(target, "int8")
    assert made.read_text() == "q8_0"
    made.write_text("kept")
    assert peers.gguf_file(target, "int8").read_text() == "kept"
    (target / "model.safetensors").write_bytes(b"other weights")
    assert peers.gguf_file(target, "int8").read_text() == "q8_0"


def test_a_drafter_is_converted_with_its_targets_tokenizer(cache: Path, target: Path, tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[-1], 'w').write(' '.join(sys.argv[1:]))"
    install(cache / "source" / "convert_hf_to_gguf.py", script)
    peers.convert(tmp_path / "d", "bf16", tmp_path / "made", target_folder=target)
    said = f"{tmp_path / 'd'} --outtype bf16 --target-model-dir {target} --outfile {tmp_path / 'made'}"
    assert (tmp_path / "made").read_text() == said


def test_a_program_that_fails_says_its_last_words(cache: Path, target: Path) -> None:
    install(cache / "source" / "convert_hf_to_gguf.py", "import sys; sys.exit('unknown architecture')")
    with pytest.raises(peers.PeerError, match=r"code 1: unknown architecture"):
        peers.gguf_file(target, "bf16")
    assert not list(cache.rglob("*.gguf"))


def test_a_curve_is_one_run_per_dtype(cache: Path, target: Path) -> None:
    install(cache / "source" / "convert_hf_to_gguf.py", "import sys; open(sys.argv[-1], 'w').write(sys.argv[3])")
    install(cache / "bin" / "llama-bench", f'#!/bin/sh\necho "$@" >> {cache}/calls\ncat {cache}/answer\n')
    (cache / "answer").write_text(LLAMA_BENCH)
    records = peers.width_curve(target, rows=(1, 8), contexts=(128, 512), threads=2)
    bf16, int8 = (cache / "calls").read_text().splitlines()
    assert ".bf16.gguf" in bf16
    assert ".q8_0.gguf" in int8
    assert "-p 1,8 -n 0 -d 128,512" in int8
    assert "-t 2" in int8
    assert [record["dtype"] for record in records] == ["bf16", "bf16", "int8", "int8"]


def test_physical_cores() -> None:
    assert peers.physical_cores() >= 1
