"""Errors become an exit code and a message of our own, however they come."""

from __future__ import annotations

import pickle
import traceback

import pytest

from quiltstream.pipelines import CommandError, ExitCode, explain
from quiltstream.privacy.accounting.charges import BudgetExceeded
from quiltstream.schemas.errors import QuiltstreamError
from quiltstream.schemas.model_file import ModelError
from quiltstream.schemas.roster import RosterError
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.secrets import SecretError
from quiltstream.schemas.slots import parse_duration
from quiltstream.schemas.states import StateSpace
from quiltstream.store.errors import BudgetRefused, StoreAway, StoreConflict, StoreError
from quiltstream.transforms.formats.paths import SourceFileError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError(["a", "b"]), ExitCode.SETTINGS),
        (ModelError("a"), ExitCode.SETTINGS),
        (RosterError("a"), ExitCode.SETTINGS),
        (BudgetExceeded(0.5, 0.75, 1.0), ExitCode.REFUSED),
        (BudgetRefused.of("q", 0.5, 0.75, 1.0), ExitCode.REFUSED),
        (StoreError("a"), ExitCode.STORE),
        (StoreAway("a"), ExitCode.AWAY),
        (SecretError("a"), ExitCode.SETTINGS),
        (StoreConflict.of("q", "f", 1, 2, "x"), ExitCode.STORE),
        (SourceFileError("a"), ExitCode.SOURCE),
        (CommandError("a", ExitCode.STORE), ExitCode.STORE),
    ],
    ids=lambda case: type(case).__name__,
)
def test_errors_of_the_package_are_shown_with_their_code(error: Exception, code: ExitCode) -> None:
    failure = explain(error)
    assert (failure.code, failure.text) == (code, str(error))


def test_a_value_refused_by_a_check_of_the_package_is_a_settings_error() -> None:
    with pytest.raises(ValueError, match="duration") as caught:
        parse_duration("soon")
    assert explain(caught.value).code == ExitCode.SETTINGS
    assert "'soon'" in explain(caught.value).text


def test_a_value_error_of_a_library_is_not_shown() -> None:
    with pytest.raises(ValueError, match="secret") as caught:
        float("secret")
    failure = explain(caught.value)
    assert failure.code == ExitCode.FAILURE
    assert failure.text.startswith("ValueError; its text may quote data")
    assert "secret" not in failure.text


def test_a_value_error_of_compiled_code_is_not_shown_as_its_callers() -> None:
    """Then the last frame is the package's own, and the text quotes what was given all the same."""
    with pytest.raises(ValueError, match="secret") as caught:
        StateSpace.from_dict({"edges": ["secret"], "unit": "W", "missing_state": False})
    failure = explain(caught.value)
    assert failure.code == ExitCode.FAILURE
    assert "secret" not in failure.text


def test_credentials_of_urls_are_in_no_message() -> None:
    text = "source.csv: https://me:secret@host/a.csv cannot be looked up; write postgresql://user@host/db?x=y"
    shown = explain(SettingsError(text)).text
    assert shown == text.replace("me:secret", "***")
    # in the place of a path, which has no two slashes
    assert explain(SettingsError("model mqtt:/me:secret@host: cannot be read")).text == (
        "model mqtt://***@host: cannot be read"
    )


def handed_on(error: BaseException) -> str:
    """What Beam makes of an error in a worker of another process: the traceback, with the error raised twice."""
    told = "".join(traceback.format_exception_only(error))
    named = told.replace(f"{error}", f"{error} [while running 'Publish/Release-ptransform-17']", 1)
    return (
        f'Traceback (most recent call last):\n  File "apache_beam/runners/common.py", line 1512, in process\n{told}\n'
        f"During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        f"{named}\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreAway("ledger: busy"), ExitCode.AWAY),
        (BudgetRefused("too much"), ExitCode.REFUSED),
        (SettingsError("one problem\nanother problem"), ExitCode.SETTINGS),
        (SourceFileError("file x is damaged"), ExitCode.SOURCE),
        (CommandError("gone", ExitCode.SINK), ExitCode.SINK),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize(
    "tail",
    [
        "",
        "\n\tat org.apache.beam.sdk.fn.data.Receiver.accept(secret)",
        "\nCaused by: java.lang.RuntimeException: secret",
        "\nTraceback (most recent call last):\nKeyError: secret",
        "\n\nDuring handling of the above exception: secret",
    ],
)
def test_an_error_of_the_package_is_found_in_what_a_runner_says(
    error: QuiltstreamError, code: ExitCode, tail: str
) -> None:
    failure = explain(RuntimeError(f"io.Wrapped: quiltstream.errors.LostError: secret\n{handed_on(error)}{tail}"))
    assert (failure.code, failure.text, failure.kind) == (code, str(error), type(error).__name__)
    again = pickle.loads(pickle.dumps(error))
    assert handed_on(again) == handed_on(error)


def test_a_wrapped_error_of_a_library_gives_its_kind_and_its_step_only() -> None:
    text = (
        'Traceback (most recent call last):\n  File "x.py", line 1\npyarrow.lib.ArrowInvalid: secret\n\n'
        "Traceback (most recent call last):\nKeyError: 'secret' [while running 'Read/Decode-ptransform-3']\n"
    )
    failure = explain(RuntimeError(text))
    assert failure.code == ExitCode.FAILURE
    assert "in the step 'Read/Decode' of the pipeline" in failure.text
    assert "secret" not in failure.text
