"""Declarations and verbs: one dialect for all, read without torch, and open to packages outside the tree."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file

import fedreel
from fedreel import playground
from fedreel.cli import app
from fedreel.config import load_recipe
from fedreel.core.task import Task
from fedreel.registry import TASKS
from fedreel.reproduce import find_table
from fedreel.systems import System, built_in, find_system, resolve, systems, verbs
from support.warm import run_python

TESTS = Path(__file__).parent
ROOT = TESTS.parent
OF_A_MODEL = ("model", "client", "device")  # options of verbs that ask a trained model
SHARED = ("model", "out", "page", "json", "client", "device")  # of every verb, in this order
every_system = pytest.mark.parametrize("system", built_in(), ids=lambda system: system.task)
every_verb = pytest.mark.parametrize("verb", verbs().values(), ids=lambda verb: verb.name)


# declarations


def test_every_folder_of_a_task_has_a_declaration() -> None:
    folders = {path.parent.name for path in Path(fedreel.__file__).parent.glob("tasks/*/task.py")}
    assert folders == {system.task for system in built_in()}


@every_system
def test_what_a_declaration_names_is_there(system: System) -> None:
    task = TASKS.lookup(system.task)
    assert issubclass(task, Task)
    assert f"{task.__module__}:{task.__name__}" == system.cls
    for verb in system.verbs:
        assert callable(resolve(verb.function))
        assert not verb.answers or callable(resolve(verb.answers))
    for part, module in system.playground.items():
        assert part in playground.declared_parts()
        assert {"write", "job"} <= {*vars(importlib.import_module(module))}
    tables = importlib.import_module(system.tables).TABLES if system.tables else {}
    assert all(find_table(system.name, name) is table for name, table in tables.items())


@every_system
def test_recipe_report_and_docs_call_a_system_by_its_name(system: System) -> None:
    recipe = load_recipe(system.recipe)
    assert (recipe.system, recipe.task["name"]) == (system.title, system.task)
    page = ROOT / "docs" / "systems" / f"{system.name}.md"
    assert system.title.lower() in page.read_text().splitlines()[0].lower()
    if system.tables:  # a published one
        assert f"[{system.title}](docs/systems/{system.name}.md)" in (ROOT / "README.md").read_text()


def test_declarations_and_the_commands_they_name_are_read_without_torch() -> None:
    code = "import sys, fedreel.cli, fedreel.registry, fedreel.systems as s\n"
    code += "[s.resolve(verb.function) for verb in s.verbs().values()]\n"
    code += "print(sorted({'torch', 'numpy', 'av', 'h5py', 'rich.progress'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# verbs


@every_verb
def test_every_verb_has_the_same_options_on_the_command_line(verb: fedreel.systems.Verb) -> None:
    shared = [name for name in SHARED if verb.trained or name not in OF_A_MODEL]
    command = typer.main.get_command(app).commands[verb.name]  # type: ignore[attr-defined]
    options = {param.name: param.opts for param in command.params if param.param_type_name == "option"}
    expected = {name: [f"--{name}"] for name in shared} | {"out": ["--out", "-o"]}
    assert {name: options[name] for name in shared} == expected
    named = [param.name for param in command.params]
    assert named[0] == "source"
    asked = named[: named.index(shared[0])]  # what is asked, in words or by an option such as search's --in
    assert all(command.params[named.index(name)].required for name in asked)
    assert named[len(asked) :][: len(shared)] == shared


@every_verb
def test_every_verb_has_the_same_parameters_in_python(verb: fedreel.systems.Verb) -> None:
    function = getattr(fedreel, verb.name)
    parameters = inspect.signature(function).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert (positional[0], positional[-1]) == ("source", "model" if verb.trained else "source")
    shared = [name for name in SHARED[1:] if verb.trained or name not in OF_A_MODEL]
    assert named[: len(shared)] == shared
    assert [parameters[name].default for name in shared] == [None, None, None, "", "auto"][: len(shared)]
    assert named[-1] == "tell"


@every_verb
def test_what_the_command_line_takes_is_what_python_takes(verb: fedreel.systems.Verb) -> None:
    """Names, order and defaults; but `tell` and `features`, which are objects."""
    command = typer.main.get_command(app).commands[verb.name]  # type: ignore[attr-defined]
    parameters = inspect.signature(resolve(verb.function)).parameters
    plain = {name: p.default for name, p in parameters.items() if name not in ("tell", "features")}
    assert [param.name for param in command.params] == [*plain]
    defaults = {param.name: param.default for param in command.params if not param.required}
    assert defaults == {name: default for name, default in plain.items() if default is not inspect.Parameter.empty}


@every_system
def test_the_example_of_a_verb_is_a_command_that_parses(system: System) -> None:
    """What a finished run tells its user to type next."""
    for verb in system.verbs:
        if not verb.trained:
            continue
        words = shlex.split(f"{verb.example} --model runs/x")
        command = typer.main.get_command(app).commands[verb.name]  # type: ignore[attr-defined]
        assert str(command.make_context(verb.name, words).params["model"]) == "runs/x"


def test_a_task_may_share_a_verb_and_names_who_answers_for_it() -> None:
    sharing = {system.task: verb for system in systems() if (verb := system.verb("recognize"))}
    assert {*sharing} == {"skeleton", "image", "recognition"}
    assert len({verb.function for verb in sharing.values()}) == 1
    assert len({verb.answers for verb in sharing.values()}) == 3


# packages outside the tree


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the package is installed."""
    path = os.pathsep.join([str(TESTS / "outside"), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path, "FEDREEL_CACHE": str(tmp_path_factory.mktemp("cache"))}


def told(
    outside: dict[str, str], *args: object, python: bool = False, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """By a fedreel that is imported where the package is installed: it asks for packages once."""
    words = ("-c",) if python else ("-m", "fedreel")
    return run_python(*words, *args, env=outside, cwd=cwd, timeout=120, own_fedreel=False)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, outside: dict[str, str]) -> Path:
    """A run of the package's task, by its name in a recipe."""
    tmp_path = tmp_path_factory.mktemp("counted")
    done = told(outside, "run", write_job(tmp_path), "--out", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


def write_job(folder: Path) -> Path:
    """A recipe in which all four are the package's."""
    (folder / "job.toml").write_text(
        "device = 'cpu'\n[task]\nname = 'counting'\n[task.backbone]\nname = 'dense'\nunits = 6\n"
        "[method]\nname = 'halfway'\n[engine]\nname = 'noted'\nfile = 'who.txt'\n[round]\nrounds = 2\n"
    )
    return folder / "job.toml"


def test_a_package_brings_a_method_a_task_a_backbone_and_an_engine(outside: dict[str, str], tmp_path: Path) -> None:
    """By entry points alone: a recipe names all four, and each of them does its part."""
    for what, name in (("tasks", "counting"), ("methods", "halfway"), ("backbones", "dense"), ("engines", "noted")):
        assert f"  {name} " in told(outside, "list", what).stdout, what
    jobs = {
        "ours": {},
        "begin": {"method.step": 0, "engine": "local"},
        "mean": {"method": "fedavg", "engine": "local", "round.rounds": 1},
        "halfway": {"engine": "local", "round.rounds": 1},
    }
    job = write_job(tmp_path)
    code = f"import fedreel\nfor name, change in {jobs!r}.items():\n    fedreel.run({str(job)!r}, name, set=change)"
    done = told(outside, code, python=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ours" / "who.txt").read_text().split("\n")[:3] == ["1 east", "1 north", "1 west"]
    ours, begin, mean, halfway = (load_file(tmp_path / name / "model" / "global.safetensors") for name in jobs)
    assert ours["backbone.layer.weight"].shape == (6, 2)
    for name, tensor in halfway.items():
        torch.testing.assert_close(tensor, (begin[name] + mean[name]) / 2)


def test_help_names_the_verb_and_imports_neither_torch_nor_the_task(outside: dict[str, str]) -> None:
    done = told(outside, "--help")
    assert done.returncode == 0, done.stderr
    assert "count       Count the points" in done.stdout or "count      Count the points" in done.stdout
    code = "import sys, fedreel.cli\nprint(sorted({'torch', 'pebbles.task'} & {*sys.modules}))"
    fresh = subprocess.run([sys.executable, "-c", code], env=outside, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == "[]"
    said = told(outside, "count", "--help").stdout
    assert all(f"--{name}" in said for name in SHARED)


def test_what_cannot_be_used_of_a_package_is_told_and_left_out(outside: dict[str, str], tmp_path: Path) -> None:
    """A declaration that is not there, and a verb whose name is taken."""
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[fedreel.tasks]\nabsent = pebbles.no_such_module:SYSTEM\n")
    both = {**outside, "PYTHONPATH": os.pathsep.join([outside["PYTHONPATH"], str(tmp_path)])}
    done = told(both, "find", "--help")
    assert done.returncode == 0
    assert "SENTENCE" in done.stdout
    assert "the task 'absent' (pebbles.no_such_module:SYSTEM) is left out" in done.stderr
    assert "the verb 'find' of the task 'counting' is left out" in done.stderr


def test_the_verb_works_from_the_command_line_and_from_python(outside: dict[str, str], counted: Path) -> None:
    points = counted.parent / "points.txt"
    points.write_text("1 1\n-1 1\n1 -1\n")
    out, page = counted.parent / "classes.txt", counted.parent / "p.html"
    done = told(outside, "count", points, "--model", counted, "-o", out, "--page", page, "--names", "a,b")
    assert done.returncode == 0, done.stderr
    classes = out.read_text().split()
    lines = [f"a: {classes.count('0')}", f"b: {classes.count('1')}"]
    assert done.stdout.splitlines() == [*lines, str(out), str(page)]
    assert "note: a toy" in done.stderr
    printed = json.loads(told(outside, "count", points, "--model", counted, "--json", "-").stdout)
    code = f"import fedreel, json\nprint(json.dumps(fedreel.count({str(points)!r}, {str(counted)!r}).as_json()))"
    assert json.loads(told(outside, code, python=True).stdout) == printed
    assert printed["counts"] == {"no": classes.count("0"), "yes": classes.count("1")}
    assert (printed["source"], printed["run"], printed["notes"]) == (str(points), str(counted), ["a toy"])


def test_a_run_of_the_package_is_sent_to_its_verb_by_the_others(outside: dict[str, str], counted: Path) -> None:
    done = told(outside, "recognize", counted / "recipe.toml", "--model", counted)
    assert done.returncode == 2
    assert "found:    counting" in done.stderr
    assert "use fedreel count" in done.stderr


def test_the_playground_and_the_lists_have_the_package_too(outside: dict[str, str], tmp_path: Path) -> None:
    assert "counting" in told(outside, "list", "tasks").stdout
    code = f"from fedreel import playground\nprint(playground.make({str(tmp_path / 'world')!r}, parts=['pebbles']))"
    done = told(outside, code, python=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "world" / "pebbles" / "pebbles.txt").read_text() == "8 pebbles\n"


def test_without_the_package_nothing_of_it_is_there() -> None:
    assert "count" not in verbs()
    assert find_system("counting") is None
    with pytest.raises(AttributeError, match="has no attribute 'count'"):
        fedreel.count  # noqa: B018
