"""The routes of Ollama's endpoints."""

from __future__ import annotations

from fastapi import APIRouter

from flowedge.serving.ollama import answers, models

router = APIRouter()
router.include_router(answers.router)
router.include_router(models.router)
