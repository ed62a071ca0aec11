"""The commands of the chat, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from flowedge.cli.chat.talk import Talk
from flowedge.cli.output import warn
from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.plain_text import counted

SLASH = "/"
NO_SYSTEM = "off"
DEFAULT = "default"
SETTABLE = ("temperature", "top_p", "top_k", "seed", "max_new_tokens")
_OTHER_NAMES = {"max_tokens": "max_new_tokens", "num_predict": "max_new_tokens"}
_ALSO_QUIT = ("exit", "bye")


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
        warn(f"{f'/{name} {command.argument}':<18} {command.help}")
    warn(f"{'//...':<18} Send a message that begins with a slash.")
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


def _set(talk: Talk, argument: str) -> None:
    name, _, value = argument.replace("=", " ").partition(" ")
    if name:
        option = _OTHER_NAMES.get(name, name)
        if option not in SETTABLE:
            raise BadRequestError(f"/set knows {', '.join(SETTABLE)}, and not {name:.40}")
        if not value.strip():
            raise BadRequestError(f"/set {name} needs a value, or {DEFAULT} for the model's own")
        talk.options = talk.options.changed(**{option: _value(talk, option, value.strip())})
    drawing = ", ".join(f"{name} {_shown(getattr(talk.options, name))}" for name in SETTABLE)
    own = ", ".join(f"{name} {value:g}" for name, value in talk.device.sampling.items())
    warn(f"{drawing} (the model's own: {own or 'temperature 0'})")


def _value(talk: Talk, option: str, typed: str) -> float | int | None:
    """Return what was typed for an option.

    Raises:
        BadRequestError: when it is no number.
    """
    if typed == DEFAULT:
        left_open = GenerateOptions(max_new_tokens=talk.options.max_new_tokens)
        return cast(float | int | None, getattr(left_open.with_sampling(talk.device.sampling), option))
    try:
        return float(typed) if option in ("temperature", "top_p") else int(typed)
    except ValueError as error:
        raise BadRequestError(f"{typed:.40} is no number for {option}") from error


def _shown(value: float | None) -> str:
    return "random" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


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
    "set": ChatCommand("[NAME VALUE]", f"Show or set {', '.join(SETTABLE)}.", _set),
    "quit": ChatCommand("", "End the chat; so do /exit and /bye.", _quit),
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
    command = COMMANDS.get("quit" if name in _ALSO_QUIT else name)
    if command is None:
        raise BadRequestError(f"there is no command /{name}; /help shows them, and // sends a message")
    argument = argument.strip()
    command.check(name, argument)
    command.run(talk, argument)
