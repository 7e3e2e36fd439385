"""Every error that firesteel raises on purpose.

FiresteelError                  exit code 2 on the command line, never a traceback
├── InvalidParameter            a value out of its range, an unknown key, an unknown name
├── TargetNotFound              no such folder, file or hub id
├── UnsupportedModel            a model that cannot be verified as a tree, or a file that cannot be read
├── PromptTooLong               the prompt leaves no room in the context
├── OutOfSlots                  the cache cannot hold the request at all
├── PackageError                a compiled package could not be built or loaded
├── DamagedData                 a data file that is not what it should be
├── DamagedState                what a model learned, stored, cannot be taken up again
├── MissingTool                 an outside program is not installed
├── PeerError                   an outside program that we measure ourselves against failed
├── ServerError                 a server that was asked for text gave none
└── LosslessViolation           a rule applied to a tree for which it is biased
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FiresteelError(Exception):
    """Root of the tree: a message that a person can act on."""


class InvalidParameter(FiresteelError, ValueError):
    """A parameter out of its range or an unknown name."""


class TargetNotFound(FiresteelError, FileNotFoundError):
    """The target's folder, file or hub id does not exist."""


class UnsupportedModel(FiresteelError):
    """The model cannot be a target; the message says why."""


class PromptTooLong(FiresteelError, ValueError):
    """The prompt leaves no room for a single new token."""


class OutOfSlots(FiresteelError):
    """The cache is too small for the request even when it is alone."""


class PackageError(FiresteelError):
    """A compiled package could not be built or loaded; the eager path goes on."""


class DamagedData(FiresteelError, ValueError):
    """A data file that cannot be read or contradicts itself; the message names the file and the record."""


class DamagedState(FiresteelError, ValueError):
    """A stored state that a model did not write, or that contradicts itself; the message names the value."""


class MissingTool(FiresteelError):
    """An outside program is needed and absent; the message says how to get it."""


class PeerError(FiresteelError):
    """A program beside which we are measured ran and failed; the message ends with its last words."""


class ServerError(FiresteelError):
    """A server that was asked for text cannot be reached or refuses; the message ends with what it said."""


class LosslessViolation(FiresteelError, ValueError):
    """The asked-for operation would change the distribution of the text."""


def unknown(kind: str, value: str, known: Iterable[str]) -> InvalidParameter:
    """The error for an unknown name: it repeats the value and names the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InvalidParameter(f"unknown {kind} {value!r}{hint} (known: {', '.join(known)})")
