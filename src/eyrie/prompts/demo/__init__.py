"""Package data: small prompt sets of Eyrie's own, in the row shapes of three public datasets."""
