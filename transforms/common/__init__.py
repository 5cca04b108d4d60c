"""What all steps share: batches of readings, rejects, prefetching, checks of the runner and waits for the ledger."""
