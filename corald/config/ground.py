"""What policies name and only the catalogue or the template library can confirm."""

from __future__ import annotations

from fnmatch import fnmatchcase

from corald.config.faults import suggest
from corald.config.values import Settings
from corald.library import Library, TableKey
from corald.model.hardware import Catalog


def check_against_catalog(settings: Settings, catalog: Catalog) -> tuple[str, ...]:
    """List what the policies name and the catalogue does not have."""
    faults = []
    for name, policy in settings.policies.models.items():
        where = settings.policy_origins[name]
        if name not in catalog.models:
            faults.append(f'{where}: no model "{name}"{suggest(name, catalog.models)}')
        faults += [
            f'{where}: instance_types: "{pattern}" matches no instance type of the catalogue'
            for pattern in policy.instance_types or ()
            if not any(fnmatchcase(known, pattern) for known in catalog.instance_types)
        ]
    return tuple(faults)


def check_against_library(settings: Settings, library: Library) -> tuple[str, ...]:
    """List the policies that the library has no templates for, or only for looser targets."""
    faults = []
    for name, policy in settings.policies.models.items():
        for phase in policy.serving.phases:
            key = TableKey(name, phase, policy.engine)
            table = library.tables.get(key)
            if table is None:
                faults.append(f"the template library has no table {key}")
            elif table.slo.ttft_ms > policy.slo.ttft_ms or table.slo.tpot_ms > policy.slo.tpot_ms:
                faults.append(
                    f"the template library was built for {key} within {table.slo.ttft_ms:g} ms and "
                    f"{table.slo.tpot_ms:g} ms per token; this policy promises less"
                )
            else:
                continue
            faults[-1] = (
                f"{settings.policy_origins[name]}: {faults[-1]}; "
                "build one: corald templates build -c FILE"
            )
    return tuple(faults)
