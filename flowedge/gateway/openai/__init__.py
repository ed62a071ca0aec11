"""OpenAI's endpoints: chat completions, completions and responses."""

from __future__ import annotations

from fastapi import APIRouter

from flowedge.gateway.openai import chat, completions, responses

router = APIRouter()
router.include_router(chat.router)
router.include_router(completions.router)
router.include_router(responses.router)
