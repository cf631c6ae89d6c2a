from __future__ import annotations

from typing import Any

import pytest

from pie_control.calls.sampler import Sampler, SamplingParams, join_params, param_columns, param_rows
from pie_control.errors import InvalidArgument


def make(seed: int | None = 5) -> Sampler:
    return Sampler(SamplingParams(), seed)


def draws(sampler: Sampler, count: int) -> list[float]:
    return [sampler.draw() for _ in range(count)]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"typical_p": 0.0},
        {"typical_p": 1.1},
        {"repetition": 0.0},
        {"frequency": float("inf")},
        {"presence": float("nan")},
    ],
)
def test_parameters_out_of_range_are_refused(params: dict[str, Any]) -> None:
    (name,) = params
    with pytest.raises(InvalidArgument, match=rf"{name}.* is {params[name]}; it must lie between"):
        Sampler(SamplingParams(**params), 0)


@pytest.mark.parametrize("params", [{"repetition": 1.1}, {"frequency": -0.5}, {"presence": 0.1}])
def test_penalties_are_noticed(params: dict[str, Any]) -> None:
    assert SamplingParams(**params).has_penalties
    assert not SamplingParams(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1).has_penalties


def test_columns_hold_the_parameters_of_each_command() -> None:
    table = param_columns(param_rows([SamplingParams(), SamplingParams(0.5, 3, 0.9, 0.1, 1.5, 0.25, -1.0)]))
    assert {name: column.tolist()[1] for name, column in table.items()} == {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": pytest.approx(0.9),
        "min_p": pytest.approx(0.1),
        "repetition": 1.5,
        "frequency": 0.25,
        "presence": -1.0,
    }
    assert param_columns(param_rows([SamplingParams(), SamplingParams(typical_p=0.5)]))["typical_p"].tolist() == [
        1,
        0.5,
    ]
    assert list(param_columns(param_rows([SamplingParams(), SamplingParams(0.0)]))) == ["temperature"]
    assert table["top_k"].tolist() == [0, 3]
    assert table["top_k"].dtype == "int32"


def test_columns_behind_each_other_are_those_of_all_rows() -> None:
    rows = param_rows([SamplingParams(0.5, 3, repetition=1.5), SamplingParams(0.0), SamplingParams(1.0, typical_p=0.5)])
    for cut in range(4):
        joined = join_params(param_columns(rows[:cut]), cut, param_columns(rows[cut:]), 3 - cut)
        whole = param_columns(rows)
        assert {name: column.tolist() for name, column in joined.items()} == {
            name: column.tolist() for name, column in whole.items()
        }
        assert all(column.dtype == whole[name].dtype for name, column in joined.items())


def test_a_seed_always_gives_the_same_numbers() -> None:
    assert draws(make(5), 20) == draws(make(5), 20)
    assert draws(make(5), 20) != draws(make(6), 20)
    assert draws(make(None), 20) != draws(make(None), 20)
    assert all(0 <= number < 1 for number in draws(make(), 100))


def test_numbers_that_were_not_needed_come_next() -> None:
    sampler, expected = make(), draws(make(), 10)
    assert sampler.draw() == expected[0]
    many = sampler.draw_many(4)
    assert many.numbers == tuple(expected[1:5])
    many.use(2)
    again = sampler.draw_many(3)
    assert again.numbers == tuple(expected[3:6])
    again.use(0)
    again = sampler.draw_many(2)
    assert again.numbers == tuple(expected[3:5])
    again.use(2)
    assert draws(sampler, 4) == expected[5:9]


def test_numbers_come_back_only_if_none_were_drawn_after_them() -> None:
    sampler, expected = make(), draws(make(), 10)
    many = sampler.draw_many(3)
    assert sampler.draw() == expected[3]
    many.use(1)
    assert sampler.draw() == expected[4]


def test_numbers_may_turn_out_later_not_to_be_needed() -> None:
    sampler, expected = make(), draws(make(), 10)
    many = sampler.draw_many(6)
    many.use(4)
    many.use(1)
    again = sampler.draw_many(3)
    assert again.numbers == tuple(expected[1:4])
    many.use(0)
    assert draws(sampler, 4) == expected[4:8], "others were drawn after them"


def test_of_two_checks_at_once_the_later_one_gives_back() -> None:
    sampler, expected = make(), draws(make(), 10)
    first, second = sampler.draw_many(3), sampler.draw_many(3)
    first.use(1)
    second.use(2)
    assert draws(sampler, 2) == expected[5:7]
