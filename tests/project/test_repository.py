"""Do the files around the course agree with each other?"""

import json
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement

from tests import machine
from tools import notebooks, wheels

ROOT = notebooks.ROOT
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def tracked(*patterns):
    """Return the texts, by path, of the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    texts = {path: path.read_bytes().decode("utf-8", "replace") for path in paths if path.is_file()}
    assert texts
    return texts


def pinned():
    """Return the versions in constraints.txt by normalised name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert found
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found.items()}


def test_the_conda_recipe_equals_pyproject():
    recipe = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    wanted = {"python": str(Requirement(f"python{PROJECT['requires-python']}").specifier)}
    extras = PROJECT["optional-dependencies"]
    for line in PROJECT["dependencies"] + extras["lab"] + extras["test"]:
        requirement = Requirement(line)
        if requirement.marker:  # a package that some systems lack, and without which the course works
            continue
        wanted[CONDA_NAMES.get(requirement.name, requirement.name)] = str(requirement.specifier)
    *packages, last = recipe["dependencies"]
    assert recipe["channels"] == ["conda-forge", "nodefaults"]
    assert last == {"pip": ["-e ."]} and packages[-1] == "pip"
    found = {Requirement(line).name: str(Requirement(line).specifier) for line in packages[:-1]}
    assert found == wanted
    assert recipe["name"] == PROJECT["name"]


def test_the_conda_environment_has_what_its_users_run():
    """The README promises the lessons in JupyterLab and their tests there."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (conda,) = re.findall(r"^\| conda \|.*", readme, re.MULTILINE)
    assert "python tools/workbook.py" in conda and "pytest --nbval notebooks" in conda
    recipe = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    found = {Requirement(line).name for line in recipe["dependencies"][:-1]}
    assert found >= {"jupyterlab", "pytorch", "nbval", "ipywidgets", "matplotlib-base", "pytest", "pytest-xdist"}


def test_constraints_are_exact_and_meet_the_declared_ranges():
    versions = pinned()
    assert not [version for version in versions.values() if "+" in version or "*" in version]
    for line in sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"]):
        requirement = Requirement(line)
        if requirement.name != PROJECT["name"]:
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            assert requirement.specifier.contains(versions[name]), line


def test_no_file_names_the_host_of_a_registry():
    hosts = re.compile(r"(pypi|pythonhosted|npmjs|debian)\.(org|com)")
    named = [str(path.relative_to(ROOT)) for path, text in tracked().items() if hosts.search(text)]
    assert named == []


def test_no_test_needs_the_benchmarks_but_those_of_their_commands():
    texts = {path.relative_to(ROOT / "tests"): text for path, text in tracked("tests/*.py").items()}
    users = [path for path, text in texts.items() if re.search(r"^\s*(from|import) benchmarks\b", text, re.MULTILINE)]
    assert users and {path.parts[0] for path in users} == {"benchmarks"}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_the_readme_shows_what_a_check_really_says():
    from torch.nn import functional

    from course_utils import devices
    from gpu_course import lesson05
    from gpu_course.checks import WrongAnswer

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ((shown, said),) = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", readme, re.DOTALL)
    names = {"F": functional}
    exec(shown.rpartition("\n\n")[0], names)
    with pytest.raises(WrongAnswer) as wrong:
        lesson05.train_step.examine(names["train_step"], [devices.simulated()])
    assert said.splitlines()[0] == "train_step: not right yet."
    assert str(wrong.value).splitlines() == said.splitlines()[1:]


@pytest.mark.needs("check_jsonschema")
def test_workflows_are_valid(tmp_path):
    """check-jsonschema carries the schema; a file with one word changed shows that it looks."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(workflows[0].read_text(encoding="utf-8").replace("runs-on:", "runs_on:"), encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", "-o", "json"]
    done = subprocess.run([*command, *workflows, wrong], capture_output=True, text=True)
    assert {one["filename"] for one in json.loads(done.stdout)["errors"]} == {str(wrong)} and "runs_on" in done.stdout


def test_the_workflow_covers_systems_pythons_and_torches():
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    matrix = flow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    assert PROJECT["requires-python"] == f">={matrix['python'][0]},!=3.13.0" and len(matrix["python"]) == 2
    floor = next(Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    assert {row["torch"] for row in matrix["include"]} == {"nightly", f"{floor.specifier}.0".removeprefix(">=")}
    assert matrix["torch"] == ["pinned"]
    assert "env" not in flow["jobs"]["test"] and "schedule" in flow[True]  # as a newcomer types it
    weekly = "github.event_name == 'schedule' && '-m \"slow or not slow\"'"
    for step, target in zip(flow["jobs"]["test"]["steps"][-2:], ("test", "test-units"), strict=True):
        assert step["run"] == f"make {target} PYTHON=python" and weekly in step["env"]["ARGS"]


def test_ci_runs_what_make_test_leaves_out_and_the_notebooks_as_other_processors_compute_them():
    """Beside `make test`, which runs on one thread of this one: no kind and no number of threads is left out."""
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    units = re.search(r"^UNITS := (.*)$", make, re.MULTILINE)[1].split()
    assert {*SETTINGS["tool"]["pytest"]["ini_options"]["testpaths"], *units} == {
        "notebooks",
        *(file.parent.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/*/test_*.py")),
    }
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-4:] == ["make test", "make test-units", "make test-mistakes", "make test-machines ARGS=--once"]
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    for job in ("mistakes", "machines"):
        assert flow["jobs"][job]["steps"][-1]["run"] == f"make test-{job}"
    once, every = machine.runs(once=True), machine.runs(once=False)
    assert {*once, ("this processor", 1)} <= {*every} and len({*every}) == 9
    kinds, threads = zip(*once, ("this processor", 1), strict=True)
    assert {*kinds} == {*machine.EMULATED, "this processor"} and {*threads} == {1, 2, 4}


USES = re.compile(r"uses: ([\w./-]+)@(\S+)(.*)")


def test_actions_are_pinned_by_commit_and_the_jobs_that_may_write_run_nothing_else():
    count = 0
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        for action, commit, version in USES.findall(text):
            count += 1
            assert action.startswith("actions/"), f"{path.name}: {action} is not GitHub's own"
            assert re.fullmatch(r"[0-9a-f]{40}", commit) and re.fullmatch(r"  # v\d+\.\d+\.\d+", version), action
        flow = yaml.safe_load(text)
        assert flow["permissions"] in ({}, {"contents": "read"}), path.name
        for name, job in flow["jobs"].items():
            if "write" in job.get("permissions", {}).values():
                run = " ".join(step.get("run", "") for step in job["steps"])
                assert not re.search(r"\b(pip|python|make|npm|curl)\b", run), f"{path.name}: {name} may write"
    assert count > 8


def test_one_version_stands_everywhere_and_the_changelog_has_dates():
    versions = set(wheels.versions().values())
    assert len(versions) == 1 and wheels.changes(versions.pop())
    with pytest.raises(ValueError, match="no section"):
        wheels.changes("99.0.0")
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert all(re.fullmatch(r"Unreleased|\d+\.\d+\.\d+, \d{4}-\d\d-\d\d", heading) for heading in headings)


def test_engines_come_with_the_licence_and_a_wheel_that_lacks_something_is_found(tmp_path):
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert {(folder / "LICENSE").read_text(encoding="utf-8") for folder in wheels.projects().values()} == {licence}
    bad = tmp_path / "bad-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("bad/__init__.py", "")
        archive.writestr("tests/__init__.py", "")
    said = "\n".join(wheels.check(bad))
    assert "bad has no py.typed" in said and "no licence" in said and "tests/__init__.py has no place" in said


def test_the_sanitize_file_stays_small():
    text = (ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8")
    rules = re.findall(r"^regex: (.*)$\n^replace: ", text, re.MULTILINE)
    assert 0 < len(rules) < 10 and all(re.compile(rule) for rule in rules)
