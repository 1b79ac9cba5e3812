"""The axis algebra: what unify, regroup and sections make of atoms, products and sums, against values by hand."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.submodels.helpers import labels
from uneven.submodels.axes import (
    Axis,
    concat,
    count,
    factors,
    fixed,
    freeze,
    indices,
    product,
    regroup,
    sections,
    terms,
    unify,
)


def sizes(axes: Sequence[Axis]) -> list[int]:
    return [axis.size for axis in axes]


def same(a: Axis, b: Axis) -> bool:
    return a.root() is b.root()


def kept(axis: Axis, *pairs: tuple[Axis, list[int]]) -> list[int]:
    return indices(axis, {atom.root(): torch.tensor(entries) for atom, entries in pairs}).tolist()


# ---------------------------------------------------------------- unify


def test_two_atoms_become_one() -> None:
    a, b = Axis(4), Axis(4)
    unify(a, b)
    assert same(a, b)
    assert not a.frozen
    unify(a, b)  # again, without harm
    assert a.atoms() == [b.root()]


def test_axes_of_unequal_sizes_cannot_be_the_same() -> None:
    with pytest.raises(ValueError, match="axes of 4 and 5 entries"):
        unify(Axis(4), Axis(5))


@pytest.mark.parametrize("dynamic_first", [True, False])
def test_what_meets_a_dynamic_axis_is_dynamic(dynamic_first: bool) -> None:
    batch, rows = Axis(13, "batch", dynamic=True), Axis(13)
    unify(*((batch, rows) if dynamic_first else (rows, batch)))
    assert count(rows, {}) == count(batch, {}) == 1
    assert rows.frozen


@pytest.mark.parametrize("atom_first", [True, False])
def test_an_atom_takes_on_a_product(atom_first: bool) -> None:
    atom, a, b = Axis(6), Axis(2), Axis(3)
    unify(*((atom, product([a, b])) if atom_first else (product([a, b]), atom)))
    assert str(atom) == "2*3"
    assert kept(atom, (a, [1]), (b, [0, 2])) == [3, 5]  # 1 * 3 + {0, 2}


@pytest.mark.parametrize("atom_first", [True, False])
def test_an_atom_takes_on_a_sum(atom_first: bool) -> None:
    atom, a, b = Axis(5), Axis(2), Axis(3)
    unify(*((atom, concat([a, b])) if atom_first else (concat([a, b]), atom)))
    assert str(atom) == "(2 + 3)"
    assert kept(atom, (a, [1]), (b, [0, 2])) == [1, 2, 4]  # {1} and 2 + {0, 2}


def test_two_products_unify_factor_by_factor() -> None:
    a, b, c, d = Axis(2), Axis(3), Axis(2), Axis(3)
    unify(product([a, b]), product([c, d]))
    assert same(a, c)
    assert same(b, d)
    assert not same(a, b)


def test_a_longer_factor_is_cut_to_line_up() -> None:
    """6 * 4 against 2 * 3 * 4, and 2 * 12 against 2 * 3 * 4."""
    a, b, c, d, e = Axis(6), Axis(4), Axis(2), Axis(3), Axis(4)
    unify(product([a, b]), product([c, d, e]))
    assert [f.size for f in factors(a)] == [2, 3]
    assert same(factors(a)[0], c)
    assert same(factors(a)[1], d)
    assert same(b, e)
    long = Axis(12)
    unify(product([c, d, e]), product([Axis(2), long]))
    assert [same(f, g) for f, g in zip(factors(long), (d, e), strict=True)] == [True, True]
    assert not a.frozen


def test_products_that_do_not_line_up_are_frozen_with_both_named() -> None:
    x, y = product([Axis(4), Axis(6)]), product([Axis(6), Axis(4)])
    unify(x, y)
    assert x.frozen
    assert y.frozen
    assert {atom.reason for atom in x.atoms() + y.atoms()} == {"4*6 and 6*4 do not line up"}


def test_two_sums_unify_term_by_term() -> None:
    a, b, c, d = Axis(2), Axis(3), Axis(2), Axis(3)
    unify(concat([a, b]), concat([c, d]))
    assert same(a, c)
    assert same(b, d)


def test_misaligned_sums_are_cut_where_either_has_a_border() -> None:
    """2 + 5 against 4 + 3: borders at 2 and 4, so 2 + 2 + 3."""
    a, b, c, d = Axis(2), Axis(5), Axis(4), Axis(3)
    unify(concat([a, b]), concat([c, d]))
    assert sizes(terms(b)) == [2, 3]
    assert sizes(terms(c)) == [2, 2]
    assert same(terms(c)[0], a)
    assert same(terms(c)[1], terms(b)[0])
    assert same(d, terms(b)[1])
    assert kept(concat([a, b]), (a, [1]), (d, [0, 2])) == [1, 2, 3, 4, 6]


def test_one_atom_twice_in_a_sum_can_be_cut_twice() -> None:
    """8 + 8 (the same) against 4 + 4 + 4 + 4: each half is cut alike."""
    x, parts = Axis(8), [Axis(4) for _ in range(4)]
    unify(concat([x, x]), concat(parts))
    assert same(parts[0], parts[2])
    assert same(parts[1], parts[3])
    assert not same(parts[0], parts[1])
    assert not x.frozen


def test_a_sum_of_products_is_cut_at_a_border_of_blocks() -> None:
    channels, pixels = Axis(6), fixed(4)
    total = concat([product([channels, pixels]), Axis(4)])
    first, second = Axis(8), Axis(20)
    unify(total, concat([first, second]))
    assert channels.frozen  # its channels are split between two axes
    assert str(first) == "[2]*[4]"


def test_a_sum_of_products_cannot_be_cut_inside_a_block() -> None:
    total = concat([product([Axis(6), fixed(4)]), Axis(4)])
    other = concat([Axis(7), Axis(21)])
    unify(total, other)
    assert total.frozen
    assert other.frozen


def test_a_sum_meets_a_product_its_equal_blocks_are_one() -> None:
    """(4 + 4) against 2 * 4, as a channel shuffle of two halves."""
    left, right, block = Axis(4), Axis(4), Axis(4)
    blocks = Axis(2)
    unify(concat([left, right]), product([blocks, block]))
    assert same(left, right)
    assert same(left, block)
    assert blocks.frozen
    assert not block.frozen


def test_unequal_terms_meet_a_product_by_being_cut() -> None:
    """(2 + 6) against 2 * 4: blocks (2 + 2) and (4), so the 6 is 2 + 4 and its tail of 4 equals (2 + 2)."""
    a, b, block = Axis(2), Axis(6), Axis(4)
    total = concat([a, b])
    unify(product([Axis(2), block]), total)
    assert sizes(terms(block)) == [2, 2]
    assert sizes(terms(b)) == [2, 2, 2]
    assert same(terms(b)[1], a)
    assert same(terms(b)[2], terms(b)[0])
    assert kept(total, (a, [1]), (terms(b)[0], [0])) == [1, 2, 5, 6]


def test_a_sum_and_a_product_that_do_not_line_up_are_frozen() -> None:
    total, other = concat([product([Axis(3), fixed(2)]), Axis(4)]), product([Axis(2), Axis(5)])
    unify(total, other)
    assert total.frozen
    assert other.frozen


# ---------------------------------------------------------------- freezing


def test_the_first_reason_to_stay_whole_is_kept() -> None:
    axis = Axis(3)
    freeze(axis, "first")
    freeze(axis, "second")
    assert axis.reason == "first"


@pytest.mark.parametrize("frozen_first", [True, False])
def test_a_reason_passes_to_the_axis_unified_with(frozen_first: bool) -> None:
    free, whole = Axis(3), fixed(3, "why")
    unify(*((whole, free) if frozen_first else (free, whole)))
    assert free.root().reason == "why"


def test_a_reason_passes_to_the_parts_of_a_frozen_atom() -> None:
    whole, a, b = fixed(6, "why"), Axis(2), Axis(3)
    unify(whole, product([a, b]))
    assert [a.reason, b.reason] == ["why", "why"]
    whole = fixed(6, "why")
    assert [piece.root().reason for piece in sections(whole, [2, 4])] == ["why", "why"]
    whole = fixed(6, "why")
    assert [piece.root().reason for piece in regroup([whole], [3, 2])] == ["why", "why"]


def test_a_composite_is_frozen_only_when_every_atom_is() -> None:
    a, b = Axis(2), Axis(3)
    freeze(a, "why")
    assert not product([a, b]).frozen
    freeze(product([a, b]), "later")
    assert [a.reason, b.reason] == ["why", "later"]


def test_one_entry_cannot_be_dropped() -> None:
    assert Axis(1).frozen
    assert Axis(1).reason == "one entry only"


# ---------------------------------------------------------------- regroup


def test_regroup_merges_and_splits() -> None:
    a, b, c = Axis(4), Axis(6), Axis(5)
    (merged,) = regroup([a, b, c], [120])
    assert [same(f, g) for f, g in zip(factors(merged), (a, b, c), strict=True)] == [True] * 3
    apart = regroup([merged], [4, 6, 5])
    assert [same(f, g) for f, g in zip(apart, (a, b, c), strict=True)] == [True] * 3
    outer, inner = regroup([Axis(12)], [3, 4])
    assert sizes([outer, inner]) == [3, 4]
    assert not outer.frozen
    assert not inner.frozen


def test_regroup_merges_part_of_a_split_axis() -> None:
    """(6, 4) to (3, 8): 6 is 3 * 2, and the 2 goes to the 4."""
    a, b = Axis(6), Axis(4)
    first, second = regroup([a, b], [3, 8])
    assert str(a) == "3*2"
    assert same(first, factors(a)[0])
    assert [same(f, g) for f, g in zip(factors(second), (factors(a)[1], b), strict=True)] == [True, True]


def test_regroup_drops_and_makes_axes_of_one_entry() -> None:
    a = Axis(4)
    out = regroup([Axis(1), a, Axis(1)], [1, 1, 4, 1])
    assert sizes(out) == [1, 1, 4, 1]
    assert same(out[2], a)
    assert out[0].frozen


def test_regroup_keeps_a_dynamic_axis_apart() -> None:
    batch, channels, pixels = Axis(13, "batch", dynamic=True), Axis(4), fixed(9)
    rows, flat = regroup([batch, channels, pixels], [13, 36])
    assert same(rows, batch)
    assert rows.root().dynamic
    assert count(product([rows, flat]), {channels: 3}) == 27  # per example: the batch counts one
    (merged,) = regroup([batch, channels], [52])
    assert any(atom.dynamic for atom in merged.atoms())
    assert not merged.frozen


@pytest.mark.parametrize(("given_", "wanted"), [((4, 9), (6, 6)), ((6, 2), (4, 3)), ((2, 3), (3, 2))])
def test_a_reshape_that_mixes_entries_freezes_all(given_: tuple[int, int], wanted: tuple[int, int]) -> None:
    axes = [Axis(size) for size in given_]
    out = regroup(axes, wanted)
    assert sizes(out) == list(wanted)
    assert all(axis.frozen for axis in [*axes, *out])
    (reason,) = {atom.reason for axis in out for atom in axis.atoms()}
    assert reason is not None
    assert reason.endswith(f"to {wanted} mixes its entries")


def test_entries_left_over_freeze_all() -> None:
    """A view to a wider dtype halves the last axis: that is no reshape."""
    axis = Axis(8)
    (half,) = regroup([axis], [4])
    assert axis.frozen
    assert half.frozen


def test_a_sum_is_split_into_equal_blocks() -> None:
    left, right = Axis(4), Axis(4)
    blocks, block = regroup([concat([left, right])], [2, 4])
    assert blocks.frozen
    assert same(left, right)
    assert same(block, left)


# ---------------------------------------------------------------- sections


def test_sections_of_an_atom_are_free_pieces() -> None:
    atom = Axis(9)
    pieces = sections(atom, [2, 3, 4])
    assert sizes(pieces) == [2, 3, 4]
    assert len({piece.root() for piece in pieces}) == 3
    assert not any(piece.frozen for piece in pieces)
    assert kept(atom, (pieces[0], [1]), (pieces[1], [0]), (pieces[2], [3])) == [1, 2, 8]
    again = sections(atom, [5, 4])  # cut once more, elsewhere
    assert sizes(terms(again[0])) == [2, 3]
    assert same(again[1], pieces[2])


def test_sections_of_a_sum_follow_and_cut_its_terms() -> None:
    a, b = Axis(3), Axis(5)
    first, second = sections(concat([a, b]), [4, 4])
    assert sizes(terms(b)) == [1, 4]
    assert sizes(terms(first)) == [3, 1]
    assert same(terms(first)[0], a)
    assert same(second, terms(b)[1])


def test_sections_of_a_sum_of_one_atom_twice() -> None:
    x = Axis(6)
    pieces = sections(concat([x, x]), [4, 4, 4])
    assert not x.frozen
    assert sizes(terms(x)) == [2, 2, 2]
    assert kept(concat([x, x]), *((term, [0]) for term in terms(x))) == [0, 2, 4, 6, 8, 10]
    assert len(kept(pieces[1], *((term, [0]) for term in terms(x)))) == 2


def test_equal_sections_of_a_product_are_one() -> None:
    """8 * 2 in two: channels 0..3 and 4..7 of the outer factor keep the same entries."""
    outer, inner = Axis(8), fixed(2)
    first, second = sections(product([outer, inner]), [8, 8])
    assert same(first, second)
    assert str(outer) == "[2]*4"
    (half,) = (atom for atom in outer.atoms() if not atom.frozen)
    assert kept(outer, (half, [1])) == [1, 5]
    assert kept(product([outer, inner]), (half, [1])) == [2, 3, 10, 11]


@pytest.mark.parametrize(("shape", "pieces"), [((5, 2), [5, 5]), ((6, 2), [4, 8])])
def test_sections_that_do_not_balance_freeze_the_stream(shape: tuple[int, int], pieces: list[int]) -> None:
    stream = product([Axis(size) for size in shape])
    out = sections(stream, pieces)
    assert stream.frozen
    assert sizes(out) == pieces
    (reason,) = {atom.reason for axis in (stream, *out) for atom in axis.atoms()}
    assert reason is not None
    assert "cannot be cut into balanced pieces" in reason


# ---------------------------------------------------------------- indices and count


def test_indices_of_a_product_are_ravelled_tuples() -> None:
    a, b, c = Axis(3), Axis(4), Axis(5)
    chosen = [[0, 2], [1, 3], [4]]
    expected = np.ravel_multi_index(np.meshgrid(*chosen, indexing="ij"), (3, 4, 5)).ravel().tolist()
    assert kept(product([a, b, c]), *zip((a, b, c), chosen, strict=True)) == expected


def test_indices_of_a_sum_are_offset() -> None:
    a, b = Axis(3), Axis(4)
    assert kept(concat([a, b, a]), (a, [0, 2]), (b, [1])) == [0, 2, 4, 7, 9]


def test_a_rolled_window_keeps_its_order() -> None:
    a, b = Axis(3), fixed(2)
    assert kept(product([a, b]), (a, [2, 0])) == [4, 5, 0, 1]


def test_axes_of_size_one_vanish_from_products() -> None:
    a = Axis(3)
    assert product([Axis(1), a, Axis(1)]) is a
    assert product([]).size == 1
    assert concat([a]) is a


Pool = dict[tuple[int, int], Axis]  # atoms by size and number, so that one atom can be met many times

expressions = st.recursive(
    st.tuples(st.integers(1, 4), st.integers(0, 3)),
    lambda inner: st.tuples(st.sampled_from(["product", "sum"]), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=5,
)


def grow(expression: Any, pool: Pool) -> Axis:
    kind, parts = expression
    if isinstance(kind, int):
        return pool.setdefault((kind, parts), Axis(kind))
    axes = [grow(part, pool) for part in parts]
    return product(axes) if kind == "product" else concat(axes)


def draw_keep(axes: Sequence[Axis], data: st.DataObject) -> dict[Axis, list[int]]:
    atoms = dict.fromkeys(atom for axis in axes for atom in axis.atoms())
    return {
        atom: sorted(data.draw(st.sets(st.integers(0, atom.size - 1), min_size=1)))
        for atom in atoms
        if not atom.frozen
    }


def check_indices(axis: Axis, keep: dict[Axis, list[int]]) -> None:
    """`indices` and `count` against the entries written out one by one."""
    found = indices(axis, {atom: torch.tensor(entries) for atom, entries in keep.items()}).tolist()
    needs = labels(axis)
    expected = [i for i, need in enumerate(needs) if all(c in keep[a] for a, c in need if a in keep)]
    assert len(needs) == axis.size
    assert found == expected
    assert len(found) == count(axis, {atom: len(entries) for atom, entries in keep.items()})


@given(expressions, st.data())
def test_indices_of_any_expression_are_the_entries_whose_channels_are_all_kept(
    expression: Any, data: st.DataObject
) -> None:
    axis = grow(expression, {})
    check_indices(axis, draw_keep([axis], data))


@given(expressions, expressions, st.data())
def test_unified_axes_keep_the_same_entries(first: Any, second: Any, data: st.DataObject) -> None:
    pool: Pool = {}
    a, b = grow(first, pool), grow(second, pool)
    if a.size > b.size:  # make them of one size
        b = concat([b, Axis(a.size - b.size)])
    elif b.size > a.size:
        a = concat([a, Axis(b.size - a.size)])
    unify(a, b)
    keep = draw_keep([a, b], data)
    check_indices(a, keep)
    check_indices(b, keep)
    tensors = {atom: torch.tensor(entries) for atom, entries in keep.items()}
    assert indices(a, tensors).tolist() == indices(b, tensors).tolist()


@given(st.lists(expressions, min_size=1, max_size=3), st.data())
def test_a_reshape_keeps_the_same_entries_of_the_whole(parts: list[Any], data: st.DataObject) -> None:
    """Kept entries of the axes in, as flat positions, are those of the axes out."""
    pool: Pool = {}
    axes = [grow(part, pool) for part in parts]
    rest, wanted = int(np.prod(sizes(axes))), []
    while rest > 1:
        wanted.append(data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0])))
        rest //= wanted[-1]
    out = regroup(axes, wanted)
    assert sizes(out) == wanted
    keep = {atom: torch.tensor(entries) for atom, entries in draw_keep([*axes, *out], data).items()}
    before, after = (
        np.ravel_multi_index(np.meshgrid(*(indices(x, keep) for x in xs), indexing="ij"), tuple(sizes(xs)) or (1,))
        if xs
        else np.zeros(1, int)
        for xs in (axes, out)
    )
    assert before.ravel().tolist() == after.ravel().tolist()


@given(expressions, st.data())
def test_sections_keep_the_entries_of_the_whole(expression: Any, data: st.DataObject) -> None:
    axis = grow(expression, {})
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, axis.size - 1)))) if axis.size > 1 else [])
    borders = [0, *cuts, axis.size]
    pieces = sections(axis, [b - a for a, b in pairwise(borders)])
    keep = {atom: torch.tensor(entries) for atom, entries in draw_keep([axis, *pieces], data).items()}
    joined = [int(i) + start for piece, start in zip(pieces, borders, strict=False) for i in indices(piece, keep)]
    assert joined == indices(axis, keep).tolist()
