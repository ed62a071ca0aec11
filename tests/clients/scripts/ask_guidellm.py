"""guidellm's default run, which streams: no request fails, and all tokens that were asked for come."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REQUESTS, PROMPT_TOKENS, TOKENS = 8, 40, 12

with tempfile.TemporaryDirectory() as folder:
    report = Path(folder, "report.json")
    subprocess.run(
        [
            *(sys.executable, "-m", "guidellm", "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={os.environ['CLIENT_URL']}"),
            *("--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--tokenizer", f"kind=huggingface_auto,model={os.environ['CLIENT_TOKENIZER']}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"),
            *("--output", f"kind=json,path={report}"),
        ],
        check=True,
        timeout=200,
        cwd=folder,
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]

totals = benchmark["metrics"]["request_totals"]
errors = [request["info"]["error"] for request in benchmark["requests"]["errored"]]
assert totals["errored"] == totals["incomplete"] == 0, errors[:1]
assert totals["successful"] == REQUESTS
for request in benchmark["requests"]["successful"]:
    assert request["output"]
    assert request["output_metrics"]["text_tokens"] == TOKENS
    assert request["time_to_first_token_ms"] > 0
