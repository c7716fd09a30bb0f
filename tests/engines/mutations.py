"""Decoded JSON with values that are odd, gone, doubled, somewhere else or a little different."""

import copy

ODD = [
    None,
    True,
    False,
    0,
    -1,
    1,
    10**30,
    -(10**30),
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    0.5,
    2**31,
    2**63,
    "",
    "x",
    "\ud800",
    "a" * 5000,
    "isrel",
    "Relevant",
    "abstain",
    "retrieve",
    "write",
    "always",
    "product",
    [],
    {},
    [[]],
    {"a": 1},
    [1, 2],
    ["x"],
    [None],
    {"": None},
]


def places(value, above=()):
    if above:
        yield above
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*above, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def mutate(rng, record):
    """One to three values replaced, removed, doubled, taken from elsewhere or changed a little."""
    record = copy.deepcopy(record)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        paths = list(places(record))
        if not paths:
            break
        path = rng.choice(paths)
        holder, key = at(record, path[:-1]), path[-1]
        kind = rng.choice(
            ["odd", "odd", "odd", "remove", "double", "elsewhere", "little"]
        )
        if kind == "odd":
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif kind == "remove":
            holder.pop(key)
        elif kind == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == "double":
            holder[
                rng.choice(["extra", "labels", "passage_at", "places", "joined"])
            ] = copy.deepcopy(holder[key])
        elif kind == "elsewhere":
            holder[key] = copy.deepcopy(at(record, rng.choice(paths)))
        elif isinstance(holder[key], str | list):
            holder[key] = holder[key][::-1]
        elif isinstance(holder[key], int | float):
            holder[key] += rng.choice([-1, 1, 0.5, 1e9, -1e-3])
    return record
