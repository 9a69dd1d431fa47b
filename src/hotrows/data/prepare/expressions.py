"""The expressions of `prepare`, the same for every engine: samples, vocabulary, encoding, histories, splits."""

from collections.abc import Mapping
from functools import reduce
from operator import or_

import ibis

from hotrows.data.prepare.log import Expression, History, Log, Table

RARE, MISSING = 0, 1

_PRIME = (1 << 31) - 1
_FACTORS = (2_654_435_761, 1_103_515_245, 1_812_433_253)


def num_problems(table: Table, log: Log) -> Table:
    """A table with one row: `num_bad` is how many rows cannot be used."""
    bad = reduce(or_, (problem.found(table) for problem in log.problems))
    return table.aggregate(num_bad=bad.sum())


def problems(table: Table, log: Log) -> Table:
    """A table with one row: how many rows have problem i and no earlier one, `count_i`, and the first, `row_i`."""
    reasons = [problem.found(table) for problem in log.problems]
    numbered = table.select("row", problem=ibis.cases(*((found, i) for i, found in enumerate(reasons)), else_=-1))
    columns = {}
    for i in range(len(reasons)):
        here = numbered.problem == i
        columns[f"count_{i}"] = here.sum()
        columns[f"row_{i}"] = numbered.row.min(where=here)
    return numbered.aggregate(**columns)


def without_problems(table: Table, log: Log) -> Table:
    bad = [problem.found(table) for problem in log.problems]
    return table.filter(*(~found.fill_null(False) for found in bad))


def values(table: Table, log: Log) -> Table:
    """The log's rows as samples: `row`, label, dense, categories as text."""
    return table.select(
        "row",
        label=log.label(table).cast("float32"),
        **{name: _dense(make(table), log.log_scale) for name, make in log.dense.items()},
        **{name: make(table) for name, make in log.categorical.items()},
    )


def vocabulary(occurrences: Table, min_count: int) -> Table:
    """Number the values of a table by falling frequency, after `rare` and `missing`.

    Args:
        occurrences: text `value` and int `_weight`, how often it occurs; several rows may have the same value.
    """
    counts = occurrences.group_by("value").aggregate(count=occurrences._weight.sum().cast("int64"))
    kind = ibis.cases((counts.value.isnull(), MISSING), (counts["count"] < min_count, RARE), else_=2)
    kinds = counts.select(kind=kind.cast("int32"), value="value", count="count")
    # Values that share an id become one row. Both special ids are there even if no value has them.
    special = ibis.range(RARE, MISSING + 1).unnest().name("kind").as_table()
    special = special.select(
        kind=special.kind.cast("int32"), value=ibis.null("string"), count=ibis.literal(0, type="int64")
    )
    kept = ibis.ifelse(kinds.kind == 2, kinds.value, ibis.null("string"))
    combined = kinds.mutate(value=kept).union(special)
    merged = combined.group_by("kind", "value").aggregate(count=combined["count"].sum().cast("int64"))
    position = ibis.row_number().over(order_by=[merged.kind, merged["count"].desc(), merged.value])
    return merged.select("value", "count", id=position.cast("int32")).select("value", "id", "count")


def encode(samples: Table, vocabularies: Mapping[str, Table]) -> Table:
    """Replace the text of each of these columns by its id."""
    joined = samples
    for number, (name, known) in enumerate(vocabularies.items()):
        # A missing value matches the row of `missing`, so that no engine carries the text through the other joins.
        side = known.filter(known.id != RARE).select(**{f"_value_{number}": known.value, f"_id_{number}": known.id})
        joined = joined.left_join(side, samples[name].identical_to(side[f"_value_{number}"]))
    ids = {name: joined[f"_id_{number}"].coalesce(RARE).cast("int32") for number, name in enumerate(vocabularies)}
    return joined.select(**{name: ids.get(name, joined[name]) for name in samples.columns})


def past(samples: Table, history: History, user: str) -> dict[str, Expression]:
    """The sequence columns: for each row the ids of the same user's earlier rows, oldest first.

    Args:
        samples: a table with `row`, in which the columns of the histories are ids already.
        user: the column that identifies users.
    """
    window = ibis.window(group_by=samples[user], order_by=samples.row, preceding=(history.length, 1))
    none: list[int] = []
    return {
        name: samples[of].collect().over(window).coalesce(ibis.literal(none, type="array<int32>"))
        for name, of in history.sequences.items()
    }


def lookups(samples: Table, history: History, user: str, in_training: Expression) -> Expression:
    """How often training looks up a row's ids: once as the candidate, and once in every history that contains it."""
    chosen = ibis.ifelse(in_training, 1, 0)
    window = ibis.window(group_by=samples[user], order_by=samples.row, following=(1, history.length))
    return chosen + chosen.sum().over(window).coalesce(0)


def split_of(row: Expression, fractions: Mapping[str, float], seed: int) -> Expression:
    """The split of a row. It depends on the row's number and the seed alone, so every engine draws the same."""
    drawn = _drawn(row, seed)
    branches = []
    upper = 0.0
    for name, fraction in fractions.items():
        upper += fraction
        branches.append((drawn < round(upper * _PRIME), name))
    return ibis.cases(*branches, else_="train")


def _drawn(row: Expression, seed: int) -> Expression:
    """A well-mixed number below `_PRIME`. Products stay below 2^62, so that no engine overflows."""
    mixed = (row + (seed + 1) * _FACTORS[0]) % _PRIME
    mixed = (mixed * _FACTORS[1] + 12_345) % _PRIME
    # Without this step the whole would be a linear function, whose values at neighboring rows form a lattice.
    mixed = mixed ^ (mixed >> 15)
    return (mixed * _FACTORS[2] + 12_345) % _PRIME


def _dense(value: Expression, log_scale: bool) -> Expression:
    """A float32 without missing values: log(1 + max(x, 0)), as in DLRM, or the number itself."""
    known = value.cast("float64")
    known = ibis.ifelse(known.isnan(), ibis.null("float64"), known).coalesce(0.0)
    if log_scale:
        known = (ibis.greatest(known, 0.0) + 1.0).ln()
    return known.cast("float32")
