"""The routes of OpenAI's endpoints."""

from __future__ import annotations

from fastapi import APIRouter

from flowedge.serving.openai import chat, completions
from flowedge.serving.openai.responses import endpoint as responses

router = APIRouter()
router.include_router(chat.router)
router.include_router(completions.router)
router.include_router(responses.router)
