"""Deliberate errors that the tests must notice.

A mutant is one replaced piece of source text and the tests that have to fail for it. It runs on a copy of the tree, so
that the checkout never holds it. The tests of all mutants must pass on an unchanged copy: otherwise a failure would say
nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .tree import LITTER, PORTIONS, ROOT

TESTS_FAILED = 1
RUN_SECONDS = 600


class MutantError(Exception):
    """A mutant that proves nothing: its text is not there once, or its tests do not run."""


@dataclass(frozen=True)
class Mutant:
    """One error: in `file`, `old` (which occurs once) becomes `new`, and then one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def tier(self) -> str:
        """How deep its tests go: what a push runs must notice an error in the guarantee or the ledger."""
        return "push" if self.file.startswith(("privacy/", "store/")) else "nightly"

    def apply(self, tree: Path) -> None:
        """Put the error into a copy of the tree."""
        path = tree / self.file
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            msg = f"mutant {self.name}: {self.old!r} occurs {count} times in {self.file}, not once"
            raise MutantError(msg)
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")


def copy_tree(target: Path) -> Path:
    """A copy of what the tests need, with a namespace folder that makes `import quiltstream` find the copy."""
    for name in (*PORTIONS, "tests"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns(*LITTER))
    shutil.copy(ROOT / "pyproject.toml", target)
    namespace = target / "namespace" / "quiltstream"
    namespace.mkdir(parents=True)
    for portion in PORTIONS:
        (namespace / portion).symlink_to(target / portion, target_is_directory=True)
    return target


def run_tests(tree: Path, tests: Iterable[str], tier: str = "nightly", seconds: float = RUN_SECONDS) -> tuple[int, str]:
    """Run tests of a copy against the copy, as deep as a tier does; pytest's exit code and its output."""
    command = [Path(sysconfig.get_path("scripts")) / "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", "-m", ""]
    environment = os.environ | {"PYTHONPATH": str(tree / "namespace"), "QUILTSTREAM_TESTS": tier}
    # What the surrounding pytest says to its own workers is not for this one.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    return done.returncode, done.stdout + done.stderr


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether the tests pass in spite of the mutant, which is put into the copy given."""
    mutant.apply(tree)
    code, output = run_tests(tree, mutant.tests, mutant.tier)
    if code not in {0, TESTS_FAILED}:
        msg = f"mutant {mutant.name}: the tests did not run (pytest ended with {code}):\n{output[-3000:]}"
        raise MutantError(msg)
    return code == 0


_LIVE = "tests/transforms/sources/test_live.py"
_WHOLE_WAY = (
    "tests/transforms/test_histograms.py::test_histograms_of_60_homes_equal_a_plain_computation_in_any_order",
)
_CELLS = ("tests/transforms/aggregate/test_cells.py",)
_STORE = ("tests/store/test_sqlite_store.py",)
_CONTINUITY = "tests/pipelines/test_continuity.py"
_TABLE = (
    "tests/pipelines/test_estimates_going_on.py::test_a_table_is_in_the_block_log_and_counts_the_series_on_record_alone"
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="what a plug-in's source has lost is forgotten with its next reader",
        file="pipelines/plugins.py",
        old='self._lost_us: int | None = kept.get("lost")',
        new="self._lost_us: int | None = None",
        tests=("tests/pipelines/test_plugins.py::TestQueue::test_what_was_removed_unread_is_told_once_and_remembered",),
    ),
    Mutant(
        name="a plug-in's source that is away counts as silent",
        file="pipelines/plugins.py",
        old="return self._attempts.trouble or self._decoding.waiting",
        new="return None",
        tests=(
            "tests/pipelines/test_plugins.py::TestQueue::test_a_place_that_does_not_answer_is_trouble_and_no_silence",
        ),
    ),
    Mutant(
        name="windows of unequal length count as one slot each",
        file="privacy/accounting/schedules.py",
        old="slots = self.end_of(count) - self.start if self.ends else count * self.size",
        new="slots = count * self.size",
        tests=(
            "tests/privacy/accounting/test_unequal_windows.py::test_the_longest_event_is_by_the_slots_of_all_windows",
        ),
    ),
    Mutant(
        name="a calendar of other zone data is taken for the one on record",
        file="store/registration.py",
        old="differs = new.difference(old)",
        new="differs = None",
        tests=(
            "tests/store/test_sqlite_store.py::TestSqlite::"
            "test_bounds_of_other_zone_data_are_refused_and_change_nothing",
        ),
    ),
    Mutant(
        name="months have the noise of the next shorter length",
        file="transforms/plan.py",
        old="for slots, one in zip(lengths, named, strict=True)",
        new="for slots, one in zip(lengths, [named[0], *named[:-1]], strict=True)",
        tests=(
            "tests/transforms/test_calendar_windows.py::test_the_noise_of_a_month_calibrated_alone_depends_on_its_length",
        ),
    ),
    Mutant(
        name="the windows of a bundle are drawn with the noise of its first",
        file="transforms/aggregate/release.py",
        old="len(one.window) if query.lengths else 0",
        new="0 if query.lengths else len(one.window)",
        tests=(
            "tests/transforms/test_calendar_windows.py::"
            "test_noise_is_drawn_by_the_length_of_each_window_also_in_one_bundle",
        ),
    ),
    Mutant(
        name="windows are charged by the largest noise, whatever they have",
        file="store/publishing.py",
        old="query = self.query.of_length(len(window))",
        new="query = self.query",
        tests=(
            "tests/store/test_sqlite_store.py::TestSqlite::"
            "test_windows_with_noise_by_length_are_charged_and_published_by_it",
        ),
    ),
    Mutant(
        name="a plan prices windows that overlap as if they adjoined",
        file="privacy/analysis/planning.py",
        old="every = -(-self.window // self.overlap)",
        new="every = self.window",
        tests=(
            "tests/privacy/analysis/test_utility.py::"
            "test_the_loss_is_the_account_of_every_histogram_one_by_one[3-5-window]",
        ),
    ),
    Mutant(
        name="a plan says the odds of its target and not of its loss",
        file="privacy/analysis/planning.py",
        old="dict.fromkeys((loss, *WITHIN))",
        new="dict.fromkeys((purpose.epsilon, *WITHIN))",
        tests=(
            "tests/privacy/analysis/test_utility.py::"
            "test_the_loss_is_the_account_of_every_histogram_one_by_one[1-2-window]",
        ),
    ),
    Mutant(
        name="a transaction that writes takes its lock late",
        file="store/connection.py",
        old='"BEGIN IMMEDIATE" if options.get(WRITES, False) else "BEGIN"',
        new='"BEGIN"',
        tests=("tests/store/test_interleaver.py::test_every_interleaving_satisfies_the_invariants[race]",),
    ),
    Mutant(
        name="a job that publishes does not compare a block with its digest",
        file="store/publishing.py",
        old='        integrity.checked(tables.releases, block)\n        if block["charge_id"]',
        new='        if block["charge_id"]',
        tests=("tests/store/test_interleaver.py::test_every_interleaving_satisfies_the_invariants[damage]",),
    ),
    Mutant(
        name="the name of a ledger does not travel to the next process",
        file="store/store.py",
        old="self._address = self._address.pinned(found)",
        new="pass",
        tests=("tests/store/test_interleaver.py::test_every_interleaving_satisfies_the_invariants[vanish]",),
    ),
    Mutant(
        name="a sink that is not on this machine is not searched for releases",
        file="pipelines/connectors/files.py",
        old="else is_elsewhere(path, field)",
        new="else False",
        tests=("tests/pipelines/test_continuity.py::test_a_remote_sink_is_searched_for_unrecorded_releases",),
    ),
    Mutant(
        name="a second connection of a process drops the locks of the first",
        file="store/sqlite_file.py",
        old="    usable = os.R_OK | os.W_OK\n",
        new="    os.close(os.open(path, os.O_RDWR))\n    usable = os.R_OK | os.W_OK\n",
        tests=(
            "tests/store/test_sqlite_store.py::test_a_second_connection_of_a_process_leaves_the_locks_of_the_first",
        ),
    ),
    Mutant(
        name="copies of a ledger that drew apart under one charge cost once",
        file="store/merge.py",
        old="for number in range(draws.get(charge, 1))",
        new="for number in range(1)",
        tests=("tests/store/test_merging.py",),
    ),
    Mutant(
        name="a bit source that gives one value for many lanes is taken",
        file="privacy/mechanisms/sampling.py",
        old="    if drawn.shape != (count,):",
        new="    if drawn.shape == ():",
        tests=(
            "tests/privacy/mechanisms/test_sampling.py::test_one_value_for_many_lanes_is_refused_and_not_broadcast",
        ),
    ),
    Mutant(
        name="a short read of the system's entropy is drawn from",
        file="privacy/mechanisms/sampling.py",
        old="        if len(raw) != size * count:",
        new="        if not raw:",
        tests=("tests/privacy/mechanisms/test_sampling.py::test_a_short_read_of_the_systems_entropy_draws_nothing",),
    ),
    Mutant(
        name="what is no regular file is replaced",
        file="schemas/files.py",
        old="        _check_target(path, new=new)\n        part.replace(path)",
        new="        part.replace(path)",
        tests=("tests/schemas/test_files.py::test_a_non_file_created_during_a_write_is_not_replaced",),
    ),
    Mutant(
        name="a uniform draw clamps where it must reject",
        file="privacy/mechanisms/sampling.py",
        old="return drawn[drawn < bound]",
        new="return np.minimum(drawn, bound - 1)",
        tests=("tests/privacy/mechanisms/test_sampling.py::test_uniform_below_has_exactly_equal_probabilities",),
    ),
    Mutant(
        name="of two readings of a cell in a batch any one counts",
        file="transforms/aggregate/cells.py",
        old="        while higher.any():",
        new="        if higher.any():",
        tests=_CELLS,
    ),
    Mutant(
        name="of two blocks of a cell the later one counts",
        file="transforms/aggregate/cells.py",
        old="np.maximum(self.packed, other.packed, out=self.packed)",
        new="np.copyto(self.packed, other.packed)",
        tests=_CELLS,
    ),
    Mutant(
        name="windows begin a slot late",
        file="transforms/aggregate/encode.py",
        old="steps = schedule.number_of(slots)\n",
        new="steps = schedule.number_of(slots - 1)\n",
        tests=_WHOLE_WAY,
    ),
    Mutant(
        name="the state is one bin too high",
        file="schemas/states.py",
        old="states += values >= edge",
        new="states += values > edge",
        tests=("tests/schemas/test_bins.py",),
    ),
    Mutant(
        name="a value that rounding put below an edge stays below it",
        file="schemas/states.py",
        old="return array - np.minimum(np.abs(array) * ROUNDING, below)",
        new="return array",
        tests=("tests/schemas/test_bins.py",),
    ),
    Mutant(
        name="the increment of a register keeps what rounding took",
        file="transforms/payloads/meter_registers.py",
        old="return np.rint(rise * shift) / shift",
        new="return rise",
        tests=("tests/transforms/payloads/test_registers.py",),
    ),
    Mutant(
        name="a shard without readings is not published",
        file="transforms/aggregate/release.py",
        old="for shard in members.occupied:",
        new="for shard in members.occupied[1:]:",
        tests=("tests/transforms/test_histograms.py::test_a_series_without_any_reading_is_published_in_every_window",),
    ),
    Mutant(
        name="a window that its source did not declare complete is published",
        file="transforms/aggregate/release.py",
        old="if not tally.whole:",
        new="if tally.counts is None:",
        tests=(f"{_LIVE}::test_a_window_that_its_source_did_not_declare_complete_is_never_on_record",),
    ),
    Mutant(
        name="a window is published without all of its tickets",
        file="transforms/aggregate/collect.py",
        old="return self.complete(start) and all(",
        new="return self.complete(start) and None is not all(",
        tests=(
            "tests/transforms/aggregate/test_collect.py::"
            "test_a_window_is_complete_only_with_all_its_elements_however_panes_cut_them",
        ),
    ),
    Mutant(
        name="a shard that comes twice counts twice",
        file="transforms/aggregate/release.py",
        old="parts.setdefault(bit, counts)",
        new="parts[bit] = counts + parts.get(bit, 0)",
        tests=("tests/transforms/aggregate/test_collect.py::test_a_repeated_shard_counts_once_in_a_sum",),
    ),
    Mutant(
        name="the counts of a shard that comes twice decide which of them are kept",
        file="transforms/aggregate/release.py",
        old="parts.setdefault(bit, counts)",
        new="parts[bit] = max(parts.get(bit, counts), counts, key=lambda found: found.tobytes())",
        tests=(
            "tests/transforms/aggregate/test_collect.py::test_no_cell_decides_which_of_two_complete_values_is_kept",
        ),
    ),
    Mutant(
        name="a window is cut by the roster that a worker happens to know",
        file="transforms/aggregate/release.py",
        old="self._store.charge_windows(self._registration, complete, self._begun)",
        new="self._registration",
        tests=("tests/transforms/aggregate/test_rosters.py",),
    ),
    Mutant(
        name="a running job takes a new roster in windows of which it rejected readings",
        file="store/specs.py",
        old="if self.revision <= begun.revision:",
        new="if self.revision >= begun.revision:",
        tests=("tests/transforms/aggregate/test_rosters.py",),
    ),
    Mutant(
        name="a window that another job charged with a new roster is published without readings",
        file="transforms/aggregate/release.py",
        old="known.groups_of.keys() >= charged.groups_of.keys()",
        new="known.groups_of.keys() <= known.groups_of.keys()",
        tests=("tests/transforms/aggregate/test_rosters.py",),
    ),
    Mutant(
        name="a new roster holds for windows that are charged",
        file="store/registration.py",
        old='"roster_id": number, "start": start',
        new='"roster_id": number, "start": held.schedule.first',
        tests=("tests/store/test_rosters.py",),
    ),
    Mutant(
        name="a roster that another query names is removed",
        file="store/registration.py",
        old="(tables.queries, tables.roster_versions, tables.flagged_charges, tables.charges)",
        new="()",
        tests=("tests/store/test_rosters.py",),
    ),
    Mutant(
        name="a roster that was replaced before a charge stays on record",
        file="store/registration.py",
        old="        _remove_unnamed(connection, last",
        new="        _ = (connection, last",
        tests=("tests/store/test_rosters.py",),
    ),
    Mutant(
        name="a reading behind the last year of a calendar has a slot",
        file="transforms/aggregate/encode.py",
        old="            return schedule.calendar.end\n",
        new="            return None\n",
        tests=("tests/transforms/test_calendar_windows.py",),
    ),
    Mutant(
        name="a null in a dictionary of names is a name",
        file="transforms/common/batches.py",
        old="and column.dictionary.null_count:",
        new="and column.dictionary.null_count < 0:",
        tests=("tests/transforms/sources/test_reading_rows.py",),
    ),
    Mutant(
        name="a time of a record batch that no calendar has is a reading",
        file="transforms/common/batches.py",
        old='if name == "time" and outside.any():',
        new='if name == "time" and outside.all() and not outside.any():',
        tests=(
            "tests/transforms/sources/test_wall_clock.py::"
            "test_a_time_that_no_calendar_has_is_rejected_by_an_endless_job",
        ),
    ),
    Mutant(
        name="late readings count",
        file="transforms/aggregate/encode.py",
        old="keep &= ~late",
        new="keep &= late | ~late",
        tests=(f"{_LIVE}::test_a_reading_is_late_by_its_own_partitions_watermark",),
    ),
    Mutant(
        name="windows close while files are waiting",
        file="transforms/sources/reader.py",
        old="settled = batch is None or batch.settled",
        new="settled = True",
        tests=(f"{_LIVE}::test_files_that_arrive_while_the_job_runs_are_read_and_damaged_ones_skipped",),
    ),
    Mutant(
        name="a reader that is ahead of what its runner has goes on from where it is",
        file="transforms/sources/reader.py",
        old="            if at == position:",
        new="            if at is not None:",
        tests=(
            "tests/transforms/sources/test_bundles_twice.py::"
            "test_every_readers_call_repeated_after_a_failure_changes_nothing",
        ),
    ),
    Mutant(
        name="the end of an endless source completes every window until now",
        file="transforms/sources/reader.py",
        old="if self.ended and policy.end_us is not None:\n            clock = max(clock, min(policy.end_us, now))",
        new="if self.ended:\n            clock = max(clock, min(policy.end_us or now, now))",
        tests=("tests/transforms/sources/test_arriving_files.py",),
    ),
    Mutant(
        name="a stamp far ahead is kept until its window ends",
        file="transforms/sources/reader.py",
        old="kept = times < last_us",
        new="kept = times == times",
        tests=("tests/transforms/sources/test_live_batches.py",),
    ),
    Mutant(
        name="windows close while a file or folder may not be read",
        file="transforms/sources/arriving_files.py",
        old="settled=not self._waiting and self.trouble is None)",
        new="settled=not self._waiting)",
        tests=("tests/transforms/sources/test_arriving_files.py",),
    ),
    Mutant(
        name="a file that changes while a run reads it is taken as it comes",
        file="transforms/sources/files.py",
        old="        with unchanged(task.path, task.stamp):\n            yield from self._decode(task)",
        new="        yield from self._decode(task)",
        tests=("tests/transforms/sources/test_files.py::test_a_file_that_changes_after_it_was_found_is_an_error",),
    ),
    Mutant(
        name="a run counts nothing of what retention deleted before its start",
        file="transforms/kafka/partitions.py",
        old="offset == first > 0 and not read",
        new="False",
        tests=(
            "tests/transforms/kafka/test_source.py::TestFake::test_messages_removed_before_a_start_without_a_position_are_counted",
        ),
    ),
    Mutant(
        name="a topic that was made anew is read by the consumer of the old one",
        file="transforms/kafka/source.py",
        old="        self._consumer.close()\n        self._consumer.open()\n",
        new="        self._assign()\n",
        tests=(
            "tests/transforms/kafka/test_source.py::test_a_recreated_topic_gets_a_new_consumer_and_a_quiet_one_does_not",
        ),
    ),
    Mutant(
        name="a job from the ledger alone forgets that its topic was made anew",
        file="store/domain_changes.py",
        old="replaced=before is not None",
        new="replaced=False",
        tests=("tests/store/test_sources.py",),
    ),
    Mutant(
        name="a window that no silent source was waited for says that it was read as it came",
        file="transforms/completeness.py",
        old="silent = punctuation.silent_us is not None and end_us > punctuation.silent_us",
        new="silent = punctuation.silent_us is not None and end_us > punctuation.until_us",
        tests=("tests/transforms/test_completeness.py",),
    ),
    Mutant(
        name="of the sources that are left out the furthest says which windows were not waited for",
        file="transforms/sources/reader.py",
        old="silent_us = None if self.ended else min((",
        new="silent_us = None if self.ended else max((",
        tests=("tests/transforms/sources/test_live_batches.py",),
    ),
    Mutant(
        name="values of several units in one message are readings",
        file="transforms/payloads/mapped.py",
        old="mixed = tables.mixed(mapping)",
        new="mixed: set[int] = set()",
        tests=("tests/transforms/payloads/test_mapped.py",),
    ),
    Mutant(
        name="a condition of a mapping keeps every message",
        file="transforms/payloads/mapped.py",
        old="return ~inside if condition.negated else inside",
        new="return np.ones(len(found), dtype=np.bool_)",
        tests=("tests/transforms/payloads/test_mapped.py",),
    ),
    Mutant(
        name="a text that cannot be unpacked is a missing part",
        file="transforms/payloads/mapped.py",
        old="return np.fromiter((one is UNREADABLE for one in found), np.bool_, len(found))",
        new="return np.zeros(len(found), dtype=np.bool_)",
        tests=("tests/transforms/payloads/test_mapped.py",),
    ),
    Mutant(
        name="the names of two devices join to one",
        file="transforms/payloads/mapped.py",
        old='.replace("/", "~1")',
        new="",
        tests=("tests/transforms/payloads/test_mapped.py",),
    ),
    Mutant(
        name="a condition on several units lets them meet",
        file="schemas/settings/places.py",
        old="if one is not None}) == 1",
        new="if one is not None}) > 0",
        tests=("tests/transforms/payloads/test_mapped.py",),
    ),
    Mutant(
        name="a value whose unit is of another quantity is a reading",
        file="transforms/payloads/mapped.py",
        old="        keep &= ~other\n",
        new="",
        tests=("tests/transforms/payloads/test_mapped.py",),
    ),
    Mutant(
        name="the unit of a telegram is not looked at",
        file="transforms/payloads/presets/dsmr.py",
        old="power = power_of_ten(unit.strip(), first)",
        new="power = power_of_ten(unit.strip(), unit.strip())",
        tests=("tests/transforms/payloads/test_meters.py",),
    ),
    Mutant(
        name="a Green Button block is read by the only type of its feed, though its reading names another",
        file="transforms/payloads/presets/xml_documents.py",
        old="kind = only if named is None else kinds.get(named)",
        new="kind = kinds.get(named or '') or next(iter(kinds.values()), None)",
        tests=("tests/transforms/payloads/test_meters.py",),
    ),
    Mutant(
        name="what a block holds behind its records is passed over",
        file="transforms/formats/avro.py",
        old="if at != len(data):",
        new="if at > len(data):",
        tests=("tests/transforms/formats/test_avro.py::test_a_block_with_a_wrong_count_damages_its_file",),
    ),
    Mutant(
        name="the rest of a quoted name with a line feed is a series of its own",
        file="transforms/formats/csv.py",
        old="None if _may_be_rest(one, form.delimiter) else _fields(one, form.delimiter)",
        new="_fields(one, form.delimiter)",
        tests=("tests/transforms/formats/test_csv.py::test_a_line_feed_in_a_quoted_name_makes_no_series",),
    ),
    Mutant(
        name="the columns of a wide table are given to each other's series",
        file="transforms/formats/rows.py",
        old="series = each.take(pa.array(np.repeat(np.arange(width), lines)))",
        new="series = each.take(pa.array(np.tile(np.arange(width), lines)))",
        tests=("tests/transforms/formats/test_rows.py::test_both_layouts_are_the_same_cells_as_the_long_form",),
    ),
    Mutant(
        name="a date with a time of day moves the times of a wide table",
        file="transforms/formats/times.py",
        old="good = stamps.good & begins",
        new="good = stamps.good",
        tests=("tests/transforms/formats/test_rows.py::test_a_date_with_a_time_of_day_is_rejected",),
    ),
    Mutant(
        name="a domain does not hold its categories",
        file="schemas/states.py",
        old='return {"categories": list(self.categories), "other": self.other, **form}',
        new='return {"categories": sorted(self.categories), "other": None, **form}',
        tests=(
            "tests/schemas/test_states.py::test_spaces_of_other_categories_are_other_spaces",
            "tests/pipelines/commands/test_categories.py::test_other_categories_in_one_domain_are_refused",
        ),
    ),
    Mutant(
        name="a label that is not listed is read as the first state",
        file="transforms/formats/rows.py",
        old="np.array([state is None for state in states], dtype=np.bool_)[at]",
        new="np.array([state is None and False for state in states], dtype=np.bool_)[at]",
        tests=("tests/transforms/formats/test_rows.py::test_labels_of_csv_are_always_read_as_text",),
    ),
    Mutant(
        name="a second hour that rises above the first is taken for the first",
        file="transforms/formats/rows.py",
        old="passed = passed or stamp <= last",
        new="passed = stamp <= last",
        tests=("tests/transforms/formats/test_times.py::test_rows_that_step_back_are_in_the_second_hour",),
    ),
    Mutant(
        name="a slot has the label of its first interval",
        file="transforms/sources/files.py",
        old="order = np.lexsort((states[of], begins, -covers, slots, codes[of]))",
        new="order = np.lexsort((states[of], -covers, begins, slots, codes[of]))",
        tests=("tests/transforms/sources/test_files.py::test_each_slot_has_the_label_that_covers_most_of_it",),
    ),
    Mutant(
        name="the digest of a row is not checked",
        file="store/integrity.py",
        old='    if row["row_digest"] != row_digest(table, row):',
        new="    if row is None:",
        tests=(
            "tests/store/test_sqlite_store.py::TestSqlite::test_every_flipped_bit_of_a_block_is_detected_and_not_published",
        ),
    ),
    Mutant(
        name="a charge does not know which blocks were drawn for it",
        file="store/integrity.py",
        old="    if drawn_of(charge).get(shard) == found:",
        new="    if found is None or drawn_of(charge).get(shard) == found:",
        tests=(
            "tests/store/test_sqlite_store.py::TestSqlite::test_a_removed_row_is_detected_and_nothing_is_drawn_or_charged_again",
        ),
    ),
    Mutant(
        name="a charge does not extend the chain",
        file="store/accounts.py",
        old="        self.chain.add(links)\n",
        new="",
        tests=(
            "tests/store/test_sqlite_store.py::TestSqlite::test_a_removal_with_recomputed_digests_is_detected_by_an_external_head",
        ),
    ),
    Mutant(
        name="a domain forgets how many of its rows there are",
        file="store/integrity.py",
        old="    if not found == len(rows) == expected:",
        new="    if len(rows) > expected:",
        tests=(
            "tests/store/test_sqlite_store.py::TestSqlite::test_a_removed_row_is_detected_and_nothing_is_drawn_or_charged_again",
        ),
    ),
    Mutant(
        name="a ledger that is known is made anew when it is opened again",
        file="store/connection.py",
        old="create=create and self._known.store_id is None",
        new="create=create",
        tests=_STORE,
    ),
    Mutant(
        name="each of two jobs makes a ledger over an emptied one",
        file="store/sqlite_file.py",
        old="            elif over():\n",
        new="            else:\n",
        tests=("tests/store/test_sqlite_store.py::test_two_jobs_that_make_a_ledger_over_an_emptied_one_make_one",),
    ),
    Mutant(
        name="a row leaves whose ledger was moved away before its commit",
        file="store/connection.py",
        old="            self._require()\n            log, opened = plain.info.get(LOG, (None, None))\n",
        new="            log, opened = None, None\n",
        tests=(
            "tests/store/test_sqlite_store.py::test_a_file_moved_before_a_commit_stops_the_job_before_a_row_is_published",
        ),
    ),
    Mutant(
        name="an older copy of the ledger is charged",
        file="store/address.py",
        old="if found < seen:",
        new="if found < 0:",
        tests=_STORE,
    ),
    Mutant(
        name="a process forgets what it has seen of a ledger with its connection",
        file="store/address.py",
        old="        return _SEEN[self.address.url, self.store_id]\n",
        new="        return self.__dict__.setdefault('seen', {})\n",
        tests=(
            "tests/store/test_second_draws.py::test_a_process_detects_an_older_copy_after_its_connection_was_closed",
        ),
    ),
    Mutant(
        name="a ledger is opened by each of its names",
        file="store/connection.py",
        old="        if names > 1:\n",
        new="        if names > 9:\n",
        tests=("tests/store/test_second_draws.py::test_a_ledger_with_two_names_is_refused_by_both_and_draws_nothing",),
    ),
    Mutant(
        name="a ledger that has forgotten a name is told as one without it",
        file="store/connection.py",
        old="            self._check_names_of_record()\n",
        new="",
        tests=_STORE,
    ),
    Mutant(
        name="a telegram's own unit decides where nothing else says one",
        file="transforms/payloads/presets/dsmr.py",
        old="    if first is None and not counts:\n",
        new="    first = split[0][2] if first is None else first\n    if first is None:\n",
        tests=("tests/transforms/payloads/test_meters.py",),
    ),
    Mutant(
        name="the memory of a job gives way to an older copy",
        file="pipelines/on_record.py",
        old="known.entry_id in (None, newest) or store.has_entry(known.entry_id):",
        new="True:",
        tests=("tests/pipelines/test_continuity.py::test_an_older_copy_does_not_overwrite_the_continuity_file",),
    ),
    Mutant(
        name="that an account is to be marked is forgotten where the run ends before that",
        file="pipelines/on_record.py",
        old="_write(place, replace(known, owed=True))",
        new="_write(place, known)",
        tests=(f"{_CONTINUITY}::test_a_run_that_did_not_mark_a_lost_history_leaves_the_next_one_stopped",),
    ),
    Mutant(
        name="a domain that a run registers is not marked before it is charged",
        file="transforms/private_histograms.py",
        old="        if self._plan.lost is not None:\n",
        new="        if self._plan.lost == -1:\n",
        tests=(f"{_CONTINUITY}::test_a_lost_history_is_marked_before_a_window_is_charged",),
    ),
    Mutant(
        name="a table of transitions is not in the log of blocks",
        file="pipelines/estimation.py",
        old="    LogWriter(Memory(settings).log(here=True), store).append(held, [record])",
        new="    LogWriter(Memory(settings).log(here=True), store)",
        tests=(_TABLE,),
    ),
    Mutant(
        name="a table of transitions counts series that the budget does not protect",
        file="pipelines/estimation.py",
        old="[one for one in roster.series if one in known]",
        new="[one for one in roster.series if one in known or True]",
        tests=(_TABLE,),
    ),
    Mutant(
        name="a total tells how many values were rejected though missing is a state",
        file="transforms/aggregate/release.py",
        old="missing = np.outer(layout.members(held.shard), slots) - each.sum(axis=2)",
        new="missing = 0 * each.sum(axis=2)",
        tests=("tests/transforms/test_noise_law.py",),
    ),
    Mutant(
        name="a row leaves before the log of blocks has its block",
        file="transforms/aggregate/ledger_access.py",
        old="        self._log.append(registration, records)\n",
        new="            pass\n",
        tests=("tests/transforms/aggregate/test_ledger_access.py", "tests/pipelines/test_continuity.py"),
    ),
    Mutant(
        name="the newest block of the log is not the one that was committed last",
        file="transforms/aggregate/ledger_access.py",
        old="newest[found.query_id][0] < found.number:",
        new="newest[found.query_id][0] > found.number:",
        tests=("tests/transforms/aggregate/test_ledger_access.py",),
    ),
    Mutant(
        name="a run begins with a ledger that lacks a block which left",
        file="pipelines/on_record.py",
        old="absent = [one for one, found in zip(blocks, numbers, strict=True) if found is None]",
        new="absent: list[LoggedBlock] = []",
        tests=("tests/pipelines/test_continuity.py",),
    ),
    Mutant(
        name="a job counts windows as drawn by it that another one drew",
        file="transforms/aggregate/release.py",
        old="                if record.fresh and record.shard == layout.occupied[0]:",
        new="                if record.shard == layout.occupied[0]:",
        tests=("tests/pipelines/commands/test_same_job_twice.py",),
    ),
    Mutant(
        name="any draw of a block that left will do",
        file="store/queries.py",
        old="        return draws.get(name.digest) if name.digest else next(iter(draws.values()), None)",
        new="        return next(iter(draws.values()), None)",
        tests=("tests/transforms/aggregate/test_ledger_access.py",),
    ),
    Mutant(
        name="rows leave although the ledger lacks a block of the log",
        file="transforms/aggregate/ledger_access.py",
        old="        self._check()\n",
        new="",
        tests=("tests/transforms/aggregate/test_ledger_access.py",),
    ),
    Mutant(
        name="a job is begun again with whatever ledger is there",
        file="pipelines/live/restarts.py",
        old="return ReplacedError(failure.text)",
        new="return RunnerError(failure.text)",
        tests=("tests/pipelines/live/test_restarts.py",),
    ),
    Mutant(
        name="a charge is not entered into the account",
        file="store/publishing.py",
        old="made = self.account.ledger.charge(*span)",
        new="made = type(self.account.ledger)(self.account.ledger.belief).charge(*span)",
        tests=_STORE,
    ),
    Mutant(
        name="a second attempt draws and keeps fresh noise",
        file="store/publishing.py",
        old="fresh = wanted.keys() - blocks.keys()",
        new="fresh = wanted.keys()",
        tests=_STORE,
    ),
    Mutant(
        name="readings of series outside the roster stretch the schedule",
        file="transforms/private_histograms.py",
        old="good & ~known, good & known",
        new="good & ~known, good",
        tests=("tests/transforms/test_registration.py",),
    ),
    Mutant(
        name="one wrong clock fixes the schedule for ever",
        file="transforms/registration.py",
        old="if slot is None and instant > latest",
        new="if slot is None and instant < 0 < latest",
        tests=("tests/transforms/test_registration.py",),
    ),
    Mutant(
        name="a reading of a series of another domain ends the run",
        file="transforms/registration.py",
        old="return away if away != series else set()",
        new="return set() if away != series else away",
        tests=("tests/transforms/test_registration.py",),
    ),
    Mutant(
        name="windows are charged although no reading counts",
        file="transforms/private_histograms.py",
        old="            if not whole:\n",
        new="            if held is not None and not whole:\n",
        tests=("tests/pipelines/commands/test_nothing_counts.py",),
    ),
    Mutant(
        name="series have another budget under another name of their domain",
        file="store/registration.py",
        old='if differs is None or row["name"] not in said:',
        new='if row["name"] not in said:',
        tests=(f"{_STORE[0]}::TestSqlite::test_the_same_domain_under_another_name_is_refused",),
    ),
    Mutant(
        name="influence is taken one step further away",
        file="privacy/quilts/influence.py",
        old="closed_form(bounds, np.arange(1, lags + 1), bound)",
        new="closed_form(bounds, np.arange(2, lags + 2), bound)",
        tests=("tests/privacy/accounting/test_ledger.py", "tests/privacy/quilts/test_influence.py"),
    ),
    Mutant(
        name="a certificate is believed unchecked",
        file="privacy/accounting/forward_backward.py",
        old="return made if certify(pair, made, (ahead, back)) else None",
        new="return made",
        tests=("tests/privacy/accounting/test_constant.py",),
    ),
    Mutant(
        name="the lower bound counts its own slot twice",
        file="privacy/accounting/forward_backward.py",
        old="return density + sum(float(one[self.given]",
        new="return 2 * density + sum(float(one[self.given]",
        tests=("tests/privacy/accounting/test_forward_backward.py",),
    ),
    Mutant(
        name="outputs of the lower bound never alternate",
        file="privacy/accounting/forward_backward.py",
        old="after=np.where(better, after, self.after)",
        new="after=self.after",
        tests=("tests/privacy/accounting/test_forward_backward.py",),
    ),
    Mutant(
        name="the map of the account is one step short",
        file="privacy/models/directions.py",
        old="(matrix.ravel()[self.places] - logarithm)",
        new="(matrix.ravel()[self.places] - 0 * logarithm)",
        tests=("tests/privacy/accounting/test_constant.py", "tests/privacy/accounting/test_forward_backward.py"),
    ),
    Mutant(
        name="the backward kernel is the forward one",
        file="privacy/models/markov_chain.py",
        old="Kernel(self.reversal, 2.0**-50",
        new="Kernel(self.transition, 2.0**-50",
        tests=("tests/privacy/accounting/test_constant.py",),
    ),
    Mutant(
        name="a chain with a state that no float holds has an account",
        file="privacy/models/markov_chain.py",
        old="(weights >= LEAST_WEIGHT).all()",
        new="(weights >= LEAST_WEIGHT).any()",
        tests=("tests/privacy/models/test_chains.py",),
    ),
    Mutant(
        name="the curves of mixing bounds are rounded up for few slots only",
        file="privacy/models/classes.py",
        old="max(1e-13, m * 2.0**-52)",
        new="max(1e-13, 0 * m)",
        tests=("tests/privacy/models/test_classes.py",),
    ),
    Mutant(
        name="a density is rounded down for its account",
        file="privacy/accounting/forward_backward.py",
        old="math.ldexp(math.ceil(digits * 2**_DIGITS)",
        new="math.ldexp(math.floor(digits * 2**_DIGITS)",
        tests=("tests/privacy/accounting/test_constant.py",),
    ),
    Mutant(
        name="a change of belief is priced as if there were none",
        file="privacy/accounting/ledger.py",
        old="if swept.loss > top and not part.history.changes:",
        new="if swept.loss > top:",
        tests=("tests/privacy/accounting/test_belief_changes.py",),
    ),
    Mutant(
        name="slots are compacted without a ceiling",
        file="privacy/accounting/sweep.py",
        old="(behind.states, ahead)",
        new="(behind.states, None)",
        tests=("tests/privacy/accounting/test_compaction.py",),
    ),
    Mutant(
        name="a run after a change uses the kernel before it",
        file="privacy/accounting/sweep.py",
        old="return bisect_right(self.changes, slot), bisect_left(self.changes, slot)",
        new="return bisect_left(self.changes, slot), bisect_left(self.changes, slot)",
        tests=("tests/privacy/accounting/test_belief_changes.py",),
    ),
    Mutant(
        name="a stream repeats itself before its blocks reach back as far",
        file="privacy/accounting/sweep.py",
        old="        and one.known >= other.known\n",
        new="",
        tests=("tests/privacy/accounting/test_belief_changes.py",),
    ),
    Mutant(
        name="after a change a start is taken as stationary",
        file="privacy/accounting/sweep.py",
        old="(belief if start is None else from_any_start(belief) for start, belief in segments)",
        new="(belief for start, belief in segments)",
        tests=("tests/privacy/accounting/test_belief_changes.py",),
    ),
    Mutant(
        name="after a change a class about the marginals is believed",
        file="privacy/models/classes.py",
        old="    if belief.any_start:\n        return belief\n",
        new="    if belief.any_start or not belief.members:\n        return belief\n",
        tests=("tests/privacy/models/test_protocol.py",),
    ),
    Mutant(
        name="a certificate is known by its numbers without their shape",
        file="privacy/models/serialisation.py",
        old="*((matrix.shape, matrix.tobytes()) for matrix in (one.forward, one.backward))",
        new="*(matrix.tobytes() for matrix in (one.forward, one.backward))",
        tests=("tests/privacy/models/test_certified.py",),
    ),
    Mutant(
        name="the density of the own slot is counted in both directions",
        file="privacy/accounting/sweep.py",
        old="(self._densities[index] + np.max(bounds, axis=0)) * _UP",
        new="(np.max(bounds, axis=0)) * _UP",
        tests=("tests/privacy/accounting/test_sweep.py::test_the_recursion_bounds_the_loss_of_every_stationary_chain",),
    ),
    Mutant(
        name="uncharged slots between windows are left out",
        file="privacy/accounting/sweep.py",
        old="return float(min(self._bounds(index)[1].max(), self._total))",
        new="return float(min(self._bounds(index)[1].max(), self._total)) if self._densities[index] else 0.0",
        tests=("tests/privacy/accounting/test_sweep.py::test_the_worst_slot_may_lie_between_two_windows",),
    ),
    Mutant(
        name="a run that is not followed to its end is bounded by its last matrix, proof or not",
        file="privacy/accounting/sweep.py",
        old="if self._is_under(Level(found, longest, 0.0), at, float(found.max())) and self._sweeper.proves(\n"
        "                    found, self._density, longest\n"
        "                ):",
        new="if found is not None:",
        tests=(
            "tests/privacy/accounting/test_sweep.py::test_slots_that_are_not_followed_have_the_bound_of_those_that_are",
        ),
    ),
    Mutant(
        name="a run above the level of its density is bounded by that level",
        file="privacy/accounting/sweep.py",
        old="if (matrix <= level.matrix).all() and self._is_under(",
        new="if self._is_under(",
        tests=(
            "tests/privacy/accounting/test_sweep.py::test_slots_that_are_not_followed_have_the_bound_of_those_that_are",
        ),
    ),
    Mutant(
        name="a level is raised by a factor alone",
        file="privacy/accounting/sweep.py",
        old="if (denser := self._still(density * (1 + excess))) is not None:",
        new="if (denser := None) is not None:",
        tests=("tests/privacy/accounting/test_belief_changes.py",),
    ),
    Mutant(
        name="a slow chain has no level",
        file="privacy/accounting/sweep.py",
        old="if turn >= _FAST_TURNS and turn % _CHUNK == 0 and rest < _USELESS:",
        new="if rest < 0:",
        tests=(
            "tests/privacy/accounting/test_belief_changes.py"
            "::test_a_slow_chain_before_or_after_a_switch_costs_little_more_than_alone",
        ),
    ),
    Mutant(
        name="no density at a change of belief is a density of 0",
        file="privacy/accounting/ledger.py",
        old="        if not low:\n",
        new="        if low < 0:\n",
        tests=("tests/privacy/accounting/test_belief_changes.py::test_where_no_density_is_found_none_is_named",),
    ),
    Mutant(
        name="an event leaves out what lies before it in the recursion",
        file="privacy/accounting/sweep.py",
        old="return float(np.max(ahead + behind, initial=0.0)) * _UP",
        new="return float(np.max(ahead, initial=0.0)) * _UP",
        tests=("tests/privacy/accounting/test_events.py",),
    ),
    Mutant(
        name="an event where the belief changes has one run beside it",
        file="privacy/accounting/sweep.py",
        old="return [max((one.most for run in tails for one in run), default=0.0)]",
        new="return [max(one.most for one in tails[0])]",
        tests=("tests/privacy/accounting/test_events.py",),
    ),
    Mutant(
        name="the densest slots in a row of an event begin at a step",
        file="privacy/accounting/charges.py",
        old="first = np.concatenate([places, places - slots])",
        new="first = places",
        tests=("tests/privacy/accounting/test_density.py",),
    ),
    Mutant(
        name="an event on an endless schedule has no more periods than are followed",
        file="privacy/accounting/schedules.py",
        old="return found(slots - periods * period) + periods * mass",
        new="return found(slots - periods * period)",
        tests=("tests/privacy/accounting/test_density.py",),
    ),
    Mutant(
        name="an event leaves out what its past tells",
        file="privacy/accounting/forward_backward.py",
        old="float(one.forward.max()) + float(one.backward.max()) - 2 * one.density",
        new="float(one.forward.max()) - one.density",
        tests=("tests/privacy/accounting/test_events.py",),
    ),
    Mutant(
        name="an event counts a slot too few",
        file="privacy/accounting/ledger.py",
        old="slots * float_above(top)",
        new="(slots - 1) * float_above(top)",
        tests=("tests/privacy/accounting/test_events.py",),
    ),
    Mutant(
        name="a changed cell moves a histogram by 1",
        file="privacy/mechanisms/histogram.py",
        old="sensitivity: ClassVar[int] = 2",
        new="sensitivity: ClassVar[int] = 1",
        tests=("tests/privacy/mechanisms/test_mechanisms.py",),
    ),
    Mutant(
        name="the past is bounded by the forward curve",
        file="privacy/models/dobrushin.py",
        old="MixingCurve(self.backward)",
        new="MixingCurve(self.forward)",
        tests=("tests/privacy/models/test_dobrushin.py",),
    ),
    Mutant(
        name="a class is rounded inward",
        file="privacy/models/dobrushin.py",
        old="rounding=ROUND_CEILING)",
        new='rounding="ROUND_FLOOR")',
        tests=("tests/privacy/models/test_dobrushin.py",),
    ),
    Mutant(
        name="a neighbourhood is as wide after many slots as after one",
        file="privacy/models/dobrushin.py",
        old="1.0 + np.cumsum(eta[:-1])",
        new="np.ones(len(eta) - 1)",
        tests=("tests/privacy/models/test_neighbourhood.py",),
    ),
    Mutant(
        name="a memory of two slots is one of the second alone",
        file="privacy/estimation/belief_checks.py",
        old="pairs[:, last, last] = own[:, last]",
        new="pairs[:, last, last] = own[:, last].mean(axis=0)",
        tests=("tests/privacy/estimation/test_belief_checks.py",),
    ),
    Mutant(
        name="the past of a rhythm is read from the slots ahead",
        file="privacy/models/periodic.py",
        old="self.live, -1, error",
        new="self.live, 1, error",
        tests=("tests/privacy/models/test_periodic.py",),
    ),
    Mutant(
        name="a certificate that is read is not checked",
        file="privacy/models/serialisation.py",
        old="            certify(pair, one, [",
        new="            one.density > 0 and bool([",
        tests=("tests/privacy/models/test_certified.py",),
    ),
    Mutant(
        name="couplings that are read are taken as they are, with rows that do not have the surplus",
        file="privacy/models/couplings.py",
        old="given = taken * (surplus / np.where(sums > 0, sums, 1.0))[rows]",
        new="given = taken * np.where(sums > 0, 1.0, sums)[rows]",
        tests=("tests/privacy/models/test_couplings.py",),
    ),
    Mutant(
        name="a surplus that no coupling took costs nothing",
        file="privacy/models/couplings.py",
        old="    if lost.any():\n",
        new="    if not lost.any():\n",
        tests=("tests/privacy/models/test_couplings.py",),
    ),
    Mutant(
        name="mass that is no number makes a row vanish",
        file="privacy/models/couplings.py",
        old=" & (mass < _MOST_MASS)",
        new="",
        tests=("tests/privacy/models/test_couplings.py",),
    ),
    Mutant(
        name="what couplings prove is rounded inward",
        file="privacy/models/couplings.py",
        old="theta * (1.0 + (2 * k + 16) * UNIT)",
        new="theta * (1.0 - (2 * k + 16) * UNIT)",
        tests=("tests/privacy/models/test_couplings.py",),
    ),
    Mutant(
        name="a certificate at a smaller density is lowered twice as far",
        file="privacy/models/directions.py",
        old="np.nextafter(matrix - less, np.inf)",
        new="np.nextafter(matrix - 2 * less, np.inf)",
        tests=("tests/privacy/models/test_certified.py",),
    ),
    Mutant(
        name="a chain of any start is taken as stationary",
        file="privacy/models/classes.py",
        old="AnyStart.of([chain.transition])) for chain",
        new="chain.directions()[0][1]) for chain",
        tests=(
            "tests/privacy/accounting/test_forward_backward.py",
            "tests/privacy/accounting/test_sweep.py::test_the_recursion_bounds_the_loss_of_every_chain_with_any_start",
        ),
    ),
    Mutant(
        name="a cover has one series too few",
        file="privacy/estimation/per_series.py",
        old="rank = math.ceil(wanted * (series + 1))",
        new="rank = math.ceil(wanted * series)",
        tests=("tests/privacy/estimation/test_contraction.py",),
    ),
    Mutant(
        name="series count as long whatever is added to their rows",
        file="privacy/estimation/per_series.py",
        old="added = PSEUDO_VISITS * pooled.states",
        new="added = 1",
        tests=("tests/privacy/estimation/test_contraction.py",),
    ),
    Mutant(
        name="a pool with a state that is left for ever is taken",
        file="privacy/estimation/per_series.py",
        old="    if not pooled.is_irreducible:",
        new="    if False:",
        tests=("tests/privacy/estimation/test_contraction.py",),
    ),
    Mutant(
        name="a band of a quantile passes edges without the noise",
        file="privacy/estimation/released_histograms.py",
        old="            if excess + width >= 0:",
        new="            if excess >= 0:",
        tests=("tests/privacy/estimation/test_released_histograms.py",),
    ),
    Mutant(
        name="the audit does not derive the band of a query",
        file="pipelines/commands/ledger.py",
        old="        if said != band:",
        new="        if False:",
        tests=("tests/pipelines/commands/test_audit.py",),
    ),
    Mutant(
        name="a sum of noise that keeps the total has the variance of independent noise",
        file="privacy/estimation/released_histograms.py",
        old="        return _variance(self) * self.bins / (self.bins - 1) * float(centred @ centred)",
        new="        return _variance(self) * float(w @ w)",
        tests=("tests/privacy/estimation/test_noise_sums.py",),
    ),
    Mutant(
        name="the law of a sum forgets that the other counts take the noise back",
        file="privacy/estimation/released_histograms.py",
        old="    if noise.law == INDEPENDENT:\n        return one**chosen",
        new="    if noise.law != NO_NOISE:\n        return one**chosen",
        tests=("tests/privacy/estimation/test_noise_sums.py",),
    ),
    Mutant(
        name="a weighted sum of noise leaves out what smoothing takes",
        file="privacy/estimation/released_histograms.py",
        old="        passed = float(np.exp(logs - z * (middle - c))",
        new="        passed = float(np.exp(logs - z * (middle + c))",
        tests=("tests/privacy/estimation/test_noise_sums.py",),
    ),
    Mutant(
        name="of equal keys at the place of the last that is chosen all are chosen",
        file="privacy/mechanisms/sampling.py",
        old="    accepted = ends[:, 0] < ends[:, 1]",
        new="    accepted = ends[:, 0] <= ends[:, 1]",
        tests=("tests/privacy/mechanisms/test_sampling.py::test_each_subset_is_chosen_equally_often_over_all_keys",),
    ),
    Mutant(
        name="every candidate of the noise that keeps the total is accepted",
        file="privacy/mechanisms/discrete_laplace.py",
        old="    return noise[kept]",
        new="    return noise",
        tests=("tests/privacy/mechanisms/test_sampling.py::test_noise_of_sum_zero_has_exactly_its_law",),
    ),
    Mutant(
        name="every sum of the noise that keeps the total is accepted",
        file="privacy/mechanisms/discrete_laplace.py",
        old="    return np.column_stack([noise, -total])[kept]",
        new="    return np.column_stack([noise, -total])",
        tests=("tests/privacy/mechanisms/test_sampling.py::test_noise_of_sum_zero_has_exactly_its_law",),
    ),
    Mutant(
        name="gaps of the noise that keeps the total are drawn at its scale, not at half of it",
        file="privacy/mechanisms/discrete_laplace.py",
        old="    gaps = magnitudes(scale / 2,",
        new="    gaps = magnitudes(scale,",
        tests=("tests/privacy/mechanisms/test_sampling.py::test_noise_of_sum_zero_has_exactly_its_law",),
    ),
    Mutant(
        name="noise that keeps the total has the scale sigma, not 2 sigma",
        file="privacy/mechanisms/histogram.py",
        old="        return self._law.draw(rows, entropy)",
        new="        return ZeroSumLaplace(self.scale / 2, self.bins).draw(rows, entropy)",
        tests=("tests/privacy/mechanisms/test_mechanisms.py::TestFixedTotalHistogram",),
    ),
    Mutant(
        name="the total is kept where it is not public",
        file="transforms/plan.py",
        old="return FixedTotalHistogram.name if self.domain.total_is_public else LaplaceHistogram.name",
        new="return FixedTotalHistogram.name",
        tests=("tests/transforms/test_noise_law.py",),
    ),
    Mutant(
        name="one noise vector of sum zero goes over all classes of slots, so the totals of classes are mixed up",
        file="privacy/mechanisms/histogram.py",
        old="return self.each.randomise(counts.reshape(-1, self.each.bins)).reshape(counts.shape)",
        new='return __import__("dataclasses").replace(self.each, bins=self.bins).randomise(counts)',
        tests=("tests/transforms/test_slot_classes.py", "tests/privacy/mechanisms/test_class_histograms.py"),
    ),
    Mutant(
        name="cells are counted in the class of the slot after theirs",
        file="transforms/aggregate/release.py",
        old="classes.of(self._plan.grid, schedule.step(step)) if",
        new="classes.of(self._plan.grid, schedule.step(step + 1)) if",
        tests=("tests/transforms/test_slot_classes.py",),
    ),
    Mutant(
        name="cells without a reading are shared out over classes by the slots of the window, not of the class",
        file="transforms/aggregate/release.py",
        old="    missing = np.outer(layout.members(held.shard), slots) - each.sum(axis=2)",
        new="    missing = np.outer(layout.members(held.shard), 0 * slots + slots.max()) - each.sum(axis=2)",
        tests=("tests/transforms/test_slot_classes.py",),
    ),
    Mutant(
        name="the classes of slots are no part of what a query keeps",
        file="store/specs.py",
        old='            **({"by": list(self.by)} if self.by else {}),',
        new="            **{},",
        tests=("tests/transforms/test_slot_classes.py",),
    ),
    Mutant(
        name="states are put into the bin after theirs",
        file="schemas/states.py",
        old="np.searchsorted(finer.edges, self.edges) + 1]",
        new="np.searchsorted(finer.edges, self.edges)]",
        tests=("tests/transforms/test_coarser_bins.py",),
    ),
    Mutant(
        name="the local clock of classes of slots is UTC",
        file="schemas/slots.py",
        old="            local = local_of(self.timezone, utc_us)",
        new="            local = utc_us",
        tests=("tests/schemas/test_slot_classes.py",),
    ),
    Mutant(
        name="a total is public under every rule for missing cells",
        file="store/specs.py",
        old='return self.missing in ("public", "state") or self.missing.startswith("break ")',
        new="return True",
        tests=("tests/transforms/test_noise_law.py", "tests/store/test_values.py"),
    ),
    Mutant(
        name="noise that drowns the counts stops no job",
        file="transforms/checks.py",
        old="    if problem and _held(plan) is None:",
        new="    if problem and _held(plan) is not None:",
        tests=("tests/transforms/test_expected_error.py",),
    ),
    Mutant(
        name="a stand-in forgets as much between slots of a minute as of half an hour",
        file="transforms/plan.py",
        old="    share = min(1.0, interval_us / _STAND_IN_US)",
        new="    share = 1.0",
        tests=("tests/transforms/test_expected_error.py",),
    ),
    Mutant(
        name="an irregular element counts as an absent one",
        file="transforms/sources/reading_rows.py",
        old="return (None,) * len(self._schema.names), irregular.reason",
        new="return (None,) * len(self._schema.names), None",
        tests=("tests/transforms/sources/test_reading_rows.py",),
    ),
    Mutant(
        name="a batch of rows lets the watermark pass its earliest one",
        file="transforms/sources/reading_rows.py",
        old="self._earliest = min(self._earliest, timestamp)",
        new="self._earliest = timestamp",
        tests=("tests/transforms/sources/test_reading_rows.py",),
    ),
    Mutant(
        name="a window of any start uses how far its slots are from the start",
        file="privacy/analysis/methods.py",
        old=" or starts_stationary(held):",
        new=" or held is not None:",
        tests=("tests/transforms/test_calibrating.py",),
    ),
    Mutant(
        name="a live source that declares nothing is waited for without a word",
        file="transforms/aggregate/encode.py",
        old="        if self._declared and horizon_of(batch) is None:",
        new="        if self._declared and horizon_of(batch) is not None and False:",
        tests=("tests/transforms/sources/test_wall_clock.py",),
    ),
    Mutant(
        name="the wall clock begins after the first window that is missing",
        file="transforms/private_histograms.py",
        old="found[0].stop - 1",
        new="found[0].stop",
        tests=("tests/transforms/sources/test_wall_clock.py",),
    ),
    Mutant(
        name="a message that the MQTT library refuses comes by MQTT 5 again",
        file="pipelines/gateway/connection.py",
        old="plain = filters if ending.unreadable else state.plain",
        new="plain = state.plain",
        tests=("tests/pipelines/gateway/test_unreadable_packets.py",),
    ),
    Mutant(
        name="a gateway ends when its broker has changed its password",
        file="pipelines/gateway/connection.py",
        old="if before and reason.value in",
        new="if False and reason.value in",
        tests=("tests/pipelines/gateway/test_connection.py",),
    ),
    Mutant(
        name="a damaged ledger is copied as a backup",
        file="store/exports.py",
        old="    check()\n",
        new="",
        tests=("tests/pipelines/commands/test_ledger_commands.py",),
    ),
    Mutant(
        name="a budget is raised in an older copy of the ledger",
        file="pipelines/commands/ledger.py",
        old="check_history(settings, Unknown(), lost)",
        new="del lost",
        tests=("tests/pipelines/test_continuity.py::test_nothing_is_decided_about_an_older_copy_that_settings_name",),
    ),
    Mutant(
        name="a full disk of a sink uses up a job's restarts",
        file="pipelines/live/restarts.py",
        old="    if output.files and is_full(error):\n        return _without_room(symptom)\n",
        new="",
        tests=("tests/pipelines/connectors/test_job_io.py",),
    ),
    Mutant(
        name="MQTT 3.1.1 is left with messages that are not acknowledged",
        file="pipelines/gateway/connection.py",
        old="if self._draining and not self._unacknowledged and",
        new="if self._draining and",
        tests=("tests/pipelines/gateway/test_unreadable_packets.py",),
    ),
)
