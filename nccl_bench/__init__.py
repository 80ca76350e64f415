"""nccl-bench: how fast the collectives of a GPU cluster are, how fast they could be, and who is to blame."""

__version__ = "0.1.0"
