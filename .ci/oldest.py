"""Print the smallest version that pyproject.toml allows of each package, as constraints for pip."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?(>=|==)(?P<version>[\d.]+)")


def constraints(project: dict[str, object]) -> list[str]:
    """Return `name==version` for each requirement of a table `project` and of its extras."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    groups = [project["dependencies"], *extras.values()]
    smallest: dict[str, str] = {}
    for requirement in (line for group in groups for line in group):
        if requirement.startswith(f"{project['name']}["):
            continue
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise SystemExit(f"{requirement!r} is in pyproject.toml; expected name>=version: give the smallest one")
        name, version = match["name"], match["version"]
        if smallest.setdefault(name, version) != version:
            raise SystemExit(f"{name} has the smallest versions {smallest[name]} and {version}; expected one")
    return [f"{name}=={version}" for name, version in sorted(smallest.items())]


if __name__ == "__main__":
    print(*constraints(tomllib.loads(PROJECT.read_text())["project"]), sep="\n")
