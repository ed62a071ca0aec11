"""aiperf's profiles of chats and completions, with streams: no request fails."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REQUESTS, TOKENS = 6, 12

for kind in ("chat", "completions"):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "aiperf", "profile", "--ui", "none", "--artifact-dir", folder),
                *("--model", os.environ["CLIENT_MODEL"], "--url", os.environ["CLIENT_URL"]),
                *("--tokenizer", os.environ["CLIENT_TOKENIZER"]),
                *("--endpoint-type", kind, "--streaming"),
                *("--request-count", str(REQUESTS), "--concurrency", "2"),
                *("--isl", "40", "--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true"),
            ],
            check=True,
            timeout=200,
            cwd=folder,
        )
        (file,) = Path(folder).rglob("profile_export_aiperf.json")
        report = json.loads(file.read_text())
    assert report["error_summary"] == [], report["error_summary"]
    assert report["request_count"]["avg"] == REQUESTS
    assert report["usage_completion_tokens"]["min"] == TOKENS == report["usage_completion_tokens"]["max"]
    assert report["time_to_first_token"]["min"] > 0
