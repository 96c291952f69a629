"""Rounds with an evaluation or a save, and the first of a group: their times are not those of a step."""

from __future__ import annotations


class Pauses:
    """Finds rounds delayed by this rank's pauses, up to the exchange at which the others waited for it."""

    def __init__(self) -> None:
        self._noticed = self._noticed_before = False  # in the running round, in the one before
        # The running round is delayed; the first one sets up connections and memory, up to its exchange.
        self._paused = True
        self._in_next = False  # so is the next one: its exchange is the first after the pause

    def note(self, computing: bool) -> None:
        """A pause begins now; `computing`: in a round whose forward has begun."""
        self._paused = True
        self._in_next = self._in_next or computing

    def notice(self, computing: bool) -> None:
        """Note a possible pause; one in every round counts as part of the rounds."""
        self._noticed = True
        if not self._noticed_before:
            self.note(computing)

    def end_round(self, exchanged: bool) -> bool:
        """Whether the round that ends now was delayed; `exchanged`: the ranks exchanged in it."""
        paused = self._paused
        self._paused = self._in_next or (paused and not exchanged)
        self._in_next = False
        self._noticed_before, self._noticed = self._noticed, False
        return paused
