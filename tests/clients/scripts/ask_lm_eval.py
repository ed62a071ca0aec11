"""lm-eval's API models: what they score and generate is printed; the test holds that against the model."""

import json
import os
import tempfile
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask

URL = os.environ["CLIENT_URL"]
CASES = json.loads(os.environ["CLIENT_CASES"])


def evaluate(model: str, path: str, task: ConfigurableTask, **options: object) -> list[dict]:
    """Return the samples of a task that one of lm-eval's models has answered."""
    given = {
        "base_url": URL + path,
        "model": os.environ["CLIENT_MODEL"],
        "tokenizer": os.environ["CLIENT_TOKENIZER"],
        "num_concurrent": 2,
        "max_retries": 1,
    }
    found = simple_evaluate(model, model_args={**given, **options}, tasks=[task], bootstrap_iters=0)
    return found["samples"][task.config.task]


with tempfile.TemporaryDirectory() as folder:
    data = Path(folder, "cases.jsonl")
    data.write_text("".join(json.dumps(case) + "\n" for case in CASES))

    def task(name: str, kind: str, **more: object) -> ConfigurableTask:
        """Return a task over the cases."""
        common = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "output_type": kind,
            "doc_to_text": "{{context}}",
            "target_delimiter": "",
            "metadata": {"version": 1},
        }
        return ConfigurableTask(config={**common, **more})

    scored = task(
        "continuations", "multiple_choice", doc_to_choice="{{choices}}", doc_to_target="{{choices[0]}}"
    )
    stops = {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False, "temperature": 0}
    generated = task(
        "generations",
        "generate_until",
        doc_to_target="{{choices[0]}}",
        generation_kwargs=stops,
        metric_list=[{"metric": "exact_match"}],
    )
    chatted = task(
        "chats",
        "generate_until",
        doc_to_target="{{choices[0]}}",
        generation_kwargs=stops,
        metric_list=[{"metric": "exact_match"}],
    )
    likelihoods = evaluate("local-completions", "/v1/completions", scored)
    texts = evaluate("local-completions", "/v1/completions", generated)
    chats = simple_evaluate(
        "local-chat-completions",
        model_args={"base_url": URL + "/v1/chat/completions", "model": os.environ["CLIENT_MODEL"]},
        tasks=[chatted],
        apply_chat_template=True,
        bootstrap_iters=0,
    )["samples"]["chats"]

print(
    json.dumps(
        {
            "likelihoods": [[each[0] for each in sample["resps"]] for sample in likelihoods],
            "texts": [sample["resps"][0][0] for sample in texts],
            "chats": [sample["resps"][0][0] for sample in chats],
        }
    )
)
