"""Which endpoints serve the target, and which of them may answer: listing -> policy -> providers.json."""
