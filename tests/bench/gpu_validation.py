"""Everything that needs one NVIDIA GPU, in one command of under ten minutes, as a table.

    python -m tests.bench.gpu_validation --out FOLDER [--docs]

Counters under known loads, two calibrations, second methods, training steps that were not fitted, steps and memory of
a large transformer, shares of the GPU, two trainings beside each other, two ranks under a policy, the adapter's cost,
operations and steps of popular models. FOLDER receives rows.md, results.json, the profile and the raw samples; --docs
puts the table into docs/validation-gpu.md. Sections that FOLDER has are kept, unless --sections names them. What this
machine lacks becomes a line that says what is missing. Exit codes: 0 all holds, 5 something does not, 3 something was
not run.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise.calibrate.measure.measure import MeasureMissingError
from equipoise.calibrate.profile import build_profile
from equipoise.calibrate.samples import SampleSet, SampleWriter, read_samples
from equipoise.sim.hardware.profile import HardwareProfile, load_profile, save_profile
from tests.bench.gpu import predicted as gpu_predicted
from tests.bench.gpu import ranks as gpu_ranks
from tests.bench.gpu import rows as gpu_rows
from tests.bench.gpu import shares as gpu_shares
from tests.bench.gpu.rows import Row, not_run

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "validation-gpu.md"
PREDICTED = ROOT / "tests" / "data" / "popular_predicted.csv"
KEPT_VALUES = 15  # of each sample, in the file that is small enough to be kept
# Seconds of measuring; starting processes, loading libraries and compiling come on top.
FIRST_S, SECOND_S, LARGE_S, TRAINING_S, ADAPTER_S, POPULAR_S = 90.0, 40.0, 80.0, 1.0, 15.0, 60.0
LEAST_S = 0.5  # of a calibration
RUNS, RANKS_S = ("plain", "s1+s2", "plain", "s1+s2+s3"), 120.0
ALL_BUT_SLOW = "copy,read,triad,library_copy,fma,tensor,launch_pipelined,transfer,gemm,share,interference,training"


@dataclass
class Session:
    """Where results go and how much time there is. `failed`: why a section was not run, by its name."""

    out: Path
    deadline_s: float
    device: str
    scale: float
    only: str | None
    quick: bool
    results: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def go_on(self) -> None:
        """Take up what the folder has."""
        path = self.out / "results.json"
        if path.exists():
            self.results = json.loads(path.read_text(encoding="utf-8"))
            self.failed = self.results.pop("failed", {})

    def keep(self) -> None:
        """Write down what there is."""
        found = self.results | {"failed": self.failed}
        (self.out / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")

    def profile(self, name: str) -> HardwareProfile:
        """The profile of a calibration. Raises MissingError when there was none."""
        if name not in self.results:
            raise MeasureMissingError(f"there is no {name} calibration")
        return load_profile(str(self.out / f"{name}.yaml"))

    def samples(self, name: str = "first") -> SampleSet:
        """Those of a calibration."""
        return read_samples(self.out / f"{name}.samples.jsonl")

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline_s - time.monotonic()


def command(session: Session, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own. Raises MissingError, one line, when it fails or takes too long."""
    whole = [sys.executable, "-m", "equipoise.cli", *arguments]
    return _run(whole, session.left_s())


def _run(whole: list[str], left_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    shown = shlex.join(whole[1:])
    if left_s < 1.0:
        raise MeasureMissingError(f"no time is left for {shown}")
    try:
        done = subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left_s)
    except subprocess.TimeoutExpired:
        raise MeasureMissingError(f"time is up: {shown}") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise MeasureMissingError(lines[-1])
    return done


def measure_doctor(session: Session) -> Any:
    """What the installation and the driver say."""
    return command(session, "doctor").stdout.splitlines()


def doctor_rows(session: Session, found: Any) -> list[Row]:
    """The GPUs and their driver."""
    line = next((line for line in found if line.startswith("GPUs")), "GPUs none")
    return [Row("doctor", "-", " ".join(line.split()[1:]), "stated")]


def _calibrate(session: Session, name: str, seconds: float, only: str | None) -> Any:
    out = session.out / f"{name}.yaml"
    arguments = ["calibrate", "--device", session.device, "--out", str(out), "--format", "json", "--quiet"]
    arguments += ["--seconds", str(max(seconds * session.scale, LEAST_S)), *(["--quick"] if session.quick else [])]
    chosen = session.only or only
    return json.loads(command(session, *arguments, *(["--only", chosen] if chosen else [])).stdout)


def measure_first(session: Session) -> Any:
    """A calibration of all there is."""
    return _calibrate(session, "first", FIRST_S, None)


def first_rows(session: Session, found: Any) -> list[Row]:
    """Second methods, shares of the data sheet, steps, shares of the GPU."""
    profile = session.profile("first")
    missing = [not_run(line.partition(":")[0], line.partition(":")[2]) for line in found["missing"]]
    return [
        *gpu_rows.second_method_rows(profile),
        *gpu_rows.physical_rows(profile),
        *gpu_rows.step_rows(found["predictions"]),
        *gpu_rows.share_rows(session.samples()),
        *missing,
    ]


def measure_second(session: Session) -> Any:
    """Again, without what takes long."""
    return _calibrate(session, "second", SECOND_S, ALL_BUT_SLOW)


def second_rows(session: Session, found: Any) -> list[Row]:
    """Whether the intervals of both agree; second methods and steps again."""
    profile = session.profile("second")
    again = [*gpu_rows.second_method_rows(profile), *gpu_rows.step_rows(found["predictions"])]
    return [
        gpu_rows.agreement_row(session.profile("first"), profile),
        *(replace(row, what=f"again: {row.what}") for row in again),
    ]


def measure_large(session: Session) -> Any:
    """Steps and peak memory of a transformer of 1.3 billion parameters."""
    return _transformers(session, "1.3B")


def large_rows(session: Session, found: Any) -> list[Row]:
    """By stacks fitted to public steps; on another GPU than their own also by those fitted to these."""
    rows = _transformer_rows(session, found, gpu_predicted.PUBLIC)
    if session.profile("first").conditions["device"] == gpu_predicted.FITTED_ON:
        return rows
    return rows + [
        row for row in _transformer_rows(session, found, gpu_predicted.FITTED) if "from its shape (" in row.what
    ]


def measure_others(session: Session) -> Any:
    """The same of two shapes of which no step was ever fitted."""
    return _transformers(session, "350M,2.7B")


def others_rows(session: Session, found: Any) -> list[Row]:
    """By the stacks fitted to the 1.3 billion's."""
    return _transformer_rows(session, found, gpu_predicted.FITTED)


def _transformers(session: Session, shapes: str) -> Any:
    shapes = "tiny" if session.device == "cpu" else shapes
    whole = [sys.executable, "-m", "tests.bench.gpu.large", "--device", session.device]
    whole += ["--shapes", shapes, "--seconds", str(LARGE_S * session.scale)]
    return json.loads(_run(whole, session.left_s()).stdout.splitlines()[-1])


def _transformer_rows(session: Session, found: Any, stacks: gpu_predicted.Stacks) -> list[Row]:
    session.profile("first")
    hardware = str(session.out / "first.yaml")
    return [row for each in found for row in gpu_rows.large_rows(each, hardware, stacks)]


def measure_shares(session: Session) -> Any:
    """Two kinds of training on parts of the GPU, alone and beside each other."""
    with gpu_shares.mps() as environment:
        return gpu_shares.measure_training(environment, session.device, TRAINING_S * session.scale)


def measure_ranks(session: Session) -> Any:
    """Two unequal ranks of one training on one GPU; their records are kept, as an archive."""
    with gpu_shares.mps() as environment, tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        left_s = min(session.left_s(), RANKS_S)
        found = gpu_ranks.measure(environment, RUNS, session.device, Path(folder), left_s)
        with tarfile.open(session.out / "ranks.tar.gz", "w:gz") as archive:
            archive.add(folder, "ranks")
    return found


def ranks_rows(session: Session, found: Any) -> list[Row]:
    """What the stages gain, and what their twins say."""
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-") as folder,
        tarfile.open(session.out / "ranks.tar.gz") as archive,
    ):
        archive.extractall(folder, filter="data")
        twins = {run.name: gpu_ranks.twin_of(run) for run in sorted(Path(folder, "ranks").iterdir())}
    return gpu_rows.rank_rows(found) + gpu_rows.twin_rows(twins)


def measure_adapter(session: Session) -> Any:
    """What a policy attached to a training costs."""
    whole = [sys.executable, "-m", "tests.bench.gpu.training", "adapter", "--device", session.device]
    done = _run([*whole, "--seconds", str(ADAPTER_S * session.scale)], session.left_s())
    return json.loads(done.stdout.splitlines()[-1])


def measure_popular(session: Session) -> Any:
    """Operations and steps of popular models, into FOLDER/popular; those that none has measured come first."""
    out, seconds = session.out / "popular", min(POPULAR_S * session.scale, 0.4 * session.left_s())
    _run([sys.executable, "-m", "tests.bench.gpu.popular", str(out), "--seconds", str(seconds)], session.left_s())
    steps = list(csv.DictReader((out / "steps.csv").open(encoding="utf-8")))
    return {"steps": steps, "operations": sum(1 for _ in (out / "operations.csv").open(encoding="utf-8")) - 1}


@dataclass(frozen=True)
class Section:
    """A part of the validation: what is measured, and the lines that it gives."""

    name: str
    title: str
    measure: Callable[[Session], Any]
    rows: Callable[[Session, Any], list[Row]]


SECTIONS = (
    Section("doctor", "doctor", measure_doctor, doctor_rows),
    Section("first", "first calibration", measure_first, first_rows),
    Section("adapter", "adapter", measure_adapter, lambda _, found: gpu_rows.adapter_rows(found)),
    Section("popular", "popular models", measure_popular, lambda _, found: gpu_rows.popular_rows(found, PREDICTED)),
    Section(
        "training_shares",
        "training on shares of the GPU",
        measure_shares,
        lambda _, found: gpu_rows.training_share_rows(found),
    ),
    Section("large", "large transformer", measure_large, large_rows),
    Section("others", "transformers of other sizes", measure_others, others_rows),
    Section("ranks", "two ranks on one GPU", measure_ranks, ranks_rows),
    Section("second", "second calibration", measure_second, second_rows),
)


def validate(session: Session, wanted: frozenset[str] | None = None) -> None:
    """Measure those named, or what is not measured yet; a section that cannot run costs only itself."""
    for section in SECTIONS:
        if section.name not in wanted if wanted is not None else section.name in session.results:
            continue
        print(f"{section.title} ({session.left_s():.0f} s left)", file=sys.stderr, flush=True)
        try:
            session.results[section.name] = section.measure(session)
            session.failed.pop(section.name, None)
        except Exception as error:  # every reason is a line of the table
            session.failed[section.name] = str(error) or type(error).__name__
        session.keep()


def all_rows(session: Session) -> list[Row]:
    """The lines of every section that was measured or that failed."""
    rows: list[Row] = []
    for section in SECTIONS:
        if section.name in session.failed:
            rows.append(not_run(section.title, session.failed[section.name]))
        elif section.name in session.results:
            try:
                rows += section.rows(session, session.results[section.name])
            except Exception as error:  # likewise
                rows.append(not_run(section.title, error))
    return rows


def thinned(samples: SampleSet) -> SampleSet:
    """At most KEPT_VALUES values of each sample, evenly over time, so that the file can be kept."""
    kept = []
    for sample in samples.samples:
        stride = -(-len(sample.values) // KEPT_VALUES) or 1
        kept.append(replace(sample, values=sample.values[::stride]))
    return replace(samples, samples=tuple(kept))


def keep_small(samples: SampleSet, target: Path) -> None:
    """Write samples as a .jsonl.gz whose bytes depend on nothing else."""
    plain = target.with_suffix("")
    plain.unlink(missing_ok=True)
    writer = SampleWriter(plain, samples.conditions, samples.versions)
    for sample in samples.samples:
        writer.add(sample)
    writer.close()
    target.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def keep_profile(session: Session) -> None:
    """The thinned samples and the profile that they give: profile.yaml, samples.jsonl.gz."""
    samples = thinned(session.samples())
    keep_small(samples, session.out / "samples.jsonl.gz")
    save_profile(build_profile(samples, "profile")[0], session.out / "profile.yaml")


def heading(session: Session) -> str:
    """Machine, driver, date, command."""
    conditions = session.profile("first").conditions if "first" in session.results else {}
    names = {"device": "", "driver": "driver ", "cuda_driver": "CUDA ", "power_limit_w": "power limit (W) "}
    parts = [f"{text}{conditions[name]}" for name, text in names.items() if conditions.get(name) is not None]
    machine = ", ".join(parts) or "no calibration"
    return f"{machine}; {datetime.now(UTC):%Y-%m-%d}; `python -m tests.bench.gpu_validation --out FOLDER`"


def marks(device: str) -> tuple[str, str]:
    """Between which a page holds the table of a GPU."""
    return f"<!-- {device}: begin -->", f"<!-- {device}: end -->"


def put_into_docs(table: str, device: str, page: Path = DOCS) -> None:
    """Replace what stands between the GPU's two marks. Raises ValueError when the page has none."""
    first, last = marks(device)
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page.name}: has no marks {first} and {last}")
    page.write_text(f"{before}{first}\n\n{table}\n{last}{after}", encoding="utf-8")


def exit_code(rows: list[Row]) -> int:
    """5 when something fails, else 3 when something was not run, else 0."""
    verdicts = {row.verdict for row in rows}
    return 5 if "FAILS" in verdicts else 3 if "not run" in verdicts else 0


def main(arguments: list[str] | None = None) -> int:
    """Run it all and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", action="store_true", help="put the table into docs/validation-gpu.md")
    parser.add_argument("--minutes", type=float, default=9.5, help="time for all of it")
    parser.add_argument("--scale", type=float, default=1.0, help="of the time for each measurement")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="calibrate with --quick, for a trial")
    names = [section.name for section in SECTIONS]
    parser.add_argument("--sections", help=f"measure these again, of {','.join(names)}; none: only the table")
    parser.add_argument("--only", help="kinds of measurement, for a trial")
    parser.add_argument("--no-table", action="store_true", help="only measure; the table can be made elsewhere")
    given = parser.parse_args(arguments)
    wanted = None if given.sections is None else frozenset(given.sections.split(",")) - {"none"}
    if wanted is not None and wanted - set(names):
        parser.error(f"--sections: known are {','.join(names)}, or none")
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60.0 * given.minutes
    session = Session(given.out.resolve(), deadline, given.device, given.scale, given.only, given.quick)
    session.go_on()
    validate(session, wanted)
    if given.no_table:
        return 0
    if "first" in session.results:
        keep_profile(session)
    rows = all_rows(session)
    table = gpu_rows.as_markdown(rows, heading(session))
    (session.out / "rows.md").write_text(table, encoding="utf-8")
    if given.docs:
        put_into_docs(table, str(session.profile("first").conditions["device"]))
    print(table)
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
