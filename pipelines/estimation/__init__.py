"""Models that a job estimates itself: the estimate, the query that succeeds, and the test for drift."""
