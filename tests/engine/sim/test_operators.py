"""Steps priced by operator tables: refusals by name, and, where the package is installed, its figures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.spec import parse_device


def refusal(spec: str, ranks: int = 1, stages: int = 1) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_device(spec, step_cost="operators").step_cost(ranks, stages)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_the_tables_do_not_know_is_said_in_a_line(tmp_path: Path) -> None:
    assert "no tables for l4; there are for b200" in refusal("sim:llama-3.1-8b@l4")
    assert "--pipeline-parallel-size 2" in refusal("sim:llama-3.1-8b@h100", stages=2)
    assert "quantised weights" in refusal("sim:qwen3-30b-a3b-fp8@h100")
    neox = '{"model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 1,'
    (tmp_path / "config.json").write_text(neox + '"vocab_size": 100, "max_position_embeddings": 64}')
    assert "MLPs without a gate" in refusal(f"sim:{tmp_path}@h100")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    assert "pip install 'schedtop[operators]'" in refusal("sim:smollm2-135m@h200")


def test_a_table_that_is_missing_is_said_before_the_first_step() -> None:
    pytest.importorskip("aiconfigurator_core")
    assert "llama-3.1-8b-fp8 on a100 is not known to it" in refusal("sim:llama-3.1-8b-fp8@a100")
    with pytest.raises(ConfigError, match="on a100 is not known to it"):
        parse_device("sim:llama-3.1-8b@a100", "fp8", "operators").step_cost()


def test_steps_of_the_tables() -> None:
    pytest.importorskip("aiconfigurator_core")
    cost = parse_device("sim:llama-3.1-8b@h100", step_cost="operators").step_cost()
    decodes = [StepFeatures(45, 0, 45 * context, 45) for context in (700, 701, 1800)]
    alone = [cost.step_s(step) for step in decodes]
    assert 0.005 < alone[0] < alone[1] < alone[2] < 0.02
    contexts = np.array([step.kv_tokens for step in decodes])
    assert cost.step_s(decodes[0]._replace(kv_tokens=contexts)).tolist() == alone  # type: ignore[arg-type, attr-defined]
    mixed = cost.step_s(StepFeatures(45 + 512, 512 * 513 / 2, 45 * 700 + 512, 46))
    assert alone[0] < mixed < 2.5 * alone[0]
