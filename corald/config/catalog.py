"""The catalogue: hardware, prices and models from TOML, with every reference checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from corald.config import catalog_files as schema
from corald.config.catalog_files import fault, read
from corald.errors import ConfigError
from corald.model.hardware import Catalog, Configuration, GpuType, InstanceType, Link, ListPrice
from corald.model.llm import LatentAttention, LlmModel

SHIPPED = "corald_catalog"


def load_catalog(directory: Traversable | Path | None = None) -> Catalog:
    """Load the shipped catalogue, or a directory of the same files.

    A directory needs `instances_*.toml` only; a missing `gpus.toml`, `configurations.toml` or
    `models.toml` is taken from the shipped catalogue, whole.

    Raises:
        ConfigError: A file breaks the schema, or refers to what does not exist.
    """
    root = files(SHIPPED) if directory is None else directory
    gpus_file = _own_or_shipped(root, "gpus.toml")
    gpus = {name: _gpu(name, row) for name, row in read(gpus_file, schema.GPUS).items()}
    configurations = _configurations(_own_or_shipped(root, "configurations.toml"), gpus)
    models_file = _own_or_shipped(root, "models.toml")
    models = {name: _model(name, row) for name, row in read(models_file, schema.MODELS).items()}
    return Catalog(
        gpus=gpus,
        configurations=configurations,
        instance_types=_instance_types(_instance_files(root), configurations),
        models=models,
    )


def load_paper_catalog() -> Catalog:
    """Load the world of the paper's evaluation, with its five GPU types and six models only."""
    paper = files(SHIPPED) / "paper"
    whole = load_catalog(paper)
    served = read(paper / "workload.toml", schema.WORKLOAD).models
    used = {configuration.gpu for configuration in whole.configurations.values()}
    return Catalog(
        gpus={name: gpu for name, gpu in whole.gpus.items() if name in used},
        configurations=whole.configurations,
        instance_types=whole.instance_types,
        models={name: model for name, model in whole.models.items() if name in served},
    )


def _own_or_shipped(root: Traversable, name: str) -> Traversable:
    own = root / name
    return own if own.is_file() else files(SHIPPED) / name


def _instance_files(root: Traversable) -> list[Traversable]:
    if not root.is_dir():
        raise ConfigError(f"{root}: no such directory; name one that holds instances_*.toml")
    found = [file for file in root.iterdir() if _is_instance_file(file.name)]
    if not found:
        raise ConfigError(f"{root}: holds no instances_*.toml; add at least one")
    return sorted(found, key=lambda file: file.name)


def _is_instance_file(name: str) -> bool:
    return name.startswith("instances_") and name.endswith(".toml")


def _gpu(name: str, row: schema.GpuRow) -> GpuType:
    return GpuType(name=name, **row.model_dump())


def _model(name: str, row: schema.ModelRow) -> LlmModel:
    fields = row.model_dump()
    fields["dense_layers"] = row.layers_with_dense_mlp
    if row.active_parameters_billions is None:
        fields["active_parameters_billions"] = row.parameters_billions
    if row.latent_attention is not None:
        fields["latent_attention"] = LatentAttention(**row.latent_attention.model_dump())
    return LlmModel(name=name, **fields)


def _configurations(file: Traversable, gpus: Mapping[str, GpuType]) -> dict[str, Configuration]:
    found = {}
    for name, row in read(file, schema.CONFIGURATIONS).items():
        gpu = gpus.get(row.gpu)
        if gpu is None:
            raise fault(file, (name, "gpu"), _unknown("GPU type", row.gpu, gpus))
        if row.link == "nvlink" and gpu.link_gb_per_second == 0:
            raise fault(file, (name, "link"), f'{row.gpu} has no NVLink; write "pcie"')
        stem = row.gpu if row.gpus == 1 else f"{row.gpus}x{row.gpu}"
        if name != stem and not name.startswith(f"{stem}-"):
            raise fault(file, (name,), f"rename it to {stem}, or {stem}-SUFFIX for a variant")
        fields = row.model_dump()
        fields["link"] = Link(row.link)
        found[name] = Configuration(name=name, **fields)
    return found


def _instance_types(
    instance_files: Iterable[Traversable], configurations: Mapping[str, Configuration]
) -> dict[str, InstanceType]:
    found: dict[str, InstanceType] = {}
    for file in instance_files:
        content = read(file, schema.INSTANCES)
        for name, row in content.instances.items():
            path = ("instances", name)
            if name in found:
                raise fault(file, path, "another file has this name too; keep one")
            configuration = configurations.get(row.configuration)
            if configuration is None:
                remedy = _unknown("configuration", row.configuration, configurations)
                raise fault(file, (*path, "configuration"), remedy)
            if row.network_gbit_per_second < configuration.network_gbit_per_second:
                raise fault(
                    file,
                    (*path, "network_gbit_per_second"),
                    f"less than its configuration {configuration.name} promises "
                    f"({configuration.network_gbit_per_second:g}); choose a slower configuration",
                )
            found[name] = _instance_type(name, row, content)
    return found


def _instance_type(
    name: str, row: schema.InstanceRow, content: schema.InstanceFile
) -> InstanceType:
    return InstanceType(
        name=name,
        cloud=content.cloud,
        configuration=row.configuration,
        vcpus=row.vcpus,
        memory_gib=row.memory_gib,
        quota_family=row.quota_family,
        prices=tuple(_price(price, row, content) for price in row.prices),
    )


def _price(
    price: schema.PriceRow, row: schema.InstanceRow, content: schema.InstanceFile
) -> ListPrice:
    source = price.source or content.source
    return ListPrice(
        region=price.region,
        zones=tuple(price.zones),
        on_demand_usd_per_hour=price.on_demand,
        spot_usd_per_hour=price.spot,
        as_of=price.as_of or content.as_of,
        source=source if row.zones_verified else f"{source}; zones unverified",
    )


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {close[0]}?" if close else "correct it, or add it to its file"
    return f"there is no {kind} {name}; {hint}"
