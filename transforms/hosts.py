"""A ledger in a file is for one machine: refuse it where workers may be on several."""

from __future__ import annotations

from ..schemas.settings import SettingsError
from ..store.address import StoreAddress

#: Runners whose workers are processes of this machine.
_ONE_HOST = frozenset(
    {"fnapirunner", "directrunner", "switchingdirectrunner", "bundlebaseddirectrunner", "prismrunner"}
)


def check_hosts(runner: str | None, address: StoreAddress) -> None:
    """Refuse a ledger in a file for workers on several machines.

    Args:
        runner: name of the runner, with or without its module; ``None`` for the default, which is local.
        address: where the ledger is.

    Raises:
        SettingsError: the runner may spread over hosts and the ledger is a file.
    """
    if runner is None or runner.rpartition(".")[2].lower() in _ONE_HOST or address.multi_host_safe:
        return
    raise SettingsError(
        f"ledger: runner {runner} may spread over several machines, and the ledger {address} is a file on one of them: "
        "each would keep an account of its own; set ledger to a PostgreSQL URL, or run on this machine"
    )
