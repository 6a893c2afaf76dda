"""Makes the site of `make docs` from files as GitHub shows them: README and other pages outside docs/ become pages of
it, code that pages link to is shown by it, and the reference is made from docstrings."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
OUTSIDE = {  # pages of the site that are not in docs/
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "benchmarks.md",
}
TITLES = {"index.md": "What it is", "changelog.md": "What changed", "benchmarks.md": "Benchmarks"}
CODE = {".py": "python", ".toml": "toml"}
REFERENCE = {  # page -> title, lead, names: what `fedreel` exports, and what "add a ..." pages promise
    "use": (
        "From Python",
        "What `import fedreel` gives. Verbs take the options of their commands, under the same names.",
        *(f"fedreel.{name}" for name in ("run", "load", "load_recipe", "summarize", "find", "recognize", "search")),
        *("fedreel.poses", "fedreel.evaluate", "fedreel.export", "fedreel.FedreelError"),
        *("fedreel.runs.run.Result", "fedreel.runs.run.Loaded"),
    ),
    "recipes": (
        "Recipes",
        "A recipe says what a run does. These are its sections; `fedreel list` has what can stand in them.",
        "fedreel.config.Recipe",
        *(
            f"fedreel.config.{name}Config"
            for name in ("Data", "Round", "Train", "Privacy", "Secure", "Transfer", "Attack")
        ),
        "fedreel.config.check_ranges",
    ),
    "methods": (
        "Methods",
        "How clients cooperate: see [add a method](../add-a-method.md).",
        *("fedreel.core.method.Method", "fedreel.core.method.question", "fedreel.core.federation.Federation"),
        *("fedreel.core.client.Client", "fedreel.core.weights.TensorInfo", "fedreel.core.weights.Weights"),
        *("fedreel.core.terms.term", "fedreel.core.terms.adjustment"),
    ),
    "tasks": (
        "Tasks",
        "What one client learns: see [add a task](../add-a-task.md).",
        *(
            f"fedreel.core.task.{name}"
            for name in ("Task", "Population", "ClientData", "Examples", "Tensors", "Outputs", "EVERYONE")
        ),
        *("fedreel.core.abilities", "fedreel.systems.System", "fedreel.systems.Verb", "fedreel.systems.Demo"),
        *("fedreel.tasks.use.options", "fedreel.tasks.use.result.Result", "fedreel.machine.progress.Tell"),
        *("fedreel.tasks.use.models.load_for", "fedreel.tasks.use.models.declared_verb"),
        *("fedreel.tasks.use.outputs.Places", "fedreel.machine.device.pick_device"),
        *("fedreel.report.markup.el", "fedreel.report.shell.document"),
    ),
    "backbones": (
        "Backbones",
        "What a model sees with: see [add a backbone](../add-a-backbone.md).",
        *(f"fedreel.models.backbone.{name}" for name in ("Backbone", "BackboneConfig", "Clips")),
        "fedreel.tasks.recognition.task.Recognition",
    ),
    "engines": (
        "Engines",
        "Where clients' work runs: see [add an engine](../add-an-engine.md).",
        *("fedreel.core.engine.Engine", "fedreel.core.job.Job", "fedreel.core.client.Worker"),
        *(f"fedreel.core.update.{name}" for name in ("Order", "Update", "Failure")),
        *("fedreel.core.training.OutOfTime", "fedreel.errors.PolicyError"),
        *("fedreel.engines.local.LocalEngine", "fedreel.methods.fedbn.FedBN"),
    ),
}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[#)])")
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LIST = re.compile(r"(?<=\n)((?!\s|[-*|#>]|\d+\. ).+\n)(?=(?:[-*]|\d+\.) )")


def on_config(config: Any) -> None:
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug


def on_files(files: Files, config: Any) -> Files:
    """With what is not in docs/: linked code is found page by page, since a page that is shown may link to more."""
    from mkdocs.structure.files import File

    add = partial(File.generated, config)
    for origin, page in OUTSIDE.items():
        files.append(add(page, content=(ROOT / origin).read_text(encoding="utf-8")))
    for path in notebooks():
        shown = notebook_text(json.loads(path.read_text(encoding="utf-8")))
        files.append(add(f"notebooks/{path.stem}.md", content=shown))
    files.append(add("assets/icon.svg", content=(ROOT / "src/fedreel/ui/static/icon.svg").read_text(encoding="utf-8")))
    for name, (title, lead, *names) in REFERENCE.items():
        files.append(add(f"reference/{name}.md", content=reference(title, lead, names)))
    todo = [file for file in files if file.src_uri.endswith(".md")]
    while todo:
        page = todo.pop()
        for origin in sorted(linked(page.content_string, origin_of(page.src_uri))):
            place = place_of(origin)
            if place.startswith("source/") and files.get_file_from_path(place) is None:
                files.append(made := add(place, **show(origin)))
                todo += [made] if place.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """GitHub's Markdown as Python-Markdown reads it, with links to where things are on the site."""
    place = page.file.src_uri
    parts = FENCE.split(markdown)
    parts[::2] = [LIST.sub(r"\1\n", _moved(text, place)) for text in parts[::2]]
    parts[1::2] = [re.sub(r"^```(\w+)[^\n]*", r"```\1", text) for text in parts[1::2]]
    if place in TITLES:
        page.meta.setdefault("title", TITLES[place])
    if place.startswith("source/"):
        page.meta.setdefault("search", {"exclude": True})
    return "".join(parts)


def slug(text: str, separator: str) -> str:
    """What GitHub calls a heading in links."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def reference(title: str, lead: str, names: list[str]) -> str:
    """A page that mkdocstrings fills in."""
    return "\n\n".join([f"# {title}", lead, *(f"::: {name}" for name in names)]) + "\n"


def notebooks() -> list[Path]:
    return sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def notebook_text(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its texts, its code, and below that what came out."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![What the cell shows](data:image/png;base64,{data['image/png']})")
            else:
                text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def linked(markdown: str, origin: str) -> set[str]:
    """Files and folders of the repository that a page links to."""
    found = LINK.findall("".join(FENCE.split(markdown)[::2]))
    return {_target(link, origin) for link in found if ":" not in link and not link.startswith("#")}


def origin_of(place: str) -> str:
    """Where in the repository a page of the site comes from."""
    named = {page: origin for origin, page in OUTSIDE.items()}
    if place.startswith("source/"):
        return place.removeprefix("source/").removesuffix(".md" if Path(place[:-3]).suffix in CODE else "")
    return named.get(place, f"docs/{place}")


def place_of(origin: str) -> str:
    """Where on the site a file of the repository is."""
    if origin in OUTSIDE:
        return OUTSIDE[origin]
    if origin.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", origin.removeprefix("docs/"))
    if (ROOT / origin).is_dir():
        return f"source/{origin}/index.md"
    return f"source/{origin}.md" if Path(origin).suffix in CODE else f"source/{origin}"


def show(origin: str) -> dict[str, Any]:
    """A file of the repository as a page, or as it is."""
    path = ROOT / origin
    if path.is_dir():
        names = sorted(p.name for p in path.glob("*.py") if p.name != "__init__.py")
        return {"content": f"# {origin}\n\n" + "".join(f"- [{n}]({n})\n" for n in names)}
    if path.suffix in CODE:
        return {"content": f"# {origin}\n\n```{CODE[path.suffix]}\n{path.read_text(encoding='utf-8')}```\n"}
    return {"content": path.read_text(encoding="utf-8")}


def _moved(text: str, place: str) -> str:
    origin, folder = origin_of(place), os.path.dirname(place)

    def there(link: re.Match[str]) -> str:
        if ":" in link[1]:
            return link[1]
        return os.path.relpath(place_of(_target(link[1], origin)), folder or ".")

    return LINK.sub(there, text)


def _target(link: str, origin: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(origin), link))
