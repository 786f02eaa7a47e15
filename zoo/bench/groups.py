"""Contenders that take turns: as many as are held at once, the reference among them each time."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.bench.contender import Contender


def groups(contenders: Sequence[Contender], against: str, together: int) -> list[list[Contender]]:
    """Each group begins with the reference; peers stand in the group of zoo's own that they are compared with.

    A group has more than `together` where one encoding and its peers are more.
    """
    reference = next(one for one in contenders if one.name == against)
    rivals = [one for one in contenders if one.rival == against]
    others = [one for one in contenders if one.rival is None and one is not reference]
    parties = [[one, *(peer for peer in contenders if peer.rival == one.name)] for one in others]
    found = [[reference, *rivals]]
    for party in parties:
        if len(found[-1]) > 1 and len(found[-1]) + len(party) > together:
            found.append([reference])
        found[-1] += party
    return found
