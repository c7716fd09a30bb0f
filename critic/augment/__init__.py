"""Writing reflection tokens into input-output pairs (D_gen; arXiv 2310.11511, Algorithm 3)."""
