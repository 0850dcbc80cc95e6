"""What a random problem is drawn by: Hypothesis, which makes a failure small, or two seeds, which cost next to nothing.

Kernels are compiled for dtypes, layouts, windows and flags, and take sizes as they come. So there are two kinds of draws:
those of the *form*, and *free* ones. ``Seeded(form, case)`` gives many cases of one form, which share what is compiled for one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Seeded:
    """Draws by two seeds: ``form`` decides what a kernel is compiled for, ``case`` the sizes; ``tiny``: small ones alone."""

    def __init__(self, form: Any, case: Any, tiny: bool = False) -> None:
        #: the layout of all arrays, where they have one in common
        self.alike: str | None = None
        self._form, self._case, self._tiny = random.Random(f"form {form}"), random.Random(f"case {case}"), tiny

    def one(self, options: Sequence[T]) -> T:
        """One of the options, of the form."""
        return self._form.choice(options)

    def number(self, low: int, high: int) -> int:
        """An integer of the form."""
        return self._form.randint(low, high)

    def flag(self) -> bool:
        """Yes or no, of the form."""
        return self._form.random() < 0.5

    def size(self, tiny: int, most: int) -> int:
        """A size, free: often up to ``tiny``, else any up to ``most``, where half are multiples of 8 as layers have them."""
        turn = self._case.random()
        if self._tiny or turn < 0.4:
            return self._case.randint(1, tiny)
        if turn < 0.7 and most >= 8:
            return 8 * self._case.randint(1, most // 8)
        return round(math.exp(self._case.uniform(0, math.log(most))))

    def free(self, low: int, high: int) -> int:
        """A free integer."""
        return self._case.randint(low, high)


class Drawn:
    """The same draws by Hypothesis, of tiny problems; ``draw`` is what a composite strategy is given."""

    def __init__(self, draw: Any) -> None:
        self.alike: str | None = None
        self._draw = draw

    def one(self, options: Sequence[T]) -> T:
        from hypothesis import strategies as st

        chosen: T = self._draw(st.sampled_from(options))
        return chosen

    def number(self, low: int, high: int) -> int:
        from hypothesis import strategies as st

        return int(self._draw(st.integers(low, high)))

    def flag(self) -> bool:
        from hypothesis import strategies as st

        return bool(self._draw(st.booleans()))

    def size(self, tiny: int, most: int) -> int:
        return self.number(1, tiny)

    def free(self, low: int, high: int) -> int:
        return self.number(low, high)


Pick = Seeded | Drawn
