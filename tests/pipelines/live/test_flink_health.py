"""How a job does in its Flink cluster, as the cluster's REST API tells it, and what of that is told on."""

from __future__ import annotations

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.live import flink
from quiltstream.pipelines.live.failures import check_dataflow
from quiltstream.pipelines.live.flink import FlinkJob
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.store.errors import StoreAway, StoreDamaged

from ...present import present
from ..live_jobs import told
from .flink_api import FlinkApi

POOL = "127.0.0.1:50000"

#: What Flink 1.19 says of a job whose worker pool is gone.
REFUSED = (
    "org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.util.concurrent.UncheckedExecutionException: "
    "org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception\n\tat secret\n"
    "Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception\n"
    "Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.AbstractChannel$AnnotatedConnectException: "
    "finishConnect(..) failed: Connection refused: /127.0.0.1:{port}\n"
    "Caused by: java.net.ConnectException: finishConnect(..) failed: Connection refused\n"
)


STILL = {"total": 5, "running": 1, "finished": 1}


def test_a_job_with_all_tasks_running_or_finished_is_healthy(api: FlinkApi) -> None:
    api.add("load-1-of-another", "FAILED")
    assert FlinkJob(api.place, "load-1").trouble() is None
    api.add("load-1")
    assert FlinkJob(api.place, "load-1").trouble() is None
    assert api.cancelled == []


@pytest.mark.parametrize(
    ("managers", "failure", "said"),
    [
        (1, "", "look at its pages"),
        (0, "", "no TaskManager is left in it; start one"),
        (1, REFUSED.format(port=50000), f"the worker pool at {POOL} takes no connection; start it again"),
        (1, REFUSED.format(port=4), "look at its pages"),
        (1, f"java.lang.RuntimeException: SDK harness: Traceback\n{told(StoreAway('locked'))}\n\tat secret", "locked"),
    ],
)
@pytest.mark.parametrize("state", ["RUNNING", "RESTARTING", "CREATED"])
def test_tasks_that_do_not_run_are_told_with_the_part_that_died(
    api: FlinkApi, monkeypatch: pytest.MonkeyPatch, state: str, managers: int, failure: str, said: str
) -> None:
    api.add("load-1", state)
    api.tasks, api.managers, api.failure = STILL, managers, failure
    job = FlinkJob(api.place, "load-1", pool=POOL)
    assert job.trouble() is None  # a usual beginning
    monkeypatch.setattr(flink, "_BEGIN_S", 0.0)
    found = present(job.trouble())
    assert found == f"3 of 5 tasks of the job do not run in the Flink cluster at {api.place}: {said}"


@pytest.mark.parametrize(("error", "code"), [(StoreDamaged("it is damaged"), 4), (SettingsError("two lanes"), 2)])
def test_a_final_error_of_workers_ends_the_job_that_flink_would_begin_for_ever(
    api: FlinkApi, error: Exception, code: int
) -> None:
    api.add("load-1", "RESTARTING")
    api.failure = f"java.lang.RuntimeException: Error received from SDK harness: Traceback\n{told(error)}\n\tat secret"
    with pytest.raises(CommandError, match=f"{error}. Flink would begin its workers again for ever") as caught:
        FlinkJob(api.place, "load-1").trouble()
    assert caught.value.exit_code == code
    assert "secret" not in str(caught.value)


def test_a_final_error_of_workers_on_dataflow_is_read_from_the_jobs_messages() -> None:
    """By a double of Beam's client: the service was not at hand."""

    class Result:
        text = told(StoreAway("it is away"))

        def __init__(self) -> None:
            self._runner = self.dataflow_client = self

        def job_id(self) -> str:
            return "job-1"

        def list_messages(self, job: str, *, minimum_importance: str) -> tuple[list[Result], None]:
            assert (job, minimum_importance) == ("job-1", "JOB_MESSAGE_ERROR")
            return [self], None

        @property
        def message_text(self) -> str:
            return f"Traceback\n{self.text}\n"

    result = Result()
    check_dataflow(result)
    check_dataflow(object())
    result.text = told(StoreDamaged("it is damaged"))
    with pytest.raises(CommandError, match=r"it is damaged\. Dataflow would begin its workers again") as caught:
        check_dataflow(result)
    assert caught.value.exit_code == 4


def test_an_unusable_cluster_answer_is_reported_without_its_content(api: FlinkApi) -> None:
    for body in (b"secret", b'{"jobs": "secret"}', b'{"jobs": [{"name": "load-1", "jid": "x"}]}'):
        api.body = body
        found = present(FlinkJob(api.place, "load-1").trouble())
        assert "cannot be asked how the job is: it answered with something else than" in found
        assert "secret" not in found
    gone = present(FlinkJob("127.0.0.1:1", "load-1").trouble())
    assert gone.startswith(
        "the JobManager of the Flink cluster at 127.0.0.1:1 cannot be asked how the job is: it could"
    )
