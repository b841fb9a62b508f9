"""Windows by event time said in the simplest way: lists of timestamps, looked through at every step."""

from headrace import MAX_WATERMARK, MIN_WATERMARK, EventTimeSessionWindows


class Window:
    def __init__(self, key, bounds):
        self.key, self.bounds = key, bounds
        self.stamps = []
        self.due = False  # it fires when the clock passes its end


class PlainWindows:
    """What fires and what is late, for the trigger by event time; sessions are merged at each record."""

    def __init__(self, assigner, lateness):
        self._assigner, self._lateness = assigner, lateness
        self._merging = isinstance(assigner, EventTimeSessionWindows)
        self._windows = []
        self.clock = MIN_WATERMARK
        self.fired, self.late = [], []

    def restart(self):
        """After a restore time begins anew."""
        self.clock = MIN_WATERMARK

    def batch(self, rows):
        """Add rows; each late window fires once."""
        touched = []
        for key, stamp in rows:
            touched += [window for window in self._add(key, stamp) if window not in touched]
        for window in touched:
            if window.bounds.max_timestamp() <= self.clock:
                self._fire(window)

    def _add(self, key, stamp):
        found = []
        for bounds in self._assigner.assign_windows((key, stamp), stamp, None):
            window = self._merged(key, bounds) if self._merging else self._window(key, bounds)
            if self._over(window):
                continue
            if window not in self._windows:
                self._windows.append(window)
            window.stamps.append(stamp)
            window.due = window.due or window.bounds.max_timestamp() > self.clock
            found.append(window)
        if not found and stamp + self._lateness <= self.clock:
            self.late.append((key, stamp))
        return found

    def _window(self, key, bounds):
        known = [window for window in self._windows if (window.key, window.bounds) == (key, bounds)]
        return known[0] if known else Window(key, bounds)

    def _merged(self, key, bounds):
        window = Window(key, bounds)
        while touching := [
            other for other in self._windows if other.key == key and other.bounds.intersects(window.bounds)
        ]:
            for other in touching:
                window.bounds = window.bounds.cover(other.bounds)
                window.stamps += other.stamps
                self._windows.remove(other)
        return window

    def _over(self, window):
        return window.bounds.max_timestamp() + self._lateness <= self.clock

    def _fire(self, window):
        self.fired.append((window.key, tuple(window.bounds), sorted(window.stamps)))

    def advance(self, clock):
        self.clock = max(self.clock, clock)
        for window in self._windows:
            if window.due and window.bounds.max_timestamp() <= self.clock:
                window.due = False
                self._fire(window)
        self._windows = [window for window in self._windows if not self._over(window)]

    def end(self):
        self.advance(MAX_WATERMARK)
