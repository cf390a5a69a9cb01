"""Import of histories from other stores: readers by kind, and the loader of what they yield."""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "loader": "ImportReport checked_conflict load",
        "readers": "KINDS Reading read",
        "source": (
            "SourceBranch SourceConversation SourceFailure SourceItem SourceMemory SourceState "
            "SourceSummary SourceThread"
        ),
    },
)
