"""The durable store of every answer and every cent: one SQLite file shared by all generate jobs and runs."""

from eyrie.vault.reader import Reader
from eyrie.vault.records import Admission, Answer, Decision, Identity, Limits, Usage, Wanted, Word
from eyrie.vault.vault import Vault

__all__ = [
    "Admission",
    "Answer",
    "Decision",
    "Identity",
    "Limits",
    "Reader",
    "Usage",
    "Vault",
    "Wanted",
    "Word",
]
