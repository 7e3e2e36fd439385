"""The toy target, made once."""

from __future__ import annotations

import pytest

from firesteel.model import Model
from firesteel.train.chat import Chat
from tests.train import toy_chat


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return toy_chat.model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def chat(model: Model) -> Chat:
    return Chat(model.loaded)
