"""Rounds in which a script evaluated or saved, and the first of a group: their times say nothing about a step."""

from __future__ import annotations


class Pauses:
    """Tells which rounds were held up by this rank's pauses, up to the exchange at which others waited for it."""

    def __init__(self) -> None:
        self._noticed = self._noticed_before = False  # in the running round, in the one before
        # The running round is held up; the first one sets up connections and memory, up to its exchange.
        self._paused = True
        self._in_next = False  # the next one is, too: its exchange is the first behind the pause

    def note(self, computing: bool) -> None:
        """A pause begins now; `computing`: in a round whose forward has begun."""
        self._paused = True
        self._in_next = self._in_next or computing

    def notice(self, computing: bool) -> None:
        """Something that looks like a pause; what is seen in every round belongs to the rounds."""
        self._noticed = True
        if not self._noticed_before:
            self.note(computing)

    def end_round(self, exchanged: bool) -> bool:
        """Whether the round that ends now was held up; `exchanged`: the ranks met in it."""
        paused = self._paused
        self._paused = self._in_next or (paused and not exchanged)
        self._in_next = False
        self._noticed_before, self._noticed = self._noticed, False
        return paused
