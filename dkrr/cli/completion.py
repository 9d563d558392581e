"""``dkrr completion``: the script that completes commands, options and paths in a shell."""

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_DKRR_COMPLETE"
"""Environment variable by which the script asks for completions."""


class PathText(click.types.StringParamType):
    """A path or URL, checked where it is used; shells complete it as a file."""

    def shell_complete(self, _: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What a shell completes: files, by itself."""
        return [CompletionItem(incomplete, type="file")]


def complete_paths(command: click.Command) -> None:
    """Let shells complete files where a command takes a path: its metavar or that of an argument begins with PATH."""
    for parameter in command.params:
        names = {"PATH", "FILE", "JOB", "RUN", "MODEL", "PNG"}
        words = str(parameter.metavar or "").strip("[]").split("|")
        if names & set(words) and type(parameter.type) is click.types.StringParamType:
            parameter.type = PathText()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and paths.

    For bash: dkrr completion bash > ~/.local/share/bash-completion/completions/dkrr; for zsh put
    eval "$(dkrr completion zsh)" into ~/.zshrc; for fish: dkrr completion fish > ~/.config/fish/completions/dkrr.fish.
    """
    kind: Any = get_completion_class(shell)
    click.echo(kind(context.find_root().command, {}, "dkrr", VARIABLE).source())
