"""What users do not import: `benchmarks`, `reproduction` of the paper, the making of the `demo_model`, and `tools`.

Scripts are run from a checkout in which `scripts/tools/setup_env.py` has made the environment.
"""
