"""Every wrapper refuses what its kernel could not take, and names the argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from schedtop.kernels import interpreted, unavailable_reason  # noqa: E402
from schedtop.kernels.activation import silu_mul  # noqa: E402
from schedtop.kernels.kv_write import kv_write  # noqa: E402
from schedtop.kernels.norm import rms_norm  # noqa: E402
from schedtop.kernels.paged_attention import paged_attention  # noqa: E402
from schedtop.kernels.rotary import cos_sin_table, rotary  # noqa: E402
from schedtop.kernels.sampling import sample  # noqa: E402
from schedtop.kernels.sampling_params import SamplingTensors  # noqa: E402
from schedtop.kernels.tiling import Tiling  # noqa: E402

Change = Callable[[dict[str, Any]], dict[str, Any]]


def change(name: str, edit: Callable[[Any], Any]) -> Change:
    """Edit one argument."""
    return lambda arguments: {**arguments, name: edit(arguments[name])}


def double(tensor: Any) -> Any:
    return tensor.double()


def strided(tensor: Any) -> Any:
    """The same shape with a gap between neighbours along the last axis."""
    return torch.stack((tensor, tensor), dim=-1)[..., 0]


def put(*place_and_value: int) -> Callable[[Any], Any]:
    *place, value = place_and_value

    def edit(tensor: Any) -> Any:
        edited = tensor.clone()
        edited[tuple(place)] = value
        return edited

    return edit


def refuses(function: Callable[..., Any], arguments: dict[str, Any], kind: type[Exception], name: str) -> None:
    with pytest.raises(kind, match=rf"^{name}\b"):
        function(**arguments)


def attention_arguments(device: Any) -> dict[str, Any]:
    integers = {"dtype": torch.int32, "device": device}
    return {
        "query": torch.randn(4, 4, 64, device=device),
        "k_cache": torch.randn(6, 8, 2, 64, device=device),
        "v_cache": torch.randn(6, 8, 2, 64, device=device),
        "block_table": torch.tensor([[1, 2, 99], [3, 99, 99]], **integers),
        "query_start_loc": torch.tensor([0, 3, 4], **integers),
        "seq_lens": torch.tensor([12, 8], **integers),
        "max_query_len": 3,
        "max_seq_len": 12,
        "scale": 0.125,
        "check_values": True,
    }


ATTENTION: list[tuple[str, type[Exception], Change]] = [
    ("query", TypeError, change("query", double)),
    ("query", TypeError, change("query", torch.Tensor.half)),
    ("query", TypeError, change("query", torch.Tensor.tolist)),
    ("query", ValueError, change("query", lambda query: query[..., :32])),
    ("query", ValueError, change("query", lambda query: query[:, :3])),
    ("query", ValueError, change("query", lambda query: query[0])),
    ("query", ValueError, change("query", strided)),
    ("k_cache", TypeError, change("k_cache", double)),
    (
        "k_cache",
        ValueError,
        lambda old: {**old, "k_cache": old["k_cache"][:, :7], "v_cache": old["v_cache"][:, :7]},
    ),
    ("v_cache", ValueError, change("v_cache", lambda cache: cache[1:])),
    ("v_cache", TypeError, change("v_cache", torch.Tensor.half)),
    ("v_cache", ValueError, change("v_cache", lambda cache: cache.transpose(1, 2).contiguous().transpose(1, 2))),
    ("block_table", TypeError, change("block_table", torch.Tensor.long)),
    ("block_table", ValueError, change("block_table", lambda table: table[:1])),
    ("block_table", ValueError, change("block_table", lambda table: table[:, :1])),
    ("block_table", ValueError, change("block_table", put(0, 1, 6))),
    ("block_table", ValueError, change("block_table", put(1, 0, -1))),
    ("query_start_loc", ValueError, change("query_start_loc", lambda starts: starts[:2])),
    ("query_start_loc", ValueError, change("query_start_loc", put(0, 1))),
    ("query_start_loc", ValueError, change("query_start_loc", put(2, 2))),
    ("query_start_loc", ValueError, change("query_start_loc", put(2, 5))),
    ("seq_lens", TypeError, change("seq_lens", torch.Tensor.long)),
    ("seq_lens", ValueError, change("seq_lens", put(0, 2))),
    ("seq_lens", ValueError, change("seq_lens", put(0, -1))),
    ("max_query_len", ValueError, change("max_query_len", lambda _: 2)),
    ("max_query_len", ValueError, change("max_query_len", lambda _: 0)),
    ("scale", ValueError, change("scale", lambda _: 0.0)),
    ("scale", ValueError, change("scale", lambda _: float("nan"))),
    ("window", ValueError, lambda old: {**old, "window": 0}),
    ("soft_cap", ValueError, lambda old: {**old, "soft_cap": -1.0}),
    ("num_splits", ValueError, lambda old: {**old, "num_splits": 0}),
    *(
        (name, TypeError, lambda old, name=name: {**old, name: 2.0})
        for name in ("num_splits", "window", "max_query_len")
    ),
    ("tiling", ValueError, lambda old: {**old, "tiling": Tiling(1, 16, 4, 1)}),
    ("out", ValueError, lambda old: {**old, "out": old["query"][:3]}),
    ("out", TypeError, lambda old: {**old, "out": old["query"].half()}),
    ("out", ValueError, lambda old: {**old, "out": old["query"][:1].expand(4, 4, 64)}),
]


@pytest.mark.parametrize(("name", "kind", "edit"), ATTENTION)
def test_paged_attention(device: Any, name: str, kind: type[Exception], edit: Change) -> None:
    refuses(paged_attention, edit(attention_arguments(device)), kind, name)


def test_paged_attention_accepts_what_the_cases_start_from(device: Any) -> None:
    assert not paged_attention(**attention_arguments(device)).isnan().any()


def kv_arguments(device: Any) -> dict[str, Any]:
    return {
        "key": torch.randn(3, 2, 64, device=device),
        "value": torch.randn(3, 2, 64, device=device),
        "k_cache": torch.zeros(4, 8, 2, 64, device=device),
        "v_cache": torch.zeros(4, 8, 2, 64, device=device),
        "slot_mapping": torch.tensor([0, -1, 31], device=device),
        "check_values": True,
    }


@pytest.mark.parametrize(
    ("name", "kind", "edit"),
    [
        ("key", TypeError, change("key", double)),
        ("key", ValueError, change("key", strided)),
        ("value", ValueError, change("value", lambda value: value[:2])),
        ("value", ValueError, change("value", strided)),
        ("k_cache", ValueError, lambda old: {**old, "key": old["key"][:, :1], "value": old["value"][:, :1]}),
        ("k_cache", ValueError, change("k_cache", lambda cache: cache[0])),
        ("k_cache", ValueError, change("k_cache", lambda cache: cache[:1].expand(4, 8, 2, 64))),
        ("slot_mapping", TypeError, change("slot_mapping", torch.Tensor.int)),
        ("slot_mapping", ValueError, change("slot_mapping", lambda slots: slots[:2])),
        ("slot_mapping", ValueError, change("slot_mapping", put(1, 32))),
        ("slot_mapping", ValueError, change("slot_mapping", put(1, 0))),
    ],
)
def test_kv_write(device: Any, name: str, kind: type[Exception], edit: Change) -> None:
    kv_write(**kv_arguments(device))
    refuses(kv_write, edit(kv_arguments(device)), kind, name)


@pytest.mark.parametrize(
    ("name", "kind", "edit"),
    [
        ("x", TypeError, change("x", double)),
        ("x", ValueError, change("x", strided)),
        ("x", ValueError, change("x", lambda x: x[0])),
        ("weight", ValueError, change("weight", lambda weight: weight[:3])),
        ("eps", ValueError, change("eps", lambda _: -1.0)),
        ("residual", TypeError, lambda old: {**old, "residual": old["x"].half()}),
        ("residual", ValueError, lambda old: {**old, "residual": old["x"][:1].expand(2, 64)}),
        ("out", ValueError, lambda old: {**old, "out": old["x"][:1]}),
    ],
)
def test_rms_norm(device: Any, name: str, kind: type[Exception], edit: Change) -> None:
    arguments = {"x": torch.randn(2, 64, device=device), "weight": torch.ones(64, device=device), "eps": 1e-5}
    rms_norm(**arguments)
    refuses(rms_norm, edit(arguments), kind, name)


@pytest.mark.parametrize(
    ("name", "kind", "edit"),
    [
        ("query", TypeError, change("query", double)),
        ("query", ValueError, change("query", strided)),
        ("key", ValueError, change("key", lambda key: key[:1])),
        ("key", TypeError, change("key", torch.Tensor.half)),
        ("positions", TypeError, change("positions", torch.Tensor.int)),
        ("positions", ValueError, change("positions", put(0, 8))),
        ("positions", ValueError, change("positions", put(0, -1))),
        ("cos_sin", ValueError, change("cos_sin", lambda table: table.repeat(1, 2))),
        ("cos_sin", ValueError, change("cos_sin", lambda table: table[:, :3].contiguous())),
        ("cos_sin", ValueError, change("cos_sin", lambda table: table[:, :2])),
    ],
)
def test_rotary(device: Any, name: str, kind: type[Exception], edit: Change) -> None:
    arguments = {
        "query": torch.randn(2, 4, 64, device=device),
        "key": torch.randn(2, 1, 64, device=device),
        "positions": torch.tensor([0, 7], device=device),
        "cos_sin": cos_sin_table(torch.ones(32, device=device), 8),
        "check_values": True,
    }
    rotary(**arguments)
    refuses(rotary, edit(arguments), kind, name)


@pytest.mark.parametrize(
    ("name", "kind", "edit"),
    [
        ("gate", TypeError, change("gate", double)),
        ("gate", ValueError, change("gate", strided)),
        ("up", ValueError, change("up", lambda up: up[:1])),
        ("up", TypeError, change("up", torch.Tensor.half)),
        ("out", ValueError, lambda old: {**old, "out": old["up"][:1].expand(2, 8)}),
    ],
)
def test_silu_mul(device: Any, name: str, kind: type[Exception], edit: Change) -> None:
    arguments = {"gate": torch.randn(2, 8, device=device), "up": torch.randn(2, 8, device=device)}
    silu_mul(**arguments)
    refuses(silu_mul, edit(arguments), kind, name)


def change_param(name: str, edit: Callable[[Any], Any]) -> Change:
    return lambda old: {**old, "params": replace(old["params"], **{name: edit(getattr(old["params"], name))})}


@pytest.mark.parametrize(
    ("name", "kind", "edit"),
    [
        ("logits", TypeError, change("logits", double)),
        ("logits", ValueError, change("logits", strided)),
        ("logits", ValueError, change("logits", lambda logits: logits[:, :0])),
        ("temperature", TypeError, change_param("temperature", double)),
        ("temperature", ValueError, change_param("temperature", lambda tensor: tensor - 2)),
        ("top_k", TypeError, change_param("top_k", torch.Tensor.long)),
        ("top_k", ValueError, change_param("top_k", lambda tensor: tensor[:1])),
        ("top_p", ValueError, change_param("top_p", lambda tensor: tensor + 1)),
        ("top_p", ValueError, change_param("top_p", torch.zeros_like)),
        ("min_p", ValueError, change_param("min_p", lambda tensor: tensor - 1)),
        ("seeds", TypeError, change_param("seeds", torch.Tensor.int)),
        ("positions", ValueError, change_param("positions", lambda tensor: tensor - 1)),
        ("out", TypeError, lambda old: {**old, "out": old["params"].top_k}),
    ],
)
def test_sample(device: Any, name: str, kind: type[Exception], edit: Change) -> None:
    ones, longs = torch.ones(2, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    params = SamplingTensors(ones, longs.int(), ones, 0 * ones, longs, longs)
    arguments = {"logits": torch.randn(2, 10, device=device), "params": params, "check_values": True}
    sample(**arguments)
    refuses(sample, edit(arguments), kind, name)


def test_tensors_out_of_reach_are_refused() -> None:
    elsewhere = torch.empty(2, 8, device="meta")
    refuses(silu_mul, {"gate": elsewhere, "up": elsewhere}, TypeError, "gate")
    assert "meta" in str(unavailable_reason("meta")) or interpreted()


def test_reasons_in_words(device: Any) -> None:
    assert unavailable_reason(device) is None
    assert unavailable_reason("cuda" if device.type == "cpu" else "cpu")
