"""Pushing against a server on this machine that answers as the Hub does, or fails as it may."""

import base64
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from t5jax.convert import hub

REPOSITORY = pathlib.Path(__file__).parents[2]
ACCOUNT = {"name": "me", "type": "user", "orgs": [{"name": "lab"}],
           "auth": {"accessToken": {"role": "write"}}}


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers the requests of a push; `server.faults` maps a part of the path to what goes wrong."""

  def log_message(self, *args):
    del args

  def do_GET(self):
    body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
    self.server.requests.append(self.path)
    fault = next((fault for part, fault in self.server.faults.items() if part in self.path), None)
    if fault == "drop":
      self.close_connection = True
      self.connection.close()
    elif fault is not None:
      self._send(fault, {"error": "no"})
    elif self.path == "/api/models/me/x" and not self.server.created:
      self._send(404, {"error": "Repository not found"})
    else:
      self.server.created |= self.path.endswith("/create")
      self._send(200, self._content(body))

  do_POST = do_GET

  def _content(self, body):
    files = self.server.files
    if "whoami" in self.path:
      return self.server.account
    if "/preupload/" in self.path:
      return {"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in json.loads(body)["files"]]}
    if "/commit/" in self.path:
      for entry in map(json.loads, body.splitlines()):
        value = entry["value"]
        if entry["key"] == "file":
          files[value["path"]] = base64.b64decode(value["content"])
        elif entry["key"] == "deletedFile":
          del files[value["path"]]
      return {"commitUrl": f"{self.server.url}/me/x/commit/" + "a" * 40, "commitOid": "a" * 40}
    if "/tree/" in self.path:
      return [{"type": "file", "path": path, "size": len(content), "oid": "a" * 40}
              for path, content in files.items()]
    return {"url": f"{self.server.url}/me/x", "name": "me/x", "id": "me/x", "sha": "a" * 40,
            "siblings": [{"rfilename": path} for path in files]}

  def _send(self, status, content):
    data = json.dumps(content).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)


@pytest.fixture
def server(monkeypatch):
  """A running server with `files`, `requests`, `faults`, `account` and `url`."""
  constants = pytest.importorskip("huggingface_hub.constants")
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
  server.files, server.requests, server.faults, server.account = {}, [], {}, ACCOUNT
  server.created = False
  server.url = f"http://127.0.0.1:{server.server_port}"
  monkeypatch.setattr(constants, "ENDPOINT", server.url)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


@pytest.fixture
def folder(tmp_path):
  """What a push takes for a finished export."""
  for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model",
               "model.safetensors"):
    (tmp_path / name).write_text(f"content of {name}")
  return tmp_path


def push(server, folder, repo_id="me/x", **kwargs):
  return hub.push(folder, repo_id, token="hf_fake", **kwargs)


def test_files_arrive_unchanged_and_again(server, folder):
  expected = {path.name: path.read_bytes() for path in folder.iterdir()}
  for _ in range(2):
    assert push(server, folder).endswith("/commit/" + "a" * 40)
    assert server.files == expected


def test_shards_of_an_earlier_export_are_removed(server, folder):
  server.files["model-00001-of-00002.safetensors"] = b"old"
  server.files["README.md"] = b"theirs"
  push(server, folder)
  assert "model-00001-of-00002.safetensors" not in server.files and "README.md" in server.files


@pytest.mark.parametrize("part", ["whoami", "create", "commit"])
@pytest.mark.parametrize("fault, message", [
    (401, "answered 401: the token is not valid"),
    (403, "answered 403: the token has no write access to me/x"),
    (500, "answered 500: the server failed; nothing is lost"),
    ("drop", "No answer from the Hub .*run the same command again")])
def test_faults_are_one_line(server, folder, monkeypatch, part, fault, message):
  monkeypatch.setattr(time, "sleep", lambda seconds: None)  # huggingface_hub's between its retries.
  server.faults[part] = fault
  with pytest.raises(hub.HubError, match=message) as error:
    push(server, folder)
  assert "\n" not in str(error.value) and not server.files
  server.faults.clear()
  push(server, folder)
  assert server.files


@pytest.mark.parametrize("account, repo_id, message", [
    (ACCOUNT | {"auth": {"accessToken": {"role": "read"}}}, "me/x", "token of me is read-only"),
    (ACCOUNT, "others/x", "me may not write to others/x: the token is good for me, lab"),
])
def test_rights_are_checked_before_anything_is_sent(server, folder, account, repo_id, message):
  server.account = account
  with pytest.raises(hub.HubError, match=message):
    push(server, folder, repo_id)
  assert server.requests == ["/api/whoami-v2"]


def test_unfinished_folders_are_refused(server, folder):
  (folder / "config.json").unlink()
  with pytest.raises(ValueError, match="no finished export: config.json missing"):
    push(server, folder)
  assert not server.requests


def run_tool(folder, **environment):
  return subprocess.run(
      [sys.executable, "-m", "t5jax.tools.push_hub", f"--folder={folder}", "--repo_id=me/x"],
      cwd=REPOSITORY, capture_output=True, text=True, timeout=60,
      env=os.environ | {"HF_HUB_OFFLINE": "0"} | environment)


def test_command_line(server, folder):
  result = run_tool(folder, HF_ENDPOINT=server.url, HF_TOKEN="hf_fake")
  assert result.returncode == 0, result.stderr
  assert "/me/x/commit/" in result.stdout and "config.json" in server.files
  server.faults["whoami"] = 401
  result = run_tool(folder, HF_ENDPOINT=server.url, HF_TOKEN="hf_fake")
  assert result.returncode == 1 and result.stderr.startswith("push_hub: The Hub answered 401")
  assert result.stderr.count("\n") == 1


def test_command_line_without_a_token(server, folder, tmp_path):
  result = run_tool(folder, HF_ENDPOINT=server.url, HF_TOKEN="", HF_HOME=str(tmp_path / "home"))
  assert result.returncode == 1 and result.stderr.startswith("push_hub: No token: ")
