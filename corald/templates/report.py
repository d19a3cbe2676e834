"""Templates for people: rows with their cost, from a library and a catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from corald.errors import LibraryError
from corald.library import Library, TemplateTable
from corald.model.hardware import Catalog
from corald.model.templates import Phase, ServingTemplate
from corald.templates.engines import Launcher, launcher_of


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """One template and what it costs; None where no instance type of the catalogue sells it."""

    template: ServingTemplate
    launcher: Launcher
    list_usd_per_hour: float | None
    """On demand, each node at its cheapest region."""
    spot_usd_per_hour: float | None
    list_usd_per_million_tokens: float | None
    """Input tokens for prefill, output tokens for decode, both together for mixed."""
    spot_usd_per_million_tokens: float | None


def list_templates(
    library: Library, catalog: Catalog, *, model: str | None = None, phase: Phase | None = None
) -> Iterator[TemplateRow]:
    """All templates (of a model and phase), by throughput, the fastest first."""
    for key, table in library.tables.items():
        if (model is None or key.model == model) and (phase is None or key.phase is phase):
            for index in np.argsort(-table.throughput, kind="stable"):
                yield row_of(table, table.template(int(index)), catalog)


def show_template(library: Library, catalog: Catalog, template_id: str) -> TemplateRow:
    """One template by its id."""
    template = library.template(template_id)
    if template is None:
        raise LibraryError(
            f"template library {library.fingerprint} has no template {template_id}; "
            f"`corald templates list` shows the ids it has"
        )
    table = library.table(template.model, template.phase, template.engine)
    return row_of(table, template, catalog)


def row_of(table: TemplateTable, template: ServingTemplate, catalog: Catalog) -> TemplateRow:
    """Price one template of a table."""
    listed = [_cheapest(catalog, name, spot=False) for name in template.node_configurations]
    spot = [_cheapest(catalog, name, spot=True) for name in template.node_configurations]
    millions = template.throughput * _tokens_per_unit(table) * 3600 / 1e6
    list_price, spot_price = _total(listed), _total(spot)
    return TemplateRow(
        template=template,
        launcher=launcher_of(template, catalog),
        list_usd_per_hour=list_price,
        spot_usd_per_hour=spot_price,
        list_usd_per_million_tokens=None if list_price is None else list_price / millions,
        spot_usd_per_million_tokens=None if spot_price is None else spot_price / millions,
    )


def _tokens_per_unit(table: TemplateTable) -> float:
    if table.key.phase is Phase.MIXED:
        return table.workload.input_tokens_mean + table.workload.output_tokens_mean
    return 1.0


def _cheapest(catalog: Catalog, configuration: str, *, spot: bool) -> float | None:
    prices = [
        price.spot_usd_per_hour if spot else price.on_demand_usd_per_hour
        for instance_type in catalog.instance_types.values()
        if instance_type.configuration == configuration
        for price in instance_type.prices
    ]
    return min((price for price in prices if price is not None), default=None)


def _total(prices: list[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    return sum(known) if len(known) == len(prices) else None
