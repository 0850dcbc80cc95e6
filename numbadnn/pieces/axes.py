"""One axis of an operation: which elements of the image each output is made of, and back. Integers alone."""

from __future__ import annotations

from dataclasses import dataclass

from numbadnn.problems.upsample import source


@dataclass(frozen=True, slots=True)
class Windows:
    """Output o sees the elements ``o*stride - before + k*dilation``, k < taps, that are inside the image of ``size``.

    ``count``: outputs of the whole axis.
    """

    size: int
    count: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0

    @property
    def extent(self) -> int:
        """Elements from the first tap to the last."""
        return (self.taps - 1) * self.dilation + 1

    def start(self, output: int) -> int:
        """Where the window of an output begins; negative in the padding."""
        return output * self.stride - self.before

    def seen(self, low: int, high: int) -> tuple[int, int, int, int]:
        """(start, stop, before, after): what outputs low ... high-1 see, and the padding that it needs on either side.

        No narrower slice holds all that they see. Where they see nothing it is empty, and all of their extent is padding.

        >>> Windows(size=8, count=8, taps=3, before=1).seen(0, 4)
        (0, 5, 1, 0)
        """
        if low >= high:
            return 0, 0, 0, 0
        begin, end = self.start(low), self.start(high - 1) + self.extent
        start, stop = self._first(low, high), self._last(low, high) + 1
        if start >= stop:
            return 0, 0, end - begin, 0
        return start, stop, start - begin, end - stop

    def _first(self, low: int, high: int) -> int:
        """The first element seen; ``size`` where there is none. Windows behind the first whole one see nothing before it."""
        reach = -((self.extent - 1 - self.before) // self.stride)  # the first window that reaches the image
        inside = -(-self.before // self.stride)  # the first that begins in it
        found = self.size
        for output in range(max(low, reach), min(high - 1, max(low, inside)) + 1):
            place = self.start(output)
            tap = max(0, -(place // self.dilation))
            if tap < self.taps:
                found = min(found, place + tap * self.dilation)
        return found

    def _last(self, low: int, high: int) -> int:
        """The last element seen; -1 where there is none."""
        inside = (self.size - self.extent + self.before) // self.stride  # the last window that ends in the image
        reach = (self.size - 1 + self.before) // self.stride  # the last that begins before its end
        found = -1
        for output in range(max(low, min(high - 1, inside)), min(high - 1, reach) + 1):
            place = self.start(output)
            tap = min(self.taps - 1, (self.size - 1 - place) // self.dilation)
            if tap >= 0:
                found = max(found, place + tap * self.dilation)
        return found

    def touched(self, start: int, stop: int) -> tuple[int, int, int, int]:
        """(low, high, before, after): the outputs that see elements start ... stop-1, and how far they reach beyond these.

        A negative number: so many elements at that end no output sees.

        >>> Windows(size=8, count=8, taps=3, before=1).touched(0, 4)
        (0, 5, 1, 2)
        """
        low, high = self.count, 0
        for tap in range(self.taps if start < stop else 0):
            shift = self.before - tap * self.dilation
            first = max(0, -(-(start + shift) // self.stride))
            last = min(self.count - 1, (stop - 1 + shift) // self.stride)
            if first <= last:
                low, high = min(low, first), max(high, last + 1)
        if low >= high:
            return 0, 0, 0, 0
        return low, high, start - self.start(low), self.start(high - 1) + self.extent - stop

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """(low, high): the outputs whose windows lie in elements start ... stop-1, or in them and padding beside them.

        >>> Windows(size=8, count=8, taps=3, before=1).within(0, 4)
        (0, 3)
        """
        low = -(-(start + self.before) // self.stride) if start else 0
        high = (stop - self.extent + self.before) // self.stride + 1 if stop < self.size else self.count
        low, high = max(low, 0), min(high, self.count)
        return (low, high) if low < high else (0, 0)

    def forwards(self, edge: int) -> int:
        """The outputs that belong to the elements before ``edge``: output o to element ``o*stride``."""
        return min(self.count, -(-edge // self.stride)) if edge < self.size else self.count

    def backwards(self, edge: int) -> int:
        """The elements that belong to the outputs before ``edge``."""
        return min(self.size, edge * self.stride) if edge < self.count else self.size


@dataclass(frozen=True, slots=True)
class Samples:
    """Output o lies between two samples of an axis of ``size``, p/q times as many: ``problems.upsample.source``."""

    size: int
    count: int
    p: int
    q: int

    def seen(self, low: int, high: int) -> tuple[int, int, int, int]:
        """(start, stop, before, 0): what outputs low ... high-1 see, and the samples from the last multiple of q to there.

        Only what begins at a multiple of q has the phases of the whole.

        >>> Samples(size=8, count=12, p=3, q=2).seen(5, 9)
        (3, 6, 1, 0)
        """
        if low >= high:
            return 0, 0, 0, 0
        start = source(low, self.size, self.p, self.q)[0]
        return start, source(high - 1, self.size, self.p, self.q)[1] + 1, start % self.q, 0

    def touched(self, start: int, stop: int) -> tuple[int, int, int, int]:
        """(low, high, before, after): the outputs that see samples start ... stop-1, and how far they see beyond these."""
        if start >= stop:
            return 0, 0, 0, 0
        shift = (self.p - 1) // 2
        low = ((start - 1) * self.p + shift) // self.q + 1 if start else 0
        high = -(-(stop * self.p + shift) // self.q) if stop < self.size else self.count
        low, high = max(low, 0), min(high, self.count)
        if low >= high:
            return 0, 0, 0, 0
        first, last, _, _ = self.seen(low, high)
        return low, high, start - first, last - stop

    def origin(self, start: int) -> int:
        """The output that sample ``start``, a multiple of q, is the origin of."""
        return start // self.q * self.p

    def forwards(self, edge: int) -> int:
        return min(self.count, -(-edge * self.p // self.q))

    def backwards(self, edge: int) -> int:
        return min(self.size, edge * self.q // self.p) if edge < self.count else self.size
