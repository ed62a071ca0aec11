"""SpecPipe's lossy verification (specpipe, 3.4). No strategy has it: its answers are not the target's."""
