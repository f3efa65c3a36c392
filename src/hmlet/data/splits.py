"""k-core filtering, and the rules that put each interaction into train, valid or test (docs/decisions/0002).

Everything here is a pure function of (user, item, timestamp, seed). Nothing depends on the order of the rows, on the
number of threads or on the platform: chance comes from integer hashes of the pair, never from a stream of numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hmlet.data.interactions import Ints
from hmlet.errors import ConfigError, DataError
from hmlet.system.spelling import option

TRAIN, VALID, TEST = np.uint8(0), np.uint8(1), np.uint8(2)
PartCodes = npt.NDArray[np.uint8]
Times = npt.NDArray[np.int64]

DEFAULT_SPLIT = "ratio:0.8,0.1,0.1"
_KINDS = f"{DEFAULT_SPLIT}, temporal:0.8,0.1,0.1, leave-one-out, column:NAME or files"
_SHARE = re.compile(r"\d?(\.\d{1,6})?|\d\.")  # six decimals keep every product below in int64


def k_core(user: Ints, item: Ints, k: int) -> tuple[npt.NDArray[np.int64], int]:
    """The positions of the pairs in the k-core, ascending, and the number of rounds until it was stable.

    The k-core is the largest set of pairs in which every user and every item still has at least k of them.
    """
    kept, rounds = np.arange(len(user)), 0
    while len(user) and k > 1:
        rounds += 1
        strong = (np.bincount(user) >= k)[user] & (np.bincount(item) >= k)[item]
        if strong.all():
            break
        kept, user, item = kept[strong], user[strong], item[strong]
    return kept, rounds


@dataclass(frozen=True)
class SplitRule:
    """One `--split`: its kind and, where the kind has them, the exact shares of train, valid and test."""

    kind: str
    shares: tuple[Fraction, Fraction, Fraction] = (Fraction(1), Fraction(0), Fraction(0))
    column: str | None = None  # which has the part of each row

    @classmethod
    def parse(cls, text: str) -> SplitRule:
        """The rule that a text such as `ratio:0.8,0.1,0.1` or `leave-one-out` names."""
        kind, colon, rest = text.partition(":")
        if kind in ("leave-one-out", "files") and not colon:
            return cls(kind)
        if kind == "column" and rest:
            return cls(kind, column=rest)
        if kind not in ("ratio", "temporal"):
            raise ConfigError(f"there is no split {text!r}", f"use {_KINDS}")
        words = [word.strip() for word in rest.split(",")]
        if len(words) != 3 or not all(word and _SHARE.fullmatch(word) for word in words):
            raise ConfigError(
                f"split {text!r} does not name three shares",
                f"write it as {kind}:0.8,0.1,0.1, with at most six decimals",
            )
        train, valid, test = (Fraction(word.rstrip(".")) for word in words)
        if train + valid + test != 1 or train == 0:
            raise ConfigError(
                f"the shares of split {text!r} sum to {float(train + valid + test):g}, training gets {float(train):g}",
                f"give training a share and let the three sum to 1, as in {kind}:0.8,0.1,0.1",
            )
        return cls(kind, (train, valid, test))


def assign(rule: SplitRule, user: Ints, item: Ints, timestamp: Times | None, seed: int) -> PartCodes:
    """The part of each pair, unless it came with the rows, as from files or a column."""
    assert rule.kind not in ("files", "column")
    if rule.kind == "temporal":
        if timestamp is None:
            raise DataError(
                "a temporal split needs timestamps, and this data has none",
                f"name their column with {option('timestamp')}",
            )
        return _temporal(rule.shares, user, item, timestamp)
    if rule.kind == "leave-one-out":
        return _leave_one_out(user, item, timestamp, seed)
    return _ratio(rule.shares, user, item, seed)


def _ratio(shares: tuple[Fraction, Fraction, Fraction], user: Ints, item: Ints, seed: int) -> PartCodes:
    """Per user: floor(train share · n), at least one, for training; the rest divided between valid and test.

    The rest rarely divides evenly. Its odd interaction goes to valid with exactly the probability that makes
    the expected sizes right, by the user's own hash, so that neither part is favoured over many users.
    """
    train_share, valid_share, test_share = shares
    count = np.bincount(user).astype(np.int64)
    train = np.maximum(count * train_share.numerator // train_share.denominator, np.minimum(count, 1))
    rest = count - train
    held_out = valid_share + test_share
    within = valid_share / held_out if held_out else Fraction(0)
    chance = (_user_hash(len(count), seed) >> np.uint64(1)).astype(np.int64) % within.denominator
    valid = (rest * within.numerator + chance) // within.denominator
    owner, order, rank = _ranked(user, _shuffle_key(user, item, seed), count)
    parts = np.empty(len(user), dtype=np.uint8)
    parts[order] = (rank >= train[owner]).astype(np.uint8) + (rank >= (train + valid)[owner])
    return parts


def _temporal(shares: tuple[Fraction, Fraction, Fraction], user: Ints, item: Ints, timestamp: Times) -> PartCodes:
    """The oldest share of all interactions trains, the newest tests; equal times go by user, then item.

    A user whose first interaction is younger than the training cut keeps it where time puts it.
    """
    order = np.lexsort((item, user, timestamp))
    cuts = [int(share * len(user)) for share in (shares[0], shares[0] + shares[1])]
    parts = np.empty(len(user), dtype=np.uint8)
    parts[order] = np.searchsorted(np.array(cuts), np.arange(len(user)), side="right").astype(np.uint8)
    return parts


def _leave_one_out(user: Ints, item: Ints, timestamp: Times | None, seed: int) -> PartCodes:
    """Per user: the last interaction tests if there are two, the one before it validates if there are three.

    Last means by time, then item; where the data has no times, by the seed's shuffle.
    """
    count = np.bincount(user).astype(np.int64)
    if timestamp is None:
        owner, order, rank = _ranked(user, _shuffle_key(user, item, seed), count)
    else:
        order = np.lexsort((item, timestamp, user))
        owner, rank = _owner_and_rank(count)
    from_end = count[owner] - rank
    parts = np.zeros(len(user), dtype=np.uint8)
    parts[order[(from_end == 1) & (count[owner] >= 2)]] = TEST
    parts[order[(from_end == 2) & (count[owner] >= 3)]] = VALID
    return parts


def _ranked(
    user: Ints, key: npt.NDArray[np.uint64], count: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For pairs sorted by a distinct key whose leading part is the user: the user, where it stood, its rank."""
    owner, rank = _owner_and_rank(count)
    return owner, np.argsort(key), rank


def _owner_and_rank(count: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    owner = np.repeat(np.arange(len(count)), count)
    start = np.cumsum(count) - count
    return owner, np.arange(len(owner)) - start[owner]


def _user_hash(n_users: int, seed: int) -> npt.NDArray[np.uint64]:
    """64 well-mixed bits per user index (SplitMix64's finaliser, keyed by the seed)."""
    key = _mix64(np.array([seed], dtype=np.uint64))
    return _mix64(np.arange(n_users, dtype=np.uint64) ^ key)


def _shuffle_key(user: Ints, item: Ints, seed: int) -> npt.NDArray[np.uint64]:
    """user · 2^32 + a permutation of the items that is the user's own.

    For one user, item -> 32 bits is a bijection (xor with the user's salt, mix, twice). So no two keys are equal,
    and any sorting algorithm gives the same order.
    """
    salt = _user_hash(int(user.max()) + 1 if len(user) else 0, seed)[user]
    mixed = _mix32(item.astype(np.uint32) ^ salt.astype(np.uint32))
    mixed = _mix32(mixed ^ (salt >> np.uint64(32)).astype(np.uint32))
    return (user.astype(np.uint64) << np.uint64(32)) | mixed


def _mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix32(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
