"""The instructions of Table 5 (arXiv 2310.11511), as they are printed."""

CLAIM = (
    "Is the following statement correct or not? Say true if it's correct; otherwise, say false. Don't capitalize or add"
    ' periods, just say "true" or "false".'
)
CHOOSE = (
    "Given four answer candidates, A, B, C and D, choose the best answer choice. Please answer with the capitalized"
    " alphabet only, without adding any extra phrase or period."
)
CITE = (
    "Instruction: Write an accurate, engaging, and concise answer for the given question using only the provided search"
    " results (some of which might be irrelevant) and cite them properly. Use an unbiased and journalistic tone. Always"
    " cite for any factual claim. When citing several search results, use [1][2][3]. Cite at least one document and at"
    " most three documents in each sentence. If multiple documents support the sentence, only cite a minimum sufficient"
    " subset of the documents."
)
