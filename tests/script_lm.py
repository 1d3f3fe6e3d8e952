"""An engine over a network whose logits are a function of the whole text, which it reads back through the cache; and
networks of an encoder, alone or before such a network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from forwardpass.contracts import PAGE
from forwardpass.decoding.params import TokenFacts, from_user
from forwardpass.engine import EncoderText, Engine
from forwardpass.models.regimes import Regimes
from forwardpass.models.spec import HeadSpec

VOCAB, EOS = 64, 63
END = -1  # of a source
FACTS = TokenFacts(VOCAB, end_ids=(EOS,))


class Letters:
    """One letter a token."""

    decodes_bytes = True
    drops_first_space = ""
    special_ids = silent_ids = frozenset({EOS})

    def token_bytes(self, token_id):
        return b"</s>" if token_id == EOS else bytes([48 + token_id])

    def decode(self, ids, skip_special_tokens=False):
        return b"".join(map(self.token_bytes, ids)).decode()


class Memory:
    """Every slot keeps the token computed into it, and the rotary factors of its row."""

    block_bytes = 10

    def __init__(self, blocks):
        self.blocks = blocks
        self.slots = np.full((blocks, PAGE, 2), -1)

    def clear(self, block):
        self.slots[block] = -1

    def copy(self, source, target):
        self.slots[target] = self.slots[source]

    def release(self, block):
        self.slots[block] = -1


class ScriptLM:
    """logits = f(all tokens so far that some layer sees), read back through the block tables. before: called in every
    step. windows: of its groups of layers, 0 = none;  regimes: what its factors follow.

    pair: it has an encoder. Then f is given the source and END before the text, also read back."""

    def __init__(self, f, max_positions=4096, windows=(0,), regimes=None, pair=False):
        self.spec = SimpleNamespace(vocab_size=VOCAB, max_position_embeddings=max_positions, causal=True,
                                    head=HeadSpec(), images=None, patches=None)
        self.vision = None
        self.encoder = ScriptEncoder(max_positions, stores=True) if pair else None
        self.groups = [SimpleNamespace(window=window) for window in windows] + [SimpleNamespace(window=0)] * pair
        self.backend = SimpleNamespace(pool=None)
        self.regimes = regimes or Regimes()
        self.f, self.before = f, lambda: None

    def block_bytes(self):
        return [Memory.block_bytes] * len(self.groups)

    def kv_memory(self, blocks):
        return [Memory(each) for each in blocks]

    def embed(self, ids, positions):
        return ids.astype(np.float32)[:, None]

    def layers(self, hidden, positions, starts, cache, memory):
        self.before()
        self.texts = []
        for s, begin in enumerate(cache.past):
            rows = hidden[starts[s] : starts[s + 1], 0].astype(int)
            assert positions[starts[s] : starts[s + 1]].tolist() == list(range(begin, begin + len(rows)))
            factor = next((int(one[s]) for one in (cache.regime, cache.lengths) if one is not None), 0)
            source = [] if self.encoder is None else self._source(memory[-1], cache.tables[-1, s], cache.sources[s])
            own = list(zip(memory, self.groups, cache.tables[:, s], strict=True))[: -1 if source else None]
            for i, token in enumerate(rows, start=int(begin)):
                for group, _, table in own:
                    group.slots[table[i // PAGE], i % PAGE] = token, factor
            for end in range(int(begin) + 1, int(begin) + len(rows) + 1):
                seen = [self._seen(group, kind.window, table, end) for group, kind, table in own]
                longest = max(seen, key=len)
                assert all(longest[-len(one) :] == one for one in seen)
                self.texts.append(source + longest)
        return np.arange(len(self.texts), dtype=np.float32)[:, None]

    def _seen(self, memory, window, table, end):
        """The tokens before `end` that a layer sees; their rows must have had the factors that go with the last one."""
        at = np.arange(max(0, end - window) if window else 0, end)
        assert (table[at // PAGE] >= 0).all()
        tokens, factors = memory.slots[table[at // PAGE], at % PAGE].T
        assert (tokens >= 0).all()
        if self.regimes.trained:  # each of the text up to itself, or of the whole prompt
            factors = np.maximum(factors, self.regimes.trained)
            assert at[0] > 0 or (factors == np.maximum(factors[0], at + 1)).all()
        else:
            assert (factors == factors[-1]).all()
        return tokens.tolist()

    def _source(self, memory, table, length):
        at = np.arange(length)
        assert (table[at // PAGE] >= 0).all()
        tokens = memory.slots[table[at // PAGE], at % PAGE, 0]
        assert (tokens >= 0).all() and length
        return [*tokens.tolist(), END]

    def project(self, hidden, rows):
        out = np.zeros((rows.size, VOCAB), np.float32)
        for row, index in enumerate(hidden[rows, 0].astype(int)):
            wanted = self.f(self.texts[index])
            out[row] = wanted if isinstance(wanted, np.ndarray) else 9.0 * (np.arange(VOCAB) == wanted)
        return out

    def greedy_steps(self, ids, positions, cache, memory, steps, vocab_size, ends):
        """Step by step what the three stages do, as the contract of the real one says."""
        chosen, rows = [], np.arange(ids.size, dtype=np.int32)
        for i in range(steps):
            hidden = self.embed(ids, positions + i)
            starts = np.arange(ids.size + 1, dtype=np.int32)
            now = replace(cache, past=cache.past + i, lengths=None if cache.lengths is None else cache.lengths + i)
            hidden = self.layers(hidden, positions + i, starts, now, memory)
            logits = self.project(hidden, rows)[:, :vocab_size]
            if not np.isfinite(logits.max(axis=1)).all():
                break
            ids = logits.argmax(axis=1).astype(np.int32)
            chosen.append(ids)
            if any(token in end for token, end in zip(ids, ends, strict=True)):
                break
        return np.array(chosen, np.int32).reshape(-1, ids.size), dict.fromkeys(("embed", "decode", "project"), 1e-4)


class ScriptEncoder:
    """Hidden states that depend on the whole text, on its types and on their row. stores: as the encoder of a pair, it
    writes the tokens to where the decoder finds them. types: how many it knows;  read: the lengths of each step."""

    def __init__(self, max_positions=4096, stores=False, types=2):
        self.spec = SimpleNamespace(vocab_size=VOCAB, max_position_embeddings=max_positions, causal=False,
                                    token_types=types, head=HeadSpec(task="none"), images=None, patches=None)
        self.vision = None
        self.encoder, self.regimes = None, Regimes()
        self.groups = [SimpleNamespace(window=0)] * stores
        self.before, self.read = (lambda: None), []

    def block_bytes(self):
        return []

    def kv_memory(self, blocks):
        return []

    def embed(self, ids, positions, types=None):
        return np.stack([ids, ids * 0 if types is None else types], 1).astype(np.float32)

    def layers(self, hidden, positions, starts, cache=None, memory=()):
        self.before()
        self.read.append(np.diff(starts).tolist())
        assert (cache is None) == (not self.groups) and len(memory) == len(self.groups)
        out = np.empty((len(hidden), 3), np.float32)
        for s, (begin, end) in enumerate(pairwise(starts)):
            assert positions[begin:end].tolist() == list(range(end - begin))
            out[begin:end] = encoded(*hidden[begin:end].T.astype(int).tolist())
            for i, token in enumerate(hidden[begin:end, 0].astype(int) if cache else ()):
                memory[0].slots[cache.tables[0, s, i // PAGE], i % PAGE] = token, 0
        return out


def encoded(tokens, types=None):
    """float32 [tokens, 3]: what ScriptEncoder makes of a text."""
    whole = hash((*tokens, *(types or [0] * len(tokens))))
    return np.random.default_rng(whole & 0xFFFF).normal(0, 1, (len(tokens), 3)).astype(np.float32)


def mixed(text):
    """A next token that depends on every token before it, and never ends the answer."""
    return hash(tuple(text)) % EOS


def noisy(text):
    """A row of logits that depends on every token before it."""
    return np.random.default_rng(hash(tuple(text)) & 0xFFFF).normal(0, 2, VOCAB).astype(np.float32)


def make(f=mixed, blocks=100, ahead=0.0, budget=None, **kinds):
    """An engine that runs step by step; ahead: seconds it may run ahead of Python; budget: in place of blocks; kinds:
    of ScriptLM."""
    engine = Engine(ScriptLM(f, **kinds), FACTS, Letters(), None if budget else blocks, budget)
    engine.run_ahead_s = ahead
    return engine


def params(**given):
    return from_user(None, {"max_new_tokens": 20, **given}, vocab_size=VOCAB)


def encoder(**kinds):
    """An engine of an encoder; kinds: of ScriptEncoder."""
    return Engine(ScriptEncoder(**kinds), FACTS, Letters(), 0)


def texts(*ids):
    return [EncoderText(one) for one in ids]


def each(hidden):
    """For encode(): all rows of each text."""
    return [hidden.values[a:b].copy() for a, b in pairwise(hidden.packed.starts)]


def start(engine, prompt=(1, 2, 3), source=None, **given):
    return engine.add(list(prompt), params(**given), source_ids=source)


def alone(prompt, f=mixed, source=None, **given):
    """What a request gives on a fresh engine."""
    engine = make(f, pair=source is not None)
    request = start(engine, prompt, source, **given)
    engine.run([request])
    return [one.token_ids for one in request.completions()]


def idle(engine):
    """Nothing is left behind: all its blocks are free or kept, and no request is known."""
    engine.prefixes.clear()
    assert engine.cache.held == 0
    assert not engine._jobs and not engine.scheduler.running and not engine.scheduler.waiting
    return True


def usable(engine):
    request = start(engine, [5, 6], max_new_tokens=3)
    engine.run([request])
    assert request.completions()[0].token_ids == alone([5, 6], max_new_tokens=3)[0]
    return idle(engine)


def usable_with(engine, f):
    request = start(engine, [5, 6], max_new_tokens=3)
    engine.run([request])
    assert [request.completions()[0].token_ids] == alone([5, 6], f, max_new_tokens=3)
    return idle(engine)
