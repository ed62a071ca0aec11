"""OpenAI's responses: answers as lists of items, for texts and functions; nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter

from flowedge.gateway.openai import chat, completions, responses

router = APIRouter()
router.include_router(chat.router)
router.include_router(completions.router)
router.include_router(responses.router)
