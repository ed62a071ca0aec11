"""Ollama's endpoints, so that its clients connect: models, chat and generate."""

from __future__ import annotations

from fastapi import APIRouter

from flowedge.gateway.ollama import answers, models

router = APIRouter()
router.include_router(answers.router)
router.include_router(models.router)
