"""Fetches the ledger's password from Secret Manager into a file, before a worker or the launcher starts.

The image's build names the secret's version; the settings name the file: ``?password_file=/run/quiltstream/ledger``.
The machine's account needs roles/secretmanager.secretAccessor for it.
"""

from __future__ import annotations

import os
from pathlib import Path


def fetch() -> None:
    """Write the password, readable to this user alone."""
    from google.cloud import secretmanager  # noqa: PLC0415 - in the image only

    name, path = os.environ["LEDGER_ACCESS"], Path(os.environ["LEDGER_ACCESS_FILE"])
    answer = secretmanager.SecretManagerServiceClient().access_secret_version(request={"name": name})
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(answer.payload.data)


if __name__ == "__main__":
    fetch()
