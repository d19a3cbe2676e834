"""What serving engines can run, and how a template is started on them."""

from __future__ import annotations

from enum import StrEnum

from corald.errors import ConfigError
from corald.model.hardware import Catalog
from corald.model.templates import Engine, ServingTemplate

ENGINE_VERSIONS = {Engine.VLLM: "vllm-0.12", Engine.CORAL: "paper-1"}
"""The generation whose abilities and speed the templates assume."""


class Launcher(StrEnum):
    """Who starts the processes of a replica."""

    ONE_NODE = "one node"
    """`vllm serve` alone."""
    MULTIPROCESSING = "multiprocessing"
    """`vllm serve --nnodes N --node-rank I --master-addr A`: equal GPUs on every node."""
    RAY = "ray"
    """`--distributed-executor-backend ray`: nodes may differ in GPUs."""
    CORAL = "coral"
    """The paper's runtime, which is not public."""


def launcher_of(template: ServingTemplate, catalog: Catalog) -> Launcher:
    """The simplest launcher that runs this template."""
    if template.engine is Engine.CORAL:
        return Launcher.CORAL
    nodes = template.node_configurations
    if len(nodes) == 1:
        return Launcher.ONE_NODE
    equal = len({catalog.configurations[name].gpus for name in nodes}) == 1
    return Launcher.MULTIPROCESSING if equal else Launcher.RAY


def vllm_arguments(template: ServingTemplate, node_order: tuple[int, ...]) -> dict[str, str]:
    """Size flags and the layer split (an environment variable) for `vllm serve`.

    `node_order` is the order in which the launcher ranks the nodes, as ordinals; the stages of a
    node stay together, and their order does not change what the template yields.
    """
    if template.engine is not Engine.VLLM:
        raise ConfigError(f"template {template.id} is laid out for {template.engine}, not for vllm")
    ranked = [
        stage for node in node_order for stage in template.stages if node in stage.node_ordinals
    ]
    return {
        "--tensor-parallel-size": str(template.stages[0].tp),
        "--pipeline-parallel-size": str(len(ranked)),
        "VLLM_PP_LAYER_PARTITION": ",".join(str(stage.layers) for stage in ranked),
    }
