"""How soon to look again for something that may come at any time: soon after it came last, then ever more rarely."""

from __future__ import annotations

import time


class Patience:
    """Pauses are a share of the time that nothing has happened, within limits in seconds."""

    def __init__(self, share: float, least: float, most: float) -> None:
        self._share, self._least, self.most = share, least, most
        self.over()

    def over(self) -> None:
        """Something happened."""
        self._since = time.monotonic()

    def pause(self) -> float:
        """Seconds until the next look."""
        return min(max(self._share * (time.monotonic() - self._since), self._least), self.most)
