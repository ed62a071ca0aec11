"""The body of a request to /api/generate."""

from __future__ import annotations

from typing import ClassVar

from flowedge.client import ChatMessage
from flowedge.serving.answers.body import refused_value
from flowedge.serving.answers.planned import ChatPrompt, Prompt
from flowedge.serving.ollama.options import AnswerBody


class GenerateBody(AnswerBody):
    """What a client asks of /api/generate.

    Attributes:
        raw: continue the prompt as it is, without the chat template.
    """

    unsupported: ClassVar = {
        "context": ([],),
        "height": (0,),
        "images": ([],),
        "steps": (0,),
        "suffix": ("",),
        "template": ("",),
        "width": (0,),
    }

    prompt: str = ""
    system: str = ""
    raw: bool = False

    def full_prompt(self) -> Prompt:
        """Return the prompt, with the system message before it.

        Raises:
            ApiError: when a raw prompt comes with a system message.
        """
        if self.raw:
            if self.system:
                raise refused_value("system", "system does not go with raw; write it into the prompt")
            return self.prompt
        system = [ChatMessage("system", self.system)] if self.system else []
        return ChatPrompt([*system, ChatMessage("user", self.prompt)], template_values=self.template_values())
