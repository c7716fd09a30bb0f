"""Wire dialects of the public adapter families, such as `registry.codec("granite-3.2", "answerability")`; pure."""
