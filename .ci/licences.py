"""The licences of what CI installs: `licences.py` adds them to `.ci/licences.txt`, `licences.py --check` compares.

Run by a Python that has the packages of a file of constraints; the list is for both files. A licence that is not in
KNOWN has to be read by a person, who adds it there, or the package goes.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

LIST = Path(__file__).with_name("licences.txt")

#: Parts of licences that quiltstream may be used with. The last line's bind changes of the package alone.
KNOWN = frozenset(
    [
        *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0"),
        *("MIT-CMU", "PSF-2.0", "Public-Domain", "Zlib"),
        *("EPL-2.0", "GPL-of-some-files", "LGPL-3.0-only", "MPL-2.0"),
    ]
)

#: How packages without an expression of SPDX name them, in classifiers or in words.
WORDS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache software license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "bsd license": "BSD",
    "gnu general public license (gpl)": "GPL-of-some-files",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "public domain": "Public-Domain",
    "python software foundation license": "PSF-2.0",
}

_OURS = {"quiltstream", "pip"}


def licence(package: Distribution) -> str:
    """The licence of an installed package: its expression, else its classifiers, else what it says."""
    given = package.metadata
    if expression := given.get("License-Expression"):
        return expression
    prefix = "License :: "
    named = [one.rsplit(" :: ", 1)[1] for one in given.get_all("Classifier") or [] if one.startswith(prefix)]
    named = [one for one in named if one != "OSI Approved"] or [(given.get("License") or "unknown").splitlines()[0]]
    return " AND ".join(sorted(WORDS.get(one.lower(), one) for one in named))


def unknown(expression: str) -> list[str]:
    """The parts of a licence that are not in ``KNOWN``."""
    parts = [part.strip() for part in re.split(r" (?:AND|OR) |[()]", expression)]
    return [part for part in parts if part and part not in KNOWN]


def main() -> None:
    """Write the list, or compare it."""
    held = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): licence(one) for one in distributions()}
    lines = [f"{name}: {held[name]}\n" for name in sorted(held.keys() - _OURS)]
    wrong = [line for line in lines if unknown(line.strip().split(": ", 1)[1])]
    if wrong:
        sys.exit(f"licences that are not in KNOWN of .ci/licences.py: {''.join(wrong)}")
    if "--check" not in sys.argv[1:]:
        others = LIST.read_text(encoding="utf-8").splitlines(keepends=True) if LIST.exists() else []
        LIST.write_text("".join(sorted({*others, *lines})), encoding="utf-8")
    elif missing := sorted(set(lines) - set(LIST.read_text(encoding="utf-8").splitlines(keepends=True))):
        sys.exit(f"not in .ci/licences.txt; write it anew by .ci/licences.py: {''.join(missing)}")
    print(f"licences: {len(lines)} packages")


if __name__ == "__main__":
    main()
