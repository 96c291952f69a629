"""Everything that needs one NVIDIA GPU, in one command of under ten minutes, as a table.

    python -m tests.bench.gpu_validation --out FOLDER [--docs]

Counters under known loads, two calibrations, second methods, training steps that were not fitted, steps and
memory of a large transformer, shares of the GPU, two trainings beside each other, two ranks under a policy, the
adapter's cost. FOLDER receives rows.md, results.json, the profile and the raw samples; --docs puts the table
into docs/validation.md. Sections that FOLDER has are kept, unless --sections names them. What this machine lacks
becomes a line that says what is missing. Exit codes: 0 all holds, 5 something does not, 3 something was not run.
"""

from __future__ import annotations

import argparse
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
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise.calibrate.measure.measure import MissingError
from equipoise.calibrate.profile import build_profile
from equipoise.calibrate.samples import SampleSet, SampleWriter, read_samples
from equipoise.sim.hardware.profile import HardwareProfile, load_profile, save_profile
from tests.bench.gpu import activity as gpu_activity
from tests.bench.gpu import predicted as gpu_predicted
from tests.bench.gpu import ranks as gpu_ranks
from tests.bench.gpu import rows as gpu_rows
from tests.bench.gpu import shares as gpu_shares
from tests.bench.gpu.rows import Row, not_run

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "validation.md"
BEGIN, END = "<!-- measured on a GPU: begin -->", "<!-- measured on a GPU: end -->"
KEPT_VALUES = 15  # of each sample, in the file that is small enough to be kept
# Seconds of measuring; starting processes, loading libraries and compiling come on top.
FIRST_S, SECOND_S, LARGE_S, TRAINING_S, ADAPTER_S, WATCH_S = 90.0, 40.0, 80.0, 1.0, 15.0, 2.0
RUNS, RANKS_S = ("plain", "s1+s2", "plain", "s1+s2+s3"), 120.0
ALL_BUT_SLOW = (
    "copy,read,triad,library_copy,fma,tensor,launch_pipelined,launch_round_trip,load_latency,transfer,gemm,"
    "share,interference"
)
STEPS_TOO_S = 250.0  # with so much time left the second calibration times training steps as well


@dataclass
class Session:
    """Where results go and how much time there is."""

    out: Path
    deadline_s: float
    device: str
    scale: float
    only: str | None
    quick: bool
    sections: dict[str, list[Row]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    first: HardwareProfile | None = None

    @property
    def rows(self) -> list[Row]:
        """All lines, in the order of the sections."""
        return [row for _, section in SECTIONS for row in self.sections.get(section.__name__, [])]

    def go_on(self) -> None:
        """Take up what the folder has."""
        path = self.out / "results.json"
        if path.exists():
            self.results = json.loads(path.read_text(encoding="utf-8"))
            found = self.results.pop("sections", {})
            self.sections = {name: [Row(**row) for row in rows] for name, rows in found.items()}
        if (self.out / "first.yaml").exists():
            self.first = load_profile(str(self.out / "first.yaml"))

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
        raise MissingError(f"no time is left for {shown}")
    try:
        done = subprocess.run(
            whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left_s
        )
    except subprocess.TimeoutExpired:
        raise MissingError(f"time is up: {shown}") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise MissingError(lines[-1])
    return done


def doctor(session: Session) -> list[Row]:
    """What the installation and the driver say."""
    text = command(session, "doctor").stdout
    session.results["doctor"] = text.splitlines()
    line = next((line for line in text.splitlines() if line.startswith("GPUs")), "GPUs none")
    return [Row("doctor", "-", " ".join(line.split()[1:]), "stated")]


def activity(session: Session) -> list[Row]:
    """The counters under known loads."""
    found = gpu_activity.measure(WATCH_S * session.scale, session.scale)
    session.results["activity"] = found
    return gpu_rows.activity_rows(found)


def _calibrate(session: Session, name: str, seconds: float, only: str | None) -> dict[str, Any]:
    out = session.out / f"{name}.yaml"
    arguments = ["calibrate", "--device", session.device, "--out", str(out), "--format", "json", "--quiet"]
    arguments += ["--seconds", str(seconds * session.scale), *(["--quick"] if session.quick else [])]
    chosen = session.only or only
    report: dict[str, Any] = json.loads(
        command(session, *arguments, *(["--only", chosen] if chosen else [])).stdout
    )
    session.results[name] = report
    return report


def first_calibration(session: Session) -> list[Row]:
    """All of it; the profile, second methods, shares of the data sheet, steps, shares of the GPU."""
    report = _calibrate(session, "first", FIRST_S, None)
    session.first = load_profile(str(session.out / "first.yaml"))
    samples = read_samples(session.out / "first.samples.jsonl")
    rows = [not_run(line.partition(":")[0], line.partition(":")[2]) for line in report["missing"]]
    return [
        *gpu_rows.second_method_rows(session.first),
        *gpu_rows.physical_rows(session.first),
        *gpu_rows.step_rows(report["predictions"]),
        *gpu_rows.share_rows(samples),
        *rows,
    ]


def second_calibration(session: Session) -> list[Row]:
    """Again, without what takes long, and whether the intervals agree."""
    if session.first is None:
        raise MissingError("there is no first calibration to compare with")
    steps = ",training" if session.left_s() > STEPS_TOO_S else ""
    _calibrate(session, "second", SECOND_S, ALL_BUT_SLOW + steps)
    second = load_profile(str(session.out / "second.yaml"))
    return [gpu_rows.agreement_row(session.first, second)]


def large(session: Session) -> list[Row]:
    """Steps and peak memory of a transformer of 1.3 billion parameters, by stacks fitted to public steps."""
    return _transformers(session, "large", ["1.3B"], gpu_predicted.PUBLIC)


def others(session: Session) -> list[Row]:
    """The same of two shapes of which no step was ever fitted, by the stacks fitted to the 1.3 billion's."""
    return _transformers(session, "others", ["350M", "2.7B"], gpu_predicted.FITTED)


def _transformers(session: Session, name: str, shapes: list[str], stacks: gpu_predicted.Stacks) -> list[Row]:
    if session.first is None:
        raise MissingError("there is no first calibration to predict from")
    if session.device == "cpu":
        shapes = ["tiny"]
    whole = [sys.executable, "-m", "tests.bench.gpu.large", "--device", session.device]
    whole += ["--shapes", ",".join(shapes), "--seconds", str(LARGE_S * session.scale)]
    found = json.loads(_run(whole, session.left_s()).stdout.splitlines()[-1])
    session.results[name] = found
    samples, hardware = read_samples(session.out / "first.samples.jsonl"), str(session.out / "first.yaml")
    return [row for each in found for row in gpu_rows.large_rows(each, hardware, samples, stacks)]


def training_shares(session: Session) -> list[Row]:
    """Two kinds of training on parts of the GPU, alone and beside each other."""
    with gpu_shares.mps() as environment:
        found = gpu_shares.measure_training(environment, session.device, TRAINING_S * session.scale)
    session.results["training_shares"] = found
    return gpu_rows.training_share_rows(found)


def ranks(session: Session) -> list[Row]:
    """Two unequal ranks of one training on one GPU; their records are kept, as an archive."""
    with gpu_shares.mps() as environment, tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        left_s = min(session.left_s(), RANKS_S)
        found = gpu_ranks.measure(environment, RUNS, session.device, Path(folder), left_s)
        with tarfile.open(session.out / "ranks.tar.gz", "w:gz") as archive:
            archive.add(folder, "ranks")
    session.results["ranks"] = found
    return gpu_rows.rank_rows(found)


def adapter(session: Session) -> list[Row]:
    """What a policy attached to a training costs."""
    whole = [sys.executable, "-m", "tests.bench.gpu.training", "adapter", "--device", session.device]
    done = _run([*whole, "--seconds", str(ADAPTER_S * session.scale)], session.left_s())
    found = json.loads(done.stdout.splitlines()[-1])
    session.results["adapter"] = found
    return [gpu_rows.adapter_row(found)]


SECTIONS: tuple[tuple[str, Callable[[Session], list[Row]]], ...] = (
    ("doctor", doctor),
    ("counters under known loads", activity),
    ("first calibration", first_calibration),
    ("adapter", adapter),
    ("training on shares of the GPU", training_shares),
    ("large transformer", large),
    ("transformers of other sizes", others),
    ("two ranks on one GPU", ranks),
    ("second calibration", second_calibration),
)


def validate(session: Session, wanted: frozenset[str] = frozenset()) -> None:
    """Every section, or those named; one that cannot run costs only itself."""
    for name, section in SECTIONS:
        if section.__name__ not in wanted if wanted else section.__name__ in session.sections:
            continue
        print(f"{name} ({session.left_s():.0f} s left)", file=sys.stderr, flush=True)
        try:
            rows = section(session)
        except Exception as error:  # every reason is a line of the table
            rows = [not_run(name, error if str(error) else type(error).__name__)]
        session.sections[section.__name__] = rows
        _write(session)


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
    samples = thinned(read_samples(session.out / "first.samples.jsonl"))
    keep_small(samples, session.out / "samples.jsonl.gz")
    save_profile(build_profile(samples, "profile")[0], session.out / "profile.yaml")


def heading(session: Session) -> str:
    """Machine, driver, date, command."""
    conditions = session.first.conditions if session.first else {}
    names = {"device": "", "driver": "driver ", "cuda_driver": "CUDA ", "power_limit_w": "power limit (W) "}
    parts = [f"{text}{conditions[name]}" for name, text in names.items() if conditions.get(name) is not None]
    machine = ", ".join(parts) or "no calibration"
    return f"{machine}; {datetime.now(UTC):%Y-%m-%d}; `python -m tests.bench.gpu_validation --out FOLDER`"


def _write(session: Session) -> None:
    table = gpu_rows.as_markdown(session.rows, heading(session))
    (session.out / "rows.md").write_text(table, encoding="utf-8")
    sections = {name: [asdict(row) for row in rows] for name, rows in session.sections.items()}
    results = session.results | {"sections": sections}
    (session.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


def put_into_docs(table: str, page: Path = DOCS) -> None:
    """Replace what stands between the two marks. Raises ValueError when the page has none."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name}: has no marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}", encoding="utf-8")


def exit_code(rows: list[Row]) -> int:
    """5 when something fails, else 3 when something was not run, else 0."""
    verdicts = {row.verdict for row in rows}
    return 5 if "FAILS" in verdicts else 3 if "not run" in verdicts else 0


def main(arguments: list[str] | None = None) -> int:
    """Run it all and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", action="store_true", help="put the table into docs/validation.md")
    parser.add_argument("--minutes", type=float, default=9.5, help="time for all of it")
    parser.add_argument("--scale", type=float, default=1.0, help="of the time for each measurement")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="calibrate with --quick, for a trial")
    names = ",".join(section.__name__ for _, section in SECTIONS)
    parser.add_argument("--sections", default="", help=f"some of {names}")
    parser.add_argument("--only", help="kinds of measurement, for a trial")
    given = parser.parse_args(arguments)
    wanted = frozenset(name for name in given.sections.split(",") if name)
    if wanted - set(names.split(",")):
        parser.error(f"--sections: known are {names}")
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60.0 * given.minutes
    session = Session(given.out.resolve(), deadline, given.device, given.scale, given.only, given.quick)
    session.go_on()
    validate(session, wanted)
    if session.first is not None:
        keep_profile(session)
    table = gpu_rows.as_markdown(session.rows, heading(session))
    if given.docs:
        put_into_docs(table)
    print(table)
    return exit_code(session.rows)


if __name__ == "__main__":
    sys.exit(main())
