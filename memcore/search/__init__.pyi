# Written by scripts/make_faces from __init__.py.
from memcore.search.embedding import Embedding as Embedding
from memcore.search.evaluation import LINE_BYTES_MAX as LINE_BYTES_MAX
from memcore.search.evaluation import Quality as Quality
from memcore.search.evaluation import measure as measure
from memcore.search.evaluation import read_questions as read_questions
from memcore.search.index import Document as Document
from memcore.search.index import DocumentKind as DocumentKind
from memcore.search.index import IndexHead as IndexHead
from memcore.search.index import IndexWriter as IndexWriter
from memcore.search.index import PreparedDocument as PreparedDocument
from memcore.search.index import Watermark as Watermark
from memcore.search.index import check_rows as check_rows
from memcore.search.index import clear_index as clear_index
from memcore.search.index import documents_of as documents_of
from memcore.search.index import drop_index as drop_index
from memcore.search.index import indexed_form as indexed_form
from memcore.search.index import is_absent as is_absent
from memcore.search.index import is_index_error as is_index_error
from memcore.search.index import is_index_row as is_index_row
from memcore.search.index import merge_pending as merge_pending
from memcore.search.index import merge_piece as merge_piece
from memcore.search.index import read_head as read_head
from memcore.search.index import read_watermarks as read_watermarks
from memcore.search.index import remove_documents as remove_documents
from memcore.search.index import remove_index_piece as remove_index_piece
from memcore.search.index import source_of as source_of
from memcore.search.index import unpack_watermark as unpack_watermark
from memcore.search.items import forget_items as forget_items
from memcore.search.items import forget_session as forget_session
from memcore.search.query import EmbeddedQuery as EmbeddedQuery
from memcore.search.query import IndexCache as IndexCache
from memcore.search.query import Match as Match
from memcore.search.query import Query as Query
from memcore.search.query import Ranking as Ranking
from memcore.search.query import checked_query as checked_query
from memcore.search.query import embedded_query as embedded_query
from memcore.search.query import parts_of_score as parts_of_score
from memcore.search.query import rank as rank
from memcore.search.text import ANALYSIS as ANALYSIS
from memcore.search.text import folded as folded
from memcore.search.text import highlights as highlights
from memcore.search.text import month_words as month_words
from memcore.search.text import snippet_of as snippet_of
from memcore.search.vectors import Embedder as Embedder
from memcore.search.vectors import VectorHead as VectorHead
from memcore.search.vectors import Vectors as Vectors
from memcore.search.vectors import checked_embedder as checked_embedder
from memcore.search.vectors import checked_mode as checked_mode
from memcore.search.vectors import cosine as cosine
from memcore.search.vectors import drop_vectors as drop_vectors
from memcore.search.vectors import embed as embed
from memcore.search.vectors import put_vectors as put_vectors
from memcore.search.vectors import read_vector_head as read_vector_head
from memcore.search.wordllama import WordLlama as WordLlama
from memcore.search.wordllama import load_wordllama as load_wordllama

__all__ = [
    "ANALYSIS",
    "LINE_BYTES_MAX",
    "Document",
    "DocumentKind",
    "EmbeddedQuery",
    "Embedder",
    "Embedding",
    "IndexCache",
    "IndexHead",
    "IndexWriter",
    "Match",
    "PreparedDocument",
    "Quality",
    "Query",
    "Ranking",
    "VectorHead",
    "Vectors",
    "Watermark",
    "WordLlama",
    "check_rows",
    "checked_embedder",
    "checked_mode",
    "checked_query",
    "clear_index",
    "cosine",
    "documents_of",
    "drop_index",
    "drop_vectors",
    "embed",
    "embedded_query",
    "folded",
    "forget_items",
    "forget_session",
    "highlights",
    "indexed_form",
    "is_absent",
    "is_index_error",
    "is_index_row",
    "load_wordllama",
    "measure",
    "merge_pending",
    "merge_piece",
    "month_words",
    "parts_of_score",
    "put_vectors",
    "rank",
    "read_head",
    "read_questions",
    "read_vector_head",
    "read_watermarks",
    "remove_documents",
    "remove_index_piece",
    "snippet_of",
    "source_of",
    "unpack_watermark",
]
