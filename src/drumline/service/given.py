"""Which records of a file somebody was given, so that none comes twice when the file begins anew. Pure."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any


class Given:
    """The records of one file in their order, eight bytes each.

    A run that goes on from a checkpoint writes its file anew without the records of after it, and then appends. So what
    was given comes first and in its order; the first record that was not given is new, and all after it are.
    """

    def __init__(self) -> None:
        self._known = array("q")
        self._at: int | None = None
        """Where in _known the file stands that began anew; None: everything that comes is new."""
        self._kept = array("q")

    def begin(self) -> None:
        """The file has begun anew: what comes is from its beginning."""
        if self._at is not None:  # once more, before all that was known came by
            self._kept.extend(self._known[self._at :])
            self._known = self._kept
        self._at, self._kept = 0, array("q")

    def is_new(self, record: Mapping[str, Any]) -> bool:
        """Take the next record of the file; whether it is to be given."""
        mark = hash(json.dumps(record, sort_keys=True))
        if self._at is not None:
            try:
                self._at = self._known.index(mark, self._at) + 1
            except ValueError:
                self._known, self._at, self._kept = self._kept, None, array("q")
            else:
                self._kept.append(mark)
                return False
        self._known.append(mark)
        return True
