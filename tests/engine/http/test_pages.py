"""The metrics page and the knobs over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.http.served import Served, serving

PAGE = Path(__file__).parents[1] / "metrics" / "vllm-0.32-plain-under-load.txt"


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(served: Served, name: str) -> float:
    ((_, value),) = samples(served.http.get("/metrics").text)[name]
    return value


def test_the_page_has_what_only_http_sees_under_vllms_name() -> None:
    with serving(served_model_name=("smollm2",)) as served:
        response = served.http.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        ours, theirs = samples(response.text), samples(PAGE.read_text())
        (rejected,) = ours["vllm:admission_rejections_total"]
        assert rejected in theirs["vllm:admission_rejections_total"]
        assert ours["schedtop_slow_readers_total"] == [({"model_name": "smollm2"}, 0.0)]
        for name in ("process_resident_memory_bytes", "python_info"):
            assert name in ours and name in theirs
        assert ours["vllm:num_requests_running"][0][0] == theirs["vllm:num_requests_running"][0][0]


def test_what_clients_got_is_counted() -> None:
    with serving(real_time=True) as served:
        for _ in range(3):
            served.complete("count me", 5)
        assert value(served, "vllm:generation_tokens_total") == 15
        assert value(served, "vllm:prompt_tokens_total") == 6
        assert value(served, "vllm:time_to_first_token_seconds_count") == 3
        assert value(served, "schedtop_client_wait_seconds_count") == 3
        assert value(served, "schedtop_client_wait_seconds_sum") > 0
        assert value(served, "vllm:e2e_request_latency_seconds_sum") >= value(
            served, "vllm:time_to_first_token_seconds_sum"
        )


@pytest.fixture
def bearer(token_file: Path, served: Served) -> dict[str, str]:
    assert token_file.stat().st_mode & 0o077 == 0
    return {"authorization": f"Bearer {token_file.read_text().strip()}"}


def turn(served: Served, headers: dict[str, str], values: dict[str, Any], **more: Any) -> Any:
    return served.http.patch("/v1/knobs", json={"values": values, **more}, headers=headers)


def test_knobs_are_told_with_their_schema_and_their_changes(served: Served, bearer: dict[str, str]) -> None:
    before = served.http.get("/v1/knobs").json()
    assert before["values"]["max_num_seqs"] == 16
    assert before["schema"]["max_num_seqs"]["type"] == "int" and before["schema"]["max_num_seqs"]["effect"]
    assert set(before["schema"]) == set(before["values"])
    answer = turn(served, bearer, {"max_num_seqs": 4}, by="a script").json()
    assert answer == {"text": "applied", "version": before["version"] + 1, "warnings": []}
    served.complete()  # its record describes the change
    after = served.http.get("/v1/knobs").json()
    assert after["values"]["max_num_seqs"] == 4 and after["version"] == answer["version"]
    change = next(change for change in after["changes"] if change["name"] == "max_num_seqs")
    assert (change["old"], change["new"], change["by"]) == (16, 4, "http a script")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"values": {"max_num_seqs": 0}}, 400, "values"),
        ({"values": {"nonsense": 0}}, 400, "values"),
        ({"values": {"max_num_seqs": 5}, "expected_version": 999}, 409, "expected_version"),
        ({"values": 5}, 400, "values"),
        ({"valeus": {}}, 400, "valeus"),
        ({}, 400, "values"),
    ],
)
def test_a_change_that_means_nothing_is_refused(
    served: Served, bearer: dict[str, str], body: dict[str, Any], status: int, param: str
) -> None:
    before = served.http.get("/v1/knobs").json()["values"]
    response = served.http.patch("/v1/knobs", json=body, headers=bearer)
    assert response.status_code == status and response.json()["error"]["param"] == param
    assert served.http.get("/v1/knobs").json()["values"] == before


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Basic x", "Bearer ä", "bearer " + "x" * 43])
def test_knobs_want_the_token_here_too(served: Served, given: str) -> None:
    headers = {"authorization": given.encode()} if given else {}
    response = served.http.patch("/v1/knobs", json={"values": {"max_num_seqs": 2}}, headers=headers)
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"


def test_a_dry_run_changes_nothing(served: Served, bearer: dict[str, str]) -> None:
    before = served.http.get("/v1/knobs").json()
    assert turn(served, bearer, {"max_num_seqs": 9}, dry_run=True).json()["text"] == "checked"
    assert served.http.get("/v1/knobs").json() == before


def test_beyond_this_machine_everything_but_health_wants_the_token(token_file: Path) -> None:
    with serving(http="0.0.0.0:0") as served:
        assert served.http.get("/health").status_code == 200
        for route in ("/v1/models", "/metrics", "/version", "/v1/knobs"):
            assert served.http.get(route).status_code == 401
        assert served.complete().status_code == 401
        served.http.headers["authorization"] = f"Bearer {token_file.read_text().strip()}"
        assert served.http.get("/v1/models").status_code == 200
        served.http.headers["host"] = "any.name.example"
        assert served.complete().status_code == 200
