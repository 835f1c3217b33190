"""What does a report say of a program's lines? Each file has a rule, or several of a kind (`simgpu.reports.rule`)."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable

from simgpu.reports.program import Program
from simgpu.reports.rule import Outcome, Rule, Suspect

__all__ = ["RULES", "Rules"]

_ABOUT = ("result", "time", "memory")


def _rules() -> dict[str, type[Rule]]:
    """Return the rules of all files by their codes: those on results first, then by name."""
    found: list[type[Rule]] = []
    for entry in pkgutil.iter_modules(__path__, f"{__name__}."):
        module = importlib.import_module(entry.name)
        for _, rule in inspect.getmembers(module, inspect.isclass):
            if issubclass(rule, Rule) and rule.__module__ == entry.name:
                rule.code = "-".join(re.findall("[A-Z][a-z0-9]*", rule.__name__)).lower()
                rule.seen = (rule.__doc__ or module.__doc__ or "").strip()
                found.append(rule)
    return {rule.code: rule for rule in sorted(found, key=lambda rule: (_ABOUT.index(rule.about), rule.code))}


RULES = _rules()


class Rules:
    """All rules, on one program."""

    def __init__(self, program: Program, listen: Callable[[Rule], None]) -> None:
        self._program = program
        self._rules = {code: rule(program) for code, rule in RULES.items()}
        for rule in self._rules.values():
            listen(rule)

    def __getitem__(self, code: str) -> Rule:
        return self._rules[code]

    def found(self, outcome: Outcome) -> list[Suspect]:
        """Return the remarks on what was seen until now: those on results first, else in the order of the run."""
        lines = [one for one, steps in self._program.notes.items() if self._rules[one[0]].is_habit(len(steps))]
        lines += [(code, line) for code, rule in self._rules.items() for line in rule.late_lines(outcome)]
        codes = {code for code, _ in lines}
        explained = {other for code in codes for other in RULES[code].explains}
        suspects = (self._rules[code].suspect(line, outcome) for code, line in lines if code not in explained)
        return sorted(filter(None, suspects), key=lambda one: one.about != "result")
