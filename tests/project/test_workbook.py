"""Do updates of the course never meet a reader's answers, and does the set-up say what it lacks?"""

import json
import sys
from pathlib import Path

import jsonschema
import pytest
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager

from tools import environment, workbook


@pytest.fixture
def folders(tmp_path):
    lessons = tmp_path / "notebooks"
    lessons.mkdir()
    (lessons / "00_start_here.ipynb").write_text("first", encoding="utf-8")
    return lessons, tmp_path / "workbook"


def test_missing_copies_are_made_once_and_a_missing_folder_of_lessons_is_named(folders, tmp_path):
    assert workbook.prepare(*folders).copied == ("00_start_here.ipynb",)
    assert (folders[1] / "00_start_here.ipynb").read_text(encoding="utf-8") == "first"
    assert workbook.prepare(*folders) == workbook.Update((), ())
    with pytest.raises(ValueError, match="lessons"):
        workbook.prepare(tmp_path / "nowhere", tmp_path / "workbook")


def test_a_copy_shows_no_output_and_new_outputs_alone_are_no_newer_lesson(folders):
    lesson = folders[0] / "01_a.ipynb"
    cell = {"cell_type": "code", "execution_count": 1, "outputs": [{"data": {"text/plain": "42"}}], "source": ["é"]}
    shown = {"data": {"text/html": "<img/>"}, "execution_count": 3}
    drawing = cell | {"outputs": [shown], "source": ["from gpu_course import drawings\n", 'drawings.show("a")']}
    lesson.write_text(json.dumps({"cells": [cell, drawing], "metadata": {}}), encoding="utf-8")
    assert workbook.prepare(*folders).copied == ("00_start_here.ipynb", "01_a.ipynb")
    copied = json.loads((folders[1] / "01_a.ipynb").read_text(encoding="utf-8"))
    bare = cell | {"execution_count": None, "outputs": []}
    seen = drawing | {"execution_count": None, "outputs": [shown | {"execution_count": None}]}
    assert copied["cells"] == [bare, seen]
    cells = [cell | {"execution_count": 2}, drawing | {"outputs": []}]
    lesson.write_text(json.dumps({"cells": cells, "metadata": {}}), encoding="utf-8")
    (folders[1] / workbook.TAKEN / lesson.name).unlink()
    assert workbook.prepare(*folders).newer == ()


def test_a_copy_says_of_its_kernel_what_jupyterlab_would_write_and_that_alone_is_no_newer_lesson(folders):
    lesson = folders[0] / "01_a.ipynb"
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    lesson.write_text(json.dumps({"cells": [], "metadata": metadata}), encoding="utf-8")
    workbook.prepare(*folders)
    written = json.loads((folders[1] / "01_a.ipynb").read_text(encoding="utf-8"))["metadata"]
    specs = KernelSpecManager().get_kernel_spec("python3")
    assert written["kernelspec"] == {**metadata["kernelspec"], "display_name": specs.display_name}
    assert written["language_info"] == IPythonKernel.language_info
    (folders[1] / workbook.TAKEN / lesson.name).unlink()
    assert workbook.prepare(*folders).newer == ()


def test_the_settings_of_jupyterlab_are_such_as_its_schemas_know():
    files = [workbook.SETTINGS / "overrides.json", *(workbook.SETTINGS / "overrides.d").glob("*.json")]
    found = {plugin: set_to for file in files for plugin, set_to in json.loads(file.read_bytes()).items()}
    assert len(files) == len(found) == 2
    share = Path(sys.prefix) / "share" / "jupyter"
    schemas = [
        *share.glob("labextensions/@jupyter-widgets/*/schemas/**/plugin.json"),
        *share.glob("lab/schemas/**/*.json"),
    ]
    for plugin, settings in found.items():
        package, _, name = plugin.partition(":")
        (schema,) = [path for path in schemas if path.as_posix().endswith(f"schemas/{package}/{name}.json")]
        jsonschema.validate(settings, json.loads(schema.read_text(encoding="utf-8")))


def test_the_card_of_symptoms_follows_and_links_to_it_lead_to_its_copy(folders):
    card = folders[0].parent / "docs" / "what_is_wrong.pdf"
    card.parent.mkdir()
    card.write_bytes(b"card")
    cell = {"cell_type": "markdown", "source": ["[a card](../docs/what_is_wrong.pdf)"]}
    (folders[0] / "11_a.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}}), encoding="utf-8")
    workbook.prepare(*folders)
    assert "](docs/what_is_wrong.pdf)" in (folders[1] / "11_a.ipynb").read_text(encoding="utf-8")
    assert (folders[1] / "docs" / card.name).read_bytes() == b"card"
    assert workbook.prepare(*folders) == workbook.Update((), ())


def test_programs_and_job_scripts_follow_the_lessons(folders):
    programs = folders[0] / "programs"
    (programs / "__pycache__").mkdir(parents=True)
    for name in ("train.py", "train.sbatch"):
        (programs / name).touch()
    workbook.prepare(*folders)
    assert sorted(file.name for file in (folders[1] / "programs").iterdir()) == ["train.py", "train.sbatch"]


def test_a_copy_with_answers_is_kept_and_a_newer_lesson_announced(folders):
    workbook.prepare(*folders)
    copy = folders[1] / "00_start_here.ipynb"
    copy.write_text("my answers", encoding="utf-8")
    assert workbook.prepare(*folders).newer == ()
    (folders[0] / copy.name).write_text("second", encoding="utf-8")
    update = workbook.prepare(*folders)
    assert update.newer == (copy.name,) and "newer 00_start_here.ipynb" in str(update)
    assert copy.read_text(encoding="utf-8") == "my answers"
    copy.unlink()
    assert workbook.prepare(*folders).copied == (copy.name,)
    assert workbook.prepare(*folders).newer == ()


def cell(name: str, source: str) -> dict:
    return {"cell_type": "code", "id": name, "source": source, "outputs": [], "execution_count": None, "metadata": {}}


def write(path: Path, *cells: dict) -> None:
    path.write_text(json.dumps({"cells": cells, "metadata": {"kernelspec": {}}}), encoding="utf-8")


def sources(path: Path) -> dict[str, str]:
    return {each["id"]: "".join(each["source"]) for each in json.loads(path.read_text(encoding="utf-8"))["cells"]}


def test_answers_are_carried_into_a_newer_lesson_and_nothing_is_lost(folders):
    lessons, mine = folders
    lesson, copy = lessons / "05_loop.ipynb", mine / "05_loop.ipynb"
    stub = "def f():\n    raise NotImplementedError"
    write(lesson, cell("a", "1"), cell("f-stub", stub), cell("b", "2"), cell("c", "3"), cell("gone", "4"))
    workbook.prepare(*folders)
    answers = [cell("a", "1"), cell("f-stub", "def f():\n    return 1"), cell("own", "my note"), cell("b", "22")]
    write(copy, *answers, cell("c", "33"), cell("gone", "44"))
    assert workbook.prepare(*folders).newer == ()
    write(lesson, cell("new", "0"), cell("a", "1!"), cell("f-stub", stub + "  # !"), cell("b", "2"), cell("c", "3!"))
    assert "python tools/workbook.py --renew 05" in str(workbook.prepare(*folders))
    said = workbook.renew("05", *folders)
    assert sources(copy) == {
        "new": "0", "a": "1!", "f-stub": "def f():\n    return 1", "own": "my note", "b": "22", "c": "3!",
        "c-mine-1": "33", "gone": "44",
    }  # fmt: skip
    assert said[:3] == ["carried over: f-stub", "your own cell: own", "carried over: b"]
    assert "changed by the lesson too, yours stands below: c" in said and {"-1", "+1!", "-4"} <= {*said}
    assert sources(mine / "05_loop (before).ipynb")["f-stub"] == "def f():\n    return 1"
    assert workbook.prepare(*folders) == workbook.Update((), ())
    assert workbook.renew("05", *folders) and (mine / "05_loop (before 1).ipynb").exists()
    with pytest.raises(ValueError, match="name a lesson, such as 05"):
        workbook.renew("77", *folders)


def test_copies_alone_are_made_for_other_editors(folders, monkeypatch, capsys):
    monkeypatch.setattr(workbook, "ROOT", folders[0].parent)
    assert workbook.main(["--only-copy"]) == 0
    said = capsys.readouterr().out
    assert (folders[1] / "00_start_here.ipynb").exists() and str(folders[1]) in said and sys.prefix in said


def test_the_set_up_names_what_is_missing_and_a_changed_file_makes_the_environment_out_of_date(tmp_path):
    assert environment.problem() is None
    assert "3.10.4" in environment.problem((3, 10, 4))
    assert "wrong results" in environment.problem((3, 13, 0)) and environment.problem((3, 13, 1)) is None
    assert "no_such_module" in environment.problem(modules=("no_such_module",))
    file = tmp_path / "pyproject.toml"
    file.write_text("a", encoding="utf-8")
    before = environment.fingerprint([file])
    file.write_text("b", encoding="utf-8")
    assert environment.fingerprint([file]) != before


def test_an_installed_torch_is_never_replaced():
    text = "numpy==2.4.6\ntorch==2.13.0\ntorchgen==1\n"
    assert environment.constraints_for(text, None) == text
    assert environment.constraints_for(text, "2.11.0+cu128").split() == [
        "numpy==2.4.6",
        "torchgen==1",
        "torch==2.11.0+cu128",
    ]
    assert environment.usable("2.10.0+cu128") and not environment.usable("2.9.1") and not environment.usable(None)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution\nNo matching distribution", "no network"),
        ("SSLError(SSLCertVerificationError(1, 'certificate verify failed", "certificate"),
        ("ERROR: [Errno 13] Permission denied: '/srv/course/.venv/lib'", "cannot be written"),
        ("ERROR: something else", "own words"),
    ],
)  # fmt: skip
def test_a_set_up_that_fails_says_what_to_do(said, reason):
    assert reason in environment.reason_of(said)


def test_pips_own_words_and_the_reason_are_both_shown(tmp_path, monkeypatch, capfd):
    """A pip that finds no network, in place of pip."""
    venv = tmp_path / "venv"
    code = "import sys; sys.stderr.write('NewConnectionError: Network is unreachable\\n'); sys.exit(1)"
    monkeypatch.setattr(environment, "create", lambda venv: environment.venv_python(venv).parent.mkdir(parents=True))
    monkeypatch.setattr(environment, "installed_torch", lambda python: None)
    monkeypatch.setattr(environment, "reachable", lambda url: False)
    real = environment.subprocess.Popen
    monkeypatch.setattr(
        environment.subprocess, "Popen", lambda command, **how: real([sys.executable, "-c", code], **how)
    )
    assert environment.main(["--venv", str(venv)]) == 1
    shown = capfd.readouterr().err
    assert "Network is unreachable" in shown and "HTTPS_PROXY" in shown and "Repeat the command" in shown


@pytest.fixture
def torch_set_up(monkeypatch, tmp_path):
    """Set up torch in a pretended environment; returns what pip was asked for, and what was removed."""

    def set_up(build=None, present=None, driver=False, index=True):
        asked, removed = [], []
        monkeypatch.setattr(environment, "installed_torch", lambda python: present)
        monkeypatch.setattr(environment, "needs_no_cuda", lambda: not driver)
        monkeypatch.setattr(environment, "reachable", lambda url: index)
        monkeypatch.setattr(environment, "run_pip", lambda python, *arguments: asked.extend(arguments))
        monkeypatch.setattr(environment.subprocess, "run", lambda command, **how: removed.append(command[-1]))
        environment.install_torch(tmp_path, build, None)
        return asked, removed

    return set_up


def test_without_a_driver_torch_comes_without_cuda_where_pytorch_has_it(torch_set_up, capsys):
    asked, removed = torch_set_up()
    assert environment.CPU_INDEX in asked and asked[-1] == f"torch=={environment.pinned_torch()}" and not removed
    assert "make lab TORCH=cuda" in capsys.readouterr().out
    for otherwise in ({"driver": True}, {"index": False}, {"build": "cuda"}, {"present": "2.13.0"}):
        assert torch_set_up(**otherwise) == ([], []), otherwise


def test_the_build_of_torch_can_be_chosen_later(torch_set_up):
    assert torch_set_up("cuda", present="2.13.0+cpu") == ([], ["torch"])
    asked, removed = torch_set_up("cpu", present="2.13.0+cu130", driver=True)
    assert environment.CPU_INDEX in asked and removed == ["torch"]
    assert torch_set_up("cpu", present="2.13.0+cpu") == ([], [])
    with pytest.raises(OSError, match="cannot be reached"):
        torch_set_up("cpu", index=False)


def test_a_driver_is_seen_by_its_files(tmp_path):
    (tmp_path / "version").touch()
    assert not environment.needs_no_cuda("linux", [str(tmp_path / "version")])
    assert environment.needs_no_cuda("linux", [str(tmp_path / "none")]) and not environment.needs_no_cuda("darwin", [])


def test_a_reader_gets_no_tools_and_who_tests_has_what_a_reader_needs(monkeypatch, tmp_path):
    extras, venv = [], tmp_path / "venv"
    monkeypatch.setattr(environment, "install_torch", lambda *given: None)
    monkeypatch.setattr(environment, "install", lambda venv, extra, torch: extras.append(extra))
    python = environment.venv_python(venv)
    python.parent.mkdir(parents=True)
    python.touch()
    for arguments in (["--only", "lab"], ["--only", "lab"], [], ["--only", "lab"], []):
        assert environment.main(["--venv", str(venv), *arguments]) == 0
    assert extras == ["lab", "dev"], "each once"
    environment.main(["--venv", str(venv), "--only", "lab", "--build", "cpu"])
    assert extras[2:] == ["lab"], "a build that is asked for is looked at"
