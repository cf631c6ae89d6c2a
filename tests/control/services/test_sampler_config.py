"""The JSON settings of a sampler."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.calls.sampler import SamplingParams
from pie_control.errors import InvalidArgument
from pie_control.services.sampler_config import KEYS, MAX_CONFIG, new_sampler


def test_what_is_left_out_or_null_has_its_default() -> None:
    assert new_sampler("{}").params == SamplingParams()
    assert new_sampler(json.dumps(dict.fromkeys(KEYS))).params == SamplingParams()


def test_each_setting_has_its_effect() -> None:
    settings = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.25,
        "presence_penalty": -1,
        "typical_p": 0.8,
    }
    assert set(KEYS) == {*settings, "seed", "logit_bias"}
    assert new_sampler(json.dumps(settings)).params == SamplingParams(0.5, 7, 0.9, 0.1, 1.5, 0.25, -1, 0.8)


def test_a_bias_is_by_token() -> None:
    sampler = new_sampler('{"logit_bias": {"7": -2.5, "300": 1}}')
    assert sampler.bias is not None
    assert (sampler.bias.tokens.tolist(), sampler.bias.values.tolist()) == ([7, 300], [-2.5, 1.0])
    with pytest.raises(InvalidArgument, match="logit_bias names token 300, which is outside of the vocabulary of 259"):
        sampler.bias.check(259)
    assert new_sampler('{"logit_bias": {}}').bias is None


def test_the_seed_decides_the_draws() -> None:
    first, second, other = (new_sampler(json.dumps({"seed": seed})) for seed in (7, 7, 2**64 - 1))
    drawn = [first.draw() for _ in range(3)]
    assert [second.draw() for _ in range(3)] == drawn != [other.draw() for _ in range(3)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * MAX_CONFIG, "the settings of a sampler nests lists and objects deeper than 8 levels"),
        ("[" * 8, "not JSON"),
        ("[]", "must be a JSON object, not a list"),
        ("1", "must be a JSON object, not a int"),
        (" " * MAX_CONFIG + "{}", "characters, more than 16384"),
        ('{"tempreature": 1}', "no setting 'tempreature': do you mean 'temperature'?"),
        ('{"top-k": null}', "no setting 'top-k': do you mean 'top_k'?"),
        ('{"logits": {}}', "no setting 'logits': "),
        ('{"logit_bias": [1]}', r"logit_bias must be an object, as in .*, not \[1\]"),
        ('{"logit_bias": {"a": 1}}', 'logit_bias is by token id, and "a" is none'),
        ('{"logit_bias": {"-1": 1}}', 'by token id, and "-1" is none'),
        (json.dumps({"logit_bias": {"1" * 5000: 1}}), 'by token id, and "1111'),
        ('{"logit_bias": {"4294967296": 1}}', "4294967296 is no token"),
        ('{"logit_bias": {"1": true}}', "logit_bias of token 1 must be a number, not true"),
        ('{"logit_bias": {"1": null}}', "logit_bias of token 1 must be a number, not null"),
        ('{"logit_bias": {"1": NaN}}', "logit_bias of token 1 is nan; it must lie between -1000.0 and 1000.0"),
        ('{"logit_bias": {"1": 1001}}', "logit_bias of token 1 is 1001; it must lie between"),
        ('{"logit_bias": {"1": 1, "01": 2}}', "logit_bias names a token twice"),
        (json.dumps({"logit_bias": dict.fromkeys(range(513), 1)}), "logit_bias has 513 tokens, more than 512"),
        ('{"temperature": "1"}', 'temperature must be a number, not "1"'),
        ('{"temperature": true}', "temperature must be a number, not true"),
        ('{"temperature": [1]}', r"temperature must be a number, not \[1\]"),
        ('{"temperature": NaN}', "temperature is nan; it must lie between"),
        ('{"temperature": -1}', "temperature is -1; it must lie between"),
        ('{"top_k": 1.5}', "top_k must be a whole number, not 1.5"),
        ('{"seed": 0.5}', "seed must be a whole number"),
        ('{"seed": -1}', "seed is -1; it must lie between 0 and 18446744073709551615"),
        ('{"seed": 18446744073709551616}', "it must lie between"),
    ],
)
def test_a_wrong_setting_is_named(config: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        new_sampler(config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), JSON, max_size=4).map(json.dumps) | st.text())
def test_any_text_makes_a_sampler_or_is_refused(config: str) -> None:
    try:
        sampler = new_sampler(config)
    except InvalidArgument:
        return
    assert set(json.loads(config)) <= set(KEYS)
    assert all(isinstance(one, int | float) for one in msgspec.structs.astuple(sampler.params))
