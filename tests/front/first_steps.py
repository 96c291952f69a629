"""The way of somebody new, as the README says it: from a clone to an answer about a model of their own.

    python -m tests.front.first_steps     # goes that way in an empty folder, and says how long each command took

Nothing of an earlier installation is used but the package manager's own cache: the virtual environment, the
compiled kernels and the model are new.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OWN = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
"""A model that nobody has published: of 3.2e9 parameters."""


def commands(before: str) -> list[str]:
    """The lines of the first indented block after a sentence of the README, without their remarks."""
    block = re.search(r"\n((?:    .*\n)+)", README.split(before)[1])
    assert block is not None
    return [line.strip().partition("   #")[0].strip() for line in block[1].splitlines()]


def installing() -> list[str]:
    """What makes the first table appear, and `equipoise` a command."""
    return commands("Debian or Ubuntu with Python")[:2]


def asking() -> list[str]:
    """What answers about a model of one's own."""
    return commands("or the path of your own `config.json`. Then:")


def write_own(folder: Path) -> None:
    """The README's scenario and the shape of a model of one's own, as its reader would write them."""
    example = re.search(r"```yaml\n# mine.yaml\n(.*?)```", README, re.DOTALL)
    assert example is not None
    (folder / "mine.yaml").write_text(example[1].replace("llama2-7b", "config.json"), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(OWN), encoding="utf-8")


def timed(repository: str) -> int:
    """Go the whole way in one shell, in an empty folder; the exit code of the first command that fails, else 0."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env["EQUIPOISE_KERNEL_CACHE"] = f"{folder}/kernels"
        checkout = Path(folder, "equipoise")
        total_s = 0.0
        for line in (f"git clone --quiet {repository} equipoise", *installing()[:1], *asking()):
            if line == asking()[0]:
                write_own(checkout)
            inside = checkout.is_dir()
            start = ". .venv/bin/activate && " if line in asking() else ""
            begin_s = time.perf_counter()
            done = subprocess.run(
                ["sh", "-c", start + line],
                cwd=checkout if inside else folder,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            took_s = time.perf_counter() - begin_s
            total_s += took_s
            print(f"{took_s:7.1f} s  {line}", flush=True)
            if done.returncode:
                print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
                return done.returncode
        print(f"{total_s:7.1f} s  in all, without the time to write mine.yaml")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", nargs="?", default=str(ROOT), help="what is cloned; default: this checkout")
    sys.exit(timed(parser.parse_args().repository))
