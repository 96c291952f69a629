"""The policy that an argument names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.options import WrongInputError
from equipoise.policies.registry import make_policy

if TYPE_CHECKING:
    from equipoise.policies.contract import Policy


def policy_of(text: str) -> Policy:
    """An exported file, or stages joined by +."""
    if not text.endswith((".yaml", ".yml")):
        return make_policy(text)
    from equipoise.policies.record.export import ExportError, load_policy  # loads Numba, which `--help` does without

    try:
        return load_policy(Path(text)).policy
    except ExportError as error:
        raise WrongInputError(str(error)) from error
    except OSError as error:
        raise WrongInputError(f"{text}: {error.strerror}") from error


def named(text: str) -> str:
    """As `policy_of`, the name from which the policy can be made again."""
    policy = policy_of(text)
    return policy.name if text.endswith((".yaml", ".yml")) else text
