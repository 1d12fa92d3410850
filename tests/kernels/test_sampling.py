"""Sampling: the same tokens as the reference, the right frequencies, and no influence of the batch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from schedtop.kernels import reference  # noqa: E402
from schedtop.kernels.sampling import sample  # noqa: E402
from schedtop.kernels.sampling_params import SamplingTensors  # noqa: E402

pytestmark = pytest.mark.usefixtures("seeded")


def make_params(device: Any, num_rows: int, **settings: Any) -> SamplingTensors:
    """Rows at temperature 1 without filters; `settings` are numbers for all rows or lists."""
    kinds = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64}
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seeds": 7}
    values = {**defaults, "positions": list(range(num_rows)), **settings}
    return SamplingTensors(
        **{
            name: torch.as_tensor(value, dtype=kinds.get(name, torch.float32)).expand(num_rows).clone().to(device)
            for name, value in values.items()
        }
    )


def on_cpu(params: SamplingTensors) -> SamplingTensors:
    return replace(params, **{field.name: getattr(params, field.name).cpu() for field in fields(params)})


def rows_of(params: SamplingTensors, rows: Any) -> SamplingTensors:
    return replace(params, **{field.name: getattr(params, field.name)[rows] for field in fields(params)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab_size", [1, 2, 777, 9001])
def test_greedy_takes_the_largest(device: Any, dtype: Any, vocab_size: int) -> None:
    logits = torch.randn(3, vocab_size, device=device).to(dtype)
    out = torch.full((3,), -5, device=device)
    sample(logits, make_params(device, 3, temperature=0.0), out=out)
    assert torch.equal(logits.gather(1, out[:, None]), logits.max(dim=-1, keepdim=True).values)
    assert torch.equal(out, logits.float().cpu().argmax(dim=-1).to(device)) or dtype != torch.float32


def test_greedy_takes_the_first_of_equals(device: Any) -> None:
    logits = torch.zeros(2, 20000, device=device)
    logits[0, [5, 9000, 17000]] = 1.0
    logits[1, [8191, 8192]] = 1.0
    assert sample(logits, make_params(device, 2, temperature=0.0)).tolist() == [5, 8191]


def mixed_params(device: Any, num_rows: int) -> SamplingTensors:
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))

    def pick(*choices: float) -> list[float]:
        return [choices[int(torch.randint(len(choices), (), generator=generator))] for _ in range(num_rows)]

    return make_params(
        device,
        num_rows,
        temperature=pick(0.0, 0.3, 1.0, 1.7),
        top_k=pick(0, 1, 5, 40, 10**6),
        top_p=pick(1.0, 0.9137, 0.5171, 0.0731),
        min_p=pick(0.0, 0.0, 0.0471, 1.0),
        seeds=torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator),
        positions=torch.randint(0, 2**31 - 1, (num_rows,), generator=generator),
    )


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(24, 50), (16, 1000), (4, 20001)])
def test_equals_the_reference(device: Any, num_rows: int, vocab_size: int) -> None:
    logits = 3 * torch.randn(num_rows, vocab_size, device=device)
    params = mixed_params(device, num_rows)
    tokens = sample(logits, params, check_values=True)
    assert tokens.tolist() == reference.sample(logits.cpu(), on_cpu(params)).tolist()


def test_ties_and_forbidden_tokens_equal_the_reference(device: Any) -> None:
    logits = torch.randint(0, 4, (24, 60), device=device).float()
    logits[:, ::7] = float("-inf")
    params = mixed_params(device, 24)
    tokens = sample(logits, params)
    assert tokens.tolist() == reference.sample(logits.cpu(), on_cpu(params)).tolist()
    assert not (tokens % 7 == 0).any()


def test_the_batch_does_not_matter(device: Any) -> None:
    logits = 2 * torch.randn(9, 500, device=device)
    params = mixed_params(device, 9)
    together = sample(logits, params).tolist()
    order = torch.randperm(9, device=device)
    shuffled = sample(logits[order], rows_of(params, order)).tolist()
    alone = [int(sample(logits[row : row + 1], rows_of(params, [row]))) for row in range(9)]
    assert alone == together
    assert shuffled == [together[row] for row in order.tolist()]


def test_seed_and_position_matter(device: Any) -> None:
    logits = torch.zeros(32, 1000, device=device)
    by_position = sample(logits, make_params(device, 32)).unique()
    by_seed = sample(logits, make_params(device, 32, seeds=list(range(32)), positions=3)).unique()
    by_high_seed = sample(logits, make_params(device, 32, seeds=[s << 32 for s in range(32)], positions=3)).unique()
    assert min(len(by_position), len(by_seed), len(by_high_seed)) > 25


def test_frequencies_follow_the_probabilities(device: Any) -> None:
    num_rows = 300
    probabilities = torch.tensor([0.4, 0.3, 0.15, 0.09, 0.04, 0.02], device=device)
    # At temperature 2 the logits are twice the log-probabilities.
    logits = (2 * probabilities.log()).expand(num_rows, -1).contiguous()
    seed = int(torch.randint(2**31, ()))
    tokens = sample(logits, make_params(device, num_rows, temperature=2.0, seeds=seed))
    counts = torch.bincount(tokens, minlength=6).double()
    expected = probabilities.double() * num_rows
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 5 degrees of freedom: one run in 10^7 lies above.
    assert chi_square < 41


def test_filters_keep_the_set_they_name(device: Any) -> None:
    num_rows = 24  # for the seed that the rows share, enough to draw every token kept
    probabilities = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.04, 0.01], device=device)
    logits = probabilities.log().flip(0).expand(num_rows, -1).contiguous()
    kept = {
        2: {"top_k": 2},
        3: {"top_p": 0.8},
        4: {"min_p": 0.2},
        1: {"top_p": 0.39},
    }
    for count, settings in kept.items():
        drawn = sample(logits, make_params(device, num_rows, **settings)).unique().tolist()
        assert drawn == list(range(6 - count, 6)), settings
    # Top-p takes its share of what top-k left: 0.8 * 0.7 = 0.56 needs two tokens, not three.
    drawn = sample(logits, make_params(device, num_rows, top_k=2, top_p=0.8)).unique().tolist()
    assert drawn == [4, 5]
    # Rare tokens are drawn at all when nothing is filtered.
    flat = sample(torch.zeros(num_rows, 6, device=device), make_params(device, num_rows))
    assert flat.unique().tolist() == list(range(6))


def test_philox_known_answers() -> None:
    # The published vector of Philox4x32-10 for an all-zero counter and key.
    assert int(reference.philox_word(0, 0, torch.tensor([0]))) == 0x6627E8D5
