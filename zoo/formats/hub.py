"""Upload folders to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, ZooError
from zoo.packages import explain_imports


def check_token(repository: str) -> None:
    """Check that a folder could be uploaded, before it is written.

    Raises:
        RecipeError: There is no token, or the name is not that of a repository.
    """
    with explain_imports():
        from huggingface_hub import get_token

    problem = ""
    if not _is_repository(repository):
        problem, remedy = f"{repository!r} is not a repository", "write owner/name"
    elif get_token() is None:
        problem, remedy = "found no token for the Hub", "run hf auth login, or set HF_TOKEN"
    if problem:
        raise RecipeError(ConfigIssue(ARGUMENT, "push", problem, remedy))


def _is_repository(name: str) -> bool:
    """Return whether a name has the form owner/name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name


def push_folder(folder: Path, repository: str) -> str:
    """Upload a folder to a new repository and return its address.

    Raises:
        ZooError: The repository exists, or the upload fails; the folder is unchanged.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repository)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:
        # of the library, or of what it uploads with
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        problem = f"was written, but not uploaded to {repository}: {cause}"
        remedy = f"try again: hf upload {repository} {folder}"
        raise ZooError(f"{folder} {problem}; {remedy}") from None
    return str(address)
