"""`firesteel store ...`: what policies learned, and where it is kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from firesteel.errors import DamagedState, InvalidParameter
from firesteel.options import AsJson, out, print_text

if TYPE_CHECKING:
    from firesteel.store.file import Stored

app = typer.Typer(help="What policies learned, kept from one run to the next.", no_args_is_help=True)

File = Annotated[Path | None, typer.Argument(help="One file, by path or by name; or another store's folder.")]


@app.command()
def show(file: File = None, as_json: AsJson = False) -> None:
    """List the files of the store, or say what one of them holds."""
    from firesteel.store.file import files_of, read

    folder = _users()
    if file is None or file.is_dir():
        entries = [_entry(one) for one in files_of(file or folder) if one.suffix == ".json"]
        if as_json:
            print_text(json.dumps(entries) + "\n")
        else:
            _print_list(file or folder, entries)
        return
    found = next((one for one in (file, folder / file) if one.is_file()), None)
    if found is None:
        raise InvalidParameter(f"no such file: {file}, neither here nor in {folder}")
    try:
        stored = read(found)
    except (DamagedState, OSError) as error:
        raise DamagedState(f"{found}: {error}") from error
    if as_json:
        print_text(json.dumps(asdict(stored)) + "\n")
    else:
        _print_one(found, stored)


@app.command()
def clear() -> None:
    """Forget everything: remove the files of your store, those that were set aside among them."""
    from firesteel.store.file import files_of

    folder = _users()
    files = files_of(folder)
    for one in files:
        one.unlink(missing_ok=True)
    out.print(f"removed {len(files)} files from {escape(str(folder))}", soft_wrap=True)


def _users() -> Path:
    """The user's own store."""
    from firesteel.store.file import store_folder

    folder = store_folder(True)
    assert folder is not None, "True is a place"
    return folder


def _entry(file: Path) -> dict[str, Any]:
    """A file without its states."""
    from firesteel.store.file import read

    entry: dict[str, Any] = {"file": file.name}
    try:
        entry["bytes"], stored = file.stat().st_size, read(file)
    except (DamagedState, OSError) as error:
        return entry | {"fault": str(error)}
    policies = asdict(stored)["policies"]
    for learned in policies.values():
        del learned["state"]
    return entry | {"owner": asdict(stored.owner), "policies": policies}


def _print_list(folder: Path, entries: list[dict[str, Any]]) -> None:
    if not entries:
        out.print(f"nothing is stored in {escape(str(folder))}", soft_wrap=True)
        return
    table = Table(title=str(folder), title_justify="left")
    table.add_column("file", overflow="fold")  # to be copied: never shortened
    for name in ("policy", "requests", "rounds", "written"):
        table.add_column(name, justify="right" if name[0] == "r" else "left")
    for entry in entries:
        if "fault" in entry:
            table.add_row(entry["file"], f"[red]{escape(entry['fault'])}[/red]")
        for name, learned in entry.get("policies", {}).items():
            table.add_row(entry["file"], *_cells(name, learned))
    out.print(table)


def _print_one(file: Path, stored: Stored) -> None:
    for name, value in asdict(stored.owner).items():
        out.print(f"{name.replace('_', ' '):16} {escape(str(value)) or '-'}", highlight=False, soft_wrap=True)
    out.print(f"{'size':16} {file.stat().st_size} bytes", highlight=False)
    for name, learned in stored.policies.items():
        policy, requests, rounds, written = _cells(name, asdict(learned))
        out.print(f"\n[bold]{policy}[/bold]: {requests} requests, {rounds} rounds, written {written}", highlight=False)
        for part, value in learned.state.items() if isinstance(learned.state, dict) else ():
            out.print(f"  {escape(part):14} {escape(_shortened(value))}", highlight=False, soft_wrap=True)


def _cells(name: str, learned: dict[str, Any]) -> tuple[str, str, str, str]:
    return escape(name), f"{learned['requests']:,}", f"{learned['rounds']:,}", escape(learned["written"])


def _shortened(value: Any, most: int = 200) -> str:
    """A part of a state in a line; `--json` prints all of it."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"
