from __future__ import annotations

import pytest

from corald.testing.conformance import ProviderConformance
from tests.contract.aws_world import AwsWorld


class TestAwsProvider(ProviderConformance):
    @pytest.fixture
    def world(self):
        world = AwsWorld()
        yield world
        world.close()
