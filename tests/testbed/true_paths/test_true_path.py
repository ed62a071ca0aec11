"""True paths on a GPU: nothing mixes the devices, and the host waits for each drawn token alone."""

from __future__ import annotations

from flowedge.core.sampling import SamplingParams
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge_testbed.true_paths.true_path import compute_path
from tests.support.fake_cuda import CUDA, fake_cuda


def test_a_path_is_computed_on_a_gpu() -> None:
    checkpoint = Checkpoint.open("bundled")
    layers, hidden = checkpoint.config.num_hidden_layers, checkpoint.config.hidden_size
    with fake_cuda() as gpu:
        with gpu.load():
            block = LayerBlock.load(checkpoint, 0, layers, device=CUDA)
            head = LMHead.load(checkpoint, device=CUDA)
        path = compute_path(block, head, [1, 2, 3], SamplingParams(), 4, frozenset(), taps=(1, 2))
    assert path.features.shape == (6, 3 * hidden)
    assert len(path.tokens) == 7
    assert gpu.downloads == 4 + 1, "the logits of each token, and the features at the end"
