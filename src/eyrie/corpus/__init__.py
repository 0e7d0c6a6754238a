"""The corpus stage: merge token shards into what trains, what is held out, and the draft vocabulary.

The files that it writes are read through `eyrie.shards.corpus`.
"""

from eyrie.shards.corpus import Corpus, CorpusRow, Vocabulary, read_corpus

__all__ = ["Corpus", "CorpusRow", "Vocabulary", "read_corpus"]
