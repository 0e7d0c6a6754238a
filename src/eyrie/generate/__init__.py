"""Have the target answer a dataset's prompts: buy what the vault lacks, derive the output from what it holds."""
