"""Playing a recording: its position, its speed, and when the next step is due. No drawing here."""

from __future__ import annotations

import math
from collections.abc import Callable

from schedtop.console.past.recorded.history import RecordedHistory
from schedtop.console.view import ReplayStatus

SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
_AT_ONCE = 2048
"""Records that one look plays through one by one; beyond them a keyframe is nearer."""


class Player:
    """Moves a history along its recording. Times are the recording's own; `now` is the console's clock."""

    def __init__(self, history: RecordedHistory, now: Callable[[], float], speed: float = 1.0) -> None:
        self.history = history
        self.now = now
        self.speed = speed
        self.playing = False
        self._clock_s = 0.0
        self._looked_at_s = now()
        self.move(0)

    @property
    def last(self) -> int:
        """The last record's index; -1 in a recording without any."""
        return self.history.source.num_records - 1

    @property
    def ended(self) -> bool:
        return self.history.position >= self.last

    @property
    def clock_s(self) -> float:
        """The shown moment on the engine's clock; while playing, where playing has come to."""
        return max(min(self._clock_s, self.history.source.end_s), self.history.live.clock_s)

    # Playing

    def play(self) -> None:
        """Go on; from the beginning if the end is reached."""
        if self.ended:
            self.move(0)
        self._looked_at_s = self.now()
        self.playing = True

    def pause(self) -> None:
        self.playing = False

    def set_speed(self, direction: int) -> None:
        """The next faster (+1) or slower (-1) speed."""
        self._catch_up()
        faster = [speed for speed in SPEEDS if speed > self.speed]
        slower = [speed for speed in SPEEDS if speed < self.speed]
        if direction > 0 and faster:
            self.speed = faster[0]
        elif direction < 0 and slower:
            self.speed = slower[-1]

    def advance(self) -> bool:
        """Play up to now; whether anything changed."""
        if not self.playing:
            return False
        self._catch_up()
        index = self._due()
        moved = index != self.history.position
        if moved:
            self.history.seek(index)
        if self.ended:
            self.playing = False
            moved = True
        return moved

    def _catch_up(self) -> None:
        now_s = self.now()
        if self.playing:
            self._clock_s += (now_s - self._looked_at_s) * self.speed
        self._looked_at_s = now_s

    def _due(self) -> int:
        """The last record that has ended by the clock."""
        history, index = self.history, self.history.position
        while (record := history.ahead(index + 1)) is not None and record.end_s <= self._clock_s:
            index += 1
            if index - history.position > _AT_ONCE:
                found = self.index_at(self._clock_s)
                return self.last if found is None else max(index, found)
        return index

    # Moving

    def move(self, index: int) -> None:
        """Stand at a record, cut to the file; playing continues from there."""
        self.history.seek(max(0, index))
        self._clock_s = self.history.live.clock_s
        self._looked_at_s = self.now()

    def step(self, offset: int) -> bool:
        """Move by `offset` steps that ran, as far as the recording goes, and stay there; False at the end."""
        self.pause()
        direction = 1 if offset > 0 else -1
        index, found, left = self.history.position + direction, None, abs(offset)
        while left and (record := self.history.ahead(index)) is not None:
            if record.executed:
                found, left = index, left - 1
            index += direction
        if found is not None:
            self.move(found)
        return found is not None

    def index_at(self, clock_s: float) -> int | None:
        """The last record that has ended by `clock_s`, -1 before the first has; None behind the recording's end."""
        source = self.history.source
        if clock_s > source.end_s:
            return None
        found = source.index_at(math.nextafter(clock_s, math.inf))  # several may end at the same time
        return self.last if found is None else found - 1

    def index_after(self, share: float) -> int | None:
        """The last record when so much of the recording's time had passed; None beyond 1."""
        source = self.history.source
        clock_s = source.start_s + share * (source.end_s - source.start_s)
        return self.index_at(min(clock_s, source.end_s) if share <= 1 else clock_s)  # the sum is rounded

    def status(self) -> ReplayStatus:
        """What the header and the timeline show."""
        source = self.history.source
        state = "playing" if self.playing else "ended" if self.ended else "paused"
        return ReplayStatus(
            state=state,
            speed=self.speed,
            last_step=source.num_steps,
            clock_s=self.clock_s,
            start_s=source.start_s,
            end_s=source.end_s,
            truncated=source.truncated,
        )
