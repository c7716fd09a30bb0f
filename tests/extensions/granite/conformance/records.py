"""The plain results of the public libraries: what their output rules make of a reply, corrected where these err.

Offsets are into the caller's text. Nothing but the comparison with recorded results reads them; typed results come
from the same reflection.
"""

import copy
from collections.abc import Mapping

from selfrag.extensions.granite.chat import ChatCodec
from selfrag.extensions.granite.numbering import LAST
from selfrag.extensions.granite.replies import Shape
from selfrag.extensions.granite.written_labels import distribution
from selfrag.judges.output import ModelOutput, shown
from selfrag.reflection.findings import Code
from selfrag.reflection.labels import Role


def plain_result(codec, request, completion):
    """The result in the fields of the public library; None where undefined."""
    if isinstance(codec, ChatCodec):
        return records(codec.spec.rules, ModelOutput.of(request, completion))
    return fields(codec.binding, request, codec.decode(request, completion))


def categories(rule):
    """The labels of a likelihood rule, each with its number."""
    table = rule["categories_to_values"]
    return [
        (label, float(number))
        for label, number in (table.items() if isinstance(table, Mapping) else table)
    ]


def _path(rule):
    return tuple(rule.get("input_path") or ())


def records(rules, output):
    """The reply after all rules; None if there is no JSON at all."""
    root = output.json.root
    if root is None:
        return None
    value = copy.deepcopy(root.value)
    for rule in rules:
        value = _APPLY[rule["type"]](output, rule, value)
    return value


def _likelihood(output, rule, value):
    labels, values = zip(*categories(rule), strict=True)
    root = output.json.root
    for path, node in root.at(_path(rule)) if root is not None else ():
        likelihood = distribution(output, node, labels, _row(path))
        expected = None
        if likelihood is not None:
            pairs = zip(likelihood.distribution, values, strict=True)
            expected = sum(p * v for p, v in pairs)
        value = _replaced(value, path, expected)
    return value


def _row(path):
    return path[0] if path and isinstance(path[0], int) else None


def _replaced(value, path, new):
    if not path:
        return new
    value[path[0]] = _replaced(value[path[0]], path[1:], new)
    return value


def _nest(output, rule, value):
    return _at(_path(rule), value, lambda inner: {rule["field_name"]: inner})


def _project(output, rule, value):
    kept = rule["retained_fields"]
    names = dict(kept) if isinstance(kept, Mapping) else {name: name for name in kept}

    def project(record):
        if isinstance(record, list):
            return [project(item) for item in record]
        if not isinstance(record, Mapping):
            return record
        return {new: record.get(old) for old, new in names.items()}

    return _at(_path(rule), value, project)


def _explode(output, rule, value):
    name = rule["target_field"]

    def explode(records):
        rows = []
        for record in _listed(records):
            rows += [{**record, name: item} for item in record[name]]
        return rows

    return _at(_path(rule), value, explode)


def _drop_duplicates(output, rule, value):
    names = rule["target_fields"]

    def distinct(records):
        kept = {}
        for record in _listed(records):
            fields = [record]
            if isinstance(record, Mapping):
                fields = [record.get(name) for name in names]
            key = repr(fields)
            if key in kept:
                output.say(Code.DUPLICATE, f"{shown(record)} came twice")
            kept.setdefault(key, record)
        return list(kept.values())

    return _at(_path(rule), value, distinct)


def _decode_sentences(output, rule, value):
    request = output.request
    places = request.sites if rule["source"] == LAST else request.sources
    field = _path(rule)[-1]
    names = rule["output_names"]

    def decode(record):
        return {**record, **_described(output, places[record[field]], names)}

    if len(_path(rule)) < 2:
        return decode(value)
    return _at(
        _path(rule)[:-2],
        value,
        lambda records: [decode(record) for record in _listed(records)],
    )


def _described(output, site, names):
    passage = None
    if site.passage is not None:
        passage = output.request.state.passages[site.passage].id or None
    facts = {"begin": site.begin, "end": site.end, "text": site.text}
    facts |= {"document_id": passage, "message_index": site.message}
    return {names[fact]: value for fact, value in facts.items() if fact in names}


def _merge_spans(output, rule, value):
    group = rule["group_fields"]
    begin, end, text = names = (
        rule["begin_field"],
        rule["end_field"],
        rule.get("text_field"),
    )

    def key(row):
        values = (row.get(name) for name in group)
        # Models write anything; values of different types are told apart and never compared.
        return tuple(
            (type(v).__name__, v if isinstance(v, int | float | str) else repr(v))
            for v in values
        )

    def order(row):
        return (*key(row), row[begin], row[end])

    def merge(records):
        rows = []
        for row in _listed(records):
            if isinstance(row, Mapping):
                ends = row.get(begin), row.get(end)
                if all(isinstance(place, int) for place in ends):
                    rows.append(dict(row))
        merged = []
        last = None
        for row in sorted(rows, key=order):
            gap = None
            if last is not None and key(last) == key(row):
                gap = _between(output, last, row, names)
            if gap is None:
                last = row
                merged.append(row)
            else:
                last[end] = row[end]
                if text is not None:
                    last[text] = f"{last[text]}{gap}{row[text]}"
        return merged

    return _at(_path(rule), value, merge)


def _between(output, left, right, names):
    """What stands between two spans of one original if it is white space only; None if they are not neighbours."""
    begin, end, text = names
    for site in output.request.sources:
        at_right = (site.begin, site.end) == (right[begin], right[end])
        behind = right[begin] >= left[end]
        same_text = text is None or site.text == right[text]
        if at_right and behind and same_text:
            original = output.request.state.original(site)
            gap = original[left[end] : right[begin]]
            before = original[left[begin] : left[end]]
            if (text is None or before == left[text]) and not gap.strip():
                return gap
    return None


def _listed(value):
    return value if isinstance(value, list) else [value]


def _at(path, value, change):
    """The value with `change` applied where the path leads."""
    if not path:
        return change(value)
    first, tail = path[0], path[1:]
    if isinstance(value, list):
        return [
            _at(tail, item, change) if first in (None, index) else item
            for index, item in enumerate(value)
        ]
    if isinstance(value, Mapping):
        return {
            key: _at(tail, item, change) if first in (None, key) else item
            for key, item in value.items()
        }
    return value


_APPLY = {
    "likelihood": _likelihood,
    "nest": _nest,
    "project": _project,
    "explode": _explode,
    "drop_duplicates": _drop_duplicates,
    "decode_sentences": _decode_sentences,
    "merge_spans": _merge_spans,
}


def fields(binding, request, reflection):
    """The result in the fields of the public library, corrected where it errs; None where undefined.

    Certainty is 0.05 + 0.1 d, not 0.1 d; faithfulness stands beside the risk that upstream makes of it.
    """
    if binding.shape in (Shape.TEXT, Shape.FREE):
        return reflection.text
    rows = []
    if binding.shape is Shape.CITATIONS:
        for finding in reflection.findings:
            rows += _citation_rows(binding, request, finding)
        return rows
    if binding.shape is Shape.SENTENCES:
        for finding in reflection.findings:
            if finding.judgment is not None:
                rows.append(_sentence_row(binding, len(rows), finding))
        return rows
    judgment = reflection.findings[0].judgment if reflection.findings else None
    if judgment is None:
        return None
    return judgment.mode if judgment.role is Role.CERTAINTY else judgment.label


def _sentence_row(binding, number, finding):
    label = finding.judgment.label
    row = {
        "hallucination_id": str(number),
        "faithfulness": label,
        "risk": _risk(label) if binding.number is None else label,
        **_span("response", finding.site),
    }
    if finding.explanation is not None:
        row["reasoning"] = finding.explanation
    return row


def _risk(label):
    """A faithfulness range turned upside down; other labels as they are."""
    ends = label.split("-")
    if len(ends) != 2 or not all(end.replace(".", "", 1).isdigit() for end in ends):
        return label
    low, high = sorted(round(1 - float(end), 1) for end in ends)
    return f"{low:g}-{high:g}"


def _citation_rows(binding, request, finding):
    """One row a cited span; the older dialect does not merge neighbours."""
    rows = []
    for citation in finding.citations:
        span, name = citation.site, None
        if span.passage is not None:
            name = request.state.passages[span.passage].id
        spans = [span]
        if binding.number is None:
            spans = [
                source
                for source in request.sources
                if source.passage == span.passage
                and span.begin <= source.begin
                and source.end <= span.end
            ]
        response = _span("response", finding.site)
        rows += [{**_span("context", s), "doc_id": name, **response} for s in spans]
    return rows


def _span(name, site):
    return {f"{name}_{key}": value for key, value in site.as_dict().items()}
