"""Duplicates: the estimate against the exact index, planted copies found, distinct ones left."""

import random

import numpy as np
import pytest

from t5jax.cleaning import duplicates
from tests.data.conftest import make_documents


def find(texts, **options):
  exact = np.array([duplicates.exact_hash(text) for text in texts])
  signatures = np.stack([duplicates.signature(text) for text in texts])
  return duplicates.find_duplicates(exact, signatures, **options)


def change(text, fraction, rng):
  """Replaces a fraction of the words."""
  words = text.split()
  for i in rng.sample(range(len(words)), max(1, round(fraction * len(words)))):
    words[i] = f"ny{rng.randrange(10**6)}"
  return " ".join(words)


def shingles(text):
  words = text.lower().split()
  return set(zip(words, words[1:], words[2:]))


def test_signatures_estimate_the_jaccard_index():
  rng = random.Random(0)
  errors = []
  for i, text in enumerate(make_documents(60, words=(80, 200))):
    other = change(text, (i % 10) / 20 + 0.01, rng)
    a, b = shingles(text), shingles(other)
    estimate = (duplicates.signature(text) == duplicates.signature(other)).mean()
    errors.append(estimate - len(a & b) / len(a | b))
  # A mean of 60 estimates with a standard deviation of at most 0.044 each.
  assert abs(np.mean(errors)) < 0.02 and np.std(errors) < 0.06


def test_copies_with_every_twentieth_word_changed_are_found():
  rng = random.Random(1)
  texts = make_documents(400, words=(25, 150))
  copies = [change(text, 0.05, rng) for text in texts[:200]]
  first, is_exact, is_near = find(texts + copies)
  assert not is_exact.any() and not is_near[:400].any(), "distinct documents stay apart"
  assert is_near[400:].mean() >= 0.95
  found = np.flatnonzero(is_near)
  np.testing.assert_array_equal(first[found], found - 400)


def test_exact_copies_but_for_white_space():
  first, is_exact, is_near = find(["en to tre", "andet", "en  to\ntre ", "En to tre"])
  assert is_exact.tolist() == [False, False, True, False] and not is_near.any()
  assert first.tolist() == [0, 1, 0, 3]


def test_letters_count_and_case_does_not():
  old = " ".join(f"gaa{i} aar{i} paa{i}" for i in range(30))
  new = old.replace("aa", "å")
  _, is_exact, is_near = find([old, new, old.upper()])
  assert not is_exact.any() and is_near.tolist() == [False, False, True]


def test_short_formulas_are_not_near_duplicates():
  texts = [f"Tak. Så er det hr. {name}." for name in ("Jensen", "Hansen", "Olsen")]
  _, is_exact, is_near = find(texts)
  assert not is_exact.any() and not is_near.any()


def test_the_first_of_a_chain_stays():
  rng = random.Random(2)
  chain = make_documents(1, words=(200, 200))
  for _ in range(8):
    chain.append(change(chain[-1], 0.04, rng))
  first, _, is_near = find(chain)
  assert is_near.tolist() == [False] + [True] * 8 and set(first) == {0}


def test_little_memory_gives_the_same():
  rng = random.Random(3)
  texts = make_documents(100, words=(30, 60))
  texts += [change(text, 0.05, rng) for text in texts[:50]]
  for a, b in zip(find(texts), find(texts, max_bytes=1), strict=True):
    np.testing.assert_array_equal(a, b)


def test_buckets_with_thousands_of_copies_stay_fast_and_complete():
  rng = random.Random(4)
  text = make_documents(1, words=(60, 60))[0]
  copies = [text + f" nummer {i}" for i in range(2000)]
  _, _, is_near = find([text, *copies])
  assert is_near[1:].all()


@pytest.mark.parametrize("texts", [[], ["kun en"]])
def test_small_corpora(texts):
  exact = np.array([duplicates.exact_hash(t) for t in texts], np.int64)
  signatures = np.array([duplicates.signature(t) for t in texts], np.uint32).reshape(
      -1, duplicates.NUM_HASHES)
  first, is_exact, is_near = duplicates.find_duplicates(exact, signatures)
  assert len(first) == len(texts) and not is_exact.any() and not is_near.any()
