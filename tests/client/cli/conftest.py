# SPDX-License-Identifier: Apache-2.0
"""What verbs print as JSON is held to the published schemas, in every test of them."""

from collections.abc import Iterator

import pytest

from tests.client.cli import schemas


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See schemas.py."""
    with schemas.holding(monkeypatch):
        yield
