"""Judges: all that implement `selfrag.reflection.judge.Judge`, and what is done with any of them.

| module | who judges |
|---|---|
| `tokens`, `learned` | the model's own reflection tokens, also with words in common or a calibrator |
| `prompted` | a prompt or a LoRA adapter, on an engine (`engine`) or an OpenAI-compatible server (`endpoint`) |
| `entailment` | a model of entailment |
| `critiques` | words in common |
| `external` | any Python function, a judge on another engine |

`asking` asks one by itself or ranks passages by it. `selfrag.intrinsics.named` finds them by name.
"""
