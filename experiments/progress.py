"""What training shows while it runs: a bar on a terminal, now and then a line elsewhere."""

import sys
import time

from tqdm import tqdm


class Progress:
    """Updates done, updates per second, time left, and the latest success rate.

    The bar goes to stderr, lines to stdout. Without a terminal there is no bar, and a line at each
    tenth of the way says the same.
    """

    def __init__(self, done: int, total: int):
        self._total = total
        self._done = self._first = done
        self._tenths = 10 * done // total
        self._start = time.monotonic()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc="training",
            unit=" updates",
            disable=not sys.stderr.isatty(),
            mininterval=1,
            dynamic_ncols=True,
        )

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        tqdm.write(text)
        sys.stdout.flush()

    def pause(self, seconds: float) -> None:
        """Leave the last `seconds` out of the rate."""
        self._start += seconds
        self._bar.unpause()

    def advance(self, num_updates: int) -> None:
        """Count updates."""
        first = self._done == self._first
        self._done += num_updates
        self._bar.update(num_updates)
        tenths = 10 * self._done // self._total
        if first or (self._bar.disable and tenths > self._tenths):
            self.say(f"{self._done:,} of {self._total:,} updates{self._left()}")
        self._tenths = tenths

    def evaluated(self, update: int, metric: str, score: float) -> None:
        """Tell of an evaluation."""
        if metric == "eval/return":
            self.say(f"return at update {update:,}: {score:.1f}")
        else:
            self.say(f"success at update {update:,}: {score:.1f} %")
        self.show(update, metric, score)

    def show(self, update: int, metric: str, score: float) -> None:
        """Put an evaluation's success rate or return beside the bar."""
        text = f"return {score:.0f}" if metric == "eval/return" else f"success {score:.0f} %"
        self._bar.set_postfix_str(f"{text} at {update:,}")

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _left(self) -> str:
        left = self._total - self._done
        if not left:
            return ""
        rate = (self._done - self._first) / (time.monotonic() - self._start)
        return f", {rate:.1f} updates/s, about {_duration(left / rate)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
