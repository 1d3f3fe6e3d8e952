"""From a row of logits to a token: parameters, processors, random numbers, sampling and stop conditions."""
