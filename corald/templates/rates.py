"""What one node can do when it holds j layers of a pipeline: T̂_j, by stages and stage budget.

For decode, with per-layer time t(b) at batch b, a step takes j·t(b) + o + hand-over and must end
within a stage budget β ≤ TPOT/S; T̂ is the best b over step time. By Little's law T̂·S·β sequences
are resident on every stage, so T̂ is also at most those that fit in memory over S·β. A tighter
budget meets the target too and keeps fewer sequences resident: rates are computed for several, and
a placement picks one for all its stages. A single stage needs none: its step time is known.

For prefill a step takes input tokens instead, at least one mean prompt, within TTFT/S. A mixed node
shares its time: with P its prefill rate, a decode step carries b·(in/out) input tokens and takes
j·t(b) + o + b·(in/out)/P, still within β, and serves b/out requests; so requests/s is
1/(in/P + out/D) with D = b over the plain decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corald.model.hardware import Catalog, Configuration
from corald.model.llm import LlmModel
from corald.model.templates import Engine, Phase, Slo, Workload
from corald.templates.calibration import Calibration
from corald.templates.roofline import Floats, GpuGroup

BUDGETS = 5
"""Stage budgets that are tried for each number of stages."""
BUDGET_RATIO = 0.7
"""From one budget to the next."""

_BATCHES = np.unique(np.round(np.geomspace(1, 4096, 240))).astype(np.float64)
_PROMPTS = np.geomspace(1, 128, 200)
"""Prompts taken in one step."""
_MAX_TOKENS = 65536.0
_MIN_CHUNK_TOKENS = 2048.0
"""Input tokens that memory is reserved for in a step that also decodes."""
_PCIE_HOP_SHARE = 0.5
"""Of PCIe's bandwidth, for a hand-over inside a node."""
_HOP_LATENCY_SECONDS = 100e-6


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One table to build: a model and phase on an engine, its latency targets and its requests."""

    model: str
    phase: Phase
    engine: Engine
    slo: Slo
    workload: Workload


@dataclass(frozen=True, slots=True)
class Hop:
    """What handing a step's activations to the next stage costs."""

    seconds: float = 0.0
    seconds_per_token: float = 0.0


NO_HOP = Hop()


@dataclass(frozen=True, slots=True)
class RateModel:
    """T̂ of one table, over the hardware of a catalogue."""

    request: BuildRequest
    catalog: Catalog
    calibration: Calibration

    @property
    def model(self) -> LlmModel:
        return self.catalog.models[self.request.model]

    def group(self, configuration: Configuration, tp: int) -> GpuGroup:
        gpu = self.catalog.gpus[configuration.gpu]
        return GpuGroup(self.model, gpu, configuration, tp, self.calibration)

    def network_hop(self, configuration: Configuration) -> Hop:
        """To another node."""
        bytes_per_second = configuration.network_gbit_per_second * 1e9 / 8
        hop_bytes = self.group(configuration, 1).hop_bytes()
        return Hop(_HOP_LATENCY_SECONDS, hop_bytes / bytes_per_second)

    def local_hop(self, configuration: Configuration) -> Hop:
        """To another group of GPUs in the same node."""
        gpu = self.catalog.gpus[configuration.gpu]
        bytes_per_second = _PCIE_HOP_SHARE * gpu.pcie_gb_per_second * 1e9
        return Hop(0.0, self.group(configuration, 1).hop_bytes() / bytes_per_second)

    def longest_budget(self, uses: Sequence[tuple[GpuGroup, Hop]], stages: int) -> float:
        """The longest stage budget worth trying on any of this hardware, in seconds.

        The target's share, or less where memory is full of caches before a step takes so long.
        """
        share = self.request.slo.tpot_ms / 1000 / stages
        if self.request.phase is Phase.PREFILL:
            return share
        longest = 0.0
        for group, hop in uses:
            steps = self._steps_with_output(group, hop, stages)
            fits = np.searchsorted(_BATCHES, self._resident_sequences(group) / stages, "right")
            filled = _up_to(np.where(np.isfinite(steps), steps, 0.0), fits)
            longest = max(longest, float(filled.max()))
        return min(share, longest)

    def rates(self, group: GpuGroup, hop: Hop, stages: int, longest_budget: float) -> Floats:
        """T̂ by budget (`BUDGETS` of them) and layers 0..L, for one group of GPUs.

        In the unit of the phase; 0 where the layers do not fit or no step ends in time; never
        rising with the number of layers. Entry 0 of the layers repeats 1. Prefill and single stages
        fill the first budget only.
        """
        rates = np.zeros((BUDGETS, self.model.layers))
        if self.request.phase is Phase.PREFILL:
            rates[0] = self._prefill(group, hop, stages)
        elif stages == 1:
            rates[0] = self._alone(group, hop)
        else:
            rates[:] = self._in_pipeline(group, hop, stages, longest_budget)
        share = self.calibration.pipeline_share(self.request.engine, stages)
        falling = np.minimum.accumulate(share * rates, axis=1)
        return np.concatenate((falling[:, :1], falling), axis=1)

    def _prefill(self, group: GpuGroup, hop: Hop, stages: int) -> Floats:
        prompt = self.request.workload.input_tokens_mean
        tokens = np.minimum(prompt * _PROMPTS, max(prompt, _MAX_TOKENS))
        steps = self._steps(group.prefill_layer_seconds(tokens, prompt), group, hop, tokens)
        cache = stages * tokens / prompt * group.kv_bytes_per_layer(prompt)
        needed = self._layers() * (group.layer_bytes + cache)
        fits = (needed <= group.free_bytes(tokens)).sum(axis=1)
        timely = (steps <= self.request.slo.ttft_ms / 1000 / stages).sum(axis=1)
        best = np.maximum.accumulate(tokens / steps, axis=1)
        return _up_to(best, np.minimum(fits, timely))

    def _alone(self, group: GpuGroup, hop: Hop) -> Floats:
        steps = self._steps_with_output(group, hop, 1)
        fits = np.searchsorted(_BATCHES, self._resident_sequences(group), "right")
        timely = (steps <= self.request.slo.tpot_ms / 1000).sum(axis=1)
        return _up_to(self._best_by_batch(steps), np.minimum(fits, timely))

    def _in_pipeline(self, group: GpuGroup, hop: Hop, stages: int, longest_budget: float) -> Floats:
        steps = self._steps_with_output(group, hop, stages)
        best = self._best_by_batch(steps)
        resident = self._resident_sequences(group) / self._output_tokens()
        rates = np.zeros((BUDGETS, self.model.layers))
        for row in range(BUDGETS):
            budget = longest_budget * BUDGET_RATIO**row
            timely = _up_to(best, (steps <= budget).sum(axis=1))
            rates[row] = np.minimum(timely, resident / (stages * budget)) if budget else 0.0
        return rates

    def _best_by_batch(self, steps: Floats) -> Floats:
        """The best rate of the batches up to each: it need not rise with the batch."""
        return np.maximum.accumulate(_BATCHES / self._output_tokens() / steps, axis=1)

    def _output_tokens(self) -> float:
        """Per unit of the rate."""
        mixed = self.request.phase is Phase.MIXED
        return self.request.workload.output_tokens_mean if mixed else 1.0

    def _steps_with_output(self, group: GpuGroup, hop: Hop, stages: int) -> Floats:
        """Seconds of a step that gives every sequence one token, by layers and batch."""
        layer = group.decode_layer_seconds(_BATCHES, self._context_tokens())
        steps = self._steps(layer, group, hop, _BATCHES)
        if self.request.phase is Phase.MIXED:
            workload = self.request.workload
            inputs = _BATCHES * (workload.input_tokens_mean / workload.output_tokens_mean)
            with np.errstate(divide="ignore"):
                steps = steps + inputs / self._prefill(group, hop, stages)[:, None]
        return steps

    def _resident_sequences(self, group: GpuGroup) -> Floats:
        """How many sequences' caches fit beside 1..L layers."""
        layers = self._layers()[:, 0]
        chunk = max(_MIN_CHUNK_TOKENS, self.request.workload.input_tokens_mean)
        free = group.free_bytes(np.array(chunk)) - layers * group.layer_bytes
        cache = layers * group.kv_bytes_per_layer(self._context_tokens())
        return np.asarray(np.maximum(free, 0.0) / cache)

    def _steps(self, layer: Floats, group: GpuGroup, hop: Hop, tokens: Floats) -> Floats:
        """Seconds of a step by layers 1..L (rows) and tokens in it (columns)."""
        hand_over = hop.seconds + tokens * hop.seconds_per_token
        return self._layers() * layer + group.step_overhead_seconds + hand_over

    def _layers(self) -> Floats:
        return np.arange(1, self.model.layers + 1, dtype=np.float64)[:, None]

    def _context_tokens(self) -> float:
        """Mean over the life of a sequence."""
        workload = self.request.workload
        return workload.input_tokens_mean + workload.output_tokens_mean / 2


def _up_to(best: Floats, counts: NDArray[np.int64]) -> Floats:
    """Per row, the best of the first `count` columns (columns hold running maxima); 0 of none."""
    last = np.maximum(counts - 1, 0)
    values = np.take_along_axis(best, last[:, None], axis=1)[:, 0]
    return np.where(counts > 0, values, 0.0)
