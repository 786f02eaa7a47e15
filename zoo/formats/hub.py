"""Upload folders to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, ZooError
from zoo.packages import explain_imports


def check_token() -> None:
    """Raise RecipeError where there is no token to upload a folder with, before it is written."""
    with explain_imports():
        from huggingface_hub import get_token

    if get_token() is None:
        message, hint = "found no token for the Hub", "run hf auth login, or set HF_TOKEN"
        raise RecipeError(ConfigIssue(ARGUMENT, "push", message, hint))


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
        message = f"was written, but not uploaded to {repository}: {cause}"
        hint = f"try again: hf upload {repository} {folder}"
        raise ZooError(f"{folder} {message}; {hint}") from None
    return str(address)
