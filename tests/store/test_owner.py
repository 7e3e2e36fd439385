"""Whose a file is: owners that differ in anything have different files; a copy of a model is the same model."""

from __future__ import annotations

import shutil
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from firesteel.errors import DamagedState
from firesteel.store.owner import Owner, fingerprint
from tests.store.samples import NAME, OWNER, other


@pytest.mark.parametrize("name", [one.name for one in fields(Owner)])
def test_every_field_is_in_the_name(name: str) -> None:
    changed = other(**{name: 2 if name == "threads" else "changed"})
    assert changed.file_name() != NAME


def test_a_name_is_readable_and_safe() -> None:
    assert NAME.startswith("some_target-ngram-fp32-eager-")
    strange = other(target="../../ä b/" + "c" * 200).file_name()
    assert "/" not in strange
    assert len(strange) < 200
    assert not strange.startswith(".")


def test_an_owner_survives_json_and_nothing_else_passes_for_one() -> None:
    values = asdict(OWNER)
    assert Owner.of(values) == OWNER
    for wrong in (None, [], {}, values | {"threads": "1"}, values | {"dtype": 3}, values | {"more": ""}):
        with pytest.raises(DamagedState):
            Owner.of(wrong)


def test_a_fingerprint_is_of_contents_not_of_places(tmp_path: Path) -> None:
    first, copy = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    (first / "config.json").write_text("{}")
    (first / "model.safetensors").write_bytes(bytes(range(256)) * 4000)
    shutil.copytree(first, copy)
    (copy / "README.md").write_text("not a weight")
    assert fingerprint(first) == fingerprint(copy)
    seen = {fingerprint(first)}
    for place in (0, 1_023_999):  # the first byte, the last
        weights = bytearray((copy / "model.safetensors").read_bytes())
        weights[place] ^= 1
        (copy / "model.safetensors").write_bytes(weights)
        seen.add(fingerprint(copy))
    (copy / "config.json").write_text('{"rope_theta": 1}')
    seen.add(fingerprint(copy))
    with (copy / "model.safetensors").open("ab") as opened:
        opened.write(b"!")
    seen.add(fingerprint(copy))
    assert len(seen) == 5


def test_a_fingerprint_reads_little_of_a_large_file(tmp_path: Path) -> None:
    """A sparse file of a terabyte: reading it would take an hour."""
    with (tmp_path / "model.safetensors").open("wb") as opened:
        opened.truncate(1 << 40)
    assert fingerprint(tmp_path) == fingerprint(tmp_path)
