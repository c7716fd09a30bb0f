"""Random settings, questions and requests that fail, for tests on random trees."""

from hypothesis import strategies as st

from selfrag.decoding.policy import Decoding
from selfrag.reflection.weights import Weights

seeds = st.integers(0, 2**31)
numbers = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]) | st.floats(-2, 3, width=32)
weights = st.builds(Weights, numbers, numbers, numbers)
policies = st.builds(
    Decoding,
    mode=st.sampled_from(["adaptive", "adaptive", "always"]),
    threshold=st.sampled_from([None, 0.0, 0.2, 0.5, 0.8]),
    retrieve_test=st.sampled_from(["yes_no", "all", "log_ratio"]),
    retrieve_once=st.booleans(),
    no_retrieval_branch=st.booleans(),
    passages=st.integers(1, 4),
    beam=st.integers(1, 3),
    max_segments=st.integers(1, 4),
    segment_tokens=st.sampled_from([4, 100]),
    answer_tokens=st.sampled_from([10, 1000]),
    weights=weights,
    likelihood=st.sampled_from(["segment", "all", "product", "none"]),
    undefined=st.sampled_from(["skip", "force", "zero"]),
    accumulate=st.sampled_from(["mean", "sum", "product"]),
    require=st.sampled_from([{}, {}, {"issup": ["Fully supported", "Partially supported"]}]),
    forbid=st.sampled_from([{}, {}, {"isrel": "Irrelevant"}, {"isuse": ["1"]}]),
    history=st.sampled_from(["text", "text+passages"]),
)
