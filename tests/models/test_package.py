"""The package is built once, survives damage, and says why when it cannot be built."""

from __future__ import annotations

import shutil

import pytest

from firesteel.errors import PackageError
from firesteel.models import package
from firesteel.paths import cache_folder

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
TINY = 'extern "C" int firesteel_version() { return %d; }'


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """A cache folder of its own and a source that compiles in a moment."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "decoder.cpp").write_text(TINY % package.VERSION)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(package, "SOURCES", sources)
    for cached in (package.key, package.compiler):
        cached.cache_clear()
    yield sources
    for cached in (package.key, package.compiler):
        cached.cache_clear()


@needs_compiler
def test_built_once_then_found(sandbox):
    build = package.start_build()
    assert build.library().firesteel_version() == package.VERSION
    assert build.ready()
    again = package.start_build()
    assert again.ready()  # at once: nothing was started
    assert "ready" in again.progress()
    assert sorted(f.suffix for f in cache_folder("packages").iterdir()) == [".sha256", ".so"]


@needs_compiler
def test_a_truncated_package_is_built_again(sandbox):
    package.start_build().library()
    whole = package.path().read_bytes()
    package.path().unlink()  # a new file: the old one is mapped by this process
    package.path().write_bytes(whole[: len(whole) // 2])
    build = package.start_build()
    assert not build.ready() or build.failure is None
    assert build.library().firesteel_version() == package.VERSION


@needs_compiler
def test_another_source_is_another_package(sandbox):
    first = package.path()
    (sandbox / "decoder.cpp").write_text("// changed\n" + TINY % package.VERSION)
    package.key.cache_clear()
    assert package.path() != first


@needs_compiler
def test_a_failed_build_says_why(sandbox):
    (sandbox / "decoder.cpp").write_text("this is not C++")
    build = package.start_build()
    with pytest.raises(PackageError, match="failed with status"):
        build.library()
    assert not build.ready()
    assert "failed" in build.progress()
    assert list(cache_folder("packages").iterdir()) == []


@needs_compiler
def test_a_package_of_another_version_is_refused(sandbox):
    (sandbox / "decoder.cpp").write_text(TINY % (package.VERSION + 1))
    with pytest.raises(PackageError, match="version"):
        package.start_build().library()


@needs_compiler
def test_a_stopped_build_leaves_nothing(sandbox):
    build = package.start_build()
    build.stop()
    assert not build.ready()
    assert list(cache_folder("packages").iterdir()) == []


def test_without_a_compiler_the_reason_is_given(sandbox, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(package.shutil, "which", lambda name: None)
    build = package.start_build()
    assert not build.ready()
    assert "needs a C++ compiler" in build.failure
    with pytest.raises(PackageError, match="needs a C\\+\\+ compiler"):
        build.library()
