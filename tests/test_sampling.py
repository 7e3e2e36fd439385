"""Parameters and the reference chain, each step against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from firesteel.errors import InvalidParameter
from firesteel.sampling import (
    SamplingParams,
    draw,
    draw_scores,
    edit,
    fresh_seed,
    key_of,
    plain_token,
    probabilities,
    scores,
    token_logprob,
    uniform,
)

FROZEN = (0.7743409900596866, 0.873179103071109, 0.4044028878757797)
LOGITS = np.log([0.5, 0.25, 0.125, 0.0625, 0.0625])


def law(logits, **params) -> np.ndarray:
    return probabilities(scores(logits, SamplingParams(**params)))


def kept(**params) -> list[int]:
    return np.flatnonzero(law(LOGITS, **params)).tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("temperature", 10**400),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("seed", 2**64),
        ("seed", True),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("logit_bias", {3: 101}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"x": 1.0}),
        ("logprobs", 21),
        ("logprobs", -1),
        ("stop", ("",)),
        ("stop", "a text, not a tuple"),
        ("stop_token_ids", (-3,)),
        ("max_tokens", 0),
        ("min_tokens", 257),
        ("ignore_eos", 1),
    ],
)
def test_a_value_out_of_range_is_named_with_its_value(name, value):
    with pytest.raises(InvalidParameter) as error:
        SamplingParams(**{name: value})
    assert name in str(error.value)
    assert repr(value) in str(error.value)


def test_vllm_s_sentinels_end_at_the_door():
    params = SamplingParams(top_k=-1, seed=-1)
    assert (params.top_k, params.seed) == (0, None)


def test_from_mapping_takes_json():
    params = SamplingParams.from_mapping(
        {"stop": "END", "stop_token_ids": [7], "logit_bias": {"17": -5}, "seed": None, "temperature": 0}
    )
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("END",), (7,), {17: -5})
    assert params.is_greedy
    assert SamplingParams.from_mapping({"stop": ["a", "b"]}).stop == ("a", "b")


def test_from_mapping_names_the_nearest_of_an_unknown_key():
    with pytest.raises(InvalidParameter, match="did you mean 'temperature'"):
        SamplingParams.from_mapping({"temprature": 1.0})
    with pytest.raises(InvalidParameter, match="logit_bias"):
        SamplingParams.from_mapping({"logit_bias": {"word": 1.0}})


def test_token_ids_beyond_the_vocabulary_are_refused():
    SamplingParams(logit_bias={99: 1.0}, stop_token_ids=(99,)).check_vocab(100)
    for params in (SamplingParams(logit_bias={100: 1.0}), SamplingParams(stop_token_ids=(100,))):
        with pytest.raises(InvalidParameter, match=r"token 100.*below 100"):
            params.check_vocab(100)


def test_min_tokens_makes_every_stop_impossible_until_it_is_reached():
    params = SamplingParams(min_tokens=2)
    assert edit(LOGITS, params, [], [3], [0, 4])[[0, 4]].tolist() == [-np.inf, -np.inf]
    np.testing.assert_array_equal(edit(LOGITS, params, [], [3, 3], [0, 4]), LOGITS)
    assert [params.edits(n) for n in (0, 1, 2, 3)] == [True, True, False, False]


def test_a_bias_is_added_before_the_penalties():
    """vLLM's order: a bias that turns a logit positive decides how the repetition penalty scales it."""
    params = SamplingParams(logit_bias={1: 3.0}, repetition_penalty=2.0)
    assert edit([-1.0, -1.0, 1.0], params, [1, 2], [], []).tolist() == [-1.0, 1.0, 0.5]


def test_penalties_count_tokens():
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    assert edit(np.zeros(4), params, [3, 3], [1, 1, 1, 2], []).tolist() == [0, -1.75, -0.75, 0]


def test_repetition_reads_the_prompt_and_the_text_and_scales_by_sign():
    params = SamplingParams(repetition_penalty=2.0)
    assert edit([4.0, -4.0, 4.0, -4.0], params, [0, 1, 0], [2], []).tolist() == [2.0, -8.0, 2.0, -4.0]


def test_edit_leaves_its_input_alone():
    logits = np.zeros(4)
    edit(logits, SamplingParams(logit_bias={0: 1.0}, frequency_penalty=1.0), [], [1], [])
    assert not logits.any()


def test_filters_keep_what_they_say():
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_k=4) == [0, 1, 2, 3, 4]  # a tie at the edge stays whole, as in vLLM
    assert kept(top_k=99) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.5) == [0]
    assert kept(top_p=0.51) == [0, 1]
    assert kept(top_p=0.8) == [0, 1, 2]
    assert kept(top_p=1e-9) == [0]
    assert kept(min_p=0.2) == [0, 1, 2]
    assert kept(min_p=1.0) == [0]


def test_top_p_measures_what_min_p_and_top_k_left():
    """vLLM's order. 0.5 of 0.75 is 0.67: alone, top_p = 0.6 would need a second token."""
    assert kept(top_p=0.6) == [0, 1]
    assert kept(top_p=0.6, top_k=2) == [0]
    assert kept(top_p=0.6, min_p=0.4) == [0]


@pytest.mark.parametrize("scale", [0.1, 3.0], ids=["wide", "narrow"])
def test_a_nucleus_is_found_without_sorting_the_vocabulary(scale):
    """Leaving out the lightest tokens before the sort keeps what the definition keeps."""
    x = np.random.default_rng(2).normal(0, scale, 5000)
    p = np.exp(x) / np.exp(x).sum()
    order = np.argsort(-p)
    nucleus = order[: 1 + np.count_nonzero(np.cumsum(p[order])[:-1] < 0.8)]
    assert sorted(nucleus) == np.flatnonzero(law(x, top_p=0.8)).tolist()


def test_temperature_precedes_the_filters():
    assert kept(temperature=2.0, min_p=0.4) == [0, 1, 2]
    np.testing.assert_allclose(law(LOGITS, temperature=0.5, top_k=2), [0.8, 0.2, 0, 0, 0], atol=1e-15)


def test_a_tiny_temperature_neither_overflows_nor_divides_by_zero():
    np.testing.assert_array_equal(law([1e4, 1e4 - 1, 0], temperature=2e-5), [1, 0, 0])


def test_a_draw_follows_p_whatever_its_scale_and_form():
    """The law itself is tested in test_race.py."""
    p = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    drawn = [draw(p, key_of(1, i)) for i in range(400)]
    assert set(drawn) == {1, 3}
    assert abs(drawn.count(1) - 100) < 35
    assert drawn == [draw(p * 1e-3, key_of(1, i)) for i in range(400)]
    with np.errstate(divide="ignore"):
        assert drawn == [draw_scores(np.log(p) + 7, key_of(1, i)) for i in range(400)]


def test_uniform_is_the_same_everywhere():
    """Frozen values: a platform or a release that gives others breaks the texts of every seed."""
    assert uniform(0, 0, 0) == FROZEN[0]
    assert uniform(42, 7, 3) == FROZEN[1]
    assert uniform(-2, 1, 0) == uniform(2**64 - 2, 1, 0) == FROZEN[2]


def test_uniform_is_even_and_its_arguments_do_not_mix():
    numbers = [uniform(s, i, d) for s in range(8) for i in range(64) for d in range(8)]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) >= 0
    assert max(numbers) < 1
    counts = np.histogram(numbers, 16, (0, 1))[0]
    assert abs(counts - 256).max() < 5 * 16


def test_unseeded_requests_differ():
    assert len({fresh_seed() for _ in range(100)}) == 100


def test_plain_token_is_keyed_by_seed_and_position():
    params = SamplingParams(seed=5)
    texts = []
    for seed in (5, 5, 6):
        text: list[int] = []
        for _ in range(40):
            text.append(plain_token(np.zeros(50), params, seed, [], text, []))
        texts.append(text)
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) > 10
    assert plain_token([1.0, 3.0, 3.0], SamplingParams(temperature=0), 0, [], [], []) == 1


def test_logprobs_are_the_raw_ones_with_the_alternatives_in_order():
    report = token_logprob(LOGITS + 9, 2, 2)
    assert report.token == 2
    assert report.logprob == pytest.approx(np.log(0.125))
    assert [token for token, _ in report.top] == [0, 1]
    assert report.top[1][1] == pytest.approx(np.log(0.25))
    assert token_logprob(LOGITS, 4, 0).top == ()
    assert len(token_logprob(LOGITS, 4, 20).top) == 5
