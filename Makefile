# The same steps as CI: see .ci/run.
.PHONY: check test tools lint types wheel deploy e2e night weekly

check:
	.ci/run

test tools lint types wheel deploy e2e night weekly:
	.ci/run $@
