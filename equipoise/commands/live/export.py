"""export: a policy as a file for a real training job."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import click

from equipoise import api
from equipoise.base.regular import RefusedError, read_file
from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import CommandState, WrongInputError, common, note, pass_state, progress, say
from equipoise.policies.contract import Policy
from equipoise.policies.record.export import ExportedPolicy, ExportError, load_policy, write_policy
from equipoise.policies.registry import make_policy
from equipoise.sim.hardware.profile import load_profile, profile_path
from equipoise.sim.record import Run
from equipoise.sim.scenario.model import Scenario

_KEY_BYTES = 65_536
_PROMISED = ("makespan_s", "completion_mean_s", "goodput_ratio", "gpu_busy_ratio")


@click.command()
@click.argument("scenario", required=False, type=click.Path(dir_okay=False))
@click.option("--policy", metavar="POLICY", help="Stages joined by +. Default: the scenario's.")
@click.option("--out", metavar="FILE", default="policy.yaml", show_default=True, help="File to write.")
@click.option("--trace", metavar="FILE", help="Job trace in place of the scenario's.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a value of the scenario.")
@click.option(
    "--seed", type=IntRange(min=0), help="Seed of the run that gives the expected result. Default: the scenario's."
)
@click.option("--key-file", metavar="FILE", help="Sign (or check the signature) with the key in this file.")
@click.option("--check", metavar="FILE", help="Check a policy file and show it, write nothing.")
@click.option("--plugins", is_flag=True, help="With --check: accept stages of installed packages.")
@common
@pass_state
def export(
    state: CommandState,
    scenario: str | None,
    policy: str | None,
    out: str,
    trace: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    key_file: str | None,
    check: str | None,
    plugins: bool,
) -> int:
    """Write the policy of SCENARIO with all its parameters, and with its simulated result.

    A training script loads it with `equipoise.attach(model, optimizer, policy="policy.yaml", ...)`.
    """
    key = _key(key_file)
    if check is not None:
        _check(check, key, plugins)
        return OK
    if scenario is None:
        raise click.UsageError("needs SCENARIO to export from, or --check FILE")
    _check_target(Path(out))

    ready, jobs, warnings = api.prepare(scenario, trace, overrides)
    note(False, *warnings)
    with progress(state.quiet, ready.name, "jobs") as tell:

        def at(time_s: float, done: int, total: int) -> None:
            """Report how far the run is, in simulated hours."""
            tell(done, total, f"{time_s / 3600:.1f} h simulated")

        made = api.run(ready, policy=policy, seed=seed, trace=jobs, progress=at)
    exported = _exported(ready, made, policy)
    digest = _tried(lambda: write_policy(exported, Path(out), key))
    note(state.quiet, f"{out}: {made.policy_name}, digest {digest[:16]}, {_promised(exported)}")
    note(state.quiet, *_without_effect(exported.policy, out))
    return OK


def _check_target(path: Path) -> None:
    """Refuse to overwrite a file that is not a policy, such as the scenario itself."""
    if not path.name:
        raise click.UsageError("--out: a file name is needed")
    if path.is_file():
        with path.open("rb") as file:
            if file.read(11) not in (b'{\n "format"', b""):
                raise WrongInputError(f"{path}: exists and is not a policy file; choose another name")


def _key(key_file: str | None) -> bytes | None:
    if key_file is None:
        return None
    try:
        key = read_file(Path(key_file), _KEY_BYTES).strip()
    except (OSError, RefusedError) as error:
        raise WrongInputError(f"{key_file}: {getattr(error, 'strerror', error)}") from error
    if len(key) < 16:
        raise WrongInputError(f"{key_file}: a key of at least 16 bytes is needed")
    return key


def _tried(action: Any) -> Any:
    """Run an action on a policy file; an error in the file becomes one line."""
    try:
        return action()
    except ExportError as error:
        raise WrongInputError(str(error)) from error
    except OSError as error:
        raise WrongInputError(f"{error.filename}: {error.strerror}") from error


def _check(path: str, key: bytes | None, plugins: bool) -> None:
    found: ExportedPolicy = _tried(lambda: load_policy(Path(path), key, plugins=plugins))
    say(f"{path}: ok, {'signature checked' if found.signed else 'signature not checked'}")
    say(json.dumps(found.content(), indent=2))


def _exported(scenario: Scenario, made: Run, policy: str | None) -> ExportedPolicy:

    hardware = scenario.cluster.hardware
    profile = hashlib.sha256(profile_path(hardware).read_bytes()).hexdigest()
    row = made.summary()
    promise: dict[str, float | int | str] = {"seed": made.seed, "run": made.identity}
    promise |= {name: row[name] for name in _PROMISED if name in row and math.isfinite(row[name])}
    return ExportedPolicy(
        make_policy(policy if policy is not None else scenario.policy),
        profile={"name": load_profile(hardware).name, "digest": profile},
        scenario={"name": scenario.name, "digest": hashlib.sha256(made.config.encode()).hexdigest()},
        promise=promise,
    )


def _without_effect(policy: Policy, out: str) -> list[str]:
    """One line per allocation stage that has little or no effect in a single training job."""
    named = [s.name for s in policy.stages if s.kind == "allocation" and s.name in policy.name]
    where = f"`equipoise schedule {out}` lets it schedule the jobs of a Slurm cluster"
    return [f"{name}: has no effect in a single live job; {where}" for name in named]


def _promised(exported: ExportedPolicy) -> str:
    shown = [f"{name} {value:.4g}" for name, value in exported.promise.items() if isinstance(value, float)]
    return "promises " + ", ".join(shown) if shown else "promises nothing: no job completed"
