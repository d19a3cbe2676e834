from __future__ import annotations

import dataclasses
import random
import re

import numpy as np
import pytest

from corald.errors import LibraryError
from corald.library import (
    Library,
    LibraryOrigin,
    Placements,
    TableKey,
    TemplateTable,
    fingerprint_of,
    read_library,
    write_library,
)
from corald.model.templates import Engine, Phase, ServingTemplate, Slo, Stage, Workload

SLO = Slo(ttft_ms=1200, tpot_ms=60)
WORKLOAD = Workload(1000, 4000, 200, 600)
CONFIGURATIONS = ("2xL4", "4xL40S", "A10G-slow", "L4")
ORIGIN = LibraryOrigin(
    n_max=4,
    rho=12.0,
    epsilon=0.0,
    pruned=True,
    groups=(CONFIGURATIONS,),
    model_digests={"phi-4": "aa"},
    configuration_digests=dict.fromkeys(CONFIGURATIONS, "bb"),
    calibration_digests={"L4": "cc"},
    engine_versions={"coral": "1"},
    performance_model="1",
)


def random_templates(seed: int, phase: Phase, size: int = 40) -> list[ServingTemplate]:
    rng = random.Random(seed)
    templates = {}
    while len(templates) < size:
        picks = sorted(rng.choices(CONFIGURATIONS, k=rng.randint(1, 4)))
        nodes = tuple((name, picks.count(name)) for name in sorted(set(picks)))
        ordinals = list(range(len(picks)))
        cut = rng.randint(0, len(ordinals) - 1)
        halves = [part for part in (ordinals[:cut], ordinals[cut:]) if part]
        stages = []
        for half in halves:
            tps = [rng.choice((1, 2, 4)) for _ in half]
            unlike = tuple(tps) if len(set(tps)) > 1 else ()
            stages.append(Stage(rng.randint(1, 300), max(tps), tuple(half), unlike))
        template = ServingTemplate(
            "phi-4",
            phase,
            Engine.CORAL,
            nodes,
            tuple(stages),
            rng.random(),
            any("A10" in p for p in picks),
        )
        templates[template.shape] = template
    return list(templates.values())


def library_of(*phases: Phase) -> tuple[Library, list[ServingTemplate]]:
    groups = [random_templates(seed, phase) for seed, phase in enumerate(phases)]
    tables = [
        TemplateTable.of(
            group,
            configurations=CONFIGURATIONS,
            slo=SLO,
            workload=WORKLOAD,
            uncalibrated={"A10G-slow"},
        )
        for group in groups
    ]
    fingerprint = fingerprint_of(ORIGIN, [(t.key, t.slo, t.workload) for t in tables])
    library = Library(fingerprint, CONFIGURATIONS, {t.key: t for t in tables}, ORIGIN)
    return library, [template for group in groups for template in group]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "small.clt"


def test_a_library_read_back_holds_every_template_unchanged(path):
    library, templates = library_of(Phase.PREFILL, Phase.DECODE)
    write_library(path, library)
    read = read_library(path)
    assert (read.fingerprint, read.configurations, read.origin) == (
        library.fingerprint,
        CONFIGURATIONS,
        ORIGIN,
    )
    assert len(read) == len(templates)
    for template in templates:
        assert read.template(template.id) == template
    assert read.table("phi-4", Phase.DECODE, Engine.CORAL).slo == SLO
    assert read.table("phi-4", Phase.DECODE, Engine.CORAL).workload == WORKLOAD
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_a_row_is_found_by_its_id_and_by_nothing_else():
    library, templates = library_of(Phase.PREFILL)
    table = library.table("phi-4", Phase.PREFILL, Engine.CORAL)
    assert [table.index_of(table.id(row)) for row in range(len(table))] == list(range(len(table)))
    prefix = "phi-4/prefill/coral/"
    for wrong in (
        "9xL4",
        "1xL4+1x2xL4+1xA10G-slow+1x4xL40S",
        "1xL4+1xL4",
        "1xH100",
        "01xL4",
        "0xL4",
        "300xL4",
        "-1xL4",
        "",
    ):
        assert table.index_of(prefix + wrong) is None, wrong
    other = templates[0].id.replace("prefill", "decode")
    assert table.index_of(other) is None
    assert library.template(other) is None
    assert library.template("nonsense") is None


def test_counts_and_throughput_cannot_be_written_by_a_reader():
    table = next(iter(library_of(Phase.PREFILL)[0].tables.values()))
    with pytest.raises(ValueError, match="read-only"):
        table.counts[0, 0] = 7
    with pytest.raises(ValueError, match="read-only"):
        table.throughput[0] = 7


def test_a_missing_table_is_refused_by_naming_those_that_exist():
    library, _ = library_of(Phase.PREFILL)
    with pytest.raises(LibraryError, match=r"no table phi-4/mixed/vllm.*phi-4/prefill/coral"):
        library.table("phi-4", Phase.MIXED, Engine.VLLM)


def test_every_flipped_byte_is_noticed(path):
    library, _ = library_of(Phase.PREFILL)
    write_library(path, library)
    good = path.read_bytes()
    rng = random.Random(1)
    for position in {0, 8, 12, 16, len(good) - 1} | {rng.randrange(len(good)) for _ in range(150)}:
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(bad))
        with pytest.raises(LibraryError, match=re.escape(f"template library {path}: ")):
            read_library(path)


@pytest.mark.parametrize("keep", [0, 7, 15, 200, -1])
def test_a_file_cut_short_or_too_long_is_refused(path, keep):
    write_library(path, library_of(Phase.PREFILL)[0])
    good = path.read_bytes()
    for bad in (good[:keep], good + b"x"):
        path.write_bytes(bad)
        with pytest.raises(LibraryError, match="corald templates build"):
            read_library(path)


def test_another_format_version_and_a_missing_file_say_what_to_do(path):
    with pytest.raises(LibraryError, match=r"No such file.*corald templates build"):
        read_library(path)
    write_library(path, library_of(Phase.PREFILL)[0])
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(bytes(data))
    with pytest.raises(LibraryError, match="format version 2 is not version 1"):
        read_library(path)


def test_a_failed_write_leaves_the_older_file(path):
    library, templates = library_of(Phase.PREFILL)
    write_library(path, library)
    broken = dataclasses.replace(library, origin=dataclasses.replace(ORIGIN, rho=object()))
    with pytest.raises(TypeError):
        write_library(path, broken)
    assert read_library(path).template(templates[0].id) == templates[0]


def test_columns_that_do_not_fit_together_are_refused():
    table = next(iter(library_of(Phase.PREFILL)[0].tables.values()))
    with pytest.raises(LibraryError, match="do not fit"):
        dataclasses.replace(table, throughput=table.throughput[1:])
    with pytest.raises(LibraryError, match="not sorted"):
        dataclasses.replace(table, counts=table.counts[::-1])
    placements = table.placements
    with pytest.raises(LibraryError, match="do not fit"):
        Placements(
            placements.stages,
            placements.layers[1:],
            placements.members,
            placements.ordinals,
            placements.tps,
        )


def test_an_empty_table_is_written_and_read(path):
    empty = Placements.of([])
    table = TemplateTable(
        TableKey("phi-4", Phase.MIXED, Engine.VLLM),
        SLO,
        WORKLOAD,
        CONFIGURATIONS,
        np.zeros(0),
        np.zeros((0, 4), np.uint8),
        empty,
    )
    write_library(path, Library("f", CONFIGURATIONS, {table.key: table}, ORIGIN))
    read = read_library(path).table("phi-4", Phase.MIXED, Engine.VLLM)
    assert len(read) == 0
    assert read.index_of("phi-4/mixed/vllm/1xL4") is None
