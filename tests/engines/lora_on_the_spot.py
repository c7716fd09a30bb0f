"""LoRA adapters built on the spot for the tiny models."""


def save_adapter(model_dir, path, *, seed=0, **settings):
    """Save a PEFT adapter with random weights for a tiny Llama; returns `path`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    settings = {
        "r": 4,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj", "gate_proj", "down_proj"],
        **settings,
    }
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(
            base, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
        )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(0.3)
    model.save_pretrained(path)
    return path
