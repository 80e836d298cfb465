"""Files of a dataset on the Hugging Face hub as TextFiles, fetched one by one as they are read."""

import fnmatch
import functools

from t5jax.data.text_files import DataError, TextFiles

_TIMEOUT_SECONDS = 5
_SCHEME = "hf://datasets/"


def hub_files(repo_id, patterns, *, revision=None, **options):
  """Lists files of a dataset; none is downloaded yet.

  The paths name the commit that the revision stands for now. A run that is resumed after the
  dataset has changed is therefore told so, and goes on if `revision` is set to that commit.

  Args:
    repo_id: "owner/name" of the dataset.
    patterns: glob patterns of files in the repository, such as "da/*.parquet", or one of them; "*"
      stands for "/" as well.
    revision: branch, tag or commit; None for the main branch.
    **options: of TextFiles.

  Returns:
    TextFiles.

  Raises:
    DataError: the hub cannot be reached within a few seconds, or has no such dataset or files.
  """
  from huggingface_hub import constants

  patterns = [patterns] if isinstance(patterns, str) else list(patterns)
  commit, names = _list(constants.ENDPOINT, repo_id, revision)
  found = [name for name in names if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
  if not found:
    folders = sorted({name.rpartition("/")[0] for name in names} - {""})
    raise DataError(f"{repo_id}: has no files {' or '.join(patterns)}; its folders are "
                    f"{', '.join(folders[:20]) or 'none'}.")
  return TextFiles(tuple(f"{_SCHEME}{repo_id}@{commit}/{name}" for name in found), fetch=fetch,
                   **options)


@functools.lru_cache(16)
def _list(endpoint, repo_id, revision):
  """Asks the hub once for (commit, sorted names of its files): all splits are of one commit."""
  del endpoint  # Only tells one hub from another.
  import huggingface_hub

  try:
    info = huggingface_hub.HfApi().repo_info(repo_id, repo_type="dataset", revision=revision,
                                             timeout=_TIMEOUT_SECONDS)
  except Exception as error:  # Whatever the reason: offline mode, no network, gated, no such one.
    raise DataError(f"{repo_id}: {_explain(error)}") from error
  return info.sha, sorted(sibling.rfilename for sibling in info.siblings)


def fetch(url):
  """Downloads one of the files that `hub_files` lists, unless the hub's cache has it.

  Args:
    url: "hf://datasets/owner/name@commit/path".

  Returns:
    Path of the file on this machine.

  Raises:
    DataError: it cannot be fetched.
  """
  import huggingface_hub

  repo_id, _, rest = url.removeprefix(_SCHEME).partition("@")
  commit, _, name = rest.partition("/")
  try:
    return huggingface_hub.hf_hub_download(repo_id, name, repo_type="dataset", revision=commit)
  except Exception as error:
    raise DataError(f"{url}: cannot be fetched: {_explain(error)}") from error


def _explain(error):
  """One line, with what to do about it."""
  from huggingface_hub import errors

  message = " ".join(str(error).split())[:300]
  if isinstance(error, errors.GatedRepoError):
    return ("is gated: accept its terms on huggingface.co, and log in with `hf auth login` or set "
            f"HF_TOKEN ({message})")
  if isinstance(error, errors.RepositoryNotFoundError):
    return f"there is no such dataset, or it needs HF_TOKEN ({message})"
  if isinstance(error, errors.EntryNotFoundError):
    return f"there is no such file ({message})"
  if isinstance(error, errors.RevisionNotFoundError):
    return f"has no such revision ({message})"
  return f"huggingface.co cannot be reached (is HF_HUB_OFFLINE set?): {message}"
