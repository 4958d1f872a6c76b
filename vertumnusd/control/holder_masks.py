"""Sets of ranks as bit masks, each kept once, under a small number.

Most blocks of a trie share a few sets of holders. Keeping a number instead of the mask costs four
bytes however many ranks there are, and a lost rank is wiped from all of them at once.
"""

from __future__ import annotations

from typing import Final

NOBODY: Final = 0  # the number of the empty set


class HolderMasks:
    """``masks[number]`` is the mask, and ``homes[number]`` has those homes of which all ranks are
    among them: a bit for the first rank of each. A number is free after the last of its users."""

    def __init__(self, ranks: int, home_ranks: int) -> None:
        self.masks = [0]
        self.homes = [0]
        self._home_ranks = home_ranks
        self._first_ranks = sum(1 << base for base in range(0, ranks, home_ranks))
        self._users = [1]
        self._numbers = {0: NOBODY}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.masks) - len(self._free)

    def use(self, mask: int) -> int:
        """The number of ``mask``, with one more user."""
        number = self._numbers.get(mask)
        if number is not None:
            self._users[number] += 1
            return number
        if self._free:
            number = self._free.pop()
            self.masks[number], self._users[number] = mask, 1
            self.homes[number] = self._homes_of(mask)
        else:
            number = len(self.masks)
            self.masks.append(mask)
            self.homes.append(self._homes_of(mask))
            self._users.append(1)
        self._numbers[mask] = number
        return number

    def use_again(self, number: int) -> int:
        self._users[number] += 1
        return number

    def leave(self, number: int) -> None:
        """One user less."""
        self._users[number] -= 1
        if not self._users[number]:
            if self._numbers.get(self.masks[number]) == number:
                del self._numbers[self.masks[number]]
            self.masks[number] = 0
            self._free.append(number)

    def wipe(self, rank: int) -> None:
        """Take ``rank`` out of every set. Two numbers may stand for the same set afterwards."""
        self.masks[:] = [mask & ~(1 << rank) for mask in self.masks]
        self.homes[:] = map(self._homes_of, self.masks)
        self._numbers = {mask: number for number, mask in enumerate(self.masks) if mask}
        self._numbers[0] = NOBODY

    def _homes_of(self, mask: int) -> int:
        homes = mask & self._first_ranks
        for lane in range(1, self._home_ranks):
            homes &= mask >> lane
        return homes
