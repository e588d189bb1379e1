"""Sets of nearly consecutive integers, stored as one bit each."""

from __future__ import annotations

_PAGE = 1024


class Numbers:
    """The numbers of a sender's finished items, however many there are.

    A sender counts its items over all its receivers, and a receiver that hangs keeps old numbers in
    use for as long as it hangs. So each number must take little memory: 1,024 numbers in a row take
    some 200 bytes, and adding a number takes constant time.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        self._first_page = 0

    def __contains__(self, number: int) -> bool:
        page = self._pages.get(number // _PAGE)
        return page is not None and bool(page >> number % _PAGE & 1)

    @property
    def num_pages(self) -> int:
        """The number of rows of 1,024 numbers in memory."""
        return len(self._pages)

    def add(self, number: int) -> None:
        place = number // _PAGE
        self._pages[place] = self._pages.get(place, 0) | 1 << number % _PAGE

    def forget_before(self, oldest: int) -> None:
        """Drop lower numbers, except those in the same row of 1,024."""
        first = oldest // _PAGE
        if first > self._first_page:
            self._first_page = first
            for place in [place for place in self._pages if place < first]:
                del self._pages[place]
