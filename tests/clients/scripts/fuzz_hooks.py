"""For schemathesis: three of four bodies name the model that is served and ask it something, for few tokens.

The others go as they were made: their models do not exist, and their messages make no conversation.
"""

import os
import zlib

import schemathesis

MESSAGES = [{"role": "user", "content": "What does len do?"}]
ASKED = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_completion_tokens": 3},
    "/v1/completions": {"prompt": "def add(a, b):", "max_tokens": 3},
    "/v1/responses": {"input": "What does len do?", "max_output_tokens": 3},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 3}},
    "/api/generate": {"prompt": "What does len do?", "options": {"num_predict": 3}},
    "/api/show": {},
}


@schemathesis.hook
def map_body(context, body):
    """Return the body that is sent."""
    path = context.operation.path
    if path not in ASKED or not isinstance(body, dict) or zlib.crc32(repr(body).encode()) % 4 == 0:
        return body
    return {**body, "model": os.environ["CLIENT_MODEL"], **ASKED[path]}
