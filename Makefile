# The same steps as CI: see .ci/run.
.PHONY: check test lint types wheel lower deploy e2e mutants

check:
	.ci/run

test lint types wheel lower deploy e2e mutants:
	.ci/run $@
