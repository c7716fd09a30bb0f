"""The prefix cache and the search for shared prefixes, without a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from selfrag.engines.prefixes import PrefixCache, Shared, shared_prefixes

sequences = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)


def naive_common(one, other) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(sequences, max_size=12), st.integers(1, 4))
def test_shared_prefixes_are_shared_worth_it_and_leave_the_last_token(prompts, minimum):
    found = shared_prefixes(prompts, [0] * len(prompts), minimum)
    for shared in found:
        members = [prompt for prompt in prompts if prompt[: len(shared.tokens)] == shared.tokens]
        assert len(members) >= 2
        assert len(shared.tokens) >= minimum
        assert any(len(prompt) > len(shared.tokens) for prompt in members)
        assert prompts[shared.owner][: len(shared.tokens)] == shared.tokens
        assert len(prompts[shared.owner]) > len(shared.tokens)
    assert len({shared.owner for shared in found}) == len(found) <= len(prompts) // 2


def test_two_questions_of_one_task_share_each_their_own():
    task, a, b = (1,) * 20, (2,) * 20, (3,) * 20
    prompts = [(*task, *a, 7), (*task, *b, 7), (*task, *a, 8), (*task, *b, 9)]
    want = [Shared(task + a, 0), Shared(task + b, 1)]
    assert shared_prefixes(prompts, [0] * 4, 16) == want
    # What the two questions have in common comes out of a second round over the prefixes.
    assert shared_prefixes([shared.tokens for shared in want], [0, 0], 16) == [Shared(task, 0)]


@given(st.lists(sequences, max_size=15), sequences)
def test_the_cache_finds_the_longest(stored, wanted):
    cache: PrefixCache[tuple] = PrefixCache(10**6)
    for tokens in stored:
        cache.put(None, tokens, tokens, len(tokens))
    payload, length = cache.longest(None, wanted)
    assert length == max((naive_common(tokens, wanted) for tokens in stored), default=0)
    assert (payload is None) == (length == 0)
    if payload is not None:
        assert payload[:length] == wanted[:length]
    assert all(cache.covers(None, tokens) for tokens in stored)
    assert cache.longest("other", wanted) == (None, 0)


@given(st.lists(sequences, max_size=20), st.integers(0, 30))
def test_trim_keeps_to_the_budget_and_the_size_is_true(stored, budget):
    cache: PrefixCache[None] = PrefixCache(budget)
    for i, tokens in enumerate(stored):
        cache.put(str(i % 2), tokens, None, len(tokens))
    cache.trim()
    assert cache.size <= budget
    while len(cache):
        cache.trim()
        cache._budget = cache.size - 1
    assert cache.size == 0


def test_the_least_recently_used_goes_first():
    cache: PrefixCache[str] = PrefixCache(2)
    for name, tokens in (("a", (1, 1)), ("b", (2, 2)), ("c", (3, 3))):
        cache.put(None, tokens, name, 1)
    assert len(cache) == 3  # nothing goes before trim
    assert cache.longest(None, (1, 5)) == ("a", 1)
    cache.trim()
    assert cache.longest(None, (2, 2)) == (None, 0)
    assert cache.longest(None, (1, 1)) == ("a", 2)
