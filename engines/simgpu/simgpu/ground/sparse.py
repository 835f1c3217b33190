"""Dense parts of a sparse tensor, and their bytes."""

import torch

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is not dense: the usual question, which must be quick."""
    return tensor.layout is not torch.strided


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices and values of a sparse tensor, in one of `LAYOUTS`; of a dense tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout is torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout is torch.sparse_csc:
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, of a sparse one those of its parts."""
    return sum(part.nbytes for part in parts(tensor)) if is_sparse(tensor) else tensor.nbytes


def elements(tensor: torch.Tensor) -> int:
    """Return how many elements a tensor has, of a sparse one those that it stores."""
    return tensor._nnz() if is_sparse(tensor) else tensor.numel()
