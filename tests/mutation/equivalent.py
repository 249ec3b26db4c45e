"""Mutants that no test can find, because they behave like the original. run.py does not draw them.

Each entry was reviewed. `before` is the text of the mutated node (run.py --list shows it), `after` what the mutant
makes of it.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Equivalent:
    path: str
    before: str
    after: str
    reason: str


EQUIVALENT = ()
