"""The shipped library of the paper's core setup is what a fresh build makes."""

from __future__ import annotations

import numpy as np

from corald.config.catalog import load_paper_catalog
from corald.library import stale_parts
from corald.simulation.paper import SHIPPED_N_MAX, build_paper_library, shipped_core_library
from corald.templates.build import BuildOptions


def test_the_shipped_library_is_the_one_that_would_be_built_today():
    shipped = shipped_core_library()
    built = build_paper_library("core", BuildOptions(n_max=SHIPPED_N_MAX))
    assert shipped.fingerprint == built.fingerprint
    assert len(shipped) == len(built) > 2000
    for key, table in built.tables.items():
        assert np.allclose(shipped.tables[key].throughput, table.throughput, rtol=1e-9)


def test_the_shipped_library_fits_the_shipped_catalogue():
    assert stale_parts(shipped_core_library(), load_paper_catalog()) == ()
