"""What a form that ``llguidance`` reads knows behind some tokens."""

from __future__ import annotations

from typing import Final

from specdec.decoding.forms.guidance_reader import GuidanceReader
from specdec.decoding.forms.mask_time import MaskJob, MaskMeter

__all__ = ["GuidanceState"]

_MOST_UNTOLD: Final = 64  # tokens that a matcher has not been told


class GuidanceState:
    """What a `Guidance` knows behind some tokens.

    The library's matcher is copied and told the tokens when its mask is asked for: behind tokens that follow
    from the form alone nobody asks, as the matcher before them has said what they are.
    """

    __slots__ = ("_behind", "_ended", "_forced", "_job", "_meter", "_n_told", "_reader")

    def __init__(self, reader: GuidanceReader, meter: MaskMeter) -> None:
        self._meter = meter
        self._job: MaskJob | None = None  # which computes the mask, and uses what is below
        self._reader = reader  # of a state before this one, or of this one; shared
        # Tokens that it has not been told; None: it is this state's.
        self._behind: tuple[int, ...] | None = ()
        # Tokens that a reader says must come; None: not asked.
        self._forced: list[int] | None = None
        self._n_told = 0  # of these, those that are behind this state
        self._ended = False

    def fork(self) -> GuidanceState:
        """An independent copy."""
        if self._job is not None:
            self.mask()
        copy = GuidanceState(self._reader, self._meter)
        copy._behind, copy._ended = self._behind, self._ended
        copy._forced, copy._n_told = self._forced, self._n_told
        return copy

    def advance(self, token: int) -> None:
        """The text goes on with a token."""
        if token in self._reader.form.end_ids:
            self._ended = True
            return
        if self._behind is not None and len(self._behind) == _MOST_UNTOLD:
            self._own_reader()
        self._behind = (*(self._behind or ()), token)
        forced, n_told = self._forced, self._n_told
        if forced and n_told + 1 < len(forced) and forced[n_told] == token:
            self._n_told = n_told + 1
        else:
            self._forced, self._n_told = None, 0

    def mask(self) -> bytes | None:
        """The words of the tokens that may come next; None: the text is complete.

        Raises
        ------
        FormError
            It takes too long to find them, or the form cannot go on here.
        """
        if self._ended:
            return None
        if self._job is None:
            if self._forced:
                return self._reader.form.word_of(self._forced[self._n_told])
            self._job = MaskJob(self._compute)
        mask = self._meter.mask(self._job)
        self._job = None
        return mask

    def _compute(self) -> bytes | None:
        if self._forced is None:
            self._forced = self._own_reader().forced()
        if self._forced:
            return self._reader.form.word_of(self._forced[self._n_told])
        return self._own_reader().mask()

    def _own_reader(self) -> GuidanceReader:
        if self._behind is not None:
            self._reader, self._behind = self._reader.behind(self._behind), None
        return self._reader
