"""Tools that an answer may call, and which of them it must."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from flowedge.gateway.answers.body import BodyObject, CheckedList, refused_value
from flowedge.gateway.answers.planned import ToolUse
from flowedge.gateway.errors import ApiError

MAX_TOOLS = 128
ToolName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.:-]+$")]


class FunctionTool(BodyObject):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def described(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates and the client read."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class ToolBody(BodyObject):
    type: Literal["function"]
    function: FunctionTool


class NamedFunction(BodyObject):
    name: ToolName


class ToolReference(BodyObject):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(BodyObject):
    mode: Literal["auto", "required"]
    tools: CheckedList[ToolReference]


class ToolChoiceBody(BodyObject):
    """Whether tools are called, and which. A mode alone is the type."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_mode(cls, content: Any) -> Any:
        return {"type": content} if isinstance(content, str) else content

    def mode_and_names(self) -> tuple[str, list[str] | None]:
        """Return the mode and the tools' names for `tool_use`.

        Raises:
            ApiError: when the object that the type asks for is missing.
        """
        if self.type == "function" and self.function is not None:
            return "function", [self.function.name]
        if self.type == "allowed_tools" and self.allowed_tools is not None:
            return self.allowed_tools.mode, [tool.function.name for tool in self.allowed_tools.tools]
        if self.type in ("function", "allowed_tools"):
            name = f"tool_choice.{self.type}"
            raise ApiError(400, f"{name} is missing", param=name, code="missing_required_parameter")
        return self.type, None


def tool_use(
    tools: list[FunctionTool], mode: str, names: list[str] | None = None, *, parallel: bool = True
) -> ToolUse:
    """Return the use of tools that a request asks for.

    Args:
        mode: "none", "auto", "required", or "function" for the one tool in `names`.
        names: of the tools that may be called; None for all.

    Raises:
        ApiError: when a tool is chosen that is not there, or two tools have the same name.
    """
    known = [tool.name for tool in tools]
    doubled = next((name for name in known if known.count(name) > 1), None)
    if doubled is not None:
        raise refused_value("tools", f"tools has the name {doubled!r} twice; give each tool its own name")
    for name in names or ():
        if name not in known:
            raise refused_value("tool_choice", f"tool_choice names {name!r}, which is not in tools")
    if mode in ("required", "function") and not tools:
        raise refused_value("tool_choice", "tool_choice asks for a call, but there are no tools; give tools")
    if mode == "function" and names:
        mode, names = names[0], None
    described = tuple(tool.described() for tool in tools if names is None or tool.name in names)
    return ToolUse(described, mode, parallel)
