"""Wire dialects of the public adapter families: bytes out, judgments in. Everything here is pure.

    from selfrag.intrinsics.dialects.registry import codec
    codec("granite-3.2", "answerability").encode(state)

`registry` names them; `completion` serves Granite 3.2 and 3.3, whose prompts the client renders, `chat` granite-common,
mellea and any adapter that comes with an `io.yaml`.
"""
