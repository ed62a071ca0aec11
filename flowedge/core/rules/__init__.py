"""Rules of an answer that depend on the tokens so far: penalties, biases, a grammar, log-probabilities."""
