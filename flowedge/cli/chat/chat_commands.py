"""The commands of the chat, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowedge.cli.chat.talk import Talk
from flowedge.cli.output import warn
from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.plain_text import counted

SLASH = "/"
NO_SYSTEM = "off"


class EndOfChatError(Exception):
    """The user has ended the chat."""


@dataclass(frozen=True)
class ChatCommand:
    """A command, with the line of /help about it.

    Attributes:
        argument: name of its argument, "" for none; in brackets where it may be left out.
    """

    argument: str
    help: str
    run: Callable[[Talk, str], None]

    def check(self, name: str, argument: str) -> None:
        """Raise BadRequestError when the argument is missing, or there is one too many."""
        if argument and not self.argument:
            raise BadRequestError(f"/{name} takes nothing after it")
        if not argument and self.argument and not self.argument.startswith("["):
            raise BadRequestError(f"/{name} needs a {self.argument}")


def _help(_talk: Talk, _argument: str) -> None:
    for name, command in COMMANDS.items():
        warn(f"{f'/{name} {command.argument}':<16} {command.help}")
    warn(f"{'//...':<16} Send a message that begins with a slash.")
    warn("Enter sends, Alt-Enter begins a line. Ctrl-C stops an answer, Ctrl-D ends the chat.")


def _system(talk: Talk, text: str) -> None:
    conversation = talk.conversation
    if text:
        conversation.set_system(None if text == NO_SYSTEM else text)
    warn(f"system message: {conversation.system or 'none'}")


def _reset(talk: Talk, _argument: str) -> None:
    talk.conversation.reset()
    warn("a new conversation begins")


def _save(talk: Talk, file: str) -> None:
    talk.conversation.save(file)
    warn(f"{counted(len(talk.conversation.messages), 'message')} saved in {file}")


def _load(talk: Talk, file: str) -> None:
    talk.conversation.load(file)
    warn(f"{counted(len(talk.conversation.messages), 'message')} loaded from {file}")


def _stats(talk: Talk, _argument: str) -> None:
    talk.statistics()


def _model(talk: Talk, _argument: str) -> None:
    device = talk.client.describe()
    stages = counted(len(device.stage_addresses), "stage")
    quant = "" if device.quant in ("", "none") else f", {device.quant}"
    warn(f"model: {device.model}{quant}, drafter: {device.drafter}")
    warn(f"pipeline: {device.name} and {stages}, {'+'.join(map(str, device.stage_layers))} layers")


def _quit(_talk: Talk, _argument: str) -> None:
    raise EndOfChatError


COMMANDS = {
    "help": ChatCommand("", "Show the commands.", _help),
    "system": ChatCommand("[TEXT]", f"Set the system message; {NO_SYSTEM} removes it.", _system),
    "reset": ChatCommand("", "Begin a new conversation; the system message stays.", _reset),
    "save": ChatCommand("FILE", "Write the conversation to a file.", _save),
    "load": ChatCommand("FILE", "Continue the conversation of a file.", _load),
    "stats": ChatCommand("", "Show the statistics of the last answer.", _stats),
    "model": ChatCommand("", "Show the model and its pipeline.", _model),
    "quit": ChatCommand("", "End the chat.", _quit),
}


def take(talk: Talk, entered: str) -> None:
    """Do what the user has entered: a command, or a message.

    Raises:
        EndOfChatError: when the user ends the chat.
    """
    if not entered.strip():
        return
    if entered.startswith(2 * SLASH):
        talk.say(entered.removeprefix(SLASH))
    elif entered.startswith(SLASH):
        try:
            _run(talk, entered)
        except FlowEdgeError as error:
            talk.failures += 1
            warn(f"flowedge: {error}")
    else:
        talk.say(entered)


def _run(talk: Talk, entered: str) -> None:
    name, _, argument = entered.removeprefix(SLASH).strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise BadRequestError(f"there is no command /{name}; /help shows them, and // sends a message")
    argument = argument.strip()
    command.check(name, argument)
    command.run(talk, argument)
