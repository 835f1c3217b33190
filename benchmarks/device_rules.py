"""Rules of MPS and XPU, tried on this machine: on the real device, or on a simulated one.

    python -m benchmarks.device_rules --kind mps          # a line for each rule that is not kept, and what came instead
    python -m benchmarks.device_rules --kind xpu --show   # what came of each rule
    python -m benchmarks.device_rules --kind mps --only "event|autocast"

With a real device the rules are tried there, in about three minutes: they come from PyTorch's code, and nobody has
tried them all on one. A line that differs is worth an issue, with this machine, its system and its PyTorch.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.torch_version import TorchVersion

TABLE = Path(__file__).parents[1] / "engines" / "simgpu" / "device_rules.toml"
LIMIT_S = 60  # of a row in a process of its own
ENDLESS = "does not end"


@dataclass(frozen=True)
class Rule:
    """A row of the table; its comment says what the columns are."""

    kind: str
    name: str
    source: str
    versions: str
    program: str
    expect: str
    on_device: str = ""
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def is_of(self, version: TorchVersion) -> bool:
        """Return whether the row holds for a version of PyTorch."""
        named = re.fullmatch(r"(?:>= )?([\d.]+)?(?:(?: to |<= )([\d.]+))?", self.versions)
        first, last = named.groups("") if named else ("", "")
        return (not first or version >= first) and (not last or version < f"{last}.99")

    def is_kept(self, outcome: str, *, real: bool) -> bool:
        """Return whether `outcome`, which `tried` returned, is what the row expects."""
        expected = self.on_device if real and self.on_device else self.expect
        return re.search(expected, outcome, re.DOTALL) is not None


def read(kind: str) -> list[Rule]:
    """Return the rows of a kind of device that hold for this PyTorch."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["rule"]
    return [rule for rule in (Rule(**row) for row in rows) if rule.kind == kind and rule.is_of(torch.__version__)]


def is_real(kind: str) -> bool:
    """Return whether this process has a device of the kind, and no simulated one in its place."""
    if "simgpu" in sys.modules and sys.modules["simgpu"].enabled():
        return False
    return torch.backends.mps.is_available() if kind == "mps" else torch.xpu.is_available()


@contextlib.contextmanager
def device(kind: str, options: dict[str, Any]) -> Iterator[None]:
    """Inside, there is a device of the kind: the real one, or a simulated one with these `options`."""
    if is_real(kind):
        yield
        return
    import simgpu

    with getattr(simgpu, kind)(memory="2 GiB", **options):
        yield


def outcome_of(program: str) -> str:
    """Return what came of a program: its warnings, and its result or its error."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "io": io, "result": None}
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.set_warn_always(False)
        try:
            exec(compile(program, "<rule>", "exec"), names)
            ended = repr(names["result"])
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
        finally:
            torch.set_warn_always(always)
    return "".join(f"warns: {one.message}; " for one in said) + ended


def tried(rule: Rule) -> str:
    """Return what came of a rule's program on this machine."""
    if not (rule.alone or rule.environment):
        with device(rule.kind, rule.options):
            return outcome_of(rule.program)
    command = [sys.executable, "-m", "benchmarks.device_rules", "--kind", rule.kind, "--alone", rule.name]
    try:
        done = subprocess.run(
            command, env=os.environ | rule.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ENDLESS
    lines = done.stdout.strip().splitlines()
    return (
        json.loads(lines[-1])
        if lines and not done.returncode
        else f"ended with {done.returncode}: {done.stderr[-300:]}"
    )


def main(arguments: list[str] | None = None) -> bool:
    """Print which rules are not kept; return whether all are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("mps", "xpu"), required=True)
    parser.add_argument("--only", default="", metavar="TEXT", help="rules in whose name this is found")
    parser.add_argument("--show", action="store_true", help="also what came of those that are kept")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    rules = read(given.kind)
    if given.alone:
        (rule,) = (one for one in rules if one.name == given.alone)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with device(rule.kind, rule.options):
                begun = "".join(f"warns: {one.message}; " for one in said)
                print(json.dumps(begun + outcome_of(rule.program)))
        return True
    real, kept, rules = is_real(given.kind), 0, [one for one in rules if re.search(given.only, one.name)]
    for rule in rules:
        outcome = tried(rule)
        is_kept = rule.is_kept(outcome, real=real)
        kept += is_kept
        if not is_kept or given.show:
            print(f"{'kept' if is_kept else 'NOT KEPT'}: {rule.name}\n    {outcome}\n    {rule.source}", flush=True)
    where = "on the real device" if real else "on the simulated one"
    print(f"{kept} of {len(rules)} rules of {given.kind} are kept {where}, PyTorch {torch.__version__}")
    return kept == len(rules)


if __name__ == "__main__":
    raise SystemExit(not main())
