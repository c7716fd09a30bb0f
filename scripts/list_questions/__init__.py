"""Questions whose answer is a list of entities, made from the first sentences of encyclopaedic passages."""
