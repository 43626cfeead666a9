from __future__ import annotations

import pytest

from tests.app.protocols.wire_client import Client


@pytest.fixture
def client() -> Client:
    client = Client()
    client.opens()
    return client
