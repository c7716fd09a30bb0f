"""Training rows of the demo model, made from openly licensed questions, claims, instructions and critic labels."""
