"""From a client's request to tokens and back: fields, answers, log probabilities."""
