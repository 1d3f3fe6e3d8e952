"""Texts whose blocks are kept, so that a request that begins the same way computes only what is new.

Kept texts form a tree of pages: the path from its root spells a text, 64 tokens a page, and a text's last page may be
shorter. A page is found among those that follow the same beginning by its tokens, which are compared, not hashed: a hit
is a fact. What a hit gives is bit for bit what recomputing would give, so reuse never changes an answer.

A text is kept while it runs, page by page. What is kept goes, the least recently used first, as soon as its blocks are
needed; a page never goes before those that follow it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from forwardpass.cache.tables import KvCache, Table
from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regime

NEIGHBOURS = 4
"""Pages on either side of the wanted one, in the order of their tokens, that are looked at. The nearest begins like it
for longest, but in models with windows it may have lost blocks."""


@dataclass(slots=True, eq=False)
class Node:
    """A page of kept texts. key: its tokens;  pages: how many a text has up to this one, it included;
    blocks: in each group, None where it was given back because windows moved past it.

    followers, keys: the pages that follow it, and their keys in order;  begun: some text went on from where this page
    is seen.  The key of a root is what its texts have in common beside tokens. Neither a root nor a page that is not
    kept any more has a parent.
    """

    parent: Node | None
    key: Any
    pages: int
    blocks: list[int | None]
    followers: dict[bytes, Node] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What is kept of a text. positions: the first ones, which need no computing;  nodes: the pages that they lie in;
    tables: the blocks that the next row sees, not yet held."""

    positions: int
    nodes: list[Node]
    tables: list[Table]

    @property
    def whole(self) -> Node | None:
        """The last page that is used as a whole, or None."""
        pages = self.positions // PAGE
        return self.nodes[pages - 1] if pages else None


class PrefixCache:
    """asked, found: tokens that were looked for, and those of them that were there; whoever looks counts them."""

    def __init__(self, cache: KvCache):
        self.asked = 0
        self.found = 0
        self._cache = cache
        self._groups = cache.groups
        self._pages = cache.budget.pages
        self._passed = cache.budget.passed
        self._windowed = [(g, group) for g, group in enumerate(cache.groups) if group.window]
        self._roots: dict[tuple[Regime, str], Node] = {}
        self._me = ref(self)

    def find(self, tokens: Sequence[int], limit: int, regime: Regime, salt: str = "") -> Found:
        """The longest beginning of a text that is kept, at most `limit` positions of it. Changes nothing.

        All that the next row sees must be there, in every group of layers: where windows moved past that, a shorter
        beginning is taken, or none. salt: only texts kept with the same one are found.
        """
        node, path = self._roots.get((regime, salt)), []
        if node is None:
            return Found(0, [], self._cache.empty())
        end = 0
        while end + PAGE <= limit and (follower := node.followers.get(_key(tokens[end : end + PAGE]))) is not None:
            node, end = follower, end + PAGE
            path.append(node)
        part, same = self._nearest(node, _key(tokens[end : min(end + PAGE, limit)]))
        if same:
            path.append(part)
        positions = self._visible(path, end + same)
        del path[-(-positions // PAGE) :]
        firsts = [group.first_page(positions) for group in self._groups]
        return Found(positions, path, [Table(first, [node.blocks[g] for node in path[first:]])
                                       for g, first in enumerate(firsts)])

    def take(self, found: Found) -> list[Table] | None:
        """Hold the blocks of what was just found, for a text that goes on from there: whole ones are shared, and one of
        which only a part is used is copied. None if there is no room for the copy."""
        tables = self._cache.share(found.tables, found.positions)
        if tables is not None and found.nodes:
            self._touch(found.nodes[-1])
            for g, group in self._windowed:
                for node in found.nodes[group.first_page(found.positions) :]:
                    node.begun = True
                    self._passed.pop((node, g), None)
        return tables

    def publish(self, tokens: Sequence[int], tables: list[Table], computed: int, regime: Regime, salt: str,
                last: Node | None) -> Node | None:
        """Keep the full pages of a text that goes on running; the last one. Where the same page is kept already, the
        text goes on with its blocks and gives its own back.

        last: what this returned for the text before, None = nothing;  computed: how many tokens are.
        """
        if last is None or last.parent is None:
            if computed < PAGE:
                return None
            last = self._root(regime, salt)
        node, begin = last, last.pages
        for page in range(begin, computed // PAGE):
            node = self._follower(node, _key(tokens[page * PAGE : (page + 1) * PAGE]), tables, own=False)
        if node is not last:
            self._touch(node)
            self._mark_passed(node, begin * PAGE, node.pages * PAGE)
        return node

    def keep(self, tokens: Sequence[int], tables: list[Table], computed: int, regime: Regime, salt: str = "",
             last: Node | None = None) -> None:
        """Keep all that is computed of a text that ends, and take over its hold on its blocks."""
        node = self.publish(tokens, tables, computed, regime, salt, last)
        rest = computed % PAGE
        if rest:
            node = node or self._root(regime, salt)
            key = _key(tokens[computed - rest : computed])
            at = bisect_left(node.keys, key)
            longer = node.followers[node.keys[at]] if at < len(node.keys) else None
            if longer is None or not longer.key.startswith(key) or None in longer.blocks:
                longer = self._follower(node, key, tables, own=True)
            self._touch(longer)
            self._mark_passed(node, computed - rest, computed)
        self._cache.release(tables)

    def give_up(self, node: Node, group: int) -> None:
        """Give back a page's block in one group."""
        block, node.blocks[group] = node.blocks[group], None
        self._groups[group].pool.drop(block)

    def evict(self, node: Node) -> None:
        """Give back the blocks of the page that is used least recently, which none follows. If it is in use, it counts
        as just used, and only what windows moved past on the way to it goes."""
        if not any(block is not None and not group.pool.idle(block)
                   for group, block in zip(self._groups, node.blocks, strict=True)):
            self._remove(node)
            return
        self._touch(node)
        while node.parent is not None:
            for g, group in self._windowed:
                if node.blocks[g] is not None and group.pool.idle(node.blocks[g]):
                    self._passed.pop((node, g), None)
                    self.give_up(node, g)
            node = node.parent

    def clear(self) -> None:
        """Keep nothing of what was computed until now."""
        for node in [node for node, owner in self._pages.items() if owner is self._me]:
            self._remove(node)

    def _root(self, regime: Regime, salt: str) -> Node:
        return self._roots.setdefault((regime, salt), Node(None, (regime, salt), 0, []))

    def _follower(self, parent: Node, key: bytes, tables: list[Table], own: bool) -> Node:
        """The page with these tokens behind `parent`, made if there is none, with the blocks that `tables` has for it
        where it lacks some. own: `tables` keep their own blocks, which they do where a page is not full."""
        node = parent.followers.get(key)
        if node is None:
            node = Node(parent, key, parent.pages + 1, [None] * len(self._groups))
            parent.followers[key] = node
            parent.keys.insert(bisect_left(parent.keys, key), key)
            self._pages[node] = self._me
        for g, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            at = parent.pages - table.first
            if at < 0:
                continue
            mine, kept = table.blocks[at], node.blocks[g]
            if kept is None:
                group.pool.keep(mine)
                node.blocks[g] = mine
            elif kept != mine and not own:
                group.pool.share(kept)
                table.blocks[at] = kept
                group.pool.give_back(mine)
        self._drop_beginnings(node)
        return node

    def _drop_beginnings(self, node: Node) -> None:
        """Pages that are the beginning of this one, as earlier turns of a chat leave behind, serve nobody any more."""
        keys = node.parent.keys
        at = bisect_left(keys, node.key)
        while at and node.key.startswith(keys[at - 1]):
            at -= 1
            shorter = node.parent.followers[keys[at]]
            if all(mine is not None or its is None for mine, its in zip(node.blocks, shorter.blocks, strict=True)):
                node.begun |= shorter.begun
                self._remove(shorter)

    def _nearest(self, node: Node, wanted: bytes) -> tuple[Node | None, int]:
        """The page behind `node` that begins like the wanted one for longest, and for how many tokens."""
        best, longest = None, 0
        at = bisect_left(node.keys, wanted)
        for key in node.keys[max(0, at - NEIGHBOURS) : at + NEIGHBOURS]:
            same = _common(key, wanted)
            if same > longest and None not in node.followers[key].blocks:
                best, longest = node.followers[key], same
        return best, longest

    def _visible(self, path: list[Node], positions: int) -> int:
        """How many of these positions, at most, the path serves: all that the row after them sees is there."""
        while positions and self._windowed:
            lost = -1
            for g, group in self._windowed:
                for page in range(-(-positions // PAGE) - 1, max(lost, group.first_page(positions) - 1), -1):
                    if path[page].blocks[g] is None:
                        lost = page
                        break
            if lost < 0:
                break
            positions = lost * PAGE
        return positions

    def _touch(self, node: Node) -> None:
        """A page was used, and with it those before it, which count as used later, since they go later."""
        while node.parent is not None:
            self._pages.move_to_end(node)
            node = node.parent

    def _mark_passed(self, node: Node, begin: int, end: int) -> None:
        """Note which pages a text's windows left behind as it grew from `begin` to `end` positions; not those where
        another text went on, for more may do so."""
        left = [(g, group.first_page(begin), group.first_page(end)) for g, group in self._windowed]
        while left and node.parent is not None:
            for g, low, high in left:
                if low < node.pages <= high and not node.begun and node.blocks[g] is not None:
                    self._passed[node, g] = self._me
            node = node.parent

    def _remove(self, node: Node) -> None:
        """A page that none follows is not kept any more."""
        parent = node.parent
        for g, block in enumerate(node.blocks):
            self._passed.pop((node, g), None)
            if block is not None:
                self.give_up(node, g)
        del self._pages[node], parent.followers[node.key], parent.keys[bisect_left(parent.keys, node.key)]
        node.parent = None
        if parent.parent is None and not parent.followers:
            del self._roots[parent.key]


def _key(tokens: Sequence[int]) -> bytes:
    """Tokens as what is looked up: itself, no digest of it."""
    return array("i", tokens).tobytes()


def _common(one: bytes, other: bytes) -> int:
    """How many tokens two pages have in common at their beginning."""
    count = 0
    for mine, its in zip(memoryview(one).cast("i"), memoryview(other).cast("i"), strict=False):
        if mine != its:
            break
        count += 1
    return count
