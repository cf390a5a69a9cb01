"""Full-text search of a scope: an inverted index in the file, BM25, neighbours.

The index is derived from what it finds: sessions' items, and the documents of other packages. It
holds no text, only hashes of stemmed words under a random key of the scope. It can be dropped at
any time, and is then built anew.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "embedding": "Embedding",
        "evaluation": "LINE_BYTES_MAX Quality measure read_questions",
        "index": (
            "Document DocumentKind IndexHead IndexWriter PreparedDocument Watermark check_rows "
            "clear_index documents_of drop_index indexed_form is_absent is_index_error "
            "is_index_row merge_pending merge_piece read_head read_watermarks remove_documents "
            "remove_index_piece source_of unpack_watermark"
        ),
        "items": "forget_items forget_session",
        "query": (
            "EmbeddedQuery IndexCache Match Query Ranking checked_query embedded_query "
            "parts_of_score rank"
        ),
        "vectors": (
            "Embedder VectorHead Vectors checked_embedder checked_mode cosine drop_vectors embed "
            "put_vectors read_vector_head"
        ),
        "text": "ANALYSIS folded highlights month_words snippet_of",
        "wordllama": "WordLlama load_wordllama",
    },
)
