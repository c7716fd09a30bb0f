"""FactScore: how many of the atomic facts of a text are supported. The measure, the official files, our own judges."""
