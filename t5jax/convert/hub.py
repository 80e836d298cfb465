"""Pushing an exported folder to the Hugging Face Hub. Imports huggingface_hub inside functions."""

import pathlib

_REQUIRED = ("config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model")
# Deleted in the repository if the folder lacks them: shards of an earlier export would be loaded.
_WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]

_ADVICE = {
    401: "the token is not valid; make one with write access at "
         "https://huggingface.co/settings/tokens and set HF_TOKEN, or run `hf auth login`",
    403: "the token has no write access to {repo_id}",
    404: "{repo_id} does not exist, or the token may not see it",
    429: "too many requests; wait some minutes and run the same command again",
}
_SERVER_FAULT = "the server failed; nothing is lost, run the same command again"


class HubError(RuntimeError):
  """A push that did not succeed; one line with the cause and what to do."""


def push(folder, repo_id, private=False, token=None, message="Upload model"):
  """Uploads `folder` as the content of the model repository `repo_id`, made if need be.

  All files become one commit, so the repository never holds half an upload, and a push can be
  repeated: what is already there is not sent again.

  The server is https://huggingface.co, or what HF_ENDPOINT names when this program starts.

  Args:
    folder: what hf.export wrote.
    repo_id: "name/model" or "organisation/model".
    private: whether a new repository is private.
    token: None is HF_TOKEN or that of `hf auth login`.
    message: of the commit.

  Returns:
    The commit's URL.

  Raises:
    ValueError: `folder` is no finished export.
    HubError: no or a wrong token, no right to write, a failing server or connection.
  """
  from huggingface_hub import HfApi
  from huggingface_hub.errors import HTTPError, HFValidationError, LocalTokenNotFoundError

  _check_folder(pathlib.Path(folder))
  api = HfApi(token=token)
  try:
    _check_rights(api.whoami(), repo_id)
    api.create_repo(repo_id, private=private, exist_ok=True)
    commit = api.upload_folder(
        repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns=_WEIGHTS)
  except LocalTokenNotFoundError:
    raise HubError(f"No token: {_ADVICE[401].partition('; ')[2]}.") from None
  except (HTTPError, HFValidationError, OSError) as error:
    raise HubError(_explain(error, repo_id)) from error
  return commit.commit_url


def _check_folder(folder):
  missing = [name for name in _REQUIRED if not (folder / name).is_file()]
  if not any(folder.glob("*.safetensors")):
    missing.append("*.safetensors")
  if missing:
    raise ValueError(f"{folder} is no finished export: {', '.join(missing)} missing. "
                     "Write it with tools/convert_hf.py.")


def _check_rights(account, repo_id):
  """Refuses before anything is sent what the account is known not to be allowed.

  Fine-grained tokens are left to the server: their rights may name single repositories.
  """
  owner, slash, _ = repo_id.partition("/")
  owners = [account["name"], *(org["name"] for org in account.get("orgs", []))]
  if slash and owner not in owners:
    raise HubError(f"{account['name']} may not write to {repo_id}: the token is good for "
                   f"{', '.join(owners)}.")
  if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
    raise HubError(f"The token of {account['name']} is read-only: make one with write access at "
                   "https://huggingface.co/settings/tokens.")


def _explain(error, repo_id):
  status = getattr(getattr(error, "response", None), "status_code", None)
  if status is None:
    cause = " ".join(str(error).split()) or type(error).__name__
    return f"No answer from the Hub ({cause}): nothing is lost, run the same command again."
  advice = _ADVICE.get(status, _SERVER_FAULT if status >= 500 else " ".join(str(error).split()))
  return f"The Hub answered {status}: {advice.format(repo_id=repo_id)}."
